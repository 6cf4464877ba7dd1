package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/kvlend/kvlend/internal/trace"
)

// lateLag is the P99 of the generator's own lateness from which on figures are
// doubtful.
const lateLag = 20 // ms

// WriteTable writes the result for people.
func (r *Result) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d sessions, %d turns, %d prompt and %d answer tokens, longest turn %d; model %s, %s prompts, seed %d; turns are due %s\n",
		r.Trace, r.Size.Sessions, r.Size.Turns, r.Size.PromptTokens, r.Size.OutputTokens, r.Size.LongestTurn, r.Model, r.Prompts[r.Model], r.Seed, r.Timing)
	if r.Cut != (trace.Cut{}) {
		fmt.Fprintf(&b, "too long for the context: %d sessions dropped, %d turns cut\n", r.Cut.Sessions, r.Cut.Turns)
	}
	for _, c := range r.Configs {
		if c.Emulated && c.Model == r.Model {
			fmt.Fprintf(&b, "%s: links are *emulated*: %s\n", c.Name, strings.Join(c.Links, "; "))
		}
	}
	fmt.Fprintf(&b, "\n%s\n\n%s\n", r.latencies(), r.volumes())
	if len(r.Ratios) > 0 {
		fmt.Fprintf(&b, "\n%s\n", r.ratioTable())
	}
	b.WriteByte('\n')
	r.lines(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func newTable(labels int, header ...any) table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault // as written
	t.AppendHeader(table.Row(header))
	var columns []table.ColumnConfig
	for i := labels; i < len(header); i++ {
		columns = append(columns, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	return t
}

func (r *Result) latencies() string {
	t := newTable(1, "milliseconds", "TTFT P50", "P90", "P99", "later turns P50", "P90", "P99", "per token P50", "P90", "P99", "whole answer P50", "P90", "P99", "send lag P99")
	for _, c := range r.Configs {
		s := &c.All
		row := table.Row{r.label(&c)}
		for _, d := range []*Dist{&s.TTFT, &s.Later, &s.TPOT, &s.E2E} {
			for _, v := range []float64{d.P50, d.P90, d.P99} {
				row = append(row, figure(d.N, v))
			}
		}
		t.AppendRow(append(row, figure(s.Lag.N, s.Lag.P99)))
	}
	return t.Render()
}

// label marks what is not real.
func (r *Result) label(c *Config) string {
	if c.Emulated {
		return r.name(c) + " (emulated links)"
	}
	return r.name(c)
}

func (r *Result) volumes() string {
	t := newTable(1, "volume", "rounds", "answers", "errors", "requests/s", "tokens/s", "cached", "local", "borrowed", "host", "pool", "declined")
	for _, c := range r.Configs {
		s := &c.All
		row := table.Row{r.label(&c), len(c.Rounds), s.OK, s.Requests - s.OK, three(s.RequestsPerSecond), three(s.OutputPerSecond),
			share(float64(s.CachedTokens), s.PromptTokens, s.OK)}
		for _, v := range []float64{s.Tiers.Local, s.Tiers.Borrowed, s.Tiers.Host, s.Tiers.Pool, s.Tiers.Declined} {
			row = append(row, share(v, s.PromptTokens, s.Receipts))
		}
		t.AppendRow(row)
	}
	return t.Render()
}

func (r *Result) ratioTable() string {
	t := newTable(2, "medians of rounds", "as a ratio to", "TTFT P50", "P90", "P99", "later turns P50", "P90", "P99", "per token P50", "P90", "P99", "whole answer P50", "P90", "P99", "tokens/s")
	for _, x := range r.Ratios {
		row := table.Row{x.Config, x.Base}
		for _, v := range []Triple{x.TTFT, x.Later, x.TPOT, x.E2E} {
			row = append(row, ratio(v.P50), ratio(v.P90), ratio(v.P99))
		}
		t.AppendRow(append(row, ratio(x.Output)))
	}
	return t.Render()
}

// lines writes what does not fit into tables.
func (r *Result) lines(b *strings.Builder) {
	for _, c := range r.Configs {
		if len(c.All.Errors) > 0 {
			fmt.Fprintf(b, "%s: errors: %s\n", r.name(&c), counts(c.All.Errors))
		}
		if c.All.Retries > 0 {
			fmt.Fprintf(b, "%s: %d requests were sent again after the time that the server asked for\n", r.name(&c), c.All.Retries)
		}
		if c.All.Slower > 0 {
			fmt.Fprintf(b, "%s: %d answers were predicted to take longer with the cache than without\n", r.name(&c), c.All.Slower)
		}
		if c.All.Lag.P99 > lateLag {
			fmt.Fprintf(b, "%s: WARNING: the generator itself was late, by %.3g ms at P99: the machine is too busy for it\n", r.name(&c), c.All.Lag.P99)
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(b, "%s\n", n)
	}
	k := &r.Checks
	switch {
	case k.Answers > 0 && k.Checked == 0:
		b.WriteString("answers came without their token ids: none was checked\n")
	default:
		fmt.Fprintf(b, "checked: %d of %d answers, %d distinct requests, %d answers to repeated ones", k.Checked, k.Answers, k.Distinct, k.Repeated)
		if k.ReferenceBy != "" {
			fmt.Fprintf(b, "; %d against %s", k.Reference, k.ReferenceBy)
		} else {
			b.WriteString("; none against a reference")
		}
		fmt.Fprintf(b, "; %d wrong\n", k.Wrong)
	}
	for _, p := range k.Problems {
		fmt.Fprintf(b, "WRONG: %s\n", p)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(b, "FAILED: %s\n", p)
	}
}

// counts prints numbers by name, in the names' order.
func counts(m map[string]int) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%d %s", m[k], k))
	}
	return strings.Join(out, ", ")
}

// three prints three digits that mean something, without an exponent.
func three(v float64) string {
	decimals := 0
	for limit := 100.0; decimals < 3 && v < limit; limit /= 10 {
		decimals++
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// figure is a value of a distribution, if it has any.
func figure(n int, v float64) string {
	if n == 0 {
		return "-"
	}
	return three(v)
}

func ratio(v float64) string {
	if v == 0 {
		return "-"
	}
	return three(v)
}

// share prints a part of all prompt tokens; known is how many answers told it.
func share(part float64, all, known int) string {
	if known == 0 || all == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*part/float64(all))
}

// Duration prints a time for notes.
func Duration(d time.Duration) string { return d.Round(time.Millisecond).String() }
