package worker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/nvlink/shm"
	"github.com/kvlend/kvlend/scheduler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const borrower = 7 // owner index of the master in these tests

// world is a worker's cache with a borrower that scribbles over whatever it is
// lent, so that a block in a unit that is away shows at once.
type world struct {
	t      *testing.T
	geo    elastic.Geometry
	table  *elastic.UnitTable
	units  *elastic.Units
	cache  *Cache
	arena  *shm.Arena
	now    time.Duration
	wanted int // units asked back by the last Need
	done   map[uint64]int

	down    elastic.ScaleDownPolicy
	zero    bool
	keepFor time.Duration
}

func newWorld(t *testing.T, policy elastic.Policy, down elastic.ScaleDownPolicy) *world {
	t.Helper()
	return newWorldWith(t, policy, down, false)
}

func newWorldWith(t *testing.T, policy elastic.Policy, down elastic.ScaleDownPolicy, zero bool) *world {
	t.Helper()
	w := &world{t: t, now: time.Minute, done: map[uint64]int{}, down: down, zero: zero, keepFor: 30 * time.Second,
		geo: elastic.Geometry{Name: "w", Layers: 3, BlockTokens: 16, KVHeads: 1, HeadDim: 16, ElemBytes: 2}}
	mg := elastic.Geometry{Name: "m", Layers: 2, BlockTokens: 16, KVHeads: 2, HeadDim: 16, ElemBytes: 2}
	spec, err := elastic.NewUnitSpec(policy, 0.3, w.geo, mg)
	if err != nil {
		t.Fatal(err)
	}
	size := 12*spec.Bytes + w.geo.FullBlockBytes() + 100
	n, _ := spec.Divide(size)
	if w.table, err = elastic.FormatUnitTable(make([]byte, elastic.UnitTableBytes(n)), spec, size, 0); err != nil {
		t.Fatal(err)
	}
	if w.arena, err = shm.Create("w", "cpu", size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.arena.Close() })
	w.start(spec)
	t.Cleanup(w.check)
	return w
}

