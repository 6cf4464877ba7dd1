package overlap

import (
	"errors"
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

// palette is told apart by people with colour-blindness (Okabe and Ito).
var palette = map[string]color.RGBA{
	OneBuffer: {0xd5, 0x5e, 0x00, 0xff}, TwoBuffers: {0x00, 0x72, 0xb2, 0xff},
	Promoted: {0x00, 0x9e, 0x73, 0xff}, Mixed: {0xcc, 0x79, 0xa7, 0xff},
}

// WritePlot draws the share of the step that is stalled over the history, a
// tile for each link and number of new tokens. Measured shares are points, the
// bounds lines. format is "svg" or "png".
func (r *Result) WritePlot(w io.Writer, format string) error {
	if len(r.Cells) == 0 {
		return errors.New("nothing was measured, so nothing can be plotted")
	}
	news := r.news()
	tiles := make([][]*plot.Plot, len(r.Links))
	for i, l := range r.Links {
		for j, n := range news {
			p, err := r.tile(l.Name, n, i == 0 && j == len(news)-1)
			if err != nil {
				return err
			}
			if j == 0 {
				p.Y.Label.Text = "stalled, share of the step"
			}
			if i == len(r.Links)-1 {
				p.X.Label.Text = "tokens of history"
			}
			tiles[i] = append(tiles[i], p)
		}
	}
	width, height := vg.Points(230*float64(len(news))), vg.Points(190*float64(len(r.Links)))
	canvas, err := draw.NewFormattedCanvas(width, height, format)
	if err != nil {
		return fmt.Errorf("plot as %q: %w", format, err)
	}
	grid := draw.Tiles{Rows: len(r.Links), Cols: len(news), PadX: vg.Points(14), PadY: vg.Points(14),
		PadTop: vg.Points(6), PadBottom: vg.Points(6), PadLeft: vg.Points(6), PadRight: vg.Points(10)}
	for i, row := range plot.Align(tiles, grid, draw.New(canvas)) {
		for j := range row {
			tiles[i][j].Draw(row[j])
		}
	}
	_, err = canvas.WriteTo(w)
	return err
}

func (r *Result) news() []int {
	var out []int
	for _, c := range r.Cells {
		if !slices.Contains(out, c.New) {
			out = append(out, c.New)
		}
	}
	return out
}

func (r *Result) tile(link string, fresh int, legend bool) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("emulated %s, %d new tokens", link, fresh)
	p.X.Scale = plot.LogScale{}
	p.Y.Min, p.Y.Max = 0, 1
	p.Y.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 0.25}, {Value: 0.5, Label: "50 % "}, {Value: 0.75}, {Value: 1, Label: "100 % "}}
	style(p)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xe0}, color.Gray{0xe0}
	p.Add(grid)
	var ticks plot.ConstantTicks
	for _, way := range []string{OneBuffer, TwoBuffers, Promoted, Mixed} {
		var measured, bound plotter.XYs
		for _, c := range r.Cells {
			if c.Link != link || c.New != fresh || c.Way != way || c.Queued {
				continue
			}
			x := float64(c.History)
			measured = append(measured, plotter.XY{X: x, Y: c.Stall / c.Step})
			bound = append(bound, plotter.XY{X: x, Y: c.Bound / c.Step})
			if way == OneBuffer {
				ticks = append(ticks, plot.Tick{Value: x, Label: strconv.Itoa(c.History)})
			}
		}
		line, err := plotter.NewLine(bound)
		if err != nil {
			return nil, err
		}
		points, err := plotter.NewScatter(measured)
		if err != nil {
			return nil, err
		}
		line.Color, points.Color = palette[way], palette[way]
		line.Width, points.Radius, points.Shape = vg.Points(1.3), vg.Points(2.6), draw.CircleGlyph{}
		p.Add(line, points)
		if legend {
			p.Legend.Add(way, line, points)
		}
	}
	p.X.Tick.Marker = ticks
	p.X.Min, p.X.Max = p.X.Min/1.15, p.X.Max*1.15
	return p, nil
}

func style(p *plot.Plot) {
	for _, s := range []*draw.TextStyle{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle, &p.Title.TextStyle} {
		s.Font.Variant, s.Font.Size = "Sans", vg.Points(9)
	}
	p.Title.TextStyle.Font.Size = vg.Points(10)
	p.Title.Padding = vg.Points(4)
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.XOffs = vg.Points(6)
	p.Legend.Padding = vg.Points(2)
}
