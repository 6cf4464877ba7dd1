package scheduler

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlend/kvlend/engine/sampling"
	"pgregory.net/rapid"
)

// world is one random history: requests with their arrival and cancellation
// times, a budget, a memory and its misfortunes.
type world struct {
	seed      uint64
	keeps     bool    // the cache is a PrefixCache
	forget    float64 // see toyKeep
	block     int
	limit     int // blocks at hand
	total     int
	lend      time.Duration
	faults    toyFaults
	opt       Options
	layerTime time.Duration
	streams   time.Duration
	requests  []Request
	arrive    []time.Duration // since the request before
	cancel    []time.Duration // after arrival; negative: never
}

func drawWorld(rt *rapid.T) world {
	w := world{
		seed:  rapid.Uint64().Draw(rt, "seed"),
		block: rapid.SampledFrom([]int{2, 4, 16}).Draw(rt, "block"),
		opt: Options{
			MaxRunning:     rapid.IntRange(1, 6).Draw(rt, "maxRunning"),
			MaxBatchTokens: rapid.IntRange(1, 40).Draw(rt, "budget"),
			GrowTimeout:    time.Duration(rapid.IntRange(1, 200).Draw(rt, "growMS")) * time.Millisecond,
			MaxBypass:      rapid.SampledFrom([]int{-1, 1, 2, 8}).Draw(rt, "maxBypass"),
			BypassTime:     time.Duration(rapid.IntRange(1, 200).Draw(rt, "bypassMS")) * time.Millisecond,
			StepRetries:    1000,
		},
		layerTime: time.Duration(rapid.IntRange(0, 3).Draw(rt, "layerMS")) * time.Millisecond,
	}
	if rapid.Bool().Draw(rt, "streamed") {
		w.streams = time.Duration(rapid.IntRange(1, 20).Draw(rt, "streamMS")) * time.Millisecond
		w.opt.StreamTurns = rapid.IntRange(1, 5).Draw(rt, "streamTurns")
	}
	if rapid.Bool().Draw(rt, "faulty") {
		p := func(name string) float64 { return float64(rapid.IntRange(0, 10).Draw(rt, name)) / 50 }
		w.faults = toyFaults{refuse: p("refuse"), evict: p("evict"), lose: p("lose"), fail: p("fail"),
			budget: rapid.IntRange(0, 60).Draw(rt, "faultBudget"), reclaim: rapid.Bool().Draw(rt, "reclaim")}
	}
	if w.keeps = rapid.Bool().Draw(rt, "keeps"); w.keeps {
		w.forget = float64(rapid.IntRange(0, 4).Draw(rt, "forget")) / 8
	}
	longest := 1
	mixed := rapid.Bool().Draw(rt, "mixed") // priorities and tenants
	n := rapid.IntRange(1, 8).Draw(rt, "requests")
	for i := range n {
		r := Request{
			ID:        fmt.Sprint("r", i),
			Tokens:    prose(fmt.Sprint(w.seed, i), rapid.IntRange(1, 50).Draw(rt, "prompt")),
			MaxTokens: rapid.IntRange(1, 20).Draw(rt, "maxTokens"),
			Sampling:  sampling.Default(),
			IgnoreEOS: rapid.Bool().Draw(rt, "ignoreEOS"),
			StopIDs:   []int32{3, 17},
		}
		if shared := rapid.IntRange(0, 40).Draw(rt, "shared"); w.keeps && shared > 0 {
			base := prose(fmt.Sprint(w.seed, "base", rapid.IntRange(0, 1).Draw(rt, "base")), 40)
			copy(r.Tokens, base[:shared])
		}
		if mixed {
			r.Tenant = rapid.SampledFrom([]string{"", "ann", "bob"}).Draw(rt, "tenant")
			r.Priority = rapid.SampledFrom([]int{0, 0, 0, -1, 2}).Draw(rt, "priority")
			r.Salt = []byte(r.Tenant)
		}
		r.Sampling.Temperature = rapid.SampledFrom([]float32{0, 0.7, 1.3}).Draw(rt, "temperature")
		r.Sampling.RepetitionPenalty = rapid.SampledFrom([]float32{1, 1.2}).Draw(rt, "penalty")
		r.Sampling.Seed = uint64(i)
		longest = max(longest, len(r.Tokens)+r.MaxTokens)
		w.requests = append(w.requests, r)
		w.arrive = append(w.arrive, time.Duration(rapid.IntRange(0, 30).Draw(rt, "arriveMS"))*time.Millisecond)
		cancel := -time.Millisecond
		if rapid.IntRange(0, 4).Draw(rt, "cancels") == 0 {
			cancel = time.Duration(rapid.IntRange(0, 100).Draw(rt, "cancelMS")) * time.Millisecond
		}
		w.cancel = append(w.cancel, cancel)
	}
	w.total = (longest+w.block-1)/w.block + rapid.IntRange(0, 30).Draw(rt, "spare")
	w.limit = w.total
	if rapid.Bool().Draw(rt, "lends") {
		w.limit = w.total / 2
		w.lend = time.Duration(rapid.IntRange(1, 60).Draw(rt, "lendMS")) * time.Millisecond
	}
	return w
}

