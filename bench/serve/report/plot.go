package report

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// palette is told apart by people with colour-blindness (Okabe and Ito).
var palette = [...]color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff},
	{0xcc, 0x79, 0xa7, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x56, 0xb4, 0xe9, 0xff},
}

// What tells apart the configurations of different speeds of links.
var (
	dashes = [...][]vg.Length{nil, {vg.Points(5), vg.Points(3)}, {vg.Points(1.5), vg.Points(2)}}
	glyphs = [...]draw.GlyphDrawer{draw.CircleGlyph{}, draw.CrossGlyph{}, draw.PlusGlyph{}}
)

// ink is a configuration's colour, the same for all speeds of links, and the
// number of its group of one speed.
func (r *Result) ink(i int) (c color.Color, group int) {
	place := 0
	var seen []float64
	for k := range i + 1 {
		times := r.Configs[k].LinkTimes
		if !slices.Contains(seen, times) {
			seen = append(seen, times)
		}
		if k < i && times == r.Configs[i].LinkTimes {
			place++
		}
	}
	return palette[place%len(palette)], slices.Index(seen, r.Configs[i].LinkTimes)
}

// Draw writes a plot; format is "svg" or "png".
type Draw func(w io.Writer, format string) error

// Plots are the plots of a result's main model, by the names that their files should have:
// ttft-cdf, ttft-time and ttft-p99.
func (r *Result) Plots() map[string]Draw {
	of := *r
	of.Configs = slices.DeleteFunc(slices.Clone(r.Configs), func(c Config) bool { return c.Model != r.Model })
	return map[string]Draw{"ttft-cdf": of.drawCDF, "ttft-time": of.drawTime, "ttft-p99": of.drawBars}
}

func (r *Result) newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title + ", " + r.Trace
	if slices.ContainsFunc(r.Configs, func(c Config) bool { return c.Emulated }) {
		p.Title.Text += " (emulated links)"
	}
	p.X.Label.Text, p.Y.Label.Text = x, y
	for _, f := range []*vg.Length{&p.X.Label.TextStyle.Font.Size, &p.Y.Label.TextStyle.Font.Size, &p.Legend.TextStyle.Font.Size} {
		*f = vg.Points(11)
	}
	p.Title.TextStyle.Font.Size = vg.Points(13)
	p.Title.Padding = vg.Points(8)
	for _, s := range []*draw.TextStyle{
		&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle,
		&p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle,
	} {
		s.Font.Variant = "Sans"
	}
	p.Legend.Padding = vg.Points(3)
	return p
}

func addGrid(p *plot.Plot) {
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xe0}, color.Gray{0xe0}
	p.Add(grid)
}

// legend is a configuration's name: the title says what holds for all.
func (r *Result) legend(c *Config) string {
	if slices.ContainsFunc(r.Configs, func(c Config) bool { return !c.Emulated }) {
		return r.label(c)
	}
	return c.Name
}

const plotWidth = vg.Length(560) // points

func write(p *plot.Plot, w io.Writer, format string) error {
	return writeWide(p, w, format, plotWidth)
}

func writeWide(p *plot.Plot, w io.Writer, format string, width vg.Length) error {
	out, err := p.WriterTo(width, vg.Points(380), format)
	if err != nil {
		return fmt.Errorf("plot as %q: %w", format, err)
	}
	_, err = out.WriteTo(w)
	return err
}

// answered are the whole answers of all rounds.
func (c *Config) answered() []Sample {
	var out []Sample
	for _, round := range c.Rounds {
		for _, s := range round.Samples {
			if s.Code == CodeOK {
				out = append(out, s)
			}
		}
	}
	return out
}

// leastMS is the smallest time that a logarithmic axis shows.
const leastMS = 0.01

var errNothing = errors.New("nothing was answered, so nothing can be plotted")

