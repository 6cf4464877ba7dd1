package overlap

import (
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"io"
	"slices"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// WriteJSON writes the result as indented JSON.
func (r *DecodeResult) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteTable writes the result for a terminal.
func (r *DecodeResult) WriteTable(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s, %d layers, %d KiB of KV per token, 1 thread. Links are emulated: %d new tokens behind %d local ones take %s,\n"+
		"which sets %s. Medians of %d rounds of %d tokens or more; %d measurements that had to wait for a core were repeated, %d are kept.\n",
		r.Model, r.Layers, r.KVToken>>10, figNew, figTokens, millis(r.Compute), speeds(r.Links), r.Rounds, r.Tokens, r.Again, r.Disturbed)
	if err != nil {
		return err
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(table.Row{"emulated link", "history", "batch", "way", "streams", "step", "max(compute, stream)", "pipeline at least",
		"per token: at home", "ratio", "streamed", "ratio", "tokens/s"})
	var right []table.ColumnConfig
	for i := range 13 {
		if i != 0 && i != 3 {
			right = append(right, table.ColumnConfig{Number: i + 1, Align: text.AlignRight})
		}
	}
	t.SetColumnConfigs(right)
	for i, c := range r.Cells {
		if i > 0 && c.History != r.Cells[i-1].History {
			t.AppendSeparator()
		}
		t.AppendRow(table.Row{c.Link, c.History, c.Batch, c.Way, some(c.Stream, millis), millis(c.Step), some(c.Bound, millis), millis(c.Least),
			some(c.AtHome, millis), some(c.AtHomeRatio, times), some(c.Streamed, millis), some(c.StreamedRatio, times), fmt.Sprintf("%.0f", c.Rate)})
	}
	_, err = fmt.Fprintln(w, t.Render())
	return err
}

// some renders what there is.
func some(v float64, f func(float64) string) string {
	if v == 0 {
		return ""
	}
	return f(v)
}

func times(x float64) string { return fmt.Sprintf("%.2f", x) }

// decodeLine is a line of the plot.
type decodeLine struct {
	name  string
	way   string
	color color.RGBA
	value func(*DecodeCell) float64
	bound bool // no points, dashed
}

func decodeLines() []decodeLine {
	atHome := func(c *DecodeCell) float64 { return c.AtHome }
	streamed := func(c *DecodeCell) float64 { return c.Streamed }
	return []decodeLine{
		{name: "streamed, 1 buffer", way: OneBuffer, color: palette[OneBuffer], value: streamed},
		{name: "streamed, 2 buffers", way: TwoBuffers, color: palette[TwoBuffers], value: streamed},
		{name: "max(compute, stream)", way: TwoBuffers, color: palette[TwoBuffers], value: func(c *DecodeCell) float64 { return c.Bound }, bound: true},
		{name: "mixed, in turns: streamed", way: MixedInTurns, color: color.RGBA{0xe6, 0x9f, 0x00, 0xff}, value: streamed},
		{name: "mixed, no turns: both", way: MixedAlways, color: palette[Mixed], value: atHome},
		{name: "mixed, in turns: at home", way: MixedInTurns, color: color.RGBA{0x56, 0xb4, 0xe9, 0xff}, value: atHome},
		{name: "resident", way: Resident, color: palette[Promoted], value: atHome},
	}
}

// WritePlot draws the time per token over the size of the batch, a tile for each
// history, of the first link. format is "svg" or "png".
func (r *DecodeResult) WritePlot(w io.Writer, format string) error {
	if len(r.Cells) == 0 {
		return errors.New("nothing was measured, so nothing can be plotted")
	}
	var histories []int
	for _, c := range r.Cells {
		if !slices.Contains(histories, c.History) {
			histories = append(histories, c.History)
		}
	}
	most := 0.0
	for _, c := range r.Cells {
		most = max(most, c.AtHome, c.Streamed)
	}
	tiles := [][]*plot.Plot{nil}
	for i, h := range histories {
		p, err := r.tile(h, i == 0)
		if err != nil {
			return err
		}
		p.Y.Max = most * 1.3e3
		if i == 0 {
			p.Y.Label.Text = "milliseconds per output token"
		}
		p.X.Label.Text = "sequences"
		tiles[0] = append(tiles[0], p)
	}
	canvas, err := draw.NewFormattedCanvas(vg.Points(250*float64(len(histories))), vg.Points(280), format)
	if err != nil {
		return fmt.Errorf("plot as %q: %w", format, err)
	}
	grid := draw.Tiles{Rows: 1, Cols: len(histories), PadX: vg.Points(14),
		PadTop: vg.Points(6), PadBottom: vg.Points(6), PadLeft: vg.Points(6), PadRight: vg.Points(10)}
	for j, c := range plot.Align(tiles, grid, draw.New(canvas))[0] {
		tiles[0][j].Draw(c)
	}
	_, err = canvas.WriteTo(w)
	return err
}

func (r *DecodeResult) tile(history int, legend bool) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%d tokens of history each", history)
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.Y.Min = 1
	p.Y.Tick.Marker = plot.ConstantTicks{{Value: 1, Label: "1"}, {Value: 3, Label: "3"}, {Value: 10, Label: "10"}, {Value: 30, Label: "30"}, {Value: 100, Label: "100"}, {Value: 300, Label: "300"}}
	style(p)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xe0}, color.Gray{0xe0}
	p.Add(grid)
	var ticks plot.ConstantTicks
	for _, l := range decodeLines() {
		var at plotter.XYs
		for _, c := range r.Cells {
			if c.History != history || c.Way != l.way || c.Link != "" && c.Link != r.Links[0].Name {
				continue
			}
			at = append(at, plotter.XY{X: float64(c.Batch), Y: 1e3 * l.value(c)})
			if c.Way == Resident {
				ticks = append(ticks, plot.Tick{Value: float64(c.Batch), Label: strconv.Itoa(c.Batch)})
				p.Y.Min = min(p.Y.Min, 0.7e3*l.value(c))
			}
		}
		if len(at) == 0 {
			continue
		}
		line, points, err := plotter.NewLinePoints(at)
		if err != nil {
			return nil, err
		}
		line.Color, points.Color = l.color, l.color
		line.Width, points.Radius, points.Shape = vg.Points(1.3), vg.Points(2.6), draw.CircleGlyph{}
		thumbs := []plot.Thumbnailer{line, points}
		if l.bound {
			line.Dashes = []vg.Length{vg.Points(3), vg.Points(2)}
			p.Add(line)
			thumbs = thumbs[:1]
		} else {
			p.Add(line, points)
		}
		if legend {
			p.Legend.Add(l.name, thumbs...)
		}
	}
	p.X.Tick.Marker = ticks
	p.X.Min, p.X.Max = p.X.Min/1.15, p.X.Max*1.15
	return p, nil
}
