package admission

import (
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvlend/kvlend/prefix"
)

func doorkeeper(t interface{ Fatal(...any) }, after, window int) *Doorkeeper {
	d, err := NewDoorkeeper(DoorkeeperOptions{After: after, Window: window})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// key is the i-th of many keys as blocks have them.
func key(i int) prefix.Key { return prefix.Key{Hi: 1, Lo: 2}.Next([]int32{int32(i), int32(i >> 31)}) }

func TestAdmitAfter(t *testing.T) {
	for after := 1; after <= MaxAfter; after++ {
		d := doorkeeper(t, after, 1000)
		for use := 1; use <= MaxAfter+4; use++ {
			if got, want := d.Admit(key(1)), use >= after; got != want {
				t.Errorf("after %d, use %d: %v", after, use, got)
			}
			if want := min(use, MaxAfter); after > 1 && d.Seen(key(1)) != want {
				t.Errorf("use %d: seen %d times", use, d.Seen(key(1)))
			}
		}
		if got := d.Admit(key(2)); got != (after == 1) {
			t.Errorf("after %d, another block's first use: %v", after, got)
		}
	}
	if d := doorkeeper(t, 1, 1000); d.Bytes() != 0 || d.Seen(key(1)) != 0 {
		t.Errorf("admitting at once takes %d bytes", d.Bytes())
	}
}

func TestSeenCountsNothing(t *testing.T) {
	d := doorkeeper(t, 2, 100)
	for range 10 {
		if n := d.Seen(key(1)); n != 0 {
			t.Fatalf("seen %d times", n)
		}
	}
	if d.Admit(key(1)) || !d.Admit(key(1)) {
		t.Error("the second use is not the one that admits")
	}
}

func TestAging(t *testing.T) {
	const window = 64
	d := doorkeeper(t, 2, window)
	for range 9 { // 1 in the filter, 8 in the sketch
		d.Admit(key(1))
	}
	d.Admit(key(2))
	for d.uses < window {
		d.Admit(key(3))
	}
	if d.Agings() != 0 || d.Seen(key(1)) != 9 || d.Seen(key(2)) != 1 || d.Seen(key(3)) != MaxAfter {
		t.Fatalf("before: %d, %d, %d", d.Seen(key(1)), d.Seen(key(2)), d.Seen(key(3)))
	}
	d.Admit(key(4))
	for i, want := range []int{0, 4, 0, 7, 1} {
		if got := d.Seen(key(i)); got != want {
			t.Errorf("after: key %d seen %d times, want %d", i, got, want)
		}
	}
	if d.Agings() != 1 {
		t.Errorf("%d agings", d.Agings())
	}
	for range 5 * window {
		d.Admit(key(5))
	}
	if d.Seen(key(1)) != 0 || d.Agings() != 6 {
		t.Errorf("long after: seen %d times, %d agings", d.Seen(key(1)), d.Agings())
	}
}

// Against exact counts with the same aging: never too few, however crowded.
func TestPropertyNeverTooFew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.IntRange(1, 400).Draw(t, "window")
		after := rapid.IntRange(2, MaxAfter).Draw(t, "after")
		keys := rapid.IntRange(1, 600).Draw(t, "keys")
		// Half of a count belongs to the filter's one, which aging takes whole.
		counts, once := map[int]int{}, map[int]int{}
		d := doorkeeper(t, after, window)
		for i, k := range rapid.SliceOfN(rapid.IntRange(0, keys-1), 1, 1500).Draw(t, "uses") {
			if i > 0 && i%window == 0 {
				clear(once)
				for k := range counts {
					counts[k] /= 2
				}
			}
			if once[k] == 0 {
				once[k] = 1
			} else {
				counts[k] = min(counts[k]+1, maxCount)
			}
			admitted := d.Admit(key(k))
			n := counts[k] + once[k]
			if got := d.Seen(key(k)); got < n || got > MaxAfter {
				t.Fatalf("use %d of key %d: seen %d times, really %d", i, k, got, n)
			}
			if n >= after && !admitted {
				t.Fatalf("use %d of key %d: refused after %d uses", i, k, n)
			}
		}
	})
}

