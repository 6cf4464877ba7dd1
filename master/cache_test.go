package master

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/scheduler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var worlds = []worldConfig{
	{layers: 3, buffers: 1, arenaLayers: 31, workers: []int64{24 << 10, 20 << 10}, policy: elastic.PolicyLCM, tails: 4},
	{layers: 3, buffers: 2, arenaLayers: 40, workers: []int64{24 << 10, 20 << 10}, policy: elastic.PolicyLCM, tails: 4},
	{layers: 5, buffers: 1, arenaLayers: 52, workers: []int64{45 << 10, 31 << 10}, policy: elastic.PolicyLayerLCM, tails: 4},
	{layers: 5, buffers: 2, arenaLayers: 33, workers: []int64{64 << 10}, policy: elastic.PolicyPadded, tails: 4},
	{layers: 10, buffers: 1, arenaLayers: 12, workers: []int64{300 << 10}, policy: elastic.PolicyLCM, tails: 4},
}

// TestLongestSequence serves exactly the blocks that Eq. 4-5 promise, with
// every policy and number of buffers, token by token at the end.
func TestLongestSequence(t *testing.T) {
	for i, wc := range worlds {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			w := newWorld(t, wc)
			limit := w.cache.MaxTokens()
			if limit == 0 {
				t.Fatal("the world holds nothing")
			}
			prompt := limit - 20
			if err := w.reserve(1, prompt); err != nil {
				t.Fatalf("reserve %d of %d tokens: %v", prompt, limit, err)
			}
			for w.seqs[1] < prompt {
				n := min(48, prompt-w.seqs[1])
				if err := w.run([]scheduler.StepSeq{{ID: 1, Start: w.seqs[1], New: n}}, nil); err != nil {
					t.Fatal(err)
				}
			}
			for w.seqs[1] < limit {
				if err := w.reserve(1, w.seqs[1]+1); err != nil {
					t.Fatalf("reserve %d of %d tokens: %v", w.seqs[1]+1, limit, err)
				}
				if err := w.run([]scheduler.StepSeq{{ID: 1, Start: w.seqs[1], New: 1}}, nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.reserve(1, limit+1); !errors.Is(err, scheduler.ErrNever) {
				t.Errorf("reserve of one token more: %v, want ErrNever", err)
			}
			w.check()
			w.cache.Release(1)
		})
	}
}

// TestRandomHistories mixes sequences, reclaims in and between steps, lost
// units, refusals and idle returns, and checks every stamp of every step.
func TestRandomHistories(t *testing.T) {
	for i, wc := range worlds {
		for seed := range uint64(30) {
			t.Run(fmt.Sprintf("%d/%d", i, seed), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, uint64(i)))
				w := newWorld(t, wc)
				for range 150 {
					w.randomOp(r)
					w.settle()
					w.check()
				}
				for id := range w.seqs {
					w.cache.Release(id)
				}
			})
		}
	}
}

func (w *world) randomOp(r *rand.Rand) {
	switch k := r.IntN(20); {
	case k < 12:
		w.randomStep(r)
	case k < 14:
		w.cache.Release(uint64(1 + r.IntN(4)))
		id := uint64(1 + r.IntN(4))
		w.restart(id)
	case k < 16:
		w.reclaim(r)
	case k < 17:
		w.lose(r)
	case k < 18:
		w.lend[r.IntN(len(w.lend))].refuse = r.IntN(2) == 0
	default:
		w.now.Add(int64(time.Duration(r.IntN(3)) * time.Second))
		w.cache.ReturnIdle()
	}
	for id := uint64(1); id <= 4; id++ {
		if w.cache.seqs[id] == nil && w.seqs[id] != 0 {
			w.seqs[id] = 0 // released above, or evicted
			w.gen[id]++
		}
	}
}

func (w *world) randomStep(r *rand.Rand) {
	var steps []scheduler.StepSeq
	for id := uint64(1); id <= 4; id++ {
		if r.IntN(2) == 0 {
			continue
		}
		s := w.next(r, id)
		if s.Start+s.New > w.cache.MaxTokens() {
			continue
		}
		if err := w.reserve(id, s.Start+s.New); err == nil {
			steps = append(steps, s)
		} else if !errors.Is(err, scheduler.ErrWait) {
			w.t.Fatal(err)
		}
	}
	if len(steps) == 0 {
		return
	}
	at := r.IntN(2 * w.geo.Layers)
	err := w.run(steps, func(l int) {
		switch l {
		case at:
			w.reclaim(r)
		case at / 2:
			if r.IntN(8) == 0 {
				w.lose(r)
			}
		}
	})
	var lost *scheduler.LostError
	if errors.As(err, &lost) {
		for _, id := range lost.IDs {
			w.restart(id)
		}
	} else if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) reclaim(r *rand.Rand) {
	f := w.lend[r.IntN(len(w.lend))]
	held := f.units.CountOf(0, elastic.Lent)
	n := r.IntN(held + 1)
	w.cache.Reclaim(f.index, n, func(returned int) {
		if returned > n {
			w.t.Errorf("%d units came back, %d were asked for", returned, n)
		}
	})
}

// lose takes units away without consent, as a lender does past the deadline.
func (w *world) lose(r *rand.Rand) {
	f := w.lend[r.IntN(len(w.lend))]
	var gone []wire.UnitEpoch
	for u := range f.units.UnitsOf(0, elastic.Lent) {
		if r.IntN(2) == 0 {
			continue
		}
		epoch, err := f.units.Fence(0, u)
		if err != nil {
			w.t.Fatal(err)
		}
		gone = append(gone, wire.UnitEpoch(u))
		if err := f.units.Unfence(0, elastic.UnitEpoch{Unit: u.Unit, Epoch: epoch}); err != nil {
			w.t.Fatal(err)
		}
	}
	w.cache.Lost(f.index, gone)
}

// TestLendingCostsNothing: without any borrowed memory the cache holds what a
// plain one would.
func TestLendingCostsNothing(t *testing.T) {
	for i, wc := range worlds {
		w := newWorld(t, wc)
		for _, f := range w.lend {
			f.refuse = true
		}
		alone := wc.arenaLayers / wc.layers * w.geo.BlockTokens
		if err := w.reserve(1, alone); err != nil {
			t.Errorf("world %d: %d tokens without lending: %v", i, alone, err)
		}
		w.cache.Release(1)
	}
}

// TestIdleUnitsGoHome: what nobody uses is returned.
func TestIdleUnitsGoHome(t *testing.T) {
	w := newWorld(t, worlds[0])
	if err := w.reserve(1, w.cache.MaxTokens()); err != nil {
		t.Fatal(err)
	}
	w.cache.Release(1)
	w.cache.ReturnIdle()
	if n := w.lend[0].units.Away() + w.lend[1].units.Away(); n == 0 {
		t.Fatal("units went home before the idle time was over")
	}
	w.now.Add(int64(2 * time.Second))
	w.cache.ReturnIdle()
	if n := w.lend[0].units.Away() + w.lend[1].units.Away(); n != 0 {
		t.Fatalf("%d units are still away", n)
	}
}
