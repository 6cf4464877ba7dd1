package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/internal/supervisor"
)

func poolDrainCmd() *cobra.Command {
	var o struct {
		runDir       string
		asJSON, undo bool
		timeout      time.Duration
	}
	c := &cobra.Command{
		Use:   "drain MODEL DEVICE",
		Short: "Empty a device of the running system, to replace it",
		Long: `Empty a device of the running system, to replace it.

The device takes no more blocks. Copies there are dropped; other blocks come home as
there is room in the model's own memory, and go to other devices from there; what fits
nowhere is dropped, and computed again when it is needed. The drain lasts until --undo, or until the model's process is started again: take the device
out of the configuration before that. When the time is up the drain goes on; the command says
what is left and exits with 1.`,
		Example: "  kvlend pool drain atlas ssd1\n  kvlend pool drain atlas ssd1 --undo",
		Args:    cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) != 2 || args[0] == "" || args[1] == "":
				return usage("pool drain needs the name of a model and of one of its devices")
			case o.timeout <= 0:
				return usage("--timeout is %s, it must be positive", o.timeout)
			}
			dir, err := supervisor.RunDir(o.runDir)
			if err != nil {
				return &codeError{exitUsage, err}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
			defer cancel()
			d := unloader{dir: dir, ask: api.AdminUnload{Model: args[0], Device: args[1], Undo: o.undo}, progress: cmd.ErrOrStderr()}
			st, err := d.run(ctx)
			if st != nil && o.asJSON {
				v := unloadView{args[0], args[1], st.Draining, st.Unloaded(), st.Blocks, st.Fenced}
				if e := json.NewEncoder(cmd.OutOrStdout()).Encode(v); e != nil {
					return e
				}
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.runDir, "run-dir", "", "the system's run directory")
	f.BoolVar(&o.undo, "undo", false, "end the drain: the device takes blocks again")
	f.BoolVar(&o.asJSON, "json", false, "print the outcome as JSON")
	f.DurationVar(&o.timeout, "timeout", 10*time.Minute, "how long to wait")
	return c
}

// unloadView is what `kvlend pool drain --json` prints.
type unloadView struct {
	Model    string `json:"model"`
	Device   string `json:"device"`
	Draining bool   `json:"draining"`
	Empty    bool   `json:"empty"`
	Blocks   int    `json:"blocks"`
	Fenced   string `json:"fenced,omitempty"`
}

// unloader follows the drain of a device.
type unloader struct {
	dir      string
	ask      api.AdminUnload
	progress io.Writer
}

// run returns the last state seen, with an error if the device is not empty.
func (d *unloader) run(ctx context.Context) (*wire.UnloadState, error) {
	var last *wire.UnloadState
	for {
		st := new(wire.UnloadState)
		err := adminCall(ctx, d.dir, http.MethodPost, "/admin/pool/drain", d.ask, st)
		var refused *adminError
		switch {
		case ctx.Err() != nil:
			return last, d.late(ctx, last)
		case errors.As(err, &refused) && (refused.status == http.StatusNotFound || refused.status == http.StatusBadRequest):
			return last, &codeError{exitUsage, err}
		case err != nil:
			return last, err
		}
		if last == nil || last.Blocks != st.Blocks {
			d.say(st)
		}
		last = st
		if d.ask.Undo && st.Fenced != "" {
			return st, fmt.Errorf("%s stays out of use until the model's process is started again", d.name())
		}
		if d.ask.Undo || st.Unloaded() {
			return st, nil
		}
		select {
		case <-time.After(drainEvery):
		case <-ctx.Done():
			return last, d.late(ctx, last)
		}
	}
}

func (d *unloader) name() string { return d.ask.Model + "/" + d.ask.Device }

func (d *unloader) say(st *wire.UnloadState) {
	switch {
	case st.Fenced != "":
		fmt.Fprintf(d.progress, "%s is out of use, nothing there will be used: %s\n", d.name(), plain(st.Fenced))
	case d.ask.Undo:
		fmt.Fprintf(d.progress, "%s takes blocks again\n", d.name())
	case st.Unloaded():
		fmt.Fprintf(d.progress, "%s is empty\n", d.name())
	default:
		fmt.Fprintf(d.progress, "%s: %d blocks left\n", d.name(), st.Blocks)
	}
}

func (d *unloader) late(ctx context.Context, last *wire.UnloadState) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("interrupted: %s goes on draining (--undo ends it)", d.name())
	case last == nil:
		return fmt.Errorf("%s did not answer in time", d.ask.Model)
	}
	return fmt.Errorf("%s is not empty in time: %d blocks left; it goes on draining", d.name(), last.Blocks)
}
