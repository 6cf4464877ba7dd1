package scheduler

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/sampling"
)

// slab is a Cache over one arena of layer blocks, without lending. An id's
// blocks are wherever there was room.
type slab struct {
	model   engine.Runner
	mem     []byte
	free    []int // full blocks
	total   int
	held    map[uint64][]int
	changed chan struct{}
}

func newSlab(m engine.Runner, blocks int) *slab {
	s := &slab{model: m, total: blocks, held: map[uint64][]int{}, changed: make(chan struct{}, 1)}
	s.mem = make([]byte, int64(blocks)*int64(m.Config().Layers)*m.KVLayout().LayerBlockBytes())
	for b := range blocks {
		s.free = append(s.free, (b*7)%blocks) // scattered; blocks is no multiple of 7
	}
	return s
}

func (s *slab) BlockTokens() int         { return s.model.KVLayout().BlockTokens }
func (s *slab) MaxTokens() int           { return s.total * s.BlockTokens() }
func (s *slab) Evicted() []uint64        { return nil }
func (s *slab) Changed() <-chan struct{} { return s.changed }

func (s *slab) Reserve(id uint64, tokens int) error {
	need := (tokens+s.BlockTokens()-1)/s.BlockTokens() - len(s.held[id])
	if need > len(s.free) {
		return ErrWait
	}
	if need > 0 {
		s.held[id] = append(s.held[id], s.free[:need]...)
		s.free = s.free[need:]
	}
	return nil
}

func (s *slab) Release(id uint64) {
	s.free = append(s.free, s.held[id]...)
	delete(s.held, id)
}

func (s *slab) Begin(_ context.Context, steps []StepSeq) (Step, error) {
	return &slabStep{s, slices.Clone(steps)}, nil
}

type slabStep struct {
	*slab
	steps []StepSeq
}

func (s *slabStep) Memory() []byte { return s.mem }
func (s *slabStep) Written(int)    {}
func (s *slabStep) Done(int)       {}
func (s *slabStep) Commit() error  { return nil }
func (s *slabStep) Abort()         {}

func (s *slabStep) Layer(l int) ([][]int64, error) {
	size, layers := s.model.KVLayout().LayerBlockBytes(), s.model.Config().Layers
	var tables [][]int64
	for _, st := range s.steps {
		var t []int64
		for _, b := range s.held[st.ID] {
			t = append(t, int64(b*layers+l)*size)
		}
		tables = append(tables, t)
	}
	return tables, nil
}

// engineReference computes a request with the engine alone: the prompt in one
// pass, then token by token.
func engineReference(t *testing.T, m engine.Runner, r Request) answer {
	t.Helper()
	kv := engine.NewSimpleKV(m, len(r.Tokens)+r.MaxTokens)
	a := answer{finish: FinishLength}
	var scratch sampling.Scratch
	next, start := r.Tokens, 0
	for i := range r.MaxTokens {
		out, err := m.Forward(t.Context(), []engine.Sequence{{Tokens: next, Start: start, Logits: engine.LastLogits}}, kv)
		if err != nil {
			t.Fatal(err)
		}
		start += len(next)
		a.hash = HashRow(a.hash, out.Logits[0])
		tok, err := sampling.Sample(out.Logits[0], r.Tokens, a.tokens, i, r.Sampling, &scratch)
		if err != nil {
			t.Fatal(err)
		}
		a.tokens = append(a.tokens, tok.ID)
		next = []int32{tok.ID}
	}
	return a
}

// The built-in models answer the same to the bit, batched, chunked and
// preempted, as alone over the plainest cache.
func TestBuiltinModelsEqualSimpleKV(t *testing.T) {
	for _, name := range engine.BuiltinNames() {
		t.Run(name, func(t *testing.T) {
			m, err := engine.Builtin(name, engine.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
			cache := newSlab(m, 13)
			b := cache.BlockTokens()
			s := New(m, cache, Options{MaxRunning: 4, MaxBatchTokens: 3 * b})
			var requests []Request
			var subs []*collector
			for i := range 6 {
				n := 1 + i*i*b/3 + i*5
				tokens := make([]int32, n)
				for j := range tokens {
					tokens[j] = int32('a' + (i*31+j*j)%26)
				}
				q := Request{ID: fmt.Sprint(i), Tokens: tokens, MaxTokens: 3*b/2 + i, Sampling: sampling.Default()}
				q.Sampling.Temperature, q.Sampling.Seed = float32(i%2), uint64(i)
				c := newCollector()
				q.Sink = c.sink
				if err := s.Submit(q); err != nil {
					t.Fatal(err)
				}
				requests, subs = append(requests, q), append(subs, c)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx) }()
			if err := s.Drain(t.Context()); err != nil {
				t.Error(err)
			}
			cancel()
			<-done
			for i, q := range requests {
				want, got := engineReference(t, m, q), subs[i].last()
				if !slices.Equal(subs[i].got(), want.tokens) || got.Usage.LogitsHash != want.hash || got.Finish != want.finish {
					t.Errorf("request %d: %v and hash %x, want %v and %x (%+v)", i, subs[i].got(), got.Usage.LogitsHash, want.tokens, want.hash, got)
				}
			}
			if st := s.Stats(); st.Preemptions == 0 || st.PrefillTokens == 0 {
				t.Errorf("nothing was preempted, the test proves too little: %+v", st)
			}
			if len(cache.free) != cache.total {
				t.Errorf("%d of %d blocks are free at the end", len(cache.free), cache.total)
			}
		})
	}
}