// drawCDF draws which share of the answers had begun by when.
func (r *Result) drawCDF(w io.Writer, format string) error {
	p := r.newPlot("Time to first token", "time from when the request was due", "share of answers, %")
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, timeTicks{}
	addGrid(p)
	some := false
	for i := range r.Configs {
		c := &r.Configs[i]
		var v []float64
		for _, s := range c.answered() {
			v = append(v, max(leastMS, ms(s.TTFT())))
		}
		if len(v) == 0 {
			continue
		}
		some = true
		slices.Sort(v)
		line, err := plotter.NewLine(steps(v))
		if err != nil {
			return err
		}
		ink, group := r.ink(i)
		line.Color, line.Width, line.Dashes = ink, vg.Points(1.6), dashes[group%len(dashes)]
		p.Add(line)
		p.Legend.Add(r.legend(c), line)
	}
	if !some {
		return errNothing
	}
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs = true, true, vg.Points(8)
	p.Y.Min, p.Y.Max = 0, 100+6*float64(len(r.Configs)) // the legend's place
	p.Y.Tick.Marker = shareTicks()
	widen(&p.X)
	return write(p, w, format)
}

// steps are the corners of a distribution's function: at each value it rises.
// A thousand of them look like all.
func steps(sorted []float64) plotter.XYs {
	n := len(sorted)
	every := max(1, n/1000)
	out := plotter.XYs{{X: sorted[0], Y: 0}}
	for i := 0; i < n; i += every {
		y := 100 * float64(i+1) / float64(n)
		out = append(out, plotter.XY{X: sorted[i], Y: out[len(out)-1].Y}, plotter.XY{X: sorted[i], Y: y})
	}
	return append(out, plotter.XY{X: sorted[n-1], Y: 100})
}

func shareTicks() plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for _, v := range []float64{0, 25, 50, 75, 90, 99} {
		ticks = append(ticks, plot.Tick{Value: v, Label: strconv.Itoa(int(v)) + " "})
	}
	return ticks
}

// widen leaves a place around the values of a logarithmic axis.
func widen(a *plot.Axis) {
	a.Min, a.Max = a.Min/1.15, a.Max*1.15
	if a.Max < a.Min*10 { // one tick at least
		a.Min, a.Max = math.Pow(10, math.Floor(math.Log10(a.Min))), math.Pow(10, math.Ceil(math.Log10(a.Max)))
	}
}

// drawTime draws every answer's TTFT over when it was due.
func (r *Result) drawTime(w io.Writer, format string) error {
	p := r.newPlot("Time to first token", "when the request was due, seconds from the start", "time to first token")
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, timeTicks{}
	addGrid(p)
	some := false
	for i := range r.Configs {
		c := &r.Configs[i]
		var xy plotter.XYs
		for _, s := range c.answered() {
			xy = append(xy, plotter.XY{X: s.Due.Seconds(), Y: max(leastMS, ms(s.TTFT()))})
		}
		if len(xy) == 0 {
			continue
		}
		some = true
		points, err := plotter.NewScatter(xy)
		if err != nil {
			return err
		}
		ink, group := r.ink(i)
		points.Color, points.Shape, points.Radius = ink, glyphs[group%len(glyphs)], vg.Points(1.4)
		p.Add(points)
		p.Legend.Add(r.legend(c), points)
	}
	if !some {
		return errNothing
	}
	p.X.Min = 0
	widen(&p.Y)
	p.Y.Max *= math.Pow(p.Y.Max/p.Y.Min, 0.08*float64(len(r.Configs))) // the legend's place
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs = true, true, vg.Points(8)
	return write(p, w, format)
}

