package sim

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/trace"
	"github.com/kvlend/kvlend/planner"
)

// fourGPUs is a server whose master has one of four H200 and borrows from the
// others.
const fourGPUs = `
version: 1
fabric: {kind: cuda}
devices:
  - {name: gpu0, kind: H200-SXM, memory: 141GB}
  - {name: gpu1, kind: H200-SXM, memory: 141GB}
  - {name: gpu2, kind: H200-SXM, memory: 141GB}
  - {name: gpu3, kind: H200-SXM, memory: 141GB}
models:
  - {name: chat, source: "catalog:Qwen3-8B", role: master, block_tokens: 64, device: gpu0, arena: 100GiB, max_batch_tokens: 8192, max_running: 128, max_waiting: 4096, lsc: {buffers: 2}}
  - {name: w1, source: "catalog:Qwen3-14B", role: worker, block_tokens: 64, device: gpu1, arena: 90GiB, max_batch_tokens: 8192, max_running: 64, floor: 12800MiB}
  - {name: w2, source: "catalog:Qwen3-32B", role: worker, block_tokens: 64, device: gpu2, arena: 60GiB, max_batch_tokens: 8192, max_running: 64, floor: 10GiB}
  - {name: w3, source: "catalog:Qwen3-8B", role: worker, block_tokens: 64, device: gpu3, arena: 100GiB, max_batch_tokens: 8192, max_running: 64, floor: 12800MiB}
lending:
  unit: {policy: padded, max_waste: 2%}
  scale_down: {policy: window, window: 60s}
`

// mooncakeLike makes requests with the arrivals, lengths and reuse of the first 30
// minutes of Mooncake's conversation trace, times over: every 3 s some arrive, 35 %
// of them continue an earlier one, two minutes later in the median, with most of its
// blocks of 512 tokens and about two more, and all begin with the same block.
func mooncakeLike(times int) *trace.Trace {
	const block, requests, span = 512, 5719, 1800
	rng := rand.New(rand.NewPCG(1, 0x300c))
	lognormal := func(median, sigma float64, least, most int) int {
		return min(most, max(least, int(median*math.Exp(sigma*rng.NormFloat64()))))
	}
	type open struct {
		spans []trace.Span
		at    int
	}
	var id uint64 = 1
	var waiting []open // continued at a time
	t := &trace.Trace{Name: "like Mooncake's"}
	for i := range requests * times {
		at := i * span / requests / 3 * 3
		var spans []trace.Span
		if k := rng.IntN(max(1, min(64, len(waiting)))); len(waiting) > 0 && waiting[k].at <= at && rng.Float64() < 0.8 {
			old := waiting[k].spans
			waiting[k] = waiting[0]
			waiting = waiting[1:]
			keep := max(1, len(old)-1-rng.IntN(2))
			spans = append(spans, old[:keep]...)
			for range 1 + lognormal(1.5, 1.2, 0, 30) {
				id++
				spans = append(spans, trace.Span{ID: id, Tokens: block})
			}
		} else {
			spans = append(spans, trace.Span{ID: 1, Tokens: block})
			for range lognormal(12, 1.2, 1, 76) {
				id++
				spans = append(spans, trace.Span{ID: id, Tokens: block})
			}
		}
		last := &spans[len(spans)-1]
		last.Tokens = 1 + rng.IntN(block)
		if rng.Float64() < 0.4 && len(spans) < 70 {
			waiting = append(waiting, open{spans, at + lognormal(120, 0.9, 30, 1200)})
		}
		t.Sessions = append(t.Sessions, trace.Session{
			ID: fmt.Sprint(i), Start: time.Duration(at) * time.Second,
			Turns: []trace.Turn{{Append: spans, Output: lognormal(290, 0.9, 1, 2000)}},
		})
	}
	return t
}

// mooncakeFile names the real trace, which the repository does not have.
const mooncakeFile = "KVLEND_MOONCAKE"

// BenchmarkMooncake: 30 minutes of a four-GPU server that is about half busy, with
// the trace that the environment's KVLEND_MOONCAKE names, or one like it. peak-MB is
// the largest live heap, of which trace-MB is the trace.
func BenchmarkMooncake(b *testing.B) {
	c, err := configs.Parse([]byte(fourGPUs), "bench")
	if err != nil {
		b.Fatal(err)
	}
	sys, err := planner.Resolve(c, configs.CatalogGeometry)
	if err != nil {
		b.Fatal(err)
	}
	for _, times := range []int{1, 10} {
		b.Run(fmt.Sprintf("x%d", times), func(b *testing.B) {
			before := live()
			t := mooncakeLike(times)
			if path := os.Getenv(mooncakeFile); path != "" && times == 1 {
				if t, err = trace.Load(path, trace.Mooncake, 0); err != nil {
					b.Fatal(err)
				}
			}
			t, _, err = (&trace.Shape{MaxContext: 40960, Time: 0.4}).Apply(t)
			if err != nil {
				b.Fatal(err)
			}
			held := live() - before
			var peak uint64
			for b.Loop() {
				r, err := Run(context.Background(), Options{
					System: sys, Hardware: NewHardware(c, Machine{}),
					Loads:    []Load{{Model: "chat", Trace: t, Timing: ByThink, Seed: 1}},
					Progress: func(time.Duration, int) { peak = max(peak, heap()-before) },
				})
				if err != nil {
					b.Fatal(err)
				}
				a := r.Answers[0]
				b.ReportMetric(float64(a.Answered), "requests")
				b.ReportMetric(float64(r.Events), "events")
				b.ReportMetric(a.All.Quantile(0.5), "TTFT-P50-s")
			}
			b.ReportMetric(float64(peak)/1e6, "peak-MB")
			b.ReportMetric(float64(held)/1e6, "trace-MB")
		})
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func live() uint64 {
	runtime.GC()
	return heap()
}
