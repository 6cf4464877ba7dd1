package plan

import (
	"bytes"
	_ "embed"
	"html/template"
	"io"
	"strings"
)

//go:embed report.html
var reportHTML string

// page is what the template of a report shows.
type page struct {
	Title    string
	Plot     template.HTML // SVG that this package drew
	Text     string
	Findings []Finding
}

// WriteHTML writes the plan as a page that opens offline.
func (p *Plan) WriteHTML(w io.Writer) error {
	return writeHTML(w, page{Title: "Plan of " + named(p.File), Findings: p.Findings}, p)
}

// WriteHTML writes the sweep as a page that opens offline.
func (r *SweepResult) WriteHTML(w io.Writer) error {
	return writeHTML(w, page{Title: "Sweep of " + named(r.File)}, r)
}

func named(file string) string {
	if file == "" {
		return "a configuration"
	}
	return file
}

func writeHTML(w io.Writer, p page, r interface {
	WriteText(w io.Writer) error
	WritePlot(w io.Writer, format string) error
}) error {
	t, err := template.New("report").Parse(reportHTML)
	if err != nil {
		return err
	}
	var svg, text bytes.Buffer
	if err := r.WritePlot(&svg, "svg"); err != nil {
		return err
	}
	if err := r.WriteText(&text); err != nil {
		return err
	}
	drawn := svg.String()
	if i := strings.Index(drawn, "<svg"); i > 0 {
		drawn = drawn[i:] // without the XML declaration
	}
	p.Plot, p.Text = template.HTML(drawn), text.String()
	return t.Execute(w, p)
}
