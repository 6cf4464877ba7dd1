package plan

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/kvlend/kvlend/configs"
)

// human is a size in at most four digits and a unit; exact where it is whole.
func human(n int64) string {
	if n < 0 {
		return "-" + human(-n)
	}
	unit, suffix := int64(1), "B"
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size {
			unit, suffix = u.size, u.name
			break
		}
	}
	if n%unit == 0 && n/unit < 10000 {
		return fmt.Sprintf("%d %s", n/unit, suffix)
	}
	v := float64(n) / float64(unit)
	return fmt.Sprintf("%.*f %s", max(0, 3-len(fmt.Sprint(int64(v)))), v, suffix)
}

// seconds is a time in three digits.
func seconds(s float64) string {
	switch {
	case s == 0:
		return "-"
	case s < 1e-3:
		return fmt.Sprintf("%.3g us", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.3g ms", s*1e3)
	}
	return fmt.Sprintf("%.3g s", s)
}

// speed is a bandwidth in GB/s or MB/s.
func speed(b float64) string {
	switch {
	case b == 0:
		return "?"
	case b >= 1e9:
		return fmt.Sprintf("%.4g GB/s", b/1e9)
	}
	return fmt.Sprintf("%.4g MB/s", b/1e6)
}

func times(r float64) string { return fmt.Sprintf("%.2fx", r) }

func share(f float64) string { return fmt.Sprintf("%.1f %%", 100*f) }

// grid is a table in the style of the other commands; left names the columns
// of text, all others are aligned to the right.
func grid(left []int, header ...any) table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(header)
	var columns []table.ColumnConfig
	for i := range header {
		c := table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight}
		for _, l := range left {
			if l == i {
				c.Align, c.AlignHeader = text.AlignLeft, text.AlignLeft
			}
		}
		columns = append(columns, c)
	}
	t.SetColumnConfigs(columns)
	return t
}

// WriteJSON writes the plan as indented JSON.
func (p *Plan) WriteJSON(w io.Writer) error { return writeJSON(w, p) }

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// WriteText writes the plan for a terminal.
func (p *Plan) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Unit policy %s", p.Policy)
	if p.Policy == "padded" {
		fmt.Fprintf(&b, ", max_waste %s", configs.Percent(100*p.MaxWaste))
	}
	b.WriteString("\n")
	section(&b, "Memory", p.deviceTable())
	section(&b, "Longest context", p.masterTable())
	section(&b, "Workers", p.workerTable())
	section(&b, "Pairs under each unit policy (* is the configured one)", p.pairTable())
	if len(p.Streams) > 0 {
		section(&b, "Streaming one layer, estimated", p.streamTable())
	}
	b.WriteString("\n")
	for _, f := range p.Findings {
		fmt.Fprintf(&b, "%s: %s [%s]\n", f.Severity, f, f.Code)
	}
	verdict := "It fits."
	if !p.Fits {
		verdict = "It cannot work as it is."
	}
	fmt.Fprintf(&b, "%s %s\n", verdict, counts(p))
	_, err := io.WriteString(w, b.String())
	return err
}

func counts(p *Plan) string {
	n := func(s Severity) string {
		k := p.Count(s)
		if k == 1 {
			return fmt.Sprintf("1 %s", s)
		}
		return fmt.Sprintf("%d %ss", k, s)
	}
	return fmt.Sprintf("%s, %s, %s.", n(Error), n(Warning), n(Note))
}

func section(b *strings.Builder, title string, t table.Writer) {
	if t.Length() > 0 {
		fmt.Fprintf(b, "\n%s\n%s\n", title, t.Render())
	}
}

func (p *Plan) deviceTable() table.Writer {
	t := grid([]int{0, 1, 2}, "device", "kind", "models", "memory", "weights", "activations", "tails", "reserve", "room for arenas", "arenas", "left")
	for _, d := range p.Devices {
		memory, room, left := "?", "?", "?"
		if d.Memory > 0 {
			memory, room, left = human(d.Memory), human(d.Room), human(d.Left)
		}
		kind := d.Kind
		if d.GPU != "" {
			kind = d.GPU
		}
		t.AppendRow(table.Row{d.Name, kind, strings.Join(d.Models, ", "), memory, human(d.Weights), human(d.Activations),
			human(d.Tails), human(d.Reserve), room, human(d.Arenas), left})
	}
	return t
}

