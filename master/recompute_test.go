package master

import (
	"context"
	"slices"
	"testing"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/scheduler"
)

// TestCorruptionChangesNoAnswer spoils borrowed memory while a real model
// generates: the tokens and every bit of the logits are those of a run that
// nobody disturbed.
func TestCorruptionChangesNoAnswer(t *testing.T) {
	m, err := engine.Builtin("random-atlas", engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	prompt := make([]int32, 470)
	for i := range prompt {
		prompt[i] = int32(3 + i*7%200)
	}
	want, usage, stats := generate(t, m, prompt, nil)
	if stats.CorruptBlocks != 0 || usage.BorrowedBlocks < 10 || stats.VerifiedBlocks == 0 {
		t.Fatalf("a quiet run: %+v, %+v", usage, stats)
	}
	got, again, stats := generate(t, m, prompt, func(w *world, n int) {
		if n == 5 || n == 17 {
			s := newSpoiler(w, nil)
			all := s.targets()
			s.layer(all[n%len(all)].b, n%8)[4*n] ^= 0x10
		}
	})
	if stats.CorruptBlocks != 2 || again.Preemptions != 2 {
		t.Errorf("%d corrupt blocks and %d restarts, want 2", stats.CorruptBlocks, again.Preemptions)
	}
	if !slices.Equal(got, want) || again.LogitsHash != usage.LogitsHash {
		t.Errorf("logits %x and tokens %d after corruption, want %x and %d", again.LogitsHash, got, usage.LogitsHash, want)
	}
}

// generate answers a prompt with 30 tokens; between is called after each of
// them, between two steps.
func generate(t *testing.T, m *engine.Model, prompt []int32, between func(w *world, n int)) ([]int32, scheduler.Usage, Stats) {
	t.Helper()
	geo := elastic.Geometry{Name: "m", Layers: 8, BlockTokens: 16, KVHeads: 4, HeadDim: 32, ElemBytes: 2}
	w := newWorld(t, worldConfig{
		geo: geo, buffers: 1, arenaLayers: 128, tails: 2, verify: VerifyAll,
		workers: []int64{80 * geo.FullBlockBytes()}, policy: elastic.PolicyLCM,
	})
	w.lend[0].wanted = w.lend[0].units.MaxLent()
	w.lend[0].answer()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := scheduler.New(m, w.cache, scheduler.Options{MaxBatchTokens: 128})
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	var tokens []int32
	last := make(chan scheduler.Event, 1)
	err := s.Submit(scheduler.Request{ID: "r", Tokens: prompt, MaxTokens: 30, IgnoreEOS: true, Sampling: sampling.Params{TopP: 1, RepetitionPenalty: 1}, Sink: func(ev scheduler.Event) {
		if ev.HasToken {
			tokens = append(tokens, ev.Token.ID)
			if between != nil {
				between(w, len(tokens))
			}
		}
		if ev.Finish != "" || ev.Err != nil {
			last <- ev
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	ev := <-last
	cancel()
	<-ended
	if ev.Err != nil {
		t.Fatal(ev.Err)
	}
	return tokens, ev.Usage, w.cache.Stats()
}
