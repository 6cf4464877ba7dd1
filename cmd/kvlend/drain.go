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

// drainEvery is the pause between two looks at a drain.
const drainEvery = 200 * time.Millisecond

func drainCmd() *cobra.Command {
	var o struct {
		runDir       string
		asJSON, undo bool
		timeout      time.Duration
	}
	c := &cobra.Command{
		Use:   "drain MODEL",
		Short: "Let a model finish its requests and bring all memory home",
		Long: `Let a model finish its requests and bring all memory home.

New requests are refused (503 with Retry-After) while those that were accepted
finish. A worker takes everything back that it has lent and lends no more; a
master returns everything that it has borrowed. The drain lasts until --undo, or
until the model's process is started again. When the time is up the drain goes
on; the command says what is left and exits with 1.`,
		Example: "  kvlend drain birch\n  kvlend drain birch --undo",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) != 1:
				return usage("drain needs the name of one model")
			case o.timeout <= 0:
				return usage("--timeout is %s, it must be positive", o.timeout)
			}
			dir, err := supervisor.RunDir(o.runDir)
			if err != nil {
				return &codeError{exitUsage, err}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
			defer cancel()
			d := drainer{dir: dir, ask: api.AdminDrain{Model: args[0], Undo: o.undo}, progress: cmd.ErrOrStderr()}
			st, err := d.run(ctx)
			if st != nil && o.asJSON {
				if e := json.NewEncoder(cmd.OutOrStdout()).Encode(drainView{args[0], st.Draining, st.Drained(), st.Requests, st.Units}); e != nil {
					return e
				}
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.runDir, "run-dir", "", "the system's run directory")
	f.BoolVar(&o.undo, "undo", false, "end the drain: take requests, lend and borrow again")
	f.BoolVar(&o.asJSON, "json", false, "print the outcome as JSON")
	f.DurationVar(&o.timeout, "timeout", 10*time.Minute, "how long to wait")
	return c
}

// drainView is what `kvlend drain --json` prints.
type drainView struct {
	Model    string `json:"model"`
	Draining bool   `json:"draining"`
	Drained  bool   `json:"drained"`
	Requests int    `json:"requests"`
	Units    int    `json:"units"`
}

// drainer follows one drain.
type drainer struct {
	dir      string
	ask      api.AdminDrain
	progress io.Writer
}

// run returns the last state seen, with an error if it is not drained.
func (d *drainer) run(ctx context.Context) (*wire.DrainState, error) {
	var last *wire.DrainState
	for {
		st := new(wire.DrainState)
		err := adminCall(ctx, d.dir, http.MethodPost, "/admin/drain", d.ask, st)
		var refused *adminError
		switch {
		case ctx.Err() != nil:
			return last, d.late(ctx, last)
		case errors.As(err, &refused) && refused.status == http.StatusNotFound:
			return last, &codeError{exitUsage, err}
		case err != nil:
			return last, err
		}
		if last == nil || last.Requests != st.Requests || last.Units != st.Units {
			d.say(st)
		}
		last = st
		if d.ask.Undo || st.Drained() {
			return st, nil
		}
		select {
		case <-time.After(drainEvery):
		case <-ctx.Done():
			return last, d.late(ctx, last)
		}
	}
}

func (d *drainer) say(st *wire.DrainState) {
	switch {
	case d.ask.Undo:
		fmt.Fprintf(d.progress, "%s takes requests again\n", d.ask.Model)
	case st.Drained():
		fmt.Fprintf(d.progress, "%s is drained\n", d.ask.Model)
	default:
		fmt.Fprintf(d.progress, "%s: %d requests and %d units left\n", d.ask.Model, st.Requests, st.Units)
	}
}

func (d *drainer) late(ctx context.Context, last *wire.DrainState) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("interrupted: %s goes on draining (--undo ends it)", d.ask.Model)
	}
	if last == nil {
		return fmt.Errorf("%s did not answer in time", d.ask.Model)
	}
	return fmt.Errorf("%s is not drained in time: %d requests and %d units left; it goes on draining", d.ask.Model, last.Requests, last.Units)
}
