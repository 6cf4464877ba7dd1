package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/kvlend/kvlend/planner/sim"
)

// WriteTable writes the report for people at a terminal.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "SIMULATED: %s\n", r.Model)
	for _, line := range r.headline() {
		fmt.Fprintln(&b, line)
	}
	for _, s := range r.sections() {
		fmt.Fprintf(&b, "\n%s\n", r.table(s))
	}
	b.WriteString("\nAssumptions\n")
	for _, a := range r.Assumptions {
		fmt.Fprintf(&b, "  %s: %s\n", a.Of, a.What)
	}
	for _, n := range r.Trace.Notes {
		fmt.Fprintf(&b, "  trace: %s\n", n)
	}
	if len(r.Warnings) > 0 {
		b.WriteByte('\n')
	}
	for _, x := range r.Warnings {
		fmt.Fprintf(&b, "WARNING: %s\n", x)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// String is the warning with the system that it is about.
func (w Warning) String() string {
	if w.System == "" {
		return w.Text
	}
	return w.System + ": " + w.Text
}

// headline says what was simulated.
func (r *Report) headline() []string {
	t := &r.Trace
	out := []string{
		fmt.Sprintf("%s: %s sessions, %s turns, %s prompt and %s answer tokens, the longest turn has %s",
			t.title(), count(t.Sessions), count(t.Turns), count(t.PromptTokens), count(t.OutputTokens), count(t.LongestTurn)),
		fmt.Sprintf("seed %d; later turns are due %s; contexts of up to %s tokens", r.Seed, r.due(), count(t.MaxContext)),
	}
	if r.Machine != "" {
		out = append(out, "machine: "+r.Machine)
	}
	return out
}

// title of a trace.
func (t *Trace) title() string {
	if t.Format == "" {
		return "synthetic conversations"
	}
	return t.Name
}

// due says when later turns are.
func (r *Report) due() string {
	if r.Timing == string(sim.ByTrace) {
		return "when the trace has them"
	}
	return "a time to think after the answer before"
}

func (r *Report) table(s section) string {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault // as written
	head := table.Row{s.Title}
	columns := []table.ColumnConfig{{Number: 1, WidthMax: 48}}
	for i, sys := range r.Systems {
		head = append(head, sys.Name)
		columns = append(columns, table.ColumnConfig{Number: i + 2, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.AppendHeader(head)
	t.SetColumnConfigs(columns)
	for _, row := range s.Rows {
		out := table.Row{row.Label}
		for _, c := range row.Cells {
			cell := c.Text
			if c.Ratio != "" {
				cell += fmt.Sprintf(" %6s", c.Ratio)
			}
			out = append(out, cell)
		}
		t.AppendRow(out)
	}
	if s.Note != "" {
		return t.Render() + "\n  " + s.Note
	}
	return t.Render()
}
