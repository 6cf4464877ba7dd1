package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kvlend/kvlend/overflow/store/simdev"
	"github.com/kvlend/kvlend/prefix"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWhatIsFlushedIsThereAfterReopening(t *testing.T) {
	ctx := context.Background()
	dev := formatted(t, small())
	s, r := open(t, dev, small())
	if r.Entries != 0 || r.Pages != 0 {
		t.Fatalf("an empty store recovers %+v", r)
	}
	for n := uint64(1); n <= 20; n++ {
		store(t, dev, s, n)
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	s.Free([]Slot{3})
	slot := store(t, dev, s, 100)
	if slot != 3 {
		t.Errorf("block went to slot %d, not to the one that was freed", slot)
	}
	s.Free([]Slot{7})
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}

	s, r = open(t, dev, small())
	if r.Entries != 19 || r.Superseded != 2 || r.Tombstones != 1 || r.Torn+r.Holes+r.Dropped != 0 {
		t.Errorf("recovered %+v", r)
	}
	rep := checked(t, s, true)
	if rep.Verified != 19 || len(rep.Bad) != 0 || rep.Live != 19 || rep.Free != 21 {
		t.Errorf("check: %+v", rep)
	}
	for n := uint64(1); n <= 20; n++ {
		want, _ := block(s.Geometry(), Slot(n-1), n)
		got, ok := s.Lookup(want.Key)
		if n == 4 || n == 8 {
			if ok {
				t.Errorf("block %d was freed and is there", n)
			}
			continue
		}
		if d := cmp.Diff(want, got); !ok || d != "" {
			t.Errorf("block %d (%v): %s", n, ok, d)
		}
	}
}

func TestCommitRefuses(t *testing.T) {
	dev := formatted(t, small())
	s, _ := open(t, dev, small())
	store(t, dev, s, 1)
	slots := s.Alloc(nil, 2)
	for _, c := range []struct {
		change func(*Entry)
		want   string
	}{
		{func(e *Entry) { e.Tokens = e.Tokens[:2] }, "Tokens has 2 elements, must have 3"},
		{func(e *Entry) { e.Sums = nil }, "Sums has 0 elements, must have 2"},
		{func(e *Entry) { e.Key = prefix.Key{} }, "Key is zero"},
		{func(e *Entry) { e.Slot = 40 }, "Slot is 40, must be below 40"},
		{func(e *Entry) { e.Slot = 20 }, "Slot 20 was not allocated"},
		{func(e *Entry) { e.Slot = 0 }, "Slot 0 was not allocated, or has been committed"},
		{func(e *Entry) { e.Key = prefix.Key{Hi: 1, Lo: 3} }, "is in slot 0 already"},
	} {
		e, _ := block(s.Geometry(), slots[0], 2)
		c.change(&e)
		if _, err := s.Commit(&e); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	if st := s.Stats(); st.Live != 1 || st.Reserved != 2 || st.Commits != 1 {
		t.Errorf("%+v", st)
	}
	checked(t, s, false)
}

func TestFreeingTwiceIsABug(t *testing.T) {
	s, _ := open(t, formatted(t, small()), small())
	slots := s.Alloc(nil, 1)
	s.Free(slots)
	for _, slot := range []Slot{slots[0], 40} {
		func() {
			defer func() {
				if r := recover(); r == nil || !strings.Contains(r.(string), "BUG: store: slot") {
					t.Errorf("got %v", r)
				}
			}()
			s.Free([]Slot{slot})
		}()
	}
	checked(t, s, false)
}

func TestAFullStoreGivesFewer(t *testing.T) {
	s, _ := open(t, formatted(t, small()), small())
	if got := s.Alloc(nil, 100); len(got) != 40 {
		t.Errorf("got %d slots of 40", len(got))
	}
	if got := s.Alloc(nil, 1); len(got) != 0 {
		t.Errorf("got %v of none", got)
	}
}

// TestFlushesByThemselves runs in a bubble: time stands still while the store
// waits.
func TestFlushesByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev := formatted(t, small())
		o := small()
		o.FlushEntries, o.FlushEvery = 4, time.Second
		s, _, err := Open(context.Background(), dev, o)
		if err != nil {
			t.Fatal(err)
		}
		for n := uint64(1); n <= 4; n++ {
			store(t, dev, s, n)
		}
		synctest.Wait()
		if d := s.Durable(); d != 4 {
			t.Errorf("after 4 blocks %d are durable", d)
		}
		store(t, dev, s, 5)
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		if d := s.Durable(); d != 4 || s.Stats().Lag != 1 {
			t.Errorf("before the time is up %d are durable", d)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if d := s.Durable(); d != 5 || s.Stats().Lag != 0 {
			t.Errorf("after a second %d are durable", d)
		}
		flushes := s.Stats().Flushes
		time.Sleep(time.Hour)
		if n := s.Stats().Flushes; n != flushes {
			t.Errorf("%d flushes of nothing", n-flushes)
		}
		store(t, dev, s, 6)
		time.Sleep(time.Second)
		synctest.Wait()
		if d := s.Durable(); d != 6 {
			t.Errorf("the next time %d are durable", d)
		}
		s.Close(context.Background())
	})
}

