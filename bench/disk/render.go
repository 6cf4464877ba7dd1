package disk

import (
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// newTable aligns all columns to the right but those named in left, counted
// from 1.
func newTable(header table.Row, left ...int) table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(header)
	var columns []table.ColumnConfig
	for i := range header {
		columns = append(columns, table.ColumnConfig{Number: i + 1, Align: text.AlignRight})
	}
	for _, i := range left {
		columns[i-1].Align = text.AlignLeft
	}
	t.SetColumnConfigs(columns)
	return t
}

func mb(bytesPerSec float64) string { return fmt.Sprintf("%.0f", bytesPerSec/1e6) }
func ratio(x float64) string        { return fmt.Sprintf("%.2f", x) }
func percent(x float64) string      { return fmt.Sprintf("%.1f %%", 100*x) }
func millis(s float64) string       { return fmt.Sprintf("%.2f ms", s*1e3) }

// orNone shows a figure that is 0 where it was not measured.
func orNone(x float64, f func(float64) string) string {
	if x == 0 {
		return "-"
	}
	return f(x)
}

func warn(degraded string) string {
	if degraded == "" {
		return ""
	}
	return "\nDEGRADED: " + degraded
}

// against says what was measured beside it.
func against(fio string) string {
	if fio == "" {
		return "without fio"
	}
	return "against " + fio + " (the best of its settings at each point)"
}

func emulatedNote(yes bool) string {
	if yes {
		return "EMULATED devices"
	}
	return "real devices"
}

// WriteJSON writes the result as indented JSON.
func (r *ReadResult) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// WriteTable writes the result for a terminal.
func (r *ReadResult) WriteTable(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "Random reads of a %s, O_DIRECT, over %s, %s.\n%s. Medians of %d rounds of %.1f s each, interleaved.%s\n",
		r.Kind, size(r.Span), against(r.Fio), r.Machine, r.Rounds, r.Each, warn(r.Degraded)); err != nil {
		return err
	}
	t := newTable(table.Row{"read", "in flight", "MB/s", "fio", "ratio", "quartiles", "CPU s/GB", "fio", "ratio", "calls/read", "allocs/read", "median", "p99", "fio's best"}, 14)
	var last int64
	for _, c := range r.Cells {
		if last != 0 && c.Size != last {
			t.AppendSeparator()
		}
		last = c.Size
		quartiles := "-"
		if c.Ratio > 0 {
			quartiles = fmt.Sprintf("%.2f-%.2f", c.Low, c.High)
		}
		t.AppendRow(table.Row{size(c.Size), c.Depth, mb(c.BytesPerSec), orNone(c.FioBytesPerSec, mb), orNone(c.Ratio, ratio), quartiles,
			fmt.Sprintf("%.3f", c.CPUPerGB), orNone(c.FioCPUPerGB, func(x float64) string { return fmt.Sprintf("%.3f", x) }), orNone(c.CPURatio, ratio),
			fmt.Sprintf("%.3f", c.Calls), fmt.Sprintf("%.3f", c.Allocs), millis(c.Median), millis(c.P99), c.FioTuning})
	}
	_, err := fmt.Fprintln(w, t.Render())
	return err
}

// WriteJSON writes the result as indented JSON.
func (r *WriteResult) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// WriteTable writes the result for a terminal.
func (r *WriteResult) WriteTable(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "Writes to a %s, O_DIRECT, over %s that were written before unless said otherwise, %s.\n%s. Medians of %d rounds of %.1f s each, interleaved.%s\n",
		r.Kind, size(r.Span), against(r.Fio), r.Machine, r.Rounds, r.Each, warn(r.Degraded)); err != nil {
		return err
	}
	t := newTable(table.Row{"write", "in flight", "how", "MB/s", "fio", "ratio", "quartiles", "CPU s/GB", "fio", "calls/write", "p99", "fio's best"}, 3, 12)
	var last int64
	for _, c := range r.Cells {
		if last != 0 && c.Size != last {
			t.AppendSeparator()
		}
		last = c.Size
		quartiles := "-"
		if c.Ratio > 0 {
			quartiles = fmt.Sprintf("%.2f-%.2f", c.Low, c.High)
		}
		t.AppendRow(table.Row{size(c.Size), c.Depth, c.kind(), mb(c.BytesPerSec), orNone(c.FioBytesPerSec, mb), orNone(c.Ratio, ratio), quartiles,
			fmt.Sprintf("%.3f", c.CPUPerGB), orNone(c.FioCPUPerGB, func(x float64) string { return fmt.Sprintf("%.3f", x) }),
			fmt.Sprintf("%.3f", c.Calls), millis(c.P99), c.FioTuning})
	}
	if _, err := fmt.Fprintln(w, t.Render()); err != nil {
		return err
	}
	return r.Store.writeTable(w)
}