// play lives through w and returns what went wrong.
func (w world) play() error {
	cache := newToyPrefix(w.seed, w.block, w.limit, w.total)
	cache.lendDelay, cache.faults, cache.keep.forget = w.lend, w.faults, w.forget
	cache.streams = w.streams
	var c Cache = cache
	if !w.keeps {
		c, cache.keep = cache.toyCache, nil
	}
	s := New(&toyModel{block: w.block, layerTime: w.layerTime}, c, w.opt)
	watch(s, cache.toyCache)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()

	subs := make([]*collector, len(w.requests))
	for i, r := range w.requests {
		time.Sleep(w.arrive[i]) // in the bubble
		subs[i] = newCollector()
		r.Sink = subs[i].sink
		if err := s.Submit(r); err != nil {
			cancel()
			return errors.Join(err, <-done)
		}
		if w.cancel[i] >= 0 {
			time.AfterFunc(w.cancel[i], func() { s.Cancel(r.ID) })
		}
	}
	err := s.Drain(ctx)
	synctest.Wait()
	st := s.Stats()
	if st.Waiting != 0 || st.Running != 0 {
		err = errors.Join(err, fmt.Errorf("after Drain: %+v", st))
	}
	cancel()
	if e := <-done; !errors.Is(e, context.Canceled) {
		err = errors.Join(err, e)
	}
	for i, r := range w.requests {
		err = errors.Join(err, subs[i].verify(r))
		u := subs[i].last().Usage
		if u.CachedTokens%w.block != 0 || u.CachedTokens >= len(r.Tokens) || u.Receipt.Local != u.CachedTokens {
			err = errors.Join(err, fmt.Errorf("request %s: %+v", r.ID, u))
		}
	}
	return errors.Join(err, cache.check())
}

// Whatever the arrivals, budgets, refusals, evictions, errors and
// cancellations, tenants, priorities and prefixes found in the cache, every
// request gets exactly what it gets alone, memory is offered in the documented
// order, and all of it comes back.
func TestPropertyEqualsReference(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt)
		var err error
		bubble(t, func(*testing.T) { err = w.play() })
		if err != nil {
			rt.Fatalf("%v\nworld: %+v", err, w)
		}
	})
}

// A chunk never exceeds the budget, ends on a block boundary unless it is the
// last, and is empty only if the budget does not reach the next boundary.
func TestPropertyChunk(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := rapid.IntRange(1, 64).Draw(rt, "block")
		q := &seq{done: b * rapid.IntRange(0, 20).Draw(rt, "doneBlocks")}
		q.tokens = make([]int32, q.done+rapid.IntRange(1, 500).Draw(rt, "left"))
		budget := rapid.IntRange(0, 300).Draw(rt, "budget")
		n := q.chunk(budget, b)
		left := len(q.tokens) - q.done
		switch {
		case n < 0 || n > budget || n > left:
			rt.Fatalf("chunk %d of %d with budget %d", n, left, budget)
		case n < left && (q.done+n)%b != 0:
			rt.Fatalf("chunk ends at %d, block %d", q.done+n, b)
		case n < left && budget-n >= b:
			rt.Fatalf("chunk %d wastes budget %d, block %d", n, budget, b)
		}
	})
}