// start begins the worker's process, over the units as the table shows them.
func (w *world) start(spec elastic.UnitSpec) {
	w.t.Helper()
	var err error
	opt := elastic.UnitsOptions{Geometry: w.geo, Spec: spec, Floor: spec.Bytes, Table: w.table}
	if w.zero {
		if opt.OnChange, err = Zero(w.arena, newStream(w.t), spec.Bytes); err != nil {
			w.t.Fatal(err)
		}
	}
	if w.units, err = elastic.NewUnits(opt); err != nil {
		w.t.Fatal(err)
	}
	scale, err := elastic.NewScalePolicy(elastic.ScaleOptions{Down: w.down, Window: time.Minute, Quantile: 0.9, Low: 0.4, High: 0.8})
	if err != nil {
		w.t.Fatal(err)
	}
	n, rest := spec.Divide(w.arena.Size())
	w.cache, err = New(Config{
		Units: w.units, Policy: scale, Arena: w.arena, KeepFor: w.keepFor,
		MaxBlocks: spec.BlocksPer(w.geo, n) + w.geo.FullBlocks(rest),
		Need:      func(units int) { w.wanted = units }, Hold: time.Second, Now: func() time.Duration { return w.now },
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) check() {
	w.t.Helper()
	for _, err := range append(w.units.Check(), w.cache.Check()...) {
		w.t.Error(err)
	}
}

// lend gives the borrower up to n units, which it fills with its own bytes.
func (w *world) lend(n int) (granted int) {
	w.cache.Locked(func() bool {
		n = min(n, w.cache.Lendable(coordinator.Wish{Units: 1 << 20, Keep: true}))
		if n == 0 {
			return false
		}
		units, err := w.units.Grant(borrower, 1, n, 1<<50)
		if err != nil {
			w.t.Fatalf("%d units are lendable: %v", n, err)
		}
		size := w.units.Spec().Bytes
		for _, u := range units {
			mem := w.arena.Bytes()[int64(u.Unit)*size:][:size]
			for i := range mem {
				mem[i] = 0xee
			}
		}
		granted = len(units)
		return false
	})
	return granted
}

// comeHome returns up to n lent units.
func (w *world) comeHome(n int) {
	w.cache.Locked(func() bool {
		for u := range w.units.UnitsOf(borrower, elastic.Lent) {
			if n--; n < 0 {
				break
			}
			if err := w.units.Return(borrower, u); err != nil {
				w.t.Fatal(err)
			}
		}
		return true
	})
}

func (w *world) stamp(id uint64, pos, l int) uint64 { return id<<40 | uint64(pos)<<8 | uint64(l) }

// run computes n more tokens of a sequence and checks its whole history.
func (w *world) run(id uint64, n int) {
	start := w.done[id]
	st, err := w.cache.Begin(context.Background(), []scheduler.StepSeq{{ID: id, Start: start, New: n}})
	if err != nil {
		w.t.Fatal(err)
	}
	b, size := w.geo.BlockTokens, int(w.geo.LayerBlockBytes())/w.geo.BlockTokens
	for l := range w.geo.Layers {
		tables, err := st.Layer(l)
		if err != nil {
			w.t.Fatal(err)
		}
		for pos := range start + n {
			at := st.Memory()[int(tables[0][pos/b])+pos%b*size:][:8]
			if pos >= start {
				binary.LittleEndian.PutUint64(at, w.stamp(id, pos, l))
			} else if got := binary.LittleEndian.Uint64(at); got != w.stamp(id, pos, l) {
				w.t.Fatalf("sequence %d, token %d, layer %d: %x", id, pos, l, got)
			}
		}
		st.Written(l)
		st.Done(l)
	}
	if err := st.Commit(); err != nil {
		w.t.Fatal(err)
	}
	w.done[id] = start + n
}

func TestRandomHistories(t *testing.T) {
	downs := []elastic.ScaleDownPolicy{elastic.DownWindow, elastic.DownQuantile, elastic.DownHysteresis, elastic.DownFloor}
	for _, policy := range elastic.Policies() {
		for seed := range uint64(12) {
			t.Run(fmt.Sprintf("%s/%d", policy, seed), func(t *testing.T) {
				w := newWorld(t, policy, downs[seed%4])
				r := rand.New(rand.NewPCG(seed, 1))
				for range 300 {
					w.randomOp(r)
					w.check()
				}
			})
		}
	}
}

func (w *world) randomOp(r *rand.Rand) {
	id := uint64(1 + r.IntN(4))
	switch r.IntN(6) {
	case 0:
		w.lend(1 + r.IntN(6))
	case 1:
		w.comeHome(w.wanted)
		w.wanted = 0
	case 2:
		w.cache.Release(id)
		delete(w.done, id)
	default:
		n := 1 + r.IntN(60)
		switch err := w.cache.Reserve(id, w.done[id]+n); {
		case err == nil:
			w.run(id, n)
		case errors.Is(err, scheduler.ErrComing):
			if w.wanted == 0 {
				w.t.Fatal("units are said to come, and nobody was asked")
			}
		case errors.Is(err, scheduler.ErrNever):
			if w.done[id]+n <= w.cache.MaxTokens() {
				w.t.Fatalf("%d tokens refused, the limit is %d", w.done[id]+n, w.cache.MaxTokens())
			}
		case !errors.Is(err, scheduler.ErrWait):
			w.t.Fatal(err)
		}
	}
	w.now += time.Duration(r.IntN(20)) * time.Second
}

// TestOwnRequestsComeFirst: a request that waits for units stops lending, takes
// them back, and fits the whole arena when they are home.
func TestOwnRequestsComeFirst(t *testing.T) {
	w := newWorld(t, elastic.PolicyLCM, elastic.DownWindow)
	if n := w.lend(100); n != w.units.MaxLent() {
		t.Fatalf("%d units lent, want all above the floor, %d", n, w.units.MaxLent())
	}
	if err := w.cache.Reserve(1, w.cache.MaxTokens()); !errors.Is(err, scheduler.ErrComing) {
		t.Fatalf("reserve of everything: %v", err)
	}
	if w.wanted != w.units.MaxLent() {
		t.Fatalf("%d units asked back, want %d", w.wanted, w.units.MaxLent())
	}
	w.comeHome(w.wanted / 2)
	if n := w.lend(1); n != 0 {
		t.Fatal("a unit was lent while a request waits for it")
	}
	select {
	case <-w.cache.Changed():
	default:
		t.Fatal("units came home and nobody was told")
	}
	w.comeHome(100)
	if err := w.cache.Reserve(1, w.cache.MaxTokens()); err != nil {
		t.Fatal(err)
	}
	w.run(1, w.cache.MaxTokens())
	if err := w.cache.Reserve(2, w.cache.MaxTokens()+1); !errors.Is(err, scheduler.ErrNever) {
		t.Fatalf("one token too many: %v", err)
	}
	w.cache.Release(1)
}

// TestCancelledNeedIsForgotten: when the request that waited has gone, lending
// goes on after the hold.
func TestCancelledNeedIsForgotten(t *testing.T) {
	w := newWorld(t, elastic.PolicyLCM, elastic.DownFloor)
	w.lend(5)
	if err := w.cache.Reserve(1, w.cache.MaxTokens()); !errors.Is(err, scheduler.ErrComing) {
		t.Fatal(err)
	}
	if w.lend(1) != 0 {
		t.Fatal("lent during the hold")
	}
	w.now += 2 * time.Second
	if w.lend(1) != 1 {
		t.Fatal("nothing lent after the hold")
	}
}

func TestDescribe(t *testing.T) {
	w := newWorld(t, elastic.PolicyLCM, elastic.DownWindow)
	w.lend(3)
	if err := w.cache.Reserve(1, 20); err != nil {
		t.Fatal(err)
	}
	var st wire.Status
	w.cache.Describe(&st, []Borrower{{Name: "m", Owner: borrower}}, func(uint32) uint64 { return 42 })
	if st.Blocks.LocalUsed != 2 || len(st.Units) != 1 || st.Units[0].Lent != 3 || st.Units[0].Version != 42 || st.Units[0].Local != 9 {
		t.Errorf("status %+v", st)
	}
	w.cache.Release(1)
}

func TestBeginNamesWhatIsMissing(t *testing.T) {
	w := newWorld(t, elastic.PolicyLCM, elastic.DownWindow)
	_, err := w.cache.Begin(context.Background(), []scheduler.StepSeq{{ID: 3, Start: 0, New: 5}})
	var lost *scheduler.LostError
	if !errors.As(err, &lost) || len(lost.IDs) != 1 || lost.IDs[0] != 3 {
		t.Fatalf("error %v", err)
	}
}
