package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/master"
	"github.com/kvlend/kvlend/overflow"
	"github.com/kvlend/kvlend/overflow/store"
)

func poolCheckCmd() *cobra.Command {
	var f poolFlags
	var deep bool
	c := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Verify the stores on the devices of a configuration while no system uses them",
		Long: `Verify the stores on the devices of a configuration while no system uses them.

The log of each store is read and compared with what a start makes of it. --deep also
reads all data and compares it with its checksums, as every use of a block does.
Nothing is written. What a crash has left, such as torn records, is no problem: a
start finds it out and drops it.

Exit codes: 0 everything is right, 3 a problem was found, 1 a device could not be
checked (in use, missing, an error), 2 wrong usage or configuration.`,
		Example: "  kvlend pool check -c server.yaml\n  kvlend pool check -c server.yaml --deep\n  kvlend pool check -c server.yaml --model atlas --device ssd1 --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var w checker
			err := f.each("pool check", func(m *poolModel, progress func(string)) error {
				return w.model(cmd, m, deep, progress)
			})
			if err != nil {
				return err
			}
			if err := w.print(cmd.OutOrStdout(), f.asJSON); err != nil {
				return err
			}
			return w.err("not checked", "problems were found")
		},
	}
	f.register(c)
	c.Flags().BoolVar(&deep, "deep", false, "read all data and verify its checksums")
	return c
}

// checkView is a device in the output of `kvlend pool check --json`.
type checkView struct {
	Model  string `json:"model"`
	Device string `json:"device"`
	Path   string `json:"path"`
	OK     bool   `json:"ok"`
	// Error says why it could not be checked.
	Error    string   `json:"error,omitempty"`
	Problems []string `json:"problems,omitempty"`
	// Notes are what is no problem, and worth knowing.
	Notes    []string `json:"notes,omitempty"`
	UUID     string   `json:"store,omitempty"`
	Slots    int      `json:"slots,omitempty"`
	Live     int      `json:"live,omitempty"`
	Free     int      `json:"free,omitempty"`
	LogPages int      `json:"log_pages,omitempty"`
	Verified int      `json:"verified,omitempty"`
}

// checker checks devices one by one and remembers how they fared.
type checker struct {
	verdict
	views []checkView
}

func (w *checker) model(cmd *cobra.Command, m *poolModel, deep bool, progress func(string)) error {
	o, unknown := m.identified(progress)
	for _, d := range m.devices {
		progress(m.Config.Name + "/" + d.Name)
		v := checkView{Model: m.Config.Name, Device: d.Name, Path: d.Path}
		c, err := overflow.Check(cmd.Context(), o, d, deep, master.StoredSum)
		switch {
		case cmd.Context().Err() != nil:
			return errors.New("interrupted: nothing was changed")
		case errors.Is(err, overflow.ErrMemory):
			v.OK, v.Notes = true, []string{"memory begins empty with each process"}
		case err != nil:
			v.Error = w.note(v.Model, v.Device, err)
		default:
			if v.fill(c, deep); !v.OK {
				w.refused = append(w.refused, v.Model+"/"+v.Device)
			}
			if unknown != "" {
				v.Notes = append(v.Notes, unknown)
			}
		}
		w.views = append(w.views, v)
	}
	return nil
}

// maxBad bounds the blocks that are named.
const maxBad = 20

func (v *checkView) fill(c *overflow.Checked, deep bool) {
	v.OK = c.OK()
	if c.Device.Degraded != "" {
		v.Notes = append(v.Notes, "degraded: "+c.Device.Degraded)
	}
	if c.Found != store.Ours {
		v.Problems = append(v.Problems, holds(c.Found, c.Detail))
	}
	if c.Found != store.Ours && c.Found != store.OtherIdentity {
		return
	}
	r := c.Report
	v.UUID, v.Slots, v.Live, v.Free = fmt.Sprintf("%x", c.Store.UUID), r.Slots, r.Live, r.Free
	v.LogPages, v.Verified = c.Recovery.Pages, r.Verified
	v.Problems = append(v.Problems, r.Problems...)
	for i, b := range r.Bad {
		if i == maxBad {
			v.Problems = append(v.Problems, fmt.Sprintf("... and %d more layer blocks", len(r.Bad)-maxBad))
			break
		}
		what := "its checksum differs"
		if b.Err != nil {
			what = b.Err.Error()
		}
		v.Problems = append(v.Problems, fmt.Sprintf("slot %d, layer %d of block %v: %s", b.Slot, b.Layer, b.Key, what))
	}
	if n := c.Recovery.Torn + c.Recovery.Holes; n > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("%d torn records and %d missing pages in the log, as a crash leaves them: the next start writes it anew", c.Recovery.Torn, c.Recovery.Holes))
	}
	if !deep && r.Live > 0 {
		v.Notes = append(v.Notes, "data was not read (--deep)")
	}
}

func (w *checker) print(out io.Writer, asJSON bool) error {
	if asJSON {
		return encodeIndented(out, w.views)
	}
	t := newTable("model", "device", "result", "blocks", "free", "log pages", "verified", "details")
	for _, v := range w.views {
		result := "ok"
		switch {
		case v.Error != "":
			result = "NOT CHECKED"
		case !v.OK:
			result = "PROBLEMS"
		}
		details := append(v.Problems[:len(v.Problems):len(v.Problems)], v.Notes...)
		if v.Error != "" {
			details = append(details, v.Error)
		}
		row := table.Row{v.Model, v.Device, result, "", "", "", "", strings.Join(details, "\n")}
		if v.UUID != "" {
			row[3], row[4], row[5], row[6] = fmt.Sprintf("%d of %d", v.Live, v.Slots), v.Free, v.LogPages, v.Verified
		}
		t.AppendRow(row)
	}
	_, err := fmt.Fprintln(out, t.Render())
	return err
}
