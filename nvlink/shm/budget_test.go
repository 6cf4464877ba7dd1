package shm

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlend/kvlend/nvlink"
)

// budgeted runs f over a fabric that knows no links: what goes to and from arena
// a[1] is limited to 1 MB/s.
func budgeted(t *testing.T, f func(t *testing.T, fab *Fabric, a [3]*Arena)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fab, err := New(Config{Budgets: map[string]int64{"lender": 1e6}, Clock: TimerClock{}})
		if err != nil {
			t.Fatal(err)
		}
		var a [3]*Arena
		for i, name := range [...]string{"own", "lender", "other"} {
			if a[i], err = Create(name, "cpu", 1<<20); err != nil {
				t.Fatal(err)
			}
			defer a[i].Close()
			for j := range a[i].Bytes() {
				a[i].Bytes()[j] = byte(i + 1)
			}
		}
		defer fab.Close() // streams hold the arenas
		f(t, fab, a)
	})
}

func mustWait(t *testing.T, s nvlink.Stream) {
	t.Helper()
	if err := wait(t, s); err != nil {
		t.Fatal(err)
	}
}

// TestBudgetIsShared: reads and writes of an arena over all streams together
// take as long as its budget says; other copies take no time.
func TestBudgetIsShared(t *testing.T) {
	budgeted(t, func(t *testing.T, fab *Fabric, a [3]*Arena) {
		load, store := open(t, fab, "load"), open(t, fab, "store")
		began := time.Now()
		for range 3 {
			if err := load.CopyBatch([]nvlink.Copy{bytesOf(a[0], a[1], 10000)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := store.CopyBatch([]nvlink.Copy{bytesOf(a[1], a[2], 20000)}); err != nil {
			t.Fatal(err)
		}
		mustWait(t, load)
		mustWait(t, store)
		if took := time.Since(began); took != 50*time.Millisecond {
			t.Errorf("50,000 bytes took %v at 1 MB/s", took)
		}
		began = time.Now()
		if err := load.CopyBatch([]nvlink.Copy{bytesOf(a[0], a[2], 30000)}); err != nil {
			t.Fatal(err)
		}
		mustWait(t, load)
		if took := time.Since(began); took > 0 {
			t.Errorf("a copy without a budget took %v", took)
		}
	})
}

// TestBudgetIsSpread: at no time has more been copied than the budget allows for
// a step of the copy.
func TestBudgetIsSpread(t *testing.T) {
	budgeted(t, func(t *testing.T, fab *Fabric, a [3]*Arena) {
		s := open(t, fab, "load")
		// Two pieces that do not join, which parts cut at odd places.
		pieces := []nvlink.Copy{
			{Dst: nvlink.Span{Arena: a[0], Off: 0, Len: 20011}, Src: nvlink.Span{Arena: a[1], Off: 0, Len: 20011}},
			{Dst: nvlink.Span{Arena: a[0], Off: 30000, Len: 19989}, Src: nvlink.Span{Arena: a[1], Off: 40000, Len: 19989}},
		}
		if err := s.CopyBatch(pieces); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for range 39 {
			time.Sleep(time.Millisecond)
			synctest.Wait()
			want := int(time.Since(began).Milliseconds()) * 1000
			if got := bytes.Count(a[0].Bytes(), []byte{2}); got < want || got > want+1000 {
				t.Fatalf("%d bytes after %v, want %d to %d", got, time.Since(began), want, want+1000)
			}
		}
		mustWait(t, s)
		if got := bytes.Count(a[0].Bytes(), []byte{2}); got != 40000 {
			t.Errorf("%d bytes arrived of 40,000", got)
		}
	})
}

func TestBudgetMustBePositive(t *testing.T) {
	if _, err := New(Config{Budgets: map[string]int64{"w": 0}}); err == nil {
		t.Error("a budget of nothing was accepted")
	}
}
