package worker

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/shm"
	"github.com/kvlend/kvlend/scheduler"
)

// unitBytes is the memory of one unit.
func (w *world) unitBytes(unit int) []byte {
	size := w.units.Spec().Bytes
	return w.arena.Bytes()[int64(unit)*size:][:size]
}

// local lists the units at home.
func (w *world) local() map[int]bool {
	out := map[int]bool{}
	for u := range w.units.Total() {
		if row, err := w.units.Unit(u); err == nil && row.State == elastic.Local {
			out[u] = true
		}
	}
	return out
}

// TestNobodyReadsTheOther: with zero_on_return a borrower finds nothing of the
// worker's in what it is lent, and the worker nothing of the borrower's in what
// comes home; without, both do.
func TestNobodyReadsTheOther(t *testing.T) {
	for _, zero := range []bool{true, false} {
		for _, policy := range elastic.Policies() {
			t.Run(fmt.Sprintf("%v/%s", zero, policy), func(t *testing.T) {
				w := newWorldWith(t, policy, elastic.DownFloor, zero)
				r := rand.New(rand.NewPCG(3, 3))
				left := 0 // units with somebody else's bytes
				for range 200 {
					if w.exchange(r) > 0 {
						left++
					}
				}
				if zero && left > 0 {
					t.Errorf("%d times a new owner could read the old one's bytes", left)
				}
				if !zero && left == 0 {
					t.Error("the test sees no bytes even where nothing is wiped")
				}
			})
		}
	}
}

// exchange lends, takes back or computes, and counts the units that have
// changed hands and are not zero.
func (w *world) exchange(r *rand.Rand) (left int) {
	before := w.local()
	id := uint64(1 + r.IntN(3))
	switch r.IntN(4) {
	case 0:
		w.cache.Locked(func() bool {
			units, err := w.units.Grant(borrower, 1, 1+r.IntN(4), 1<<50)
			if err != nil && !errors.Is(err, elastic.ErrNoUnits) {
				w.t.Fatal(err)
			}
			for _, u := range units {
				left += w.dirty(int(u.Unit))
				fill(w.unitBytes(int(u.Unit)), 0xee)
			}
			return false
		})
		return left
	case 1:
		w.comeHome(1 + r.IntN(4))
		for u := range w.local() {
			if !before[u] {
				left += w.dirty(u)
			}
		}
		return left
	case 2:
		w.cache.Release(id)
		delete(w.done, id)
	case 3:
		n := 1 + r.IntN(40)
		err := w.cache.Reserve(id, w.done[id]+n)
		if err == nil {
			w.run(id, n)
		} else if errors.Is(err, scheduler.ErrComing) {
			w.comeHome(w.wanted)
		}
	}
	return 0
}

func (w *world) dirty(unit int) int {
	if bytes.Count(w.unitBytes(unit), []byte{0}) == len(w.unitBytes(unit)) {
		return 0
	}
	return 1
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

func TestZeroNamesWhatIsWrong(t *testing.T) {
	a, err := shm.Create("w", "cpu", 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, size := range []int64{0, -1, 1<<16 + 1} {
		if _, err := Zero(a, newStream(t), size); err == nil {
			t.Errorf("units of %d bytes were accepted", size)
		}
	}
	if _, err := Zero(deviceArena{a}, newStream(t), 1<<10); err == nil {
		t.Error("an arena that the host cannot write was accepted")
	}
}

// newStream is a stream of the host.
func newStream(t testing.TB) nvlink.Stream {
	t.Helper()
	fab, err := shm.New(shm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fab.Close() })
	s, err := fab.NewStream("cpu", "wipe")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestWhatCannotBeWipedStays: a unit that may hold somebody's bytes never changes
// hands.
func TestWhatCannotBeWipedStays(t *testing.T) {
	a, err := shm.Create("w", "cpu", 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	s := newStream(t)
	wipe, err := Zero(a, s, 1<<10)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	defer func() {
		if text := fmt.Sprint(recover()); !strings.Contains(text, "unit 3") || !strings.Contains(text, "closed") {
			t.Errorf("panic %q, want one about unit 3", text)
		}
	}()
	wipe(3, elastic.Lent)
}

// deviceArena is one that the host cannot address.
type deviceArena struct{ nvlink.Arena }

func (deviceArena) Bytes() []byte { return nil }

// BenchmarkZero is what zero_on_return adds to a change of hands, per unit: the
// default configuration's units, and full-block units of large models.
func BenchmarkZero(b *testing.B) {
	for _, size := range []int64{192 << 10, 320 << 10, 8 << 20, 72 << 20} {
		b.Run(fmt.Sprintf("KiB=%d", size>>10), func(b *testing.B) {
			a, err := shm.Create("w", "cpu", 4*size)
			if err != nil {
				b.Fatal(err)
			}
			defer a.Close()
			fill(a.Bytes(), 1)
			wipe, err := Zero(a, newStream(b), size)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(size)
			for i := 0; b.Loop(); i++ {
				wipe(i%4, elastic.Lent)
			}
		})
	}
}
