package enginebench

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// WriteJSON writes the result as indented JSON.
func (r *Result) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteTable writes the result for a terminal.
func (r *Result) WriteTable(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s, %d threads. Roof: memory %.1f GB/s, float32 %.0f GFLOP/s, bf16 %.0f GFLOP/s. Medians of %d rounds, chunks of %d tokens.\n",
		r.ISA, r.Roof.Threads, r.Roof.ReadAll/1e9, r.Roof.FloatAll/1e9, r.Roof.DotAll/1e9, r.Rounds, r.Chunk)
	if err != nil {
		return err
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"model", "pass", "depth", "tokens", "tokens/s", "best", "spread", "GFLOP/s", "GB/s", "bound by", "of the roof"})
	t.SetColumnConfigs([]table.ColumnConfig{
		{Number: 5, Align: text.AlignRight}, {Number: 6, Align: text.AlignRight}, {Number: 7, Align: text.AlignRight},
		{Number: 8, Align: text.AlignRight}, {Number: 9, Align: text.AlignRight}, {Number: 11, Align: text.AlignRight},
	})
	for i, c := range r.Cases {
		if i > 0 && c.Model != r.Cases[i-1].Model {
			t.AppendSeparator()
		}
		seconds := float64(c.Tokens) / c.TokensPerSec
		t.AppendRow(table.Row{c.Model, c.Kind, c.Depth, c.Tokens, precise(c.TokensPerSec), precise(c.BestPerSec), fmt.Sprintf("%.0f %%", 100*c.spread()),
			precise(c.Flops / seconds / 1e9), precise(c.Bytes / seconds / 1e9), c.Bound, fmt.Sprintf("%.0f %%", 100*c.Share)})
	}
	_, err = fmt.Fprintln(w, t.Render())
	return err
}

// spread is the range of the rounds over their median.
func (c *Case) spread() float64 {
	lo, hi := c.Seconds[0], c.Seconds[0]
	for _, s := range c.Seconds {
		lo, hi = min(lo, s), max(hi, s)
	}
	return (hi - lo) / (float64(c.Tokens) / c.TokensPerSec)
}

// precise prints three significant digits or all of the integer part.
func precise(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}