// drawBars draws the P99 of each configuration, and that of its rounds as dots.
func (r *Result) drawBars(w io.Writer, format string) error {
	p := r.newPlot("P99 of the time to first token", "", "milliseconds")
	p.X.Tick.Length, p.X.LineStyle.Width = 0, 0
	addGrid(p)
	var names []string
	var tops, dots plotter.XYs
	var labels []string
	bars := vg.Points(max(8, min(60, 300/float64(len(r.Configs)))))
	for i := range r.Configs {
		c := &r.Configs[i]
		v := c.All.TTFT.P99
		bar, err := plotter.NewBarChart(plotter.Values{v}, bars)
		if err != nil {
			return err
		}
		ink, _ := r.ink(i)
		bar.XMin, bar.Color, bar.LineStyle.Width = float64(i), ink, 0
		p.Add(bar)
		names = append(names, strings.NewReplacer(", ", "\n", " (", "\n(").Replace(r.legend(c)))
		tops = append(tops, plotter.XY{X: float64(i), Y: v})
		labels = append(labels, figure(c.All.TTFT.N, v))
		for _, round := range c.Rounds {
			if round.TTFT.N > 0 {
				dots = append(dots, plotter.XY{X: float64(i), Y: round.TTFT.P99})
				tops[i].Y = max(tops[i].Y, round.TTFT.P99)
			}
		}
	}
	if len(dots) == 0 {
		return errNothing
	}
	if err := addDots(p, dots); err != nil {
		return err
	}
	if err := addLabels(p, tops, labels); err != nil {
		return err
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.7, float64(len(names))-0.3
	p.Y.Min, p.Y.Max = 0, p.Y.Max*1.12
	p.Y.Tick.Marker = roundTicks{}
	return writeWide(p, w, format, max(plotWidth, vg.Length(len(names))*vg.Points(95)))
}

func addDots(p *plot.Plot, at plotter.XYs) error {
	points, err := plotter.NewScatter(at)
	if err != nil {
		return err
	}
	points.Color, points.Shape, points.Radius = color.Black, draw.RingGlyph{}, vg.Points(2.5)
	p.Add(points)
	p.Legend.Add("one round ", points) // a viewer's font may be wider
	p.Legend.Top, p.Legend.YOffs = true, vg.Points(4)
	return nil
}

func addLabels(p *plot.Plot, at plotter.XYs, text []string) error {
	labels, err := plotter.NewLabels(plotter.XYLabels{XYs: at, Labels: text})
	if err != nil {
		return err
	}
	for i := range labels.TextStyle {
		labels.TextStyle[i].Font.Variant, labels.TextStyle[i].Font.Size = "Sans", vg.Points(11)
		labels.TextStyle[i].XAlign, labels.TextStyle[i].YAlign = draw.XCenter, draw.YBottom
	}
	labels.Offset.Y = vg.Points(5)
	p.Add(labels)
	return nil
}

// timeTicks labels powers of ten of milliseconds, and 2 and 5 where there are
// few of them, with units of time.
type timeTicks struct{}

// Ticks implements plot.Ticker. The space at the end keeps a viewer's
// substitute font, which may be wider, off the tick.
func (timeTicks) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	dense := high/low < 2000
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for _, m := range []float64{1, 2, 5} {
			v := m * math.Pow(10, e)
			if v < low*0.999 || v > high*1.001 || (m != 1 && !dense) {
				continue
			}
			ticks = append(ticks, plot.Tick{Value: v, Label: millis(v) + " "})
		}
	}
	return ticks
}

// roundTicks labels about five multiples of 1, 2 or 5 times a power of ten.
type roundTicks struct{}

// Ticks implements plot.Ticker.
func (roundTicks) Ticks(_, high float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10(high/4)))
	for _, m := range []float64{5, 2} {
		if high/(step*m) >= 3 {
			step *= m
			break
		}
	}
	var ticks []plot.Tick
	for v := 0.0; v <= high; v += step {
		ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 4, 64) + " "})
	}
	return ticks
}

// millis prints a time in its own unit.
func millis(v float64) string {
	unit := "ms"
	switch {
	case v >= 999.5:
		v, unit = v/1000, "s"
	case v < 0.9995:
		v, unit = v*1000, "us"
	}
	return strconv.FormatFloat(v, 'g', 3, 64) + " " + unit
}
