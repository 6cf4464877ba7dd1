package plan

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Colours that people with colour-blindness tell apart (Okabe and Ito).
var (
	blue   = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	orange = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	amber  = color.RGBA{0xe6, 0x9f, 0x00, 0xff}
	green  = color.RGBA{0x00, 0x9e, 0x73, 0xff}
	grey   = color.Gray{0x90}
	pale   = color.Gray{0xe0}
)

// maxTiles bounds the heatmaps of a sweep's plot.
const maxTiles = 12

// newPlot has sans-serif fonts and its legend above the data.
func newPlot(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.Title.TextStyle.Font.Size = vg.Points(12)
	p.Title.Padding = vg.Points(6)
	for _, s := range []*draw.TextStyle{
		&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle,
		&p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle,
	} {
		s.Font.Variant = "Sans"
	}
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	p.Legend.Top, p.Legend.Padding = true, vg.Points(2)
	return p
}

// bars is a row of parts that are drawn one after the other from the left.
type bars struct {
	labels []string
	parts  []part
}

type part struct {
	name   string
	ink    color.Color
	values []float64 // one for each label
}

// drawBars draws horizontal bars, the first label at the top. Parts that are
// empty everywhere are left out.
func drawBars(p *plot.Plot, b bars) error {
	n := len(b.labels)
	var ticks plot.ConstantTicks
	for i, label := range b.labels {
		ticks = append(ticks, plot.Tick{Value: float64(n - 1 - i), Label: label + " "})
	}
	var below *plotter.BarChart
	for _, part := range b.parts {
		if slices.Max(part.values) == 0 {
			continue
		}
		values := make(plotter.Values, n)
		for i, v := range part.values {
			values[n-1-i] = v
		}
		chart, err := plotter.NewBarChart(values, vg.Points(15))
		if err != nil {
			return err
		}
		chart.Horizontal, chart.Color, chart.LineStyle.Width = true, part.ink, 0
		if below != nil {
			chart.StackOn(below)
		}
		below = chart
		p.Add(chart)
		p.Legend.Add(part.name+" ", chart)
	}
	p.Y.Tick.Marker = ticks
	p.Y.Min, p.Y.Max = -0.6, float64(n)-0.4
	p.X.Min = 0
	return nil
}

// WritePlot draws the devices' memory and the masters' longest contexts.
// format is "svg" or "png".
func (p *Plan) WritePlot(w io.Writer, format string) error {
	memory := newPlot("Memory of the devices")
	memory.X.Label.Text = "GiB"
	scale := float64(1 << 30)
	if p.largest() < 1<<30 {
		memory.X.Label.Text, scale = "MiB", 1<<20
	}
	if err := drawBars(memory, p.memoryBars(scale)); err != nil {
		return err
	}
	roomForLegend(memory, 1.45)
	charts := []*plot.Plot{memory}
	heights := []float64{float64(len(p.Devices))*28 + 120}
	if context := p.contextBars(); len(context.labels) > 0 {
		c := newPlot("Longest context of the masters")
		c.X.Label.Text = "tokens"
		if err := drawBars(c, context); err != nil {
			return err
		}
		roomForLegend(c, 1.3)
		c.X.Tick.Marker = tokenTicks{}
		charts = append(charts, c)
		heights = append(heights, float64(len(context.labels))*28+120)
	}
	return stack(w, format, 640, charts, heights)
}

func roomForLegend(p *plot.Plot, factor float64) { p.X.Max *= factor }

func (p *Plan) largest() int64 {
	var n int64
	for _, d := range p.Devices {
		n = max(n, d.Weights+d.Arenas, d.Memory)
	}
	return n
}

func (p *Plan) memoryBars(scale float64) bars {
	n := len(p.Devices)
	b := bars{parts: []part{
		{"weights", grey, make([]float64, n)}, {"activations, tails, reserve", amber, make([]float64, n)},
		{"arena that stays", blue, make([]float64, n)}, {"arena that can be lent", green, make([]float64, n)}, {"left", pale, make([]float64, n)},
		{"too much", orange, make([]float64, n)},
	}}
	for i, d := range p.Devices {
		b.labels = append(b.labels, fmt.Sprintf("%s %s", d.Name, d.Kind))
		var lendable int64
		for _, name := range d.Models {
			if l := p.Model(name).Lender; l != nil {
				lendable += int64(l.Lendable) * l.Unit
			}
		}
		over := max(0, -d.Left)
		for k, v := range []int64{d.Weights, d.Activations + d.Tails + d.Reserve, d.Arenas - lendable, lendable, max(0, d.Left), over} {
			b.parts[k].values[i] = float64(v) / scale
		}
		// What is too much is the end of the arenas.
		for k := 3; k >= 0 && over > 0; k-- {
			cut := math.Min(b.parts[k].values[i], float64(over)/scale)
			b.parts[k].values[i] -= cut
			over -= int64(cut * scale)
		}
	}
	return b
}

