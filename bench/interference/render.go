package interference

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
	_, err := fmt.Fprintf(w, "%s on core %d, its borrower's copies on core %d. %d requests of %d tokens and %d new ones in each mode, %d rounds;\n%d MiB lent; memory of all cores %.1f GB/s.\n",
		r.Model, r.Cores[0], r.Cores[1], r.Requests, r.Prompt, r.Tokens, r.Rounds, r.Lent>>20, r.Memory/1e9)
	if err != nil {
		return err
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"the borrower's", "GB/s", "TTFT P50 ms", "ratio", "CPU", "P99 ms", "ratio", "per token P50 ms", "ratio", "CPU", "P99 ms", "ratio"})
	var right []table.ColumnConfig
	for n := 2; n <= 12; n++ {
		right = append(right, table.ColumnConfig{Number: n, Align: text.AlignRight})
	}
	t.SetColumnConfigs(right)
	for _, m := range r.Modes {
		row := table.Row{m.Name, fmt.Sprintf("%.2f", m.BytesPerSec/1e9)}
		for _, x := range []Times{m.TTFT, m.PerToken} {
			row = append(row, fmt.Sprintf("%.2f", x.P50), fmt.Sprintf("%.3f", x.Ratio), fmt.Sprintf("%.3f", x.CPURatio), fmt.Sprintf("%.2f", x.P99), fmt.Sprintf("%.3f", x.P99Ratio))
		}
		t.AppendRow(row)
	}
	if _, err = fmt.Fprintln(w, t.Render()); err == nil {
		_, err = fmt.Fprintln(w, "Ratios are to the worker alone, medians of rounds; CPU: of its thread's CPU time.")
	}
	return err
}
