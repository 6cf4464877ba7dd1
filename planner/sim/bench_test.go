package sim

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
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

// mooncakeLike gives requests with the arrivals, lengths and reuse of the first 30
// minutes of Mooncake's conversation trace, times over, at a pace of 0.4: every 7.5 s
// some arrive, 35 % of them continue an earlier one, five minutes later in the median,
// with most of its blocks of 512 tokens and about two more, and all begin with the
// same block.
func mooncakeLike(times int) func() *trace.Session {
	const block, requests, span, open = 512, 5719, 1800, 1024
	rng := rand.New(rand.NewPCG(1, 0x300c))
	lognormal := func(median, sigma float64, least, most int) int {
		return min(most, max(least, int(median*math.Exp(sigma*rng.NormFloat64()))))
	}
	type kept struct {
		spans []trace.Span
		at    int
	}
	var id uint64 = 1
	var waiting []kept // continued at a time
	more := func(spans []trace.Span, n int) []trace.Span {
		for range n {
			id++
			spans = append(spans, trace.Span{ID: id, Tokens: block})
		}
		return spans
	}
	i := -1
	return func() *trace.Session {
		if i++; i == requests*times {
			return nil
		}
		at := i * span / requests / 3 * 3
		spans := []trace.Span{{ID: 1, Tokens: block}}
		if k := rng.IntN(max(1, min(64, len(waiting)))); len(waiting) > 0 && waiting[k].at <= at && rng.Float64() < 0.8 {
			old := waiting[k].spans
			waiting[k] = waiting[0]
			waiting = waiting[1:]
			spans = more(slices.Clone(old[:max(1, len(old)-1-rng.IntN(2))]), 1+lognormal(1.5, 1.2, 0, 30))
		} else {
			spans = more(spans, lognormal(12, 1.2, 1, 73))
		}
		spans = spans[:min(len(spans), 75)]
		spans[len(spans)-1].Tokens = 1 + rng.IntN(block)
		if rng.Float64() < 0.4 && len(spans) < 70 {
			waiting = append(waiting, kept{spans, at + lognormal(120, 0.9, 30, 1200)})
			waiting = waiting[max(0, len(waiting)-open):]
		}
		return &trace.Session{
			ID: strconv.Itoa(i), Start: time.Duration(at) * time.Second * 5 / 2,
			Turns: []trace.Turn{{Append: spans, Output: lognormal(290, 0.9, 1, 2000)}},
		}
	}
}

// mooncakeFile names the real trace, which the repository does not have.
const mooncakeFile = "KVLEND_MOONCAKE"

// BenchmarkMooncake: 30 minutes of a four-GPU server that is about half busy (75 at
// the pace of 0.4), with the trace that the environment's KVLEND_MOONCAKE names, or
// with one like it, and ten times as long. live-MB is the largest heap that is in use.
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
			var peak, calls uint64
			for b.Loop() {
				load := Load{Model: "chat", Timing: ByThink, Seed: 1}
				load.Next = mooncakeLike(times)
				if path := os.Getenv(mooncakeFile); path != "" && times == 1 {
					load.Next, load.Trace = nil, mooncake(b, path)
				}
				r, err := Run(context.Background(), Options{System: sys, Hardware: NewHardware(c, Machine{}), Loads: []Load{load},
					Progress: func(time.Duration, int) {
						if calls++; calls%8 == 0 {
							peak = max(peak, live())
						}
					}})
				if err != nil {
					b.Fatal(err)
				}
				a := r.Answers[0]
				b.ReportMetric(float64(a.Answered), "requests")
				b.ReportMetric(float64(r.Events), "events")
				b.ReportMetric(a.All.Quantile(0.5), "TTFT-P50-s")
			}
			b.ReportMetric(float64(peak)/1e6, "live-MB")
		})
	}
}

func mooncake(b *testing.B, path string) *trace.Trace {
	t, err := trace.Load(path, trace.Mooncake, 0)
	if err == nil {
		t, _, err = (&trace.Shape{MaxContext: 40960, Time: 0.4}).Apply(t)
	}
	if err != nil {
		b.Fatal(err)
	}
	return t
}

// live is what is in use of the heap.
func live() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestMemory: a run takes no more memory for three times as many requests.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("measures the heap, which the long tests do")
	}
	most := func(sessions int) (peak uint64) {
		sys := resolve(t, shaped("padded", "2", ""))
		n := 0
		load := Load{Model: "m", Seed: 1, Next: func() *trace.Session {
			if n++; n > sessions {
				return nil
			}
			return &trace.Session{Start: time.Duration(n) * 100 * time.Millisecond, Turns: []trace.Turn{{Append: []trace.Span{{ID: uint64(n), Tokens: 1500}}, Output: 20}}}
		}}
		calls := 0
		r, err := Run(t.Context(), Options{System: sys, Hardware: NewHardware(sys.Config, Machine{}), Loads: []Load{load}, Progress: func(time.Duration, int) {
			if calls++; calls > 1 { // when the caches are full
				peak = max(peak, live())
			}
		}})
		if err != nil || r.Answers[0].Answered != sessions {
			t.Fatalf("%d sessions: %v", sessions, err)
		}
		t.Logf("%d requests: %.1f MB after %d events", sessions, float64(peak)/1e6, r.Events)
		return peak
	}
	few, many := most(2500), most(7500)
	if few == 0 || float64(many) > 1.15*float64(few) {
		t.Errorf("%d bytes for 2,500 requests, %d for 7,500", few, many)
	}
}