func (p *Plan) contextBars() bars {
	b := bars{parts: []part{{"without lending", blue, nil}, {"with lending", green, nil}}}
	for _, m := range p.Models {
		if m.Master == nil {
			continue
		}
		for _, c := range m.Master.ByPolicy {
			b.labels = append(b.labels, m.Name+" "+marked(c.Policy, c.Configured))
			b.parts[0].values = append(b.parts[0].values, float64(m.Master.Alone))
			b.parts[1].values = append(b.parts[1].values, float64(max(0, c.MaxTokens-m.Master.Alone)))
		}
	}
	return b
}

// WritePlot draws the sum of the masters' longest contexts: bars for one axis,
// for more a heatmap of the last two and a tile for each combination of the
// others. format is "svg" or "png".
func (r *SweepResult) WritePlot(w io.Writer, format string) error {
	if len(r.Axes) == 1 {
		return r.plotBars(w, format)
	}
	x, y := r.Axes[len(r.Axes)-1], r.Axes[len(r.Axes)-2]
	cells := len(x.Values) * len(y.Values)
	tiles := len(r.Rows) / cells
	if tiles > maxTiles {
		return fmt.Errorf("a plot of %d heatmaps, at most %d can be read: sweep fewer values", tiles, maxTiles)
	}
	low, high := r.contextRange()
	var charts []*plot.Plot
	var heights []float64
	for k := range tiles {
		p := newPlot("")
		p.Title.Text = "Longest context in tokens (! warnings, x impossible)"
		if k > 0 {
			p.Title.Text = ""
		}
		for i, a := range r.Axes[:len(r.Axes)-2] {
			if i == 0 && p.Title.Text != "" {
				p.Title.Text += "\n"
			}
			p.Title.Text += fmt.Sprintf("%s %s  ", a.Name, r.Rows[k*cells].Values[i])
		}
		p.Title.Text = strings.TrimSpace(p.Title.Text)
		p.X.Label.Text, p.Y.Label.Text = x.Name, y.Name
		p.X.Tick.Marker, p.Y.Tick.Marker = valueTicks(x.Values, false), valueTicks(y.Values, true)
		p.X.Min, p.X.Max = -0.5, float64(len(x.Values))-0.5
		p.Y.Min, p.Y.Max = -0.5, float64(len(y.Values))-0.5
		p.Add(heat{rows: r.Rows[k*cells : (k+1)*cells], columns: len(x.Values), low: low, high: high, ink: p.X.Tick.Label})
		charts = append(charts, p)
		heights = append(heights, float64(len(y.Values))*36+80)
	}
	return stack(w, format, math.Max(420, float64(len(x.Values))*90+120), charts, heights)
}

// valueTicks labels an axis with values, the first on the left or at the top.
func valueTicks(values []string, down bool) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for i, v := range values {
		at := float64(i)
		if down {
			at = float64(len(values) - 1 - i)
		}
		ticks = append(ticks, plot.Tick{Value: at, Label: v + " "})
	}
	return ticks
}

func (r *SweepResult) contextRange() (low, high float64) {
	low = math.Inf(1)
	for i := range r.Rows {
		if row := &r.Rows[i]; row.Error == "" {
			low, high = math.Min(low, float64(row.total())), math.Max(high, float64(row.total()))
		}
	}
	return low, high
}

