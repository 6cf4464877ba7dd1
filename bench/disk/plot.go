package disk

import (
	"fmt"
	"image/color"
	"io"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Colours that people with colour-blindness tell apart (Okabe and Ito).
var (
	blue   = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	orange = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	grey   = color.Gray{0x90}
)

// WritePlot draws bandwidth over the size of a read, a tile for each depth.
// format is "svg" or "png".
func (r *ReadResult) WritePlot(w io.Writer, format string) error {
	if len(r.Cells) == 0 {
		return errNothing
	}
	var depths []int
	for _, c := range r.Cells {
		if !slices.Contains(depths, c.Depth) {
			depths = append(depths, c.Depth)
		}
	}
	var tiles []*plot.Plot
	for i, d := range depths {
		p := newPlot(fmt.Sprintf("%d in flight", d), "size of a read", "MB/s")
		p.X.Scale = plot.LogScale{}
		var ours, fio plotter.XYs
		var ticks plot.ConstantTicks
		for _, c := range r.Cells {
			if c.Depth != d {
				continue
			}
			x := float64(c.Size)
			ours = append(ours, plotter.XY{X: x, Y: c.BytesPerSec / 1e6})
			if c.FioBytesPerSec > 0 {
				fio = append(fio, plotter.XY{X: x, Y: c.FioBytesPerSec / 1e6})
			}
			label := size(c.Size)
			if n := len(ticks); n > 0 && ticks[n-1].Label != "" && x < 3*ticks[n-1].Value {
				label = "" // it would run into its neighbour
			}
			ticks = append(ticks, plot.Tick{Value: x, Label: label})
		}
		p.X.Tick.Marker = ticks
		if err := addLine(p, "fio, best settings", fio, orange, i == 0); err != nil {
			return err
		}
		if err := addLine(p, "kvlend", ours, blue, i == 0); err != nil {
			return err
		}
		p.Y.Min = 0
		tiles = append(tiles, p)
	}
	return drawTiles(w, format, tiles)
}

// WritePlot draws bandwidth over the size of a write with most in flight, in order
// and at random.
func (r *WriteResult) WritePlot(w io.Writer, format string) error {
	if len(r.Cells) == 0 {
		return errNothing
	}
	deep := 0
	for _, c := range r.Cells {
		deep = max(deep, c.Depth)
	}
	var tiles []*plot.Plot
	for i, sequential := range []bool{true, false} {
		p := newPlot(fmt.Sprintf("%s, %d in flight", (&WriteCell{Sequential: sequential}).kind(), deep), "size of a write", "MB/s")
		p.X.Scale = plot.LogScale{}
		var ours, fio plotter.XYs
		for _, c := range r.Cells {
			if c.Depth != deep || c.Sequential != sequential || c.Fresh || c.SyncBytes > 0 {
				continue
			}
			ours = append(ours, plotter.XY{X: float64(c.Size), Y: c.BytesPerSec / 1e6})
			if c.FioBytesPerSec > 0 {
				fio = append(fio, plotter.XY{X: float64(c.Size), Y: c.FioBytesPerSec / 1e6})
			}
		}
		var ticks plot.ConstantTicks
		for _, n := range sizesOf(r.Cells) {
			ticks = append(ticks, plot.Tick{Value: float64(n), Label: size(n)})
		}
		p.X.Tick.Marker = ticks
		if err := addLine(p, "fio, best settings", fio, orange, i == 0); err != nil {
			return err
		}
		if err := addLine(p, "kvlend", ours, blue, i == 0); err != nil {
			return err
		}
		p.Y.Min = 0
		tiles = append(tiles, p)
	}
	return drawTiles(w, format, tiles)
}

// WritePlot draws the bandwidth of several devices over their number, and of
// all devices with equal shares and with shares by bandwidth.
func (r *PoolResult) WritePlot(w io.Writer, format string) error {
	if len(r.Sums) == 0 {
		return errNothing
	}
	p := newPlot(emulatedNote(r.Emulated), "devices", "MB/s")
	var got, sum plotter.XYs
	var ticks plot.ConstantTicks
	for _, s := range r.Sums {
		x := float64(s.Devices)
		var alone float64
		for _, d := range r.Devices[:s.Devices] {
			alone += d.BytesPerSec / 1e6
		}
		got = append(got, plotter.XY{X: x, Y: s.BytesPerSec / 1e6})
		sum = append(sum, plotter.XY{X: x, Y: alone})
		ticks = append(ticks, plot.Tick{Value: x, Label: strconv.Itoa(s.Devices)})
	}
	p.X.Tick.Marker = ticks
	if err := addLine(p, "sum of each alone", sum, grey, true); err != nil {
		return err
	}
	if err := addLine(p, "together, equal shares", got, blue, true); err != nil {
		return err
	}
	if r.Shares != nil {
		n := float64(len(r.Devices))
		if err := addLine(p, "together, shares by bandwidth", plotter.XYs{{X: n, Y: r.Shares.Aware / 1e6}}, orange, true); err != nil {
			return err
		}
	}
	p.Y.Min = 0
	return drawTiles(w, format, []*plot.Plot{p})
}

// WritePlot draws the time of every way to restore the context.
func (r *RestoreResult) WritePlot(w io.Writer, format string) error {
	if len(r.Ways) == 0 {
		return errNothing
	}
	p := newPlot(fmt.Sprintf("%d tokens, %d layers, %d %s", r.Tokens, r.Layers, len(r.Dirs), emulatedNote(r.Emulated)), "seconds", "")
	var ticks plot.ConstantTicks
	for i, y := range r.Ways {
		at := float64(len(r.Ways) - 1 - i)
		bar, err := plotter.NewBarChart(plotter.Values{y.Seconds}, vg.Points(16))
		if err != nil {
			return err
		}
		bar.Horizontal, bar.XMin, bar.Color, bar.LineStyle.Width = true, at, grey, 0
		if y.Name == Pooled || y.Name == Raw {
			bar.Color = blue
		}
		p.Add(bar)
		ticks = append(ticks, plot.Tick{Value: at, Label: y.Name + "  "})
	}
	p.Y.Tick.Marker = ticks
	p.Y.Min, p.Y.Max = -0.6, float64(len(r.Ways))-0.4
	p.X.Min = 0
	return drawTiles(w, format, []*plot.Plot{p})
}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	for _, s := range []*draw.TextStyle{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle, &p.Title.TextStyle} {
		s.Font.Variant, s.Font.Size = "Sans", vg.Points(9)
	}
	p.Title.TextStyle.Font.Size = vg.Points(10)
	p.Title.Padding = vg.Points(4)
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.XOffs = vg.Points(6)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xe0}, color.Gray{0xe0}
	p.Add(grid)
	return p
}

