package scheduler

import (
	"context"
	"fmt"
	"testing"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/sampling"
)

// freeRunner and freeCache cost nothing, so that what is left is scheduling.
type freeRunner struct {
	out  engine.Output
	rows [][]float32
}

func (r *freeRunner) Config() *engine.Config     { return &freeConfig }
func (r *freeRunner) KVLayout() kernels.KVLayout { return kernels.KVLayout{} }
func (r *freeRunner) Forward(_ context.Context, batch []engine.Sequence, _ engine.KV) (*engine.Output, error) {
	n := 0
	for _, s := range batch {
		if s.Logits == engine.LastLogits {
			n++
		}
	}
	r.out.Logits = r.rows[:n]
	return &r.out, nil
}

var freeConfig = engine.Config{Vocab: 256}

type freeCache struct{ changed chan struct{} }

func (freeCache) BlockTokens() int                               { return 16 }
func (freeCache) MaxTokens() int                                 { return 1 << 40 }
func (freeCache) Reserve(uint64, int) error                      { return nil }
func (freeCache) Release(uint64)                                 {}
func (freeCache) Evicted() []uint64                              { return nil }
func (freeCache) Begin(context.Context, []StepSeq) (Step, error) { return freeStep{}, nil }
func (c freeCache) Changed() <-chan struct{}                     { return c.changed }

type freeStep struct{}

func (freeStep) Memory() []byte               { return nil }
func (freeStep) Layer(int) ([][]int64, error) { return nil, nil }
func (freeStep) Written(int)                  {}
func (freeStep) Done(int)                     {}
func (freeStep) Commit() error                { return nil }
func (freeStep) Abort()                       {}

// BenchmarkStep is the scheduler's own cost of a decode step: planning, hashing
// 256 logits and sending an event per sequence, without the model, the cache
// and the sampler.
func BenchmarkStep(b *testing.B) {
	for _, n := range []int{1, 32, 256} {
		b.Run(fmt.Sprintf("sequences=%d", n), func(b *testing.B) {
			runner := &freeRunner{rows: make([][]float32, n)}
			for i := range runner.rows {
				runner.rows[i] = make([]float32, freeConfig.Vocab)
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			steps := 0
			s := New(runner, freeCache{make(chan struct{}, 1)}, Options{
				MaxRunning: n, MaxBatchTokens: n + 16*n,
				Sampler: func([]float32, []int32, []int32, int, sampling.Params, *sampling.Scratch) (sampling.Token, error) {
					return sampling.Token{}, nil
				},
			})
			for i := range n {
				r := Request{ID: fmt.Sprint(i), Tokens: make([]int32, 16), MaxTokens: 1 << 39, Sink: func(Event) {}, Sampling: sampling.Default()}
				if i == 0 {
					r.Sink = func(Event) {
						if steps++; steps >= b.N {
							cancel()
						}
					}
				}
				if err := s.Submit(r); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			if err := s.Run(ctx); err != context.Canceled {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkHashRow hashes a row of logits of Qwen3's vocabulary.
func BenchmarkHashRow(b *testing.B) {
	row := make([]float32, 151936)
	b.SetBytes(int64(4 * len(row)))
	var h uint64
	for b.Loop() {
		h = HashRow(h, row)
	}
}