func (r *SweepResult) plotBars(w io.Writer, format string) error {
	b := bars{parts: []part{{"longest context", blue, nil}, {"with warnings", amber, nil}, {"does not fit", orange, nil}}}
	for i := range r.Rows {
		row := &r.Rows[i]
		label := row.Values[0]
		if row.Error != "" {
			label += " (impossible)"
		}
		b.labels = append(b.labels, label)
		kind := 0
		if row.Warnings > 0 {
			kind = 1
		}
		if row.Errors > 0 {
			kind = 2
		}
		for k := range b.parts {
			v := 0.0
			if k == kind {
				v = float64(row.total())
			}
			b.parts[k].values = append(b.parts[k].values, v)
		}
	}
	p := newPlot("Longest context by " + r.Axes[0].Name)
	p.X.Label.Text = "tokens"
	if err := drawBars(p, b); err != nil {
		return err
	}
	roomForLegend(p, 1.3)
	p.X.Tick.Marker = tokenTicks{}
	return stack(w, format, 560, []*plot.Plot{p}, []float64{float64(len(b.labels))*24 + 100})
}

// heat draws a sweep's rows as coloured cells with their figures.
type heat struct {
	rows      []SweepRow // row by row from the top
	columns   int
	low, high float64
	ink       draw.TextStyle
}

// Plot implements plot.Plotter.
func (h heat) Plot(c draw.Canvas, p *plot.Plot) {
	tx, ty := p.Transforms(&c)
	for i := range h.rows {
		row := &h.rows[i]
		x, y := float64(i%h.columns), float64((len(h.rows)-1-i)/h.columns)
		fill, text := h.cell(row)
		gap := vg.Points(1)
		x0, x1, y0, y1 := tx(x-0.5)+gap, tx(x+0.5)-gap, ty(y-0.5)+gap, ty(y+0.5)-gap
		c.FillPolygon(fill, []vg.Point{{X: x0, Y: y0}, {X: x1, Y: y0}, {X: x1, Y: y1}, {X: x0, Y: y1}})
		style := h.ink
		style.XAlign, style.YAlign = draw.XCenter, draw.YCenter
		style.Color = color.Black
		if dark(fill) {
			style.Color = color.White
		}
		c.FillText(style, vg.Point{X: tx(x), Y: ty(y)}, text)
	}
}

// cell is a row's colour, from pale to blue, and its text.
func (h heat) cell(row *SweepRow) (color.Color, string) {
	if row.Error != "" || row.Errors > 0 {
		return pale, "x"
	}
	t := 1.0
	if h.high > h.low {
		t = (float64(row.total()) - h.low) / (h.high - h.low)
	}
	mix := func(a, b uint8) uint8 { return uint8(float64(a) + t*(float64(b)-float64(a)) + 0.5) }
	text := fmt.Sprint(row.total())
	if h.high >= 1e5 {
		text = fmt.Sprintf("%.1fk", float64(row.total())/1000)
	}
	if row.Warnings > 0 {
		text += " !"
	}
	return color.RGBA{mix(0xe8, blue.R), mix(0xf3, blue.G), mix(0xfa, blue.B), 0xff}, text
}

func dark(c color.Color) bool {
	r, g, b, _ := c.RGBA()
	return 299*r+587*g+114*b < 500*0xffff
}

// stack draws plots below each other, as wide as the widest axis needs.
func stack(w io.Writer, format string, width float64, charts []*plot.Plot, heights []float64) error {
	if len(charts) == 0 {
		return errors.New("there is nothing to plot")
	}
	total := 0.0
	for _, h := range heights {
		total += h
	}
	canvas, err := draw.NewFormattedCanvas(vg.Points(width), vg.Points(total), format)
	if err != nil {
		return fmt.Errorf("plot as %q: %w", format, err)
	}
	all := draw.New(canvas)
	top := all.Max.Y
	for i, p := range charts {
		bottom := top - vg.Points(heights[i])
		area := draw.Canvas{Canvas: all.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: all.Min.X + vg.Points(6), Y: bottom + vg.Points(6)},
			Max: vg.Point{X: all.Max.X - vg.Points(14), Y: top - vg.Points(6)},
		}}
		p.Draw(area)
		top = bottom
	}
	_, err = canvas.WriteTo(w)
	return err
}

// tokenTicks labels tokens in thousands or millions.
type tokenTicks struct{}

// Ticks implements plot.Ticker.
func (tokenTicks) Ticks(low, high float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(low, high)
	for i, t := range ticks {
		switch {
		case t.Label == "":
		case t.Value == 0:
			ticks[i].Label = "0"
		case t.Value >= 1e6:
			ticks[i].Label = fmt.Sprintf("%.4gM", t.Value/1e6)
		case t.Value >= 1e3:
			ticks[i].Label = fmt.Sprintf("%.4gk", t.Value/1e3)
		}
	}
	return ticks
}
