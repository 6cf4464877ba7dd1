package simcheck

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

func spread(v []float64) float64 {
	least := slices.Min(v)
	if least <= 0 {
		return 0
	}
	return slices.Max(v)/least - 1
}

// Off is how far a simulated figure is from a measured one, relative to that; NaN
// when there is none.
func Off(measured, simulated float64) float64 {
	if measured <= 0 {
		return math.NaN()
	}
	return simulated/measured - 1
}

// WriteJSON writes the result for machines.
func (r *Result) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteTable writes the result for people.
func (r *Result) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "measured against simulated: %s, %d turns, model %s, seed %d\n", r.Measured.Trace, r.Measured.Size.Turns, r.Measured.Model, r.Measured.Seed)
	if r.Machine != "" {
		fmt.Fprintf(&b, "the machine: %s\n", r.Machine)
	}
	for _, n := range r.Measured.Notes {
		fmt.Fprintf(&b, "%s\n", n)
	}
	fmt.Fprintf(&b, "\n%s\n\n%s\n\n", r.times(), r.shares())
	r.machine(&b)
	for _, p := range r.Measured.Problems {
		fmt.Fprintf(&b, "PROBLEM: %s\n", p)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func newTable(header ...any) table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(table.Row(header))
	return t
}

func (r *Result) times() string {
	t := newTable("milliseconds", "", "measured", "simulated", "off by", "rounds differ by")
	for i := range r.Rows {
		row := &r.Rows[i]
		m, s, d := &row.Measured, &row.Simulated, &row.Spread
		for k, x := range []struct {
			name    string
			m, s, d float64
		}{
			{"TTFT P50", m.TTFT.P50, s.TTFT.P50, d.TTFT.P50},
			{"TTFT P90", m.TTFT.P90, s.TTFT.P90, d.TTFT.P90},
			{"TTFT P99", m.TTFT.P99, s.TTFT.P99, d.TTFT.P99},
			{"per token P50", m.Token.P50, s.Token.P50, d.Token.P50},
			{"per token P90", m.Token.P90, s.Token.P90, d.Token.P90},
			{"per token P99", m.Token.P99, s.Token.P99, d.Token.P99},
		} {
			label := ""
			if k == 0 {
				label = row.label(r)
			}
			t.AppendRow(table.Row{label, x.name, fmt.Sprintf("%.4g", x.m), fmt.Sprintf("%.4g", x.s), percent(Off(x.m, x.s)), fmt.Sprintf("%.0f %%", 100*x.d)})
		}
		t.AppendSeparator()
	}
	return t.Render()
}

func (row *Row) label(r *Result) string {
	name := row.System
	if row.Model != r.Measured.Model {
		name += ": " + row.Model
	}
	for i := range r.Measured.Configs {
		if c := &r.Measured.Configs[i]; c.Name == row.System && c.Emulated {
			return name + " (emulated links)"
		}
	}
	return name
}

// machine says what the rounds were like.
func (r *Result) machine(b *strings.Builder) {
	for i := range r.Rows {
		row := &r.Rows[i]
		fmt.Fprintf(b, "%s:", row.label(r))
		for k, x := range row.Rounds {
			fmt.Fprintf(b, " round %d: engine at %.2f and %.2f of the calibrated time, others used %.0f %%, try %d;", k+1, x.Before, x.After, 100*x.Others, x.Tries)
		}
		b.WriteByte('\n')
	}
}

func percent(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf("%+.0f %%", 100*v)
}

func (r *Result) shares() string {
	t := newTable("prompt tokens from", "", "requests", "failed", "computed", "local", "borrowed", "host", "pool")
	for i := range r.Rows {
		row := &r.Rows[i]
		for k, f := range []*Figures{&row.Measured, &row.Simulated} {
			label := row.label(r)
			if k > 0 {
				label = ""
			}
			line := table.Row{label, [...]string{"measured", "simulated"}[k], f.Requests, f.Failed}
			for _, v := range []float64{f.Computed, f.Local, f.Borrowed, f.Host, f.Pool} {
				line = append(line, fmt.Sprintf("%.0f %%", 100*v))
			}
			t.AppendRow(line)
		}
	}
	return t.Render()
}