// Blocks that nobody uses again: how many get in all the same, with the filter
// filling up from empty to full.
func TestOneTimersStayOut(t *testing.T) {
	const window = 1 << 16
	d := doorkeeper(t, 2, window)
	in := 0
	for i := range window {
		if d.Admit(key(i)) {
			in++
		}
	}
	share := float64(in) / window
	t.Logf("%.2f %% of blocks used once are admitted, %d bytes for %d uses", 100*share, d.Bytes(), window)
	if share > 0.01 {
		t.Errorf("%.2f %% are admitted", 100*share)
	}
	if d.Bytes() != 3*window {
		t.Errorf("%d bytes", d.Bytes())
	}
}

// Blocks used exactly twice are not taken for ones used more often.
func TestSketchIsNearlyExact(t *testing.T) {
	const window = 1 << 16
	d := doorkeeper(t, 3, window)
	in := 0
	for range 2 {
		for i := range window / 2 {
			if d.Admit(key(i)) {
				in++
			}
		}
	}
	share := float64(in) / window
	t.Logf("%.2f %% of uses are admitted that are none's third", 100*share)
	if share > 0.01 {
		t.Errorf("%.2f %% are admitted", 100*share)
	}
}

// Counters that are full stay so when those beside them are raised.
func TestFullCountersStayFull(t *testing.T) {
	const hot, cold = 40, 300
	d := doorkeeper(t, 2, 2048)
	for i := range hot * 20 {
		d.Admit(key(i % hot))
	}
	for i := range cold * 4 {
		d.Admit(key(hot + i%cold))
	}
	for i := range hot {
		if got := d.Seen(key(i)); got != MaxAfter {
			t.Errorf("hot key %d seen %d times", i, got)
		}
	}
	if d.Agings() != 0 {
		t.Error("the counts have aged: the test says nothing")
	}
}

// Halving leaves the low bit of one counter out of the next.
func TestAgingOfNeighbours(t *testing.T) {
	d := doorkeeper(t, 2, 64)
	for i := range d.counts {
		d.counts[i] = 0xf731_fedc_ba98_7654
	}
	d.age()
	for i, w := range d.counts {
		if w != 0x7310_7766_5544_3322 {
			t.Fatalf("word %d is %x", i, w)
		}
	}
}

// What it is for: requests whose prefixes are popular as words are, half of the
// blocks beyond them never seen again. It saves writes and hardly a hit.
func TestSavesWrites(t *testing.T) {
	const popular, uses = 20000, 400000
	type outcome struct{ writes, hits int }
	run := func(after int) (o outcome) {
		d := doorkeeper(t, after, 1<<17)
		rng := rand.New(rand.NewPCG(3, 4))
		zipf := rand.NewZipf(rng, 1.1, 10, popular-1)
		written := map[int]bool{}
		for i := range uses {
			k := int(zipf.Uint64())
			if rng.IntN(2) == 0 {
				k = popular + i
			}
			admit := d.Admit(key(k))
			if written[k] {
				o.hits++
			} else if admit {
				written[k] = true
				o.writes++
			}
		}
		return o
	}
	all, second := run(1), run(2)
	writes, hits := float64(second.writes)/float64(all.writes), float64(second.hits)/float64(all.hits)
	t.Logf("admitting at the second use: %.3f of the writes, %.3f of the hits", writes, hits)
	if writes > 0.06 || hits < 0.9 {
		t.Errorf("%.3f of the writes, %.3f of the hits", writes, hits)
	}
}

func TestDoorkeeperOptions(t *testing.T) {
	for _, c := range []struct {
		after, window int
		want          string
	}{
		{0, 1, "admit_after: 0: must be in [1, 16]"},
		{17, 1, "admit_after: 17: must be in [1, 16]"},
		{2, 0, "admission window: 0 uses: must be in [1, 1073741824]"},
		{2, 1<<30 + 1, "admission window: 1073741825 uses: must be in"},
	} {
		d, err := NewDoorkeeper(DoorkeeperOptions{After: c.after, Window: c.window})
		if d != nil || err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%d, %d: %v, want %q", c.after, c.window, err, c.want)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	d := doorkeeper(t, 2, 100)
	b := budget(t, BudgetOptions{PerDay: 1e12})
	c := Cost{Bytes: 1 << 16, Classes: []Class{{Rate: 1e9}}}
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		i++
		d.Admit(key(i))
		d.Seen(key(i))
		b.Take(1 << 16)
		b.Usage()
		c.PerByte(0, i)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
