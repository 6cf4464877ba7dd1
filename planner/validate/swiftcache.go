package validate

import (
	"fmt"
	"math"
	"time"

	"github.com/kvlend/kvlend/planner/facts"
	"github.com/kvlend/kvlend/planner/perf"
)

// Table1Row is a workload of SwiftCache's Table 1: LWM-1M-Text on one H20.
type Table1Row struct {
	Workload string  `json:"workload"`
	Tokens   int     `json:"tokens"`   // mean input length
	HitRate  float64 `json:"hit_rate"` // share of the input that prefix caching found
	// Seconds to the first token; LeftOut is fitted to the other three rows.
	Measured float64 `json:"measured"`
	Fitted   float64 `json:"fitted"`
	LeftOut  float64 `json:"left_out"`
	// With prefix caching; nothing was fitted to these.
	MeasuredCached  float64 `json:"measured_cached"`
	PredictedCached float64 `json:"predicted_cached"`
}

// Error is the relative error of the fit.
func (r Table1Row) Error() float64 { return r.Fitted/r.Measured - 1 }

// LeftOutError is that of the fit to the other rows.
func (r Table1Row) LeftOutError() float64 { return r.LeftOut/r.Measured - 1 }

// CachedError is that of the prediction with a cache.
func (r Table1Row) CachedError() float64 { return r.PredictedCached/r.MeasuredCached - 1 }

// Figure1Row is a point of SwiftCache's Fig. 1: 256 new tokens after a history
// that comes over PCIe.
type Figure1Row struct {
	History  int     `json:"history"`
	Load     float64 `json:"load"`     // seconds
	Compute  float64 `json:"compute"`  // seconds
	Share    float64 `json:"share"`    // of loading in the sum
	Measured float64 `json:"measured"` // the same in the paper
	// Decimal is the share if the link's 32 GB/s are 32e9 bytes per second.
	Decimal float64 `json:"share_decimal"`
}

// Off is the difference in percentage points.
func (r Figure1Row) Off() float64 { return 100 * (r.Share - r.Measured) }

// SwiftCache is what the models say about the paper's motivation.
type SwiftCache struct {
	Efficiency  float64       `json:"efficiency"` // share of the peak, of linear operators and attention alike
	Overhead    time.Duration `json:"overhead_ns"`
	Rows        []Table1Row   `json:"table1"`
	Figure1     []Figure1Row  `json:"figure1"`
	Assumptions []string      `json:"assumptions"`
}

// Figures of the paper.
var (
	table1 = []Table1Row{
		{Workload: "summarization, L-Eval", Tokens: 7124, HitRate: 0.063, Measured: 0.86, MeasuredCached: 0.77},
		{Workload: "code completion, HumanEval", Tokens: 155, HitRate: 0.001, Measured: 0.03, MeasuredCached: 0.03},
		{Workload: "multi-turn, ShareGPT", Tokens: 6231, HitRate: 0.907, Measured: 0.72, MeasuredCached: 0.11},
		{Workload: "question answering, L-Eval", Tokens: 43958, HitRate: 0.818, Measured: 7.95, MeasuredCached: 0.92},
	}
	figure1 = []Figure1Row{{History: 5000, Measured: 0.732}, {History: 50_000, Measured: 0.862}}
)

const (
	figure1New = 256
	// figure1PCIe is the paper's 32 GB/s, in the binary units of its Table 2
	// (524,288 bytes are "0.50 MB" there). It states 75 ms for 5K tokens, which
	// are 35 GB/s: more than 32e9 bytes per second.
	figure1PCIe = 32 << 30
)

var swiftCacheAssumptions = []string{
	"GPU: H20 with 148 TFLOP/s dense bf16 and 4.0 TB/s; model: LWM-1M-Text (Llama-2-7B geometry), weights and KV of 2 bytes an element.",
	"Two parameters for the four rows of Table 1: one efficiency of arithmetic, for linear operators and attention alike, and one fixed overhead (front end, tokenizer, launches). Least squares of relative errors. Memory efficiencies are the defaults; nothing here is bound by memory.",
	"Every request of a workload has the mean length, and its prompt is one step. (Attention grows with the square of the length, so a spread of lengths costs more than this: the paper gives no spread.)",
	"The measured times are rounded to 10 ms: 0.03 s is anything from 0.025 to 0.035.",
	"With a cache: the hit share of the mean length is found on the GPU at no cost. (In truth hits are all or nothing, document by document.)",
	"Fig. 1: efficiency from Table 1, no overhead, since it divides the time of the GPU and the link; 524,288 bytes a token at 32 GiB/s of PCIe, no latency, 5K = 5,000 tokens. Nothing was fitted to Fig. 1.",
}

