package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/internal/supervisor"
	"github.com/kvlend/kvlend/internal/timeline"
)

func traceCmd() *cobra.Command {
	var t tracer
	var runDir, out string
	c := &cobra.Command{
		Use:   "trace",
		Short: "Record what a model's process does, layer by layer, for Perfetto",
		Long: `Record what a model's process does from now on: steps, and per layer waiting,
attention, FFN, and the loads and stores of its blocks, each on the stream that
carried it. The file is in Chrome's trace-event format: open it in
https://ui.perfetto.dev (nothing is uploaded) or chrome://tracing.`,
		Example: "  kvlend trace --model oak --duration 2s -o trace.json\n  kvlend trace -o all.json     # every model",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if t.length <= 0 || t.length > wire.MaxTrace {
				return usage("--duration is %s: want more than 0s and at most %s", t.length, wire.MaxTrace)
			}
			var err error
			if t.dir, err = supervisor.RunDir(runDir); err != nil {
				return &codeError{exitUsage, err}
			}
			procs, err := t.collect(cmd.Context())
			if err != nil {
				return err
			}
			if err := writeTrace(cmd.OutOrStdout(), out, procs); err != nil {
				return err
			}
			for _, p := range procs {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %d spans in %s\n", p.Name, len(p.Spans), p.To.Sub(p.From).Round(time.Millisecond))
				if p.Lost > 0 {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s: the oldest %d spans did not fit; ask for less time\n", p.Name, p.Lost)
				}
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&runDir, "run-dir", "", "the system's run directory")
	f.StringSliceVar(&t.models, "model", nil, "whose timeline; may be repeated (default: all models)")
	f.DurationVar(&t.length, "duration", 2*time.Second, "how long to record")
	f.StringVarP(&out, "output", "o", "", "file to write (default: standard output)")
	return c
}

// tracer asks the processes of models for their timelines.
type tracer struct {
	dir    string
	models []string
	length time.Duration
}

// collect asks all models at the same time.
func (t *tracer) collect(ctx context.Context) ([]timeline.Process, error) {
	if len(t.models) == 0 {
		st, err := fetchStatus(ctx, t.dir)
		if err != nil {
			return nil, err
		}
		for _, m := range st.Models {
			t.models = append(t.models, m.Name)
		}
	}
	procs, errs := make([]timeline.Process, len(t.models)), make([]error, len(t.models))
	var wg sync.WaitGroup
	for i, name := range t.models {
		wg.Go(func() { procs[i], errs[i] = t.ask(ctx, name) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return procs, nil
}

func (t *tracer) ask(ctx context.Context, model string) (timeline.Process, error) {
	path := "/admin/trace?" + url.Values{"model": {model}, "duration": {t.length.String()}}.Encode()
	m := new(wire.Trace)
	var refused *adminError
	switch err := adminCall(ctx, t.dir, http.MethodGet, path, nil, m); {
	case errors.As(err, &refused) && refused.status == http.StatusNotFound:
		return timeline.Process{}, &codeError{exitUsage, err}
	case err != nil:
		return timeline.Process{}, err
	}
	if err := m.Validate(); err != nil {
		return timeline.Process{}, fmt.Errorf("the timeline of %s: %w", model, err)
	}
	return timeline.Process{Name: model, PID: m.PID, Recording: timeline.FromWire(m)}, nil
}

func writeTrace(std io.Writer, path string, procs []timeline.Process) error {
	if path == "" || path == "-" {
		return timeline.WriteChrome(std, procs)
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	if err := timeline.WriteChrome(f, procs); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}
