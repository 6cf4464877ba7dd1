package master

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/scheduler"
)

// BenchmarkVerify is a decode step over 256 borrowed blocks with each mode of
// verification. The modes take turns, step by step, so that whatever else the
// machine does hits them alike; "x off" is the ratio of the medians. The first
// rows are the built-in master's own forward pass, the last has no computation
// for the hashing to hide behind.
func BenchmarkVerify(b *testing.B) {
	const blocks = 256
	m, err := engine.Builtin("random-atlas", engine.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	forward := func(st scheduler.Step, at int) error {
		_, err := m.Forward(context.Background(), []engine.Sequence{{Tokens: []int32{1}, Start: at, Logits: engine.LastLogits}}, st)
		return err
	}
	for _, c := range []struct {
		name    string
		buffers int
		compute func(st scheduler.Step, at int) error
	}{{"atlas", 1, forward}, {"atlas", 2, forward}, {"copies", 1, nil}} {
		b.Run(fmt.Sprintf("%s/blocks=%d/buffers=%d", c.name, blocks, c.buffers), func(b *testing.B) {
			modes := []Verify{VerifyOff, VerifySample, VerifyAll}
			worlds := make([]*world, len(modes))
			for i, v := range modes {
				worlds[i] = borrowing(b, v, blocks, c.buffers)
			}
			took := make([][]time.Duration, len(modes))
			for b.Loop() {
				for i, w := range worlds {
					began := time.Now()
					if err := w.step(w.seqs[1], 1, c.compute); err != nil {
						b.Fatal(err)
					}
					took[i] = append(took[i], time.Since(began))
				}
			}
			median := func(i int) float64 {
				slices.Sort(took[i])
				return took[i][len(took[i])/2].Seconds()
			}
			for i, v := range modes {
				b.ReportMetric(median(i)*1e3, "ms-"+string(v))
				if i > 0 {
					b.ReportMetric(median(i)/median(0), string(v)+"-x-off")
				}
			}
		})
	}
}

// borrowing is a world with atlas's geometry and a sequence that has exactly so
// many borrowed blocks, full but for the last.
func borrowing(b *testing.B, v Verify, blocks, buffers int) *world {
	geo := elastic.Geometry{Name: "m", Layers: 8, BlockTokens: 16, KVHeads: 4, HeadDim: 32, ElemBytes: 2}
	const own = 32
	w := newWorld(b, worldConfig{
		geo: geo, buffers: buffers, arenaLayers: own*geo.Layers + buffers*blocks, tails: 2, verify: v,
		workers: []int64{int64(blocks) * geo.FullBlockBytes()}, policy: elastic.PolicyLCM,
	})
	n := (own + blocks) * geo.BlockTokens
	if err := w.reserve(1, n); err != nil {
		b.Fatal(err)
	}
	for w.seqs[1] < n-8 {
		k := min(256, n-8-w.seqs[1])
		if err := w.step(w.seqs[1], k, nil); err != nil {
			b.Fatal(err)
		}
		w.seqs[1] += k
	}
	if w.cache.held != blocks {
		b.Fatalf("%d borrowed blocks, want %d", w.cache.held, blocks)
	}
	b.Cleanup(func() { w.cache.Release(1) })
	return w
}

// step runs a step of sequence 1; without compute it only moves the bytes.
func (w *world) step(at, n int, compute func(st scheduler.Step, at int) error) error {
	st, err := w.cache.Begin(context.Background(), []scheduler.StepSeq{{ID: 1, Start: at, New: n}})
	if err != nil {
		return err
	}
	if compute != nil {
		err = compute(st, at)
	} else {
		for l := 0; l < w.geo.Layers && err == nil; l++ {
			if _, err = st.Layer(l); err == nil {
				st.Written(l)
				st.Done(l)
			}
		}
	}
	if err != nil {
		st.Abort()
		return err
	}
	return st.Commit()
}
