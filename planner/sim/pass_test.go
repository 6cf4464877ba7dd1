package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlend/kvlend/lsc"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/planner/perf"
)

// sleeper is a stream whose copies take the time of a link, on the clock of a
// synctest bubble.
type sleeper struct {
	model Mover
	ops   chan func()
}

func newSleeper(m Mover) *sleeper {
	s := &sleeper{m, make(chan func(), 1<<12)}
	go func() {
		for f := range s.ops {
			f()
		}
	}()
	return s
}

func (s *sleeper) CopyBatch(pieces []nvlink.Copy) error {
	n := int64(len(pieces))
	d := s.model.Time(n*pieces[0].Src.Len, pieces[0].Src.Len)
	s.ops <- func() { time.Sleep(d) }
	return nil
}

func (s *sleeper) Call(f func() error) error {
	s.ops <- func() { _ = f() }
	return nil
}

func (s *sleeper) WaitEvent(e nvlink.Event) error {
	s.ops <- func() { <-e.Done() }
	return nil
}

func (s *sleeper) Record() (nvlink.Event, error) {
	e := &slept{done: make(chan struct{})}
	s.ops <- func() { close(e.done) }
	return e, nil
}

func (s *sleeper) Close() error {
	close(s.ops)
	return nil
}

type slept struct{ done chan struct{} }

func (e *slept) Done() <-chan struct{}          { return e.done }
func (e *slept) Err() error                     { return nil }
func (e *slept) Wait(ctx context.Context) error { <-e.done; return nil }

// passCase is a pass over blocks of two lenders.
type passCase struct {
	layers, buffers int
	blocks          []lsc.Block
	cost            perf.Cost
	loads, stores   []Mover
}

func randomPass(rng *rand.Rand) passCase {
	c := passCase{layers: 3 + rng.IntN(10), buffers: 1 + rng.IntN(2)}
	us := func(n int) time.Duration { return time.Duration(1+rng.IntN(n)) * time.Microsecond }
	c.cost = perf.Cost{Layer: us(400), Layers: c.layers, Fixed: us(100)}
	c.cost.Attention = time.Duration(rng.Int64N(int64(c.cost.Layer)))
	for range 2 {
		f := flat{1e9 * (1 + 20*rng.Float64()), us(20)}
		c.loads, c.stores = append(c.loads, f), append(c.stores, f)
	}
	return c
}

const layerBlock = 4096

// add puts n blocks of a kind behind one lender.
func (c *passCase) add(n, via int, promoted, load, store bool) {
	for range n {
		b := lsc.Block{Via: via, Load: load, Store: store, Key: int64(len(c.blocks)), Remote: func(int) nvlink.Span { return nvlink.Span{Len: layerBlock} }}
		b.Slots = make([]int64, c.buffers)
		if promoted {
			b.Slots = make([]int64, c.layers)
		}
		c.blocks = append(c.blocks, b)
	}
}

// real is how long the layer stream cache itself takes.
func (c *passCase) real(t *testing.T) (computed, over time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		var loads []nvlink.Stream
		for _, m := range c.loads {
			loads = append(loads, newSleeper(m))
		}
		store := newSleeper(c.stores[0])
		defer store.Close()
		for _, s := range loads {
			defer s.Close()
		}
		p, err := lsc.New(lsc.Config{Layers: c.layers, Buffers: c.buffers, LayerBlockBytes: layerBlock,
			Local: &arena{size: 1 << 30}, Loads: loads, Store: store})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		pass, err := p.Begin(c.blocks)
		if err != nil {
			t.Fatal(err)
		}
		before := (c.cost.Layer - c.cost.Attention) / projections
		for l := range c.layers {
			if err := pass.Layer(l); err != nil {
				t.Fatal(err)
			}
			time.Sleep(before)
			pass.Written(l)
			time.Sleep(c.cost.Attention)
			pass.Done(l)
			time.Sleep(c.cost.Layer - before - c.cost.Attention)
		}
		time.Sleep(c.cost.Fixed)
		computed = time.Since(began)
		if err := pass.Finish(); err != nil {
			t.Fatal(err)
		}
		over = time.Since(began)
		synctest.Wait()
	})
	return computed, over
}

// simulated is how long the simulation says.
func (c *passCase) simulated(t *testing.T) (computed, over time.Duration) {
	clk := &clock{k: &kernel{}}
	d := &device{}
	p := &passes{clock: clk, layers: c.layers, buffers: c.buffers, bytes: layerBlock}
	for i := range c.loads {
		p.loads, p.store = append(p.loads, &link{model: c.loads[i], from: d, to: d}), append(p.store, &link{model: c.stores[i], from: d, to: d})
	}
	pass, err := p.Begin(c.blocks)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.now.run(c.cost); err != nil {
		t.Fatal(err)
	}
	computed = clk.t
	if err := pass.Finish(); err != nil {
		t.Fatal(err)
	}
	return computed, clk.t
}

// TestPassIsThatOfTheLSC compares the account of a pass with package lsc itself, on
// streams that take the same time.
func TestPassIsThatOfTheLSC(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 3000 {
		c := randomPass(rng)
		for via := range 2 {
			c.add(rng.IntN(12), via, false, true, false)
			if rng.IntN(2) == 0 {
				c.add(rng.IntN(12), via, true, true, false)
			}
		}
		if rng.IntN(2) == 0 { // the real one has one stream for stores
			c.add(1+rng.IntN(8), 0, rng.IntN(2) == 0, false, true)
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			realC, realO := c.real(t)
			simC, simO := c.simulated(t)
			if realC != simC || realO != simO {
				t.Errorf("%d layers, %d buffers, %d blocks: computed after %v, simulated %v; over after %v, simulated %v",
					c.layers, c.buffers, len(c.blocks), realC, simC, realO, simO)
			}
		})
	}
}
