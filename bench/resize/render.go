package resize

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// RenderJSON writes the result for machines.
func RenderJSON(w io.Writer, r Result) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// RenderTable writes the result for people: medians, and the range of the
// ratio's larger side is left to the JSON.
func RenderTable(w io.Writer, r Result) error {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.SetTitle("Lending one unit and taking it back: layer-major moves bytes, block-major changes books (medians of %d)", r.Options.Rounds)
	t.AppendHeader(table.Row{"layers", "blocks", "unit", "cache", "moved", "lend: layer-major", "block-major", "ratio", "take back: layer-major", "block-major", "ratio"})
	columns := make([]table.ColumnConfig, 11)
	for i := range columns {
		columns[i] = table.ColumnConfig{Number: i + 1, Align: text.AlignRight}
	}
	t.SetColumnConfigs(columns)
	for i, c := range r.Cells {
		if i > 0 && c.Layers != r.Cells[i-1].Layers {
			t.AppendSeparator()
		}
		t.AppendRow(table.Row{
			c.Layers, c.Blocks, c.UnitBlocks, size(c.CacheBytes), size(c.MovedBytes),
			nanos(c.Lend.LayerMajor.Median), nanos(c.Lend.BlockMajor.Median), ratio(c.Lend.Ratio),
			nanos(c.TakeBack.LayerMajor.Median), nanos(c.TakeBack.BlockMajor.Median), ratio(c.TakeBack.Ratio),
		})
	}
	if _, err := fmt.Fprintln(w, t.Render()); err != nil {
		return err
	}
	for _, s := range r.Skipped {
		if _, err := fmt.Fprintf(w, "not measured: %d layers, %d blocks: %s\n", s.Layers, s.Blocks, s.Reason); err != nil {
			return err
		}
	}
	return nil
}

// size prints bytes with three digits.
func size(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	return strconv.FormatFloat(v, 'g', 4, 64) + " " + unit
}

// nanos prints a time with three digits.
func nanos(ns float64) string {
	unit := "ns"
	for _, u := range []string{"us", "ms", "s"} {
		if ns < 999.5 {
			break
		}
		ns, unit = ns/1000, u
	}
	return strconv.FormatFloat(ns, 'g', 3, 64) + " " + unit
}

func ratio(r float64) string {
	if r < 100 {
		return strconv.FormatFloat(r, 'g', 3, 64)
	}
	digits := math.Pow(10, math.Floor(math.Log10(r))-1) // two that mean something
	return strconv.FormatFloat(math.Round(r/digits)*digits, 'f', 0, 64)
}