func (r *StoreResult) writeTable(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "A store of %d blocks of %.2f MB, from memory to durable. The engine alone, in order, 1 MiB at a time, a sync each 32 MiB: %s MB/s.\n",
		r.Blocks, float64(r.BlockBytes)/1e6, mb(r.Raw)); err != nil {
		return err
	}
	t := newTable(table.Row{"store", "blocks per flush", "MB/s", "of the engine alone", "CPU s/GB", "bytes written per byte kept", "log bytes per block"}, 1)
	for _, c := range r.Cells {
		what := "empty"
		if c.Replace {
			what = "full, every block replaced"
		}
		t.AppendRow(table.Row{what, c.Flush, mb(c.BytesPerSec), ratio(c.Ratio), fmt.Sprintf("%.3f", c.CPUPerGB), fmt.Sprintf("%.4f", c.Amplification), fmt.Sprintf("%.0f", c.LogBytes)})
	}
	_, err := fmt.Fprintln(w, t.Render())
	return err
}

// WriteJSON writes the result as indented JSON.
func (r *PoolResult) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// WriteTable writes the result for a terminal.
func (r *PoolResult) WriteTable(w io.Writer) error {
	degraded := ""
	var alone []string
	for _, d := range r.Devices {
		alone = append(alone, mb(d.BytesPerSec))
		if d.Degraded != "" {
			degraded = d.Path + ": " + d.Degraded
		}
	}
	if _, err := fmt.Fprintf(w, "%d %s, layers of %s in runs over all of them, %d layers at once.\n%s. Medians of %d rounds, interleaved.%s\nAlone, MB/s: %s\n",
		len(r.Devices), emulatedNote(r.Emulated), size(r.Layer), r.Ahead, r.Machine, r.Rounds, warn(degraded), strings.Join(alone, " ")); err != nil {
		return err
	}
	t := newTable(table.Row{"devices", "MB/s", "of the sum alone", "of the sum of limits", "CPU s/GB"})
	for _, s := range r.Sums {
		t.AppendRow(table.Row{s.Devices, mb(s.BytesPerSec), percent(s.OfAlone), orNone(s.OfLimits, percent), fmt.Sprintf("%.3f", s.CPUPerGB)})
	}
	if _, err := fmt.Fprintln(w, t.Render()); err != nil || r.Shares == nil {
		return err
	}
	s := r.Shares
	_, err := fmt.Fprintf(w, "All %d: equal shares %s MB/s, shares by bandwidth %s MB/s (%s of the sum alone).\nTime of equal shares over that of shares by bandwidth: %.2f, predicted %.2f.\n",
		len(r.Devices), mb(s.Uniform), mb(s.Aware), percent(s.OfAlone), s.Ratio, s.Predicted)
	return err
}

// WriteJSON writes the result as indented JSON.
func (r *RestoreResult) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// WriteTable writes the result for a terminal.
func (r *RestoreResult) WriteTable(w io.Writer) error {
	what := emulatedNote(r.Emulated)
	if r.Emulated && r.Dirs[0].Limit > 0 {
		what += fmt.Sprintf(" (the first: %s MB/s)", mb(r.Dirs[0].Limit))
	}
	if _, err := fmt.Fprintf(w, "%d tokens of Qwen3-8B's shape, %d layers, %.2f GB, from %d %s.\n%s. Medians of %d rounds, interleaved; nothing in the page cache.%s\n",
		r.Tokens, r.Layers, float64(r.Bytes)/1e9, len(r.Dirs), what, r.Machine, r.Rounds, warn(r.Degraded)); err != nil {
		return err
	}
	if r.Bound > 0 {
		if _, err := fmt.Fprintf(w, "All disks at their limits take %.3f s: no way that reads every byte takes less.\n", r.Bound); err != nil {
			return err
		}
	}
	pass := fmt.Sprintf("pass of %g ms a layer", r.Compute*1e3)
	t := newTable(table.Row{"way", "seconds", "over the pool's", "first layer", pass, "over the pool's", "MB/s", "CPU s/GB", "from disk"}, 1)
	for _, y := range r.Ways {
		t.AppendRow(table.Row{y.Name, fmt.Sprintf("%.3f", y.Seconds), ratio(y.Ratio), fmt.Sprintf("%.3f", y.FirstLayer),
			fmt.Sprintf("%.3f", y.Pass), ratio(y.PassRatio), mb(y.BytesPerSec), fmt.Sprintf("%.3f", y.CPUPerGB), percent(y.FromDisk)})
	}
	_, err := fmt.Fprintln(w, t.Render())
	return err
}