// CheckSwiftCache fits the no-cache column of Table 1 and predicts the rest.
func CheckSwiftCache() (*SwiftCache, error) {
	model, err := facts.LookupModel("LWM-1M-Text")
	if err != nil {
		return nil, err
	}
	gpu, err := facts.LookupGPU("H20")
	if err != nil {
		return nil, err
	}
	shape := perf.FromModel(model, 2, 2)
	predict := func(start, tokens int, efficiency, overhead float64) (float64, error) {
		c := perf.DefaultCalibration()
		c.Linear, c.Attention, c.Seq = efficiency, efficiency, 0
		c.Step = time.Duration(overhead * 1e9)
		e, err := perf.NewEngine(shape, gpu, c)
		if err != nil {
			return 0, err
		}
		return e.Step([]perf.Seq{{Start: start, New: tokens}}).Total().Seconds(), nil
	}
	peak := make([]float64, len(table1))
	for i, r := range table1 {
		if peak[i], err = predict(0, r.Tokens, 1, 0); err != nil {
			return nil, err
		}
	}
	out := &SwiftCache{Rows: append([]Table1Row(nil), table1...), Figure1: append([]Figure1Row(nil), figure1...), Assumptions: swiftCacheAssumptions}
	efficiency, overhead := fitLine(peak, table1, -1)
	out.Efficiency, out.Overhead = efficiency, time.Duration(overhead*1e9)
	for i := range out.Rows {
		r := &out.Rows[i]
		e, o := fitLine(peak, table1, i)
		hit := int(math.Round(r.HitRate * float64(r.Tokens)))
		for _, p := range []struct {
			to           *float64
			start, n     int
			share, fixed float64
		}{
			{&r.Fitted, 0, r.Tokens, efficiency, overhead},
			{&r.LeftOut, 0, r.Tokens, e, o},
			{&r.PredictedCached, hit, r.Tokens - hit, efficiency, overhead},
		} {
			if *p.to, err = predict(p.start, p.n, p.share, p.fixed); err != nil {
				return nil, fmt.Errorf("%s: %w", r.Workload, err)
			}
		}
	}
	for i := range out.Figure1 {
		r := &out.Figure1[i]
		r.Load = float64(r.History) * float64(model.Geometry(16, 2).TokenBytes()) / figure1PCIe
		if r.Compute, err = predict(r.History, figure1New, efficiency, 0); err != nil {
			return nil, err
		}
		r.Share = r.Load / (r.Load + r.Compute)
		decimal := r.Load * figure1PCIe / 32e9
		r.Decimal = decimal / (decimal + r.Compute)
	}
	return out, nil
}

// fitLine finds the efficiency in (0, 1] and the overhead, not negative, with
// which peak/efficiency + overhead is nearest to the measured times, by least
// squares of relative errors. The row skip is left out; -1: none.
func fitLine(peak []float64, rows []Table1Row, skip int) (efficiency, overhead float64) {
	var xx, xo, oo, x1, o1 float64
	for i, r := range rows {
		if i == skip {
			continue
		}
		x, o := peak[i]/r.Measured, 1/r.Measured
		xx, xo, oo, x1, o1 = xx+x*x, xo+x*o, oo+o*o, x1+x, o1+o
	}
	det := xx*oo - xo*xo
	slope, overhead := (x1*oo-o1*xo)/det, (o1*xx-x1*xo)/det
	if overhead < 0 {
		slope, overhead = x1/xx, 0
	}
	if slope < 1 {
		slope = 1
		overhead = max(0, (o1-xo)/oo)
	}
	return 1 / slope, overhead
}
