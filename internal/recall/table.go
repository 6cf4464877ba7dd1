package recall

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// WriteTable writes the result for a terminal.
func (r *Result) WriteTable(w io.Writer) error {
	var b strings.Builder
	o := &r.Options
	words := "held-out"
	if o.TrainingWords {
		words = "training's"
	}
	fmt.Fprintf(&b, "%s: %d questions at the end of dialogues of %v tokens with %v facts; %s words, seed %d, %.0f s\n\n",
		r.Model, r.All.Asked, o.Lengths, o.Facts, words, o.Seed, r.Seconds)
	if r.Estimated {
		b.WriteString("The server does not count tokens: lengths and distances are estimated.\n\n")
	}
	b.WriteString(r.kindTable() + "\n")
	if r.Single.Asked > 0 {
		fmt.Fprintf(&b, "\nSingle facts: %s right, by facts in play and by distance in tokens; both up to (percent of questions):\n%s\n", r.Single, r.gridTable())
		b.WriteString("\n" + r.groupTable() + "\n")
	}
	if r.False.Asked > 0 {
		fmt.Fprintf(&b, "\nFalse answers to what was never told: %s\n", r.False)
	}
	for _, line := range r.missing() {
		fmt.Fprintf(&b, "Not asked: %s\n", line)
	}
	fmt.Fprintf(&b, "Underneath: %s\n", r.Underneath.String())
	if r.Comparison != nil {
		r.Comparison.write(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// String is the rate with its interval and what it is of.
func (f FalseShare) String() string {
	return Share{Asked: f.Asked, Right: f.False, Rate: f.Rate, Low: f.Low, High: f.High}.String()
}

// String is the rate with its interval and what it is of.
func (s Share) String() string {
	if s.Asked == 0 {
		return "none asked"
	}
	return fmt.Sprintf("%s of %d (95 %%: %s)", percent(s.Rate), s.Asked, s.interval())
}

func (s Share) interval() string { return fmt.Sprintf("%.1f to %.1f", 100*s.Low, 100*s.High) }

func percent(rate float64) string { return fmt.Sprintf("%.1f %%", 100*rate) }

// tokens is a number of tokens as people say it.
func tokens(n int) string {
	if n >= 1024 && n%1024 == 0 {
		return fmt.Sprintf("%dK", n/1024)
	}
	return fmt.Sprint(n)
}

// newTable aligns all columns but the first labels to the right.
func newTable(labels int, header ...any) table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = 0 // as written
	t.AppendHeader(table.Row(header))
	var right []table.ColumnConfig
	for n := labels + 1; n <= len(header); n++ {
		right = append(right, table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(right)
	return t
}

// kindTable has a row for each kind of question, with what wrong answers are.
func (r *Result) kindTable() string {
	wrong := []Outcome{Refused, Stale, Mixed, False, Other}
	header := []any{"kind", "asked", "right", "95 %", "to the letter"}
	for _, o := range wrong {
		header = append(header, string(o))
	}
	t := newTable(1, header...)
	rows := r.ByKind
	if len(rows) > 1 {
		rows = append(slices.Clone(rows), Group{Name: "all", Share: r.All})
	}
	for _, g := range rows {
		row := table.Row{g.Name, g.Asked, "-", "-", "-"}
		if g.Asked > 0 {
			row = table.Row{g.Name, g.Asked, percent(g.Rate), g.interval(), percent(float64(g.Exact) / float64(g.Asked))}
		}
		for _, o := range wrong {
			row = append(row, g.Outcomes[o])
		}
		t.AppendRow(row)
	}
	return t.Render()
}

// What stands in a place of the grid that has no share.
const (
	noFit  = "no fit"
	noRoom = "no room"
	noAsk  = "-"
)

// distances and facts are the grid's places, with and without shares.
func (r *Result) distances() []int {
	var out []int
	for d := leastDistance; d <= distanceBucket(slices.Max(r.Options.Lengths)); d *= 2 {
		out = append(out, d)
	}
	return out
}

func (r *Result) facts() []int {
	var out []int
	for _, f := range r.Options.Facts {
		out = append(out, factsBucket(f))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// place is the share of a place of the grid; if there is none, why.
func (r *Result) place(distance, facts int) (*GridShare, string) {
	for i := range r.Grid {
		if g := &r.Grid[i]; g.Distance == distance && g.Facts == facts {
			return g, ""
		}
	}
	why := noRoom
	for _, c := range r.Cells {
		if factsBucket(c.Facts) != facts || distance > leastDistance && c.Length <= distance/2 {
			continue
		}
		switch {
		case c.NoFit && why == noRoom:
			why = noFit
		case c.Asked > 0 || c.Missing == "" || c.Missing == timeOver:
			return nil, noAsk
		}
	}
	return nil, why
}

func (r *Result) gridTable() string {
	header := []any{"facts"}
	for _, d := range r.distances() {
		header = append(header, tokens(d))
	}
	t := newTable(1, header...)
	for _, f := range r.facts() {
		row := table.Row{f}
		for _, d := range r.distances() {
			g, why := r.place(d, f)
			if g != nil {
				why = fmt.Sprintf("%.1f of %d", 100*g.Rate, g.Asked)
			}
			row = append(row, why)
		}
		t.AppendRow(row)
	}
	return t.Render()
}

// groupTable has the single facts by one property after the other.
func (r *Result) groupTable() string {
	t := newTable(2, "single facts by", "", "asked", "right", "95 %")
	for i, g := range []struct {
		name   string
		groups []Group
	}{
		{"dialogue's length", r.ByLength}, {"distance up to", r.ByDistance}, {"facts up to", r.ByFacts}, {"place in the dialogue", r.ByPosition},
	} {
		if i > 0 {
			t.AppendSeparator()
		}
		for j, x := range g.groups {
			name := g.name
			if j > 0 {
				name = ""
			}
			t.AppendRow(table.Row{name, x.Name, x.Asked, percent(x.Rate), x.interval()})
		}
	}
	return t.Render()
}

// missing lists what was not asked and why, in few lines: lengths with the same
// numbers of facts and the same reason together.
func (r *Result) missing() []string {
	var order []string
	cells := map[string][]string{}
	for _, c := range r.Cells {
		if c.Missing == "" {
			continue
		}
		if cells[c.Missing] == nil {
			order = append(order, c.Missing)
		}
		what := fmt.Sprintf("%d tokens with %d facts", c.Length, c.Facts)
		if c.Asked > 0 {
			what += fmt.Sprintf(" (all but %d questions)", c.Asked)
		}
		cells[c.Missing] = append(cells[c.Missing], what)
	}
	var out []string
	for _, why := range order {
		out = append(out, strings.Join(cells[why], ", ")+": "+why)
	}
	if r.Cut != "" {
		out = append(out, "what was left when "+r.Cut)
	}
	return out
}

// String says what happened, in a line or two.
func (u *Underneath) String() string {
	if u.PromptTokens == 0 {
		return "the server does not say"
	}
	s := fmt.Sprintf("%d requests, %d tokens of prompts, %s not computed again (%d from the model's own memory, %d borrowed, %d host, %d overflow pool)",
		u.Requests, u.PromptTokens, percent(float64(u.Cached)/float64(u.PromptTokens)), u.Local, u.Borrowed, u.Host, u.Pool)
	if u.BorrowedBlocks > 0 {
		s += fmt.Sprintf("; at most %d borrowed blocks in a request", u.BorrowedBlocks)
	}
	if x := u.System; x != nil {
		s += fmt.Sprintf(";\n  at most %d units lent at once, %d granted, %d asked back, %d taken back; %s streamed in, %s out; %d blocks moved, %d requests preempted, %d blocks stale, %d corrupt",
			x.UnitsLent, x.Granted, x.Reclaimed, x.Fenced, size(x.Loaded), size(x.Stored), x.Moved, x.Preempted, x.Stale, x.Corrupt)
		if x.Restarts > 0 {
			s += fmt.Sprintf(";\n  processes began anew %d times: some of what they had counted is missing", x.Restarts)
		}
	}
	return s
}

func size(n int64) string {
	if n < 10<<20 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// write writes the comparison for a terminal.
func (c *Comparison) write(b *strings.Builder) {
	fmt.Fprintf(b, "Against the yardstick, of %s: %d answers the same, %d changed; %d were asked only here, %d only there", c.Before, c.Same, len(c.Changed), c.OnlyHere, c.OnlyThere)
	if c.Hashes > 0 {
		fmt.Fprintf(b, "; %d of the same answers have other logits", c.Hashes)
	}
	b.WriteString("\n")
	for _, x := range c.Changed {
		fmt.Fprintf(b, "  %s %s\n    was %-7s %q\n    is  %-7s %q\n", x.ID, x.Question, x.Was, x.Before, x.Is, x.Now)
	}
}
