package engine_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/kvlend/kvlend/engine"
)

// BenchmarkForward measures single passes of the built-in models. Package
// bench/enginebench compares them with the machine's roofline.
func BenchmarkForward(b *testing.B) {
	for _, name := range engine.BuiltinNames() {
		m := builtin(b, name, engine.Options{})
		kv := engine.NewSimpleKVs(m, 8, 2560)
		tokens := randomTokens(1, 512, 320)
		for _, s := range []struct{ seqs, start, rows int }{{1, 0, 512}, {1, 0, 1}, {1, 2048, 1}, {8, 512, 1}} {
			b.Run(fmt.Sprintf("%s/seqs=%d/depth=%d/new=%d", name, s.seqs, s.start, s.rows), func(b *testing.B) {
				batch, use := make([]engine.Sequence, s.seqs), make([]int, s.seqs)
				for i := range batch {
					batch[i] = engine.Sequence{Tokens: tokens[:s.rows], Start: s.start, Logits: engine.LastLogits}
					use[i] = i
				}
				kv.Use(use...)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := m.Forward(context.Background(), batch, kv); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.N*s.seqs*s.rows)/b.Elapsed().Seconds(), "tokens/s")
			})
		}
	}
}