func addLine(p *plot.Plot, name string, xy plotter.XYs, c color.Color, legend bool) error {
	if len(xy) == 0 {
		return nil
	}
	line, points, err := plotter.NewLinePoints(xy)
	if err != nil {
		return err
	}
	line.Color, points.Color = c, c
	line.Width, points.Radius, points.Shape = vg.Points(1.3), vg.Points(2.4), draw.CircleGlyph{}
	p.Add(line, points)
	if legend {
		p.Legend.Add(name, line, points)
	}
	return nil
}

// drawTiles draws the plots side by side.
func drawTiles(w io.Writer, format string, tiles []*plot.Plot) error {
	width := 300.0
	if len(tiles) == 1 {
		width = 460
	}
	canvas, err := draw.NewFormattedCanvas(vg.Points(width*float64(len(tiles))), vg.Points(250), format)
	if err != nil {
		return fmt.Errorf("plot as %q: %w", format, err)
	}
	grid := draw.Tiles{Rows: 1, Cols: len(tiles), PadX: vg.Points(14), PadTop: vg.Points(6), PadBottom: vg.Points(6), PadLeft: vg.Points(6), PadRight: vg.Points(10)}
	row := plot.Align([][]*plot.Plot{tiles}, grid, draw.New(canvas))[0]
	for i, p := range tiles {
		p.Draw(row[i])
	}
	_, err = canvas.WriteTo(w)
	return err
}
