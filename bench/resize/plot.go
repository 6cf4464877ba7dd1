package resize

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"

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

// RenderPlot writes the times of lending over the cache's blocks, one line for
// each number of layers and cache. format is "svg" or "png".
func RenderPlot(w io.Writer, r Result, format string) error {
	if len(r.Cells) == 0 {
		return errors.New("nothing was measured, so nothing can be plotted")
	}
	p := plot.New()
	p.Title.Text = "Time for a worker to lend one elastic unit"
	p.X.Label.Text = fmt.Sprintf("full blocks in the worker's cache (layer blocks of %s)", size(int64(r.Options.LayerBlockBytes)))
	p.Y.Label.Text = "time per resize (median)"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = blockTicks(r.Cells), timeTicks{}
	useSans(p)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xe0}, color.Gray{0xe0}
	p.Add(grid)
	for i, layers := range layersOf(r.Cells) {
		if err := addLines(p, r.Cells, layers, palette[i%len(palette)], i == 0); err != nil {
			return err
		}
	}
	fitAxes(p)
	out, err := p.WriterTo(vg.Points(560), vg.Points(380), format)
	if err != nil {
		return fmt.Errorf("plot as %q: %w", format, err)
	}
	_, err = out.WriteTo(w)
	return err
}

// useSans sets fonts, and the legend's place above the data.
func useSans(p *plot.Plot) {
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
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.XOffs = vg.Points(8)
	p.Legend.Padding = vg.Points(3)
}

func layersOf(cells []Cell) []int {
	var out []int
	for _, c := range cells {
		if !slices.Contains(out, c.Layers) {
			out = append(out, c.Layers)
		}
	}
	return out
}

// addLines draws the layer-major times solid, with the number of layers at
// their end, and the block-major times dashed. The first call makes the legend.
func addLines(p *plot.Plot, cells []Cell, layers int, ink color.Color, legend bool) error {
	var major, book plotter.XYs
	for _, c := range cells {
		if c.Layers == layers {
			major = append(major, plotter.XY{X: float64(c.Blocks), Y: c.Lend.LayerMajor.Median})
			book = append(book, plotter.XY{X: float64(c.Blocks), Y: c.Lend.BlockMajor.Median})
		}
	}
	for i, xy := range []plotter.XYs{major, book} {
		line, points, err := plotter.NewLinePoints(xy)
		if err != nil {
			return err
		}
		line.Color, points.Color = ink, ink
		line.Width = vg.Points(1.6)
		points.Shape, points.Radius = draw.CircleGlyph{}, vg.Points(2.5)
		name := "layer-major: moves bytes"
		if i == 1 {
			name = "block-major: changes books"
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
			points.Shape = draw.RingGlyph{}
		}
		p.Add(line, points)
		if legend {
			p.Legend.Add(name, line, points)
		}
	}
	last := major[len(major)-1]
	widest := slices.MaxFunc(cells, func(a, b Cell) int { return a.Blocks - b.Blocks })
	return addLabel(p, last, fmt.Sprintf("%d layers", layers), ink, last.X < float64(widest.Blocks))
}

// addLabel writes text to the right of a point, or above it where other lines
// go on to the right.
func addLabel(p *plot.Plot, at plotter.XY, text string, ink color.Color, above bool) error {
	label, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{at}, Labels: []string{text}})
	if err != nil {
		return err
	}
	label.TextStyle[0].Font.Variant = "Sans"
	label.TextStyle[0].Font.Size = vg.Points(10)
	label.TextStyle[0].Color = ink
	label.TextStyle[0].YAlign = draw.YCenter
	label.Offset.X = vg.Points(6)
	if above {
		label.TextStyle[0].XAlign, label.TextStyle[0].YAlign = draw.XCenter, draw.YBottom
		label.Offset = vg.Point{Y: vg.Points(5)}
	}
	p.Add(label)
	return nil
}

// fitAxes leaves room for the labels on the right and above the data, and starts the times at 10 ns or below.
func fitAxes(p *plot.Plot) {
	span := p.X.Max / p.X.Min
	p.X.Min, p.X.Max = p.X.Min/1.2, p.X.Max*math.Max(1.2, math.Pow(span, 0.15))
	p.Y.Min = math.Min(10, p.Y.Min/2)
	p.Y.Max *= 3
}

// blockTicks labels the measured numbers of blocks.
func blockTicks(cells []Cell) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for _, c := range cells {
		label := strconv.Itoa(c.Blocks)
		if !slices.ContainsFunc(ticks, func(t plot.Tick) bool { return t.Label == label }) {
			ticks = append(ticks, plot.Tick{Value: float64(c.Blocks), Label: label})
		}
	}
	return ticks
}

// timeTicks labels powers of ten with units of time.
type timeTicks struct{}

// Ticks implements plot.Ticker; values are nanoseconds. The space at the end
// keeps a viewer's substitute font, which may be wider, off the tick.
func (timeTicks) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		v := math.Pow(10, e)
		if v >= low*0.999 && v <= high*1.001 {
			ticks = append(ticks, plot.Tick{Value: v, Label: nanos(v) + " "})
		}
	}
	return ticks
}
