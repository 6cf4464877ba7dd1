package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/kvlend/kvlend/overflow"
	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/store"
)

func poolFormatCmd() *cobra.Command {
	var f poolFlags
	var force bool
	c := &cobra.Command{
		Use:   "format -c FILE",
		Short: "Make and format the devices of a configuration, and measure them",
		Long: `Make and format the devices of a configuration, and measure them.

Files that are missing are made and written everywhere once: reads of what was never
written would not touch the disk. An interrupted format goes on where it stopped.
` + "`kvlend up`" + ` does the same for what is missing or blank; format shows its progress and
measures writes too, while there is no data yet.

A device that holds anything, another store or this very one included, is left as it
is, and the command says what it found. --force overwrites it: what it holds is lost.

Exit codes: 0 all formatted, 3 a device was refused, 1 a device could not be
formatted (in use, no room, an error), 2 wrong usage or configuration.`,
		Example: `  kvlend pool format -c server.yaml
  kvlend pool format -c server.yaml --device ssd1
  kvlend pool format -c server.yaml --model atlas --device ssd1 --force`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			models, err := f.find()
			if err != nil {
				return err
			}
			w := formatter{force: force, errs: cmd.ErrOrStderr()}
			for i := range models {
				if err := w.model(cmd.Context(), &models[i]); err != nil {
					return err
				}
			}
			if err := w.print(cmd.OutOrStdout(), f.asJSON); err != nil {
				return err
			}
			return w.err("not formatted", "not formatted, since there is something on them")
		},
	}
	f.register(c)
	c.Flags().BoolVar(&force, "force", false, "overwrite whatever the devices hold")
	return c
}

// formatView is a device in the output of `kvlend pool format --json`.
type formatView struct {
	Model  string `json:"model"`
	Device string `json:"device"`
	Path   string `json:"path"`
	Kind   string `json:"kind,omitempty"`
	// Error says why it was not formatted.
	Error string `json:"error,omitempty"`
	// Found is what was on it, Detail more of that.
	Found      string          `json:"found,omitempty"`
	Detail     string          `json:"detail,omitempty"`
	Bytes      int64           `json:"bytes,omitempty"`
	Blocks     int             `json:"blocks,omitempty"`
	Degraded   string          `json:"degraded,omitempty"`
	UUID       string          `json:"store,omitempty"`
	Profile    *device.Profile `json:"profile,omitempty"`
	read, writ float64
}

// formatter formats devices one by one and remembers how they fared.
type formatter struct {
	verdict
	force bool
	errs  io.Writer
	views []formatView
}

func (w *formatter) model(ctx context.Context, m *poolModel) error {
	var o overflow.Options
	err := busy("loading "+m.Config.Name, func(func(string)) (err error) {
		o, err = m.options()
		return err
	})
	if err != nil {
		return err
	}
	for _, d := range m.devices {
		v := formatView{Model: m.Config.Name, Device: d.Name, Path: d.Path}
		bar := newFillBar(w.errs, m.Config.Name+"/"+d.Name)
		o.Progress = bar.progress
		f, err := overflow.Format(ctx, o, d, w.force)
		bar.end()
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("interrupted at %s/%s: the next format of it goes on where this one stopped", m.Config.Name, d.Name)
		case errors.Is(err, overflow.ErrMemory):
			v.Kind, v.Detail = string(device.DRAM), "memory needs no format"
		case err != nil:
			v.Error = w.note(v.Model, v.Device, err)
			var refused *store.RefusedError
			if errors.As(err, &refused) {
				v.Found, v.Detail = string(refused.Found), refused.Detail
				fmt.Fprintf(w.errs, "%s/%s: %s. It was left as it is. To overwrite it: --model %s --device %s --force\n", v.Model, v.Device, v.Error, v.Model, v.Device)
			} else {
				fmt.Fprintf(w.errs, "%s/%s: %s\n", v.Model, v.Device, v.Error)
			}
		default:
			v.fill(f)
		}
		w.views = append(w.views, v)
	}
	return nil
}

func (v *formatView) fill(f *overflow.Formatted) {
	v.Kind, v.Degraded, v.Bytes = string(f.Device.Kind), f.Device.Degraded, f.Device.Size
	v.Found, v.Detail = string(f.Before), f.Detail
	v.Blocks, v.UUID, v.Profile = f.Store.Slots, fmt.Sprintf("%x", f.Store.UUID), &f.Profile
	v.read, _ = f.Profile.Read.Best(largeRead)
	v.writ, _ = f.Profile.Write.Best(largeRead)
}

// largeRead is the size of I/O whose bandwidth stands for a device in tables.
const largeRead = 256 << 10

func (w *formatter) print(out io.Writer, asJSON bool) error {
	if asJSON {
		return encodeIndented(out, w.views)
	}
	t := newTable("model", "device", "kind", "path", "size", "blocks", "read", "write", "")
	for _, v := range w.views {
		what := "formatted"
		switch {
		case v.Error != "":
			what = "NOT FORMATTED"
		case v.UUID == "":
			what = v.Detail
		case v.Found != string(store.Blank):
			if what = "formatted; it held " + v.Found; v.Detail != "" {
				what += " (" + v.Detail + ")"
			}
		}
		if v.Degraded != "" {
			what += "\ndegraded: " + v.Degraded
		}
		row := table.Row{v.Model, v.Device, v.Kind, v.Path, "", "", "", "", what}
		if v.UUID != "" {
			row[4], row[5], row[6], row[7] = approx(float64(v.Bytes)), v.Blocks, rate(v.read), rate(v.writ)
		}
		t.AppendRow(row)
	}
	_, err := fmt.Fprintln(out, t.Render())
	return err
}

func encodeIndented(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// fillBar shows how far the writing of a device is: a bar on a terminal, now and
// then a line elsewhere.
type fillBar struct {
	errs  io.Writer
	title string
	bars  *mpb.Progress // nil: no terminal
	bar   *mpb.Bar
	last  time.Time
}

// fillLines is the pause between two lines.
const fillLines = 10 * time.Second

func newFillBar(errs io.Writer, title string) *fillBar {
	b := &fillBar{errs: errs, title: title, last: time.Now()}
	if terminal(os.Stderr) {
		b.bars = mpb.New(mpb.WithOutput(os.Stderr))
	}
	return b
}

func (b *fillBar) progress(_ string, done, total int64) {
	switch {
	case b.bars != nil && b.bar == nil:
		b.bar = b.bars.AddBar(total, mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(decor.Name("writing "+b.title+" ")),
			mpb.AppendDecorators(decor.CountersKibiByte("% .3g / % .3g"), decor.Name("  "), decor.AverageSpeed(decor.SizeB1024(0), "% .3g"),
				decor.Name("  "), decor.AverageETA(decor.ET_STYLE_GO)))
		fallthrough
	case b.bars != nil:
		b.bar.SetCurrent(done)
	case time.Since(b.last) > fillLines:
		b.last = time.Now()
		fmt.Fprintf(b.errs, "writing %s: %s of %s\n", b.title, approx(float64(done)), approx(float64(total)))
	}
}

func (b *fillBar) end() {
	if b.bars == nil {
		return
	}
	if b.bar != nil {
		b.bar.Abort(true)
	}
	b.bars.Wait()
}
