package master

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/scheduler"
)

// promptLender answers wishes by itself, one after the other.
type promptLender struct {
	f      *fakeLender
	wishes chan coordinator.Wish
	mu     sync.Mutex // guards the units
}

func (p *promptLender) Want(w coordinator.Wish) {
	select {
	case p.wishes <- w:
	default: // one is under way
	}
}

func (p *promptLender) Release(units []wire.UnitEpoch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.f.Release(units)
}

func (p *promptLender) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case w := <-p.wishes:
			p.mu.Lock()
			got, err := p.f.units.Grant(0, max(w.Least, 1), w.Units, 1<<50)
			p.mu.Unlock()
			if err != nil {
				p.f.w.cache.Denied(p.f.index, time.Millisecond, 0)
				time.AfterFunc(time.Millisecond, p.f.w.cache.Retry)
				continue
			}
			out := make([]wire.UnitEpoch, len(got))
			for i, e := range got {
				out[i] = wire.UnitEpoch(e)
			}
			p.f.w.cache.Granted(p.f.index, out)
		}
	}
}

// TestEveryRequestEnds lets conversations that together are several times what
// there is compete for chunks, borrowed units and host memory: none may wait for
// ever, and all answers to a prompt are alike.
func TestEveryRequestEnds(t *testing.T) {
	m, err := engine.Builtin("random-cedar", engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	c := m.Config()
	geo := elastic.Geometry{Name: "m", Layers: c.Layers, BlockTokens: 16, KVHeads: c.KVHeads, HeadDim: c.HeadDim, ElemBytes: 2}
	for name, wc := range map[string]worldConfig{
		"nothing else":  {},
		"host":          {hostBlocks: 300},
		"slow host":     {hostBlocks: 300, hostRate: 40e6},
		"host at once":  {hostBlocks: 60, hostSync: true},
		"lenders":       {workers: []int64{40 * geo.FullBlockBytes(), 30 * geo.FullBlockBytes()}},
		"lenders, host": {workers: []int64{20 * geo.FullBlockBytes()}, hostBlocks: 100},
	} {
		t.Run(name, func(t *testing.T) {
			wc.geo, wc.buffers, wc.arenaLayers, wc.tails, wc.policy = geo, 1, 24*geo.Layers, 6, elastic.PolicyLCM
			wc.verify = VerifyAll
			compete(t, newWorld(t, wc), m)
		})
	}
}

func compete(t *testing.T, w *world, m *engine.Model) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range w.cache.pools {
		if i < len(w.lend) {
			p := &promptLender{f: w.lend[i], wishes: make(chan coordinator.Wish, 1)}
			w.cache.pools[i].cfg.Ask = p
			wg.Go(func() { p.run(ctx) })
		}
	}
	w.cache.cfg.Now = monotonic(time.Now())
	s := scheduler.New(m, w.cache, scheduler.Options{MaxRunning: 6, MaxBatchTokens: 128, AdmissionTimeout: 10 * time.Second})
	wg.Go(func() { s.Run(ctx) })
	r := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	hashes := map[int]uint64{}
	var turns sync.WaitGroup
	var ask func(talk, turn int)
	ask = func(talk, turn int) {
		n := min(60+50*turn+17*talk, 24*16-40)
		tokens := make([]int32, n)
		for i := range tokens {
			tokens[i] = int32(3 + (i*i+talk*31)%200)
		}
		err := s.Submit(scheduler.Request{ID: fmt.Sprint(talk, "-", turn), Tokens: tokens, MaxTokens: 8, IgnoreEOS: true,
			Sampling: sampling.Params{TopP: 1, RepetitionPenalty: 1}, Sink: func(ev scheduler.Event) {
				if ev.Finish == "" && ev.Err == nil {
					return
				}
				defer turns.Done()
				if ev.Err != nil {
					t.Errorf("conversation %d, turn %d: %v", talk, turn, ev.Err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if was, known := hashes[talk*1000+n]; known && was != ev.Usage.LogitsHash {
					t.Errorf("conversation %d, turn %d: logits %x, they were %x", talk, turn, ev.Usage.LogitsHash, was)
				}
				hashes[talk*1000+n] = ev.Usage.LogitsHash
				if turn < 11 {
					turns.Add(1)
					go ask(talk, turn+1)
				}
			}})
		if err != nil {
			t.Error(err)
			turns.Done()
		}
	}
	for talk := range 12 {
		turns.Add(1)
		ask(talk, r.IntN(3))
	}
	turns.Wait()
	cancel()
	wg.Wait()
}

func monotonic(start time.Time) func() time.Duration {
	return func() time.Duration { return time.Since(start) + time.Second }
}
