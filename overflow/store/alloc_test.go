package store

import (
	"slices"
	"testing"

	"github.com/kvlend/kvlend/prefix"
	"pgregory.net/rapid"
)

func TestAllocatorAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		run := rapid.IntRange(1, MaxRun).Draw(t, "run")
		segments := rapid.IntRange(1, 8).Draw(t, "segments")
		a := newAllocator(segments, run)
		taken := map[Slot]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.IntRange(0, 2*run+3).Draw(t, "n")
				best := longestFree(taken, segments, run)
				got := a.alloc(nil, n)
				if want := min(n, segments*run-len(taken)); len(got) != want {
					t.Fatalf("alloc(%d) gave %d slots, want %d", n, len(got), want)
				}
				for _, s := range got {
					if taken[s] || int(s) >= segments*run {
						t.Fatalf("slot %d was given out twice, or does not exist", s)
					}
					taken[s] = true
				}
				// The first run is as long as any there was.
				first := 1
				for first < len(got) && got[first] == got[first-1]+1 && int(got[first])%run != 0 {
					first++
				}
				if len(got) > 0 && first < min(n, best) {
					t.Fatalf("alloc(%d) began with a run of %d, there was one of %d", n, first, best)
				}
			},
			"near": func(t *rapid.T) {
				n := rapid.IntRange(0, 2*run+3).Draw(t, "n")
				after := Slot(rapid.IntRange(0, segments*run-1).Draw(t, "after"))
				known := rapid.Bool().Draw(t, "known")
				whole := longestFree(taken, segments, run) == run
				follows := known && int(after+1)%run != 0 && !taken[after+1]
				got := a.allocNear(nil, n, after, known)
				if want := min(n, segments*run-len(taken)); len(got) != want {
					t.Fatalf("allocNear(%d) gave %d slots, want %d", n, len(got), want)
				}
				if len(got) > 0 && follows && got[0] != after+1 {
					t.Fatalf("slot %d, want the one behind %d, which is free", got[0], after)
				}
				if len(got) > 0 && !follows && whole && int(got[0])%run != 0 {
					t.Fatalf("slot %d does not begin a segment, and one was free", got[0])
				}
				for _, s := range got {
					if taken[s] || int(s) >= segments*run {
						t.Fatalf("slot %d was given out twice, or does not exist", s)
					}
					taken[s] = true
				}
			},
			"release": func(t *rapid.T) {
				if len(taken) == 0 {
					t.Skip()
				}
				s := rapid.SampledFrom(sorted(taken)).Draw(t, "slot")
				a.release(s)
				delete(taken, s)
			},
			"take": func(t *rapid.T) {
				s := Slot(rapid.IntRange(0, segments*run-1).Draw(t, "slot"))
				if a.isFree(s) {
					a.take(s)
					taken[s] = true
				}
			},
			"": func(t *rapid.T) {
				var r Report
				a.check(&r)
				if len(r.Problems) > 0 {
					t.Fatal(r.Problems)
				}
				if a.n != segments*run-len(taken) {
					t.Fatalf("%d free, want %d", a.n, segments*run-len(taken))
				}
				for s := range Slot(segments * run) {
					if a.isFree(s) == taken[s] {
						t.Fatalf("slot %d: free %v, taken %v", s, a.isFree(s), taken[s])
					}
				}
			},
		})
	})
}

func sorted(m map[Slot]bool) []Slot {
	var out []Slot
	for s := range m {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

// longestFree is the length of the longest run of free slots in a segment.
func longestFree(taken map[Slot]bool, segments, run int) int {
	best := 0
	for seg := range segments {
		n := 0
		for i := range run {
			n++
			if taken[Slot(seg*run+i)] {
				n = 0
			}
			best = max(best, n)
		}
	}
	return best
}

func TestSmallAllocationsFillASegmentBeforeTheNext(t *testing.T) {
	a := newAllocator(4, 8)
	var got []Slot
	for _, n := range []int{3, 2, 3} {
		got = a.alloc(got, n)
	}
	if want := []Slot{0, 1, 2, 3, 4, 5, 6, 7}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := a.alloc(nil, 10); !slices.Equal(got[:8], []Slot{8, 9, 10, 11, 12, 13, 14, 15}) || len(got) != 10 {
		t.Errorf("got %v", got)
	}
}

func TestTableAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := make([]prefix.Key, 12)
		for i := range keys {
			// Few places: chains that wrap around.
			keys[i] = prefix.Key{Hi: uint64(rapid.IntRange(0, 3).Draw(t, "hi")), Lo: uint64(i)}
		}
		tab := newTable(len(keys), func(s Slot) prefix.Key { return keys[s] })
		in := map[Slot]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"toggle": func(t *rapid.T) {
				s := Slot(rapid.IntRange(0, len(keys)-1).Draw(t, "slot"))
				if in[s] {
					tab.remove(keys[s], s)
				} else {
					tab.insert(keys[s], s)
				}
				in[s] = !in[s]
			},
			"": func(t *rapid.T) {
				n := 0
				for s := range Slot(len(keys)) {
					at, ok := tab.find(keys[s])
					if ok != in[s] || ok && at != s {
						t.Fatalf("slot %d: found in %d (%v), want %v", s, at, ok, in[s])
					}
					if ok {
						n++
					}
				}
				if n != tab.n {
					t.Fatalf("%d keys, the table counts %d", n, tab.n)
				}
			},
		})
	})
}

// TestChainsHaveSegments: what takes turns does not lie mixed.
func TestChainsHaveSegments(t *testing.T) {
	a := newAllocator(4, 8)
	var last [2][]Slot
	for range 4 {
		for i := range last {
			known, after := len(last[i]) > 0, Slot(0)
			if known {
				after = last[i][len(last[i])-1]
			}
			last[i] = a.allocNear(last[i], 3, after, known)
		}
	}
	want := [2][]Slot{{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19}, {8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27}}
	for i := range last {
		if !slices.Equal(last[i], want[i]) {
			t.Errorf("chain %d: %v, want %v", i, last[i], want[i])
		}
	}
}