func (p *Plan) masterTable() table.Writer {
	t := grid([]int{0, 1}, "master", "policy", "block", "K_master", "sum K_i", "buffers", "N_LSC", "LSC", "N_RC", "with lending", "without", "ratio", "trained for")
	for _, m := range p.Models {
		if m.Master == nil {
			continue
		}
		for _, c := range m.Master.ByPolicy {
			if c.Error != "" {
				t.AppendRow(table.Row{m.Name, marked(c.Policy, c.Configured), "impossible: " + c.Error})
				continue
			}
			t.AppendRow(table.Row{m.Name, marked(c.Policy, c.Configured), human(m.FullBlock), m.Master.KMaster, c.KWorkers, m.Master.Buffers, c.NLSC,
				human(int64(c.NLSC*m.Master.Buffers) * m.LayerBlock), c.NRC, c.MaxTokens, m.Master.Alone, times(c.Ratio), m.Trained})
		}
		t.AppendSeparator()
	}
	return t
}

func marked(policy string, configured bool) string {
	if configured {
		return policy + " *"
	}
	return policy
}

func (p *Plan) workerTable() table.Writer {
	t := grid([]int{0}, "worker", "block", "arena", "floor", "idle", "unit", "units", "lendable", "stuck", "padding", "holds itself", "trained for")
	for _, m := range p.Models {
		if l := m.Lender; l != nil {
			t.AppendRow(table.Row{m.Name, human(m.FullBlock), human(m.Arena), human(l.Floor), human(l.Idle), human(l.Unit), l.Units, l.Lendable,
				human(l.Stuck), share(l.Waste), m.MaxTokens, m.Trained})
		}
	}
	return t
}

func (p *Plan) pairTable() table.Writer {
	t := grid([]int{0, 1, 5}, "master", "worker", "BE_m, BE_i", "LCM", "MEU_m:MEU_i", "policy", "unit", "holds", "padding", "units", "lendable", "K_i", "stuck", "table")
	for _, x := range p.Pairs {
		for _, q := range x.Policies {
			row := table.Row{x.Master, x.Worker, fmt.Sprintf("%d, %d", x.BEMaster, x.BEWorker), x.LCM, fmt.Sprintf("%d:%d", x.MEUm, x.MEUi), marked(q.Policy, q.Configured)}
			if q.Error != "" {
				t.AppendRow(append(row, "impossible: "+q.Error))
				continue
			}
			kind := "blocks"
			if q.LayerBlocks {
				kind = "layers"
			}
			t.AppendRow(append(row, human(q.Unit), fmt.Sprintf("%d:%d %s", q.MasterPer, q.WorkerPer, kind), share(q.Waste), q.Units, q.Lendable, q.K, human(q.Stuck), human(q.Table)))
		}
		t.AppendSeparator()
	}
	return t
}

func (p *Plan) streamTable() table.Writer {
	t := grid([]int{0, 1, 5}, "master", "from", "history", "load", "store", "hidden by", "step", "computes", "hidden from", "one token")
	for _, s := range p.Streams {
		var from []string
		for _, l := range s.Lenders {
			name := l.Worker + " at " + speed(l.Bandwidth)
			if l.From == fromDevice {
				name = l.Worker + " on the " + fromDevice
			}
			from = append(from, name)
		}
		hide := "?"
		if s.HideTokens > 0 {
			hide = fmt.Sprintf("%d tokens", s.HideTokens)
		}
		if s.HideTokens > maxHide {
			hide = "never"
		}
		t.AppendRow(table.Row{s.Master, strings.Join(from, "\n"), s.History, seconds(s.Load), seconds(s.Store), s.HiddenBy, s.Step, seconds(s.Compute), hide, seconds(s.Decode)})
	}
	return t
}
