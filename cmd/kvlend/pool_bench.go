package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/overflow"
	"github.com/kvlend/kvlend/overflow/device"
)

func poolBenchCmd() *cobra.Command {
	var f poolFlags
	var writes bool
	c := &cobra.Command{
		Use:   "bench -c FILE",
		Short: "Measure the devices of a configuration while no system uses them",
		Long: `Measure the devices of a configuration while no system uses them: random reads, and
writes where a device holds no blocks yet. The figures are stored beside a device that
is a file: the next start divides blocks by them.

Exit codes: 0 all measured, 3 a device holds no store (kvlend pool format), 1 a device
could not be measured (in use, missing, an error), 2 wrong usage or configuration.`,
		Example: "  kvlend pool bench -c server.yaml\n  kvlend pool bench -c server.yaml --writes=false\n  kvlend pool bench -c server.yaml --model atlas --device ssd1 --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var w bencher
			err := f.each("pool bench", func(m *poolModel, progress func(string)) error {
				return w.model(cmd, m, writes, progress)
			})
			if err != nil {
				return err
			}
			if err := w.print(cmd.OutOrStdout(), f.asJSON); err != nil {
				return err
			}
			return w.err("not measured", "not measured, since there is no store of this model on them")
		},
	}
	f.register(c)
	c.Flags().BoolVar(&writes, "writes", true, "measure writes too, of devices without blocks")
	return c
}

// benchView is a device in the output of `kvlend pool bench --json`.
type benchView struct {
	Model   string          `json:"model"`
	Device  string          `json:"device"`
	Path    string          `json:"path"`
	Error   string          `json:"error,omitempty"`
	Note    string          `json:"note,omitempty"`
	Blocks  int             `json:"blocks"`
	Profile *device.Profile `json:"profile,omitempty"`
}

func (v *benchView) add(note string) {
	if v.Note != "" {
		v.Note += "; "
	}
	v.Note += note
}

// bencher measures devices one by one and remembers how they fared.
type bencher struct {
	verdict
	views []benchView
}

func (w *bencher) model(cmd *cobra.Command, m *poolModel, writes bool, progress func(string)) error {
	o, unknown := m.identified(progress)
	for _, d := range m.devices {
		progress(m.Config.Name + "/" + d.Name)
		v := benchView{Model: m.Config.Name, Device: d.Name, Path: d.Path}
		b, err := overflow.Bench(cmd.Context(), o, d, writes)
		switch {
		case cmd.Context().Err() != nil:
			return errors.New("interrupted")
		case err != nil:
			v.Error = w.note(v.Model, v.Device, err)
		default:
			v.Blocks, v.Profile = b.Blocks, &b.Profile
			if writes && b.Blocks > 0 {
				v.Note = fmt.Sprintf("writes were not measured: %d blocks lie there", b.Blocks)
			}
			if b.Other != "" {
				v.add("the device belongs to another model, and this one will not use it: " + b.Other)
			}
			if unknown != "" {
				v.add(unknown)
			}
		}
		w.views = append(w.views, v)
	}
	return nil
}

func (w *bencher) print(out io.Writer, asJSON bool) error {
	if asJSON {
		return encodeIndented(out, w.views)
	}
	for i, v := range w.views {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "%s/%s (%s)\n", v.Model, v.Device, v.Path)
		if v.Error != "" {
			fmt.Fprintf(out, "NOT MEASURED: %s\n", v.Error)
			continue
		}
		fmt.Fprintln(out, curveTable("reads", v.Profile.Read))
		if len(v.Profile.Write) > 0 {
			fmt.Fprintln(out, curveTable("writes", v.Profile.Write))
		}
		if v.Note != "" {
			fmt.Fprintln(out, v.Note)
		}
		if v.Profile.Degraded != "" {
			fmt.Fprintf(out, "degraded: %s\n", v.Profile.Degraded)
		}
	}
	return nil
}

// curveTable shows bandwidth, mean latency and P99 by size and depth.
func curveTable(title string, c device.Curve) string {
	header := table.Row{title}
	var depths, sizes []int
	for _, p := range c {
		depths, sizes = append(depths, p.Depth), append(sizes, p.Size)
	}
	slices.Sort(depths)
	depths = slices.Compact(depths)
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	for _, d := range depths {
		header = append(header, fmt.Sprintf("depth %d: rate, mean, P99", d))
	}
	t := newTable(header...)
	for _, size := range sizes {
		row := table.Row{configs.Bytes(size).String()}
		for _, depth := range depths {
			cell := ""
			for _, p := range c {
				if p.Size == size && p.Depth == depth {
					cell = fmt.Sprintf("%s, %s, %s", rate(p.Rate), short(p.Latency), short(p.P99))
				}
			}
			row = append(row, cell)
		}
		t.AppendRow(row)
	}
	return t.Render()
}