// TestManyAtOnce commits, frees and flushes from several goroutines, while the
// store is checked.
func TestManyAtOnce(t *testing.T) {
	ctx := context.Background()
	o := small()
	o.Slots, o.FlushEntries, o.FlushEvery = 200, 20, time.Millisecond
	sim := simdev.New(simdev.Options{Name: "sim", Size: sizeOf(o), Async: true})
	if err := Format(ctx, sim, o); err != nil {
		t.Fatal(err)
	}
	s, _ := open(t, sim, o)
	var wg sync.WaitGroup
	var mu sync.Mutex
	kept := map[uint64]Slot{}
	for w := range uint64(4) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(w, 0))
			mine := map[uint64]Slot{}
			for i := range uint64(300) {
				n := 1 + w + 4*i
				slots := s.Alloc(nil, 1)
				for k, slot := range mine {
					if len(slots) > 0 && len(mine) < 40 {
						break
					}
					s.Free([]Slot{slot})
					delete(mine, k)
				}
				if len(slots) == 0 {
					continue
				}
				e, data := block(s.Geometry(), slots[0], n)
				if err := transfer(sim, s, true, slots[0], data); err != nil {
					t.Error(err)
				}
				number, err := s.Commit(&e)
				if err != nil {
					t.Error(err)
				}
				mine[n] = slots[0]
				if rng.IntN(20) == 0 {
					if err := s.Flush(ctx); err != nil {
						t.Error(err)
					}
					if d := s.Durable(); d < number {
						t.Errorf("after Flush %d are durable, not %d", d, number)
					}
				}
			}
			mu.Lock()
			maps.Copy(kept, mine)
			mu.Unlock()
		})
	}
	wg.Go(func() {
		for range 20 {
			r, err := s.Check(ctx, true)
			if err != nil || len(r.Problems)+len(r.Bad) > 0 {
				t.Errorf("check: %v %+v", err, r)
			}
		}
	})
	wg.Wait()
	st := s.Stats()
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if st.Checkpoints == 0 {
		t.Error("there was no checkpoint")
	}
	again, r := open(t, sim, o)
	if r.Entries != len(kept) || r.Holes+r.Torn != 0 {
		t.Errorf("%+v, want %d entries", r, len(kept))
	}
	if rep := checked(t, again, true); rep.Verified != len(kept) {
		t.Errorf("%+v", rep)
	}
}

func TestParentsComeFirst(t *testing.T) {
	o := small()
	dev := formatted(t, o)
	s, _ := open(t, dev, o)
	slots := s.Alloc(nil, 20)
	// A chain from the highest slot to the lowest, one of a missing parent, and
	// two that claim to be each other's parent.
	for i := range uint64(17) {
		e, _ := block(s.Geometry(), slots[19-i], i+1)
		if _, err := s.Commit(&e); err != nil {
			t.Fatal(err)
		}
	}
	for i, key := range []prefix.Key{{Hi: 500}, {Hi: 501}, {Hi: 502}} {
		e, _ := block(s.Geometry(), slots[i], uint64(1000+i))
		e.Key = key
		if i > 0 {
			e.Parent = prefix.Key{Hi: uint64(503 - i)}
		}
		if _, err := s.Commit(&e); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[prefix.Key]bool{}
	for e := range s.Entries() {
		if e.Key.Hi < 500 && !e.Root && !seen[e.Parent] {
			t.Errorf("%v came before %v", e.Key, e.Parent)
		}
		if seen[e.Key] {
			t.Errorf("%v came twice", e.Key)
		}
		seen[e.Key] = true
	}
	if len(seen) != 20 {
		t.Errorf("%d entries of 20", len(seen))
	}
	for range s.Entries() {
		break
	}
}

func TestLookupDoesNotAllocate(t *testing.T) {
	dev := formatted(t, small())
	s, _ := open(t, dev, small())
	store(t, dev, s, 1)
	k := prefix.Key{Hi: 1, Lo: 3}
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := s.Lookup(k); !ok {
			t.Fatal("not found")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestNote: a note and the log do not disturb each other, over crashes and restarts.
func TestNote(t *testing.T) {
	ctx := context.Background()
	dev := formatted(t, small())
	number := uint64(0)
	for life := range 6 {
		s, r := open(t, dev, small())
		if want := fmt.Sprint("life ", life-1, " again"); life > 0 && (string(s.Note()) != want || r.Entries != 2*life) {
			t.Errorf("life %d: note %q, %d entries", life, s.Note(), r.Entries)
		}
		for _, end := range []string{"", " again"} {
			number++
			store(t, dev, s, number)
			if err := s.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			if err := s.SetNote(fmt.Append(nil, "life ", life, end)); err != nil {
				t.Fatal(err)
			}
		}
		if life%2 == 1 {
			dev = dev.Crash(simdev.DropAll, rand.New(rand.NewPCG(1, 1)))
			continue
		}
		if err := s.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if err := s.SetNote(nil); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := s.SetNote(make([]byte, MaxNote+1)); err == nil {
			t.Error("a note that is too long")
		}
	}
}
