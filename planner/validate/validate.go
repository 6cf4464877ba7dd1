// Package validate compares the planner's models with what others measured on
// hardware that is not at hand: the tables of the SwiftCache paper, and request
// logs of vLLM servers. The logs are embedded; a comparison reads nothing else,
// takes some seconds and gives the same figures each time.
//
// Fig. 7 is simulated with package sim. The request logs are replayed by a loop of
// this package's own, since it is vLLM's policy that they come from and not
// kvlend's: running requests go before waiting ones, all of them share one budget
// of tokens, the youngest loses its KV when blocks run out, and steps may be put
// together one ahead. A fit replays a log some 200 times, which the loop does in a
// second.
package validate

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// The bars that the models are held to.
const (
	table1Bar  = 0.15 // relative error of a time to the first token
	figure1Bar = 5    // percentage points of a share
)

// Report is all comparisons. It encodes as JSON.
type Report struct {
	SwiftCache *SwiftCache `json:"swiftcache"`
	VLLM       *VLLM       `json:"vllm"`
	Figure7    *Figure7    `json:"figure7"`
}

// Run makes all comparisons. It returns ctx's error when that ends first.
func Run(ctx context.Context) (*Report, error) {
	s, err := CheckSwiftCache()
	if err != nil {
		return nil, fmt.Errorf("SwiftCache: %w", err)
	}
	v, err := CheckVLLM()
	if err != nil {
		return nil, fmt.Errorf("vLLM: %w", err)
	}
	f, err := CheckFigure7(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("SwiftCache, Fig. 7: %w", err)
	}
	return &Report{SwiftCache: s, VLLM: v, Figure7: f}, nil
}

// Err is an error if a bar is missed.
func (r *Report) Err() error {
	if m := r.Misses(); len(m) > 0 {
		return fmt.Errorf("%d bars are missed: %s", len(m), strings.Join(m, "; "))
	}
	return nil
}

// Misses says which bars the models miss, and by how much.
func (r *Report) Misses() []string {
	var out []string
	for _, x := range r.SwiftCache.Rows {
		if e := x.Error(); math.Abs(e) > table1Bar {
			out = append(out, fmt.Sprintf("Table 1, %s: off by %+.1f %%, the bar is %.0f %%", x.Workload, 100*e, 100*table1Bar))
		}
	}
	for _, x := range r.SwiftCache.Figure1 {
		if off := x.Off(); math.Abs(off) > figure1Bar {
			out = append(out, fmt.Sprintf("Fig. 1, %d tokens: off by %+.1f points, the bar is %d", x.History, off, figure1Bar))
		}
	}
	return append(out, r.Figure7.misses()...)
}

// WriteText prints the report as Markdown.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	r.SwiftCache.text(&b)
	b.WriteByte('\n')
	r.Figure7.text(&b)
	b.WriteByte('\n')
	r.VLLM.text(&b)
	b.WriteByte('\n')
	if m := r.Misses(); len(m) > 0 {
		fmt.Fprintf(&b, "Missed: %s.\n", strings.Join(m, "; "))
	} else {
		b.WriteString("Table 1, Fig. 1 and Fig. 7 are within their bars.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *SwiftCache) text(b *strings.Builder) {
	fmt.Fprintf(b, "### SwiftCache, Table 1: LWM-1M-Text on an H20\n\nTwo parameters for four rows: %.1f %% of the peak, %s of overhead.\n\n", 100*s.Efficiency, s.Overhead.Round(100*time.Microsecond))
	b.WriteString("| workload | tokens | TTFT measured | fitted | error | fitted without this row | error | with cache, measured | predicted | error |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range s.Rows {
		fmt.Fprintf(b, "| %s | %d | %.2f s | %.3f s | %+.1f %% | %.3f s | %+.1f %% | %.2f s | %.3f s | %+.0f %% |\n", r.Workload, r.Tokens,
			r.Measured, r.Fitted, 100*r.Error(), r.LeftOut, 100*r.LeftOutError(), r.MeasuredCached, r.PredictedCached, 100*r.CachedError())
	}
	for _, r := range s.Rows {
		if e := r.LeftOutError(); math.Abs(e) > table1Bar {
			fmt.Fprintf(b, "\nLeft out, %s misses %.0f %%: no other row says what it depends on.\n", r.Workload, 100*table1Bar)
		}
	}
	b.WriteString("\n### SwiftCache, Fig. 1: share of loading, 256 new tokens\n\n| history | load | compute | share | in the paper | off by | with 32e9 bytes/s |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range s.Figure1 {
		fmt.Fprintf(b, "| %d | %.1f ms | %.1f ms | %.1f %% | %.1f %% | %+.1f points | %.1f %% (%+.1f) |\n", r.History,
			1e3*r.Load, 1e3*r.Compute, 100*r.Share, 100*r.Measured, r.Off(), 100*r.Decimal, 100*(r.Decimal-r.Measured))
	}
	list(b, s.Assumptions)
}

func (v *VLLM) text(b *strings.Builder) {
	b.WriteString("### vLLM's request logs\n")
	list(b, v.Servers)
	for _, f := range v.Fits {
		c := f.Calibration
		fmt.Fprintf(b, "\nCalibrated with %s: arithmetic %.3f, memory %.3f, %s a step, %s a sequence. Modelled / measured:\n\n", f.From, c.Linear, c.Weights, c.Step.Round(time.Microsecond), c.Seq.Round(10*time.Nanosecond))
		b.WriteString("| log | | TTFT P50, s | P99, s | time per token P50, ms | P99, ms | median error of a request: TTFT | time per token |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
		for _, r := range f.Rows {
			m, o := r.Modelled, r.Measured
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %.0f %% | %.1f %% |\n", r.Log, r.Kind,
				against(m.TTFT50, o.TTFT50, 1, 3), against(m.TTFT99, o.TTFT99, 1, 2), against(m.TPOT50, o.TPOT50, 1e3, 1), against(m.TPOT99, o.TPOT99, 1e3, 1),
				100*r.MedianTTFT, 100*r.MedianTPOT)
		}
	}
	fmt.Fprintf(b, "\nFound afterwards: the first calibration meets the mixture's median time per token if a step reads %.0f %% of the weights that even routing would.\n", 100*v.MixtureRead)
	list(b, v.Assumptions)
}

// against prints both values and the relative error.
func against(modelled, measured, unit float64, digits int) string {
	return fmt.Sprintf("%.*f / %.*f (%+.0f %%)", digits, unit*modelled, digits, unit*measured, 100*(modelled/measured-1))
}

func list(b *strings.Builder, items []string) {
	b.WriteByte('\n')
	for _, s := range items {
		fmt.Fprintf(b, "* %s\n", s)
	}
}
