package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
)

//go:embed page.html
var pageText string

// page is what the template shows.
type page struct {
	*Report
	Head     []string
	Sections []section
	Charts   []chart
	Load     string
	Tiers    []tier
	Bars     []bar
}

// bar is what one system's prompts came from.
type bar struct {
	Name  string
	Parts []barPart
}

type barPart struct {
	Number  int // of the tier
	Title   string
	Text    string // where there is room
	Percent float64
}

// roomShare is what a part of a bar needs for its figure.
const roomShare = 0.08

func (r *Report) bars() []bar {
	var out []bar
	for i := range r.Systems {
		b := bar{Name: r.Systems[i].Name}
		for _, t := range tierList() {
			v := t.of(&r.Systems[i].main().Tiers)
			if v <= 0 {
				continue
			}
			p := barPart{Number: t.Number, Title: t.Name + ": " + share(v), Percent: math.Round(1e4*v) / 100}
			if v >= roomShare {
				p.Text = share(v)
			}
			b.Parts = append(b.Parts, p)
		}
		out = append(out, b)
	}
	return out
}

type chart struct {
	Title string
	Note  string
	SVG   template.HTML
}

// WriteHTML writes the report as one page that needs nothing else: it opens
// offline, and follows the reader's light or dark mode.
func (r *Report) WriteHTML(w io.Writer) error {
	t, err := template.New("page").Funcs(template.FuncMap{
		"colour": func(i int) int { return i % colours },
	}).Parse(pageText)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	p := page{Report: r, Head: r.headline(), Sections: r.sections(), Load: r.Trace.title(), Bars: r.bars()}
	for _, t := range tierList() {
		if slices.ContainsFunc(r.Systems, func(s System) bool { return t.of(&s.main().Tiers) > 0 }) {
			p.Tiers = append(p.Tiers, t)
		}
	}
	add := func(title, note string, svg template.HTML) {
		if svg != "" {
			p.Charts = append(p.Charts, chart{title, note, svg})
		}
	}
	number := func(v float64) string { return three(v) }
	add("Time to first token", "share of the requests that had waited no longer", r.cdf("Time to first token", func(l *Load) *Dist { return &l.TTFT }))
	add("Time per token after the first", "share of the answers that took no longer", r.cdf("Time per token", func(l *Load) *Dist { return &l.Token }))
	add("Lent memory", "units away from their workers", r.over("Lent memory", size3, func(s *System) *Series { return &s.Lent }))
	add("Unanswered requests", "sent, and not yet answered", r.over("Unanswered requests", number, func(s *System) *Series { return &s.main().Waiting }))
	if err := t.Execute(w, p); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
