package overlap

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
	_, err := fmt.Fprintf(w, "%s, %d layers, %d KiB of KV per token, 1 thread. Links are emulated: %d new tokens behind %d local ones take %s,\n"+
		"which sets %s. Medians of %d rounds; %d passes that had to wait for a core were measured again, %d are kept.\n",
		r.Model, r.Layers, r.KVToken>>10, figNew, figTokens, millis(r.Compute), speeds(r.Links), r.Rounds, r.Again, r.Disturbed)
	if err != nil {
		return err
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(table.Row{"emulated link", "history", "new", "way", "loads", "step", "stall", "at least", "share of step", "at least", "hidden", "queued: share of step", "at least", "hidden"})
	var right []table.ColumnConfig
	for i := range 14 {
		if i != 0 && i != 3 {
			right = append(right, table.ColumnConfig{Number: i + 1, Align: text.AlignRight})
		}
	}
	t.SetColumnConfigs(right)
	for i := 0; i+1 < len(r.Cells); i += 2 {
		c, q := r.Cells[i], r.Cells[i+1] // the second began while it queued
		if i > 0 && (c.Link != r.Cells[i-1].Link || c.History != r.Cells[i-1].History) {
			t.AppendSeparator()
		}
		t.AppendRow(table.Row{c.Link, c.History, c.New, c.Way, millis(c.Load), millis(c.Step), millis(c.Stall), millis(c.Bound),
			percent(c.Stall / c.Step), percent(c.Bound / c.Step), percent(c.Hidden),
			percent(q.Stall / q.Step), percent(q.Bound / q.Step), percent(q.Hidden)})
	}
	_, err = fmt.Fprintln(w, t.Render())
	return err
}

func speeds(links []Link) string {
	out := ""
	for i, l := range links {
		if i > 0 {
			out += ", "
		}
		out += fmt.Sprintf("%s to %.0f MB/s", l.Name, l.BytesPerSec/1e6)
	}
	return out
}

func millis(s float64) string { return fmt.Sprintf("%.1f ms", s*1e3) }

func percent(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }
