package report

import (
	"slices"
	"strings"
)

// section is a table with a column for each system.
type section struct {
	Title string
	Note  string
	Rows  []row
	// Compared: there are ratios.
	Compared bool
}

type row struct {
	Label string
	Cells []cell
}

// cell is a figure, and its ratio to that of the first system.
type cell struct {
	Text, Ratio string
}

// sections are all tables, for a terminal or a page.
func (r *Report) sections() []section {
	out := []section{r.waiting("What users of "+r.Model+" see", 0), r.tiers(), r.lending(), r.machine(), r.links()}
	for i := 1; i < len(r.Systems[0].Loads); i++ {
		out = append(out, r.waiting("What users of "+r.Systems[0].Loads[i].Model+" see", i))
	}
	out = append(out, r.disks())
	return slices.DeleteFunc(out, func(s section) bool { return len(s.Rows) == 0 })
}

// each makes a row of one figure of every system.
func (r *Report) each(label string, f func(s *System) cell) row {
	out := row{Label: label}
	for i := range r.Systems {
		out.Cells = append(out.Cells, f(&r.Systems[i]))
	}
	return out
}

// some is each, unless the figure is 0 everywhere.
func (s *section) some(r row) {
	if slices.ContainsFunc(r.Cells, func(c cell) bool { return c.Text != "0" && c.Text != "-" }) {
		s.Rows = append(s.Rows, r)
	}
}

// compared is a row whose figures have ratios to the first.
func (r *Report) compared(label string, print func(float64) string, f func(s *System) (v float64, known bool)) row {
	first, _ := f(&r.Systems[0])
	n := 0
	return r.each(label, func(s *System) cell {
		n++
		v, known := f(s)
		switch {
		case !known:
			return cell{Text: "-"}
		case n == 1:
			return cell{Text: print(v)}
		}
		return cell{print(v), ratio(v, first)}
	})
}

// waiting is what the users of one load's model wait for.
func (r *Report) waiting(title string, load int) section {
	s := section{Title: title}
	if len(r.Systems) > 1 {
		s.Compared, s.Note = true, "x: times as much as "+r.Systems[0].Name
	}
	s.Rows = append(s.Rows, r.each("requests answered", func(s *System) cell { return cell{Text: count(s.Loads[load].Answered)} }))
	s.some(r.each("requests refused", func(s *System) cell { return cell{Text: count(s.Loads[load].refused())} }))
	s.some(r.each("turns due too late", func(s *System) cell { return cell{Text: count(s.Loads[load].Unsent)} }))
	type quantile struct {
		name string
		of   func(*Dist) float64
	}
	p50 := quantile{"P50", func(d *Dist) float64 { return d.P50 }}
	p90 := quantile{"P90", func(d *Dist) float64 { return d.P90 }}
	p99 := quantile{"P99", func(d *Dist) float64 { return d.P99 }}
	for _, f := range []struct {
		name string
		of   func(*Load) *Dist
		at   []quantile
	}{
		{"TTFT, first turns", func(l *Load) *Dist { return &l.First }, []quantile{p50, p90, p99}},
		{"TTFT, later turns", func(l *Load) *Dist { return &l.Later }, []quantile{p50, p90, p99}},
		{"time per token", func(l *Load) *Dist { return &l.Token }, []quantile{p50, p99}},
		{"whole answer", func(l *Load) *Dist { return &l.Whole }, []quantile{p50, p90, p99}},
	} {
		for _, q := range f.at {
			row := r.compared(f.name+" "+q.name, duration, func(s *System) (float64, bool) {
				d := f.of(&s.Loads[load])
				return q.of(d), d.Count > 0
			})
			if slices.ContainsFunc(row.Cells, func(c cell) bool { return c.Text != "-" }) {
				s.Rows = append(s.Rows, row)
			}
		}
	}
	s.Rows = append(s.Rows, r.compared("answer tokens per second", three, func(s *System) (float64, bool) {
		return part(float64(s.Loads[load].OutputTokens), s.Loads[load].End), s.Loads[load].Answered > 0
	}))
	s.some(r.each("preemptions", func(s *System) cell { return cell{Text: count(s.Loads[load].Preemptions)} }))
	return s
}

// tier is a place that KV comes from.
type tier struct {
	Number int // of its colour
	Name   string
	of     func(*Tiers) float64
}

func tierList() []tier {
	return []tier{
		{0, "local", func(t *Tiers) float64 { return t.Local }},
		{1, "borrowed", func(t *Tiers) float64 { return t.Borrowed }},
		{2, "host", func(t *Tiers) float64 { return t.Host }},
		{3, "pool", func(t *Tiers) float64 { return t.Pool }},
		{4, "computed", func(t *Tiers) float64 { return t.Computed }},
	}
}

// tiers is where the KV of the prompts came from.
func (r *Report) tiers() section {
	s := section{Title: "Where the KV of the prompts' tokens came from"}
	for _, t := range tierList() {
		s.some(r.each(t.Name, func(s *System) cell { return cell{Text: share(t.of(&s.main().Tiers))} }))
	}
	s.some(r.each("  of it cached, but faster to compute", func(s *System) cell { return cell{Text: share(s.main().Tiers.Declined)} }))
	return s
}

// lending is what the lending protocol and the masters did.
func (r *Report) lending() section {
	s := section{Title: "Lending and moving"}
	bytes := func(label string, f func(*System) float64) {
		s.some(r.each(label, func(s *System) cell { return cell{Text: size3(f(s))} }))
	}
	number := func(label string, f func(*System) uint64) {
		s.some(r.each(label, func(s *System) cell { return cell{Text: count(f(s))} }))
	}
	bytes("lent, mean", func(s *System) float64 { return s.Lent.Mean })
	bytes("lent, most", func(s *System) float64 { return s.Lent.Most })
	bytes("loaded", func(s *System) float64 { return float64(s.sum(func(m *Model) int64 { return m.Loaded })) })
	bytes("stored", func(s *System) float64 { return float64(s.sum(func(m *Model) int64 { return m.Stored })) })
	number("units granted", func(s *System) uint64 { return s.Control.Granted })
	number("wishes denied", func(s *System) uint64 { return s.Control.Denied })
	number("reclaims", func(s *System) uint64 { return s.Control.Reclaims })
	number("units reclaimed", func(s *System) uint64 { return s.Control.Reclaimed })
	number("units taken without consent", func(s *System) uint64 { return s.Control.Fenced })
	s.some(r.each("control messages per second", func(s *System) cell { return cell{Text: three(s.Control.PerSecond)} }))
	for _, to := range []string{"rc", "borrowed", "host", "pool", "dropped"} {
		label := "blocks moved to " + to
		switch to {
		case "rc":
			label = "blocks moved to the master's own memory"
		case "dropped":
			label = "blocks dropped"
		}
		number(label, func(s *System) uint64 {
			var n uint64
			for _, m := range s.Models {
				n += m.Moved[to]
			}
			return n
		})
	}
	number("sequences evicted", func(s *System) uint64 {
		var n uint64
		for _, m := range s.Models {
			n += m.Evicted
		}
		return n
	})
	return s
}

func (s *System) sum(f func(*Model) int64) int64 {
	var n int64
	for i := range s.Models {
		n += f(&s.Models[i])
	}
	return n
}

// machine is how busy devices were, and what transfers cost their models.
func (r *Report) machine() section {
	s := section{Title: "Devices and interference"}
	for i, d := range r.Systems[0].Devices {
		var on []string
		for _, m := range r.Systems[0].Models {
			if m.Device == d.Name {
				on = append(on, m.Name)
			}
		}
		s.Rows = append(s.Rows, r.each("busy: "+d.Name+" ("+strings.Join(on, ", ")+")", func(s *System) cell {
			if i >= len(s.Devices) || s.Devices[i].Name != d.Name {
				return cell{Text: "-"}
			}
			return cell{Text: share(s.Devices[i].Busy)}
		}))
	}
	for i, m := range r.Systems[0].Models {
		s.some(r.each("steps of "+m.Name+" slowed by others' transfers", func(s *System) cell {
			if i >= len(s.Models) || s.Models[i].Name != m.Name {
				return cell{Text: "-"}
			}
			return cell{Text: share(part(s.Models[i].Slowed, s.Models[i].Busy))}
		}))
	}
	return s
}

// links is what links carried.
func (r *Report) links() section {
	s := section{Title: "Links", Note: "bytes carried, share of the time that they were busy"}
	var keys [][2]string
	for _, sys := range r.Systems {
		for _, l := range sys.Links {
			if k := [2]string{l.From, l.To}; !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	for _, k := range keys {
		row := r.each(k[0]+" to "+k[1], func(s *System) cell {
			for _, l := range s.Links {
				if l.From == k[0] && l.To == k[1] && l.Bytes > 0 {
					return cell{Text: size3(float64(l.Bytes)) + ", " + share(l.Busy)}
				}
			}
			return cell{Text: "-"}
		})
		if slices.ContainsFunc(row.Cells, func(c cell) bool { return c.Text != "-" }) {
			s.Rows = append(s.Rows, row)
		}
	}
	return s
}

// disks is what overflow pools did.
func (r *Report) disks() section {
	s := section{Title: "Disks of the overflow pool"}
	for k, d := range r.mostDisks() {
		for _, f := range []struct {
			name string
			text func(*Disk) string
		}{
			{"read", func(d *Disk) string { return size3(float64(d.Read)) }},
			{"written", func(d *Disk) string { return size3(float64(d.Written)) }},
			{"lasts at this rate", func(d *Disk) string { return years(d.Years) }},
		} {
			s.some(r.each(d.Name+": "+f.name, func(s *System) cell {
				if k >= len(s.Disks) || s.Disks[k].Name != d.Name {
					return cell{Text: "-"}
				}
				return cell{Text: f.text(&s.Disks[k])}
			}))
		}
	}
	return s
}

// mostDisks are those of the system that has the most.
func (r *Report) mostDisks() []Disk {
	var out []Disk
	for _, s := range r.Systems {
		if len(s.Disks) > len(out) {
			out = s.Disks
		}
	}
	return out
}

func years(v float64) string {
	if v <= 0 {
		return "0"
	}
	return three(v) + " years"
}
