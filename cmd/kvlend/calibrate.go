package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/bench/simcheck"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/planner/calibrate"
	"github.com/kvlend/kvlend/planner/sim"
)

func calibrateCmd() *cobra.Command {
	var file, out string
	var enginesOnly bool
	var opt calibrate.Options
	c := &cobra.Command{
		Use:   "calibrate",
		Short: "Measure this machine for the simulator",
		Long: `Measures how long steps of the engine of every model take, how fast memory is copied,
and what the system in front of the engines adds to a request, and writes what
'kvlend simulate --machine' reads. About a minute. The machine should have nothing else
to do. Prints how well the figures describe the measured steps, and what they do not
determine.`,
		Example: `  kvlend calibrate -o machine.json
  kvlend calibrate -c my.yaml -o machine.json
  kvlend simulate -c my.yaml --machine machine.json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n := opt.Rounds; n < calibrate.LeastRounds || n > calibrate.MostRounds {
				return usage("--rounds is %d: want %d to %d", n, calibrate.LeastRounds, calibrate.MostRounds)
			}
			cfg := configs.Default()
			var err error
			if file != "" {
				if cfg, err = configs.Load(file); err != nil {
					return &codeError{exitUsage, err}
				}
			}
			var m sim.Machine
			var fits []calibrate.Fit
			err = busy("calibrate", func(progress func(string)) error {
				opt.Progress = progress
				if m, fits, err = calibrate.Engines(cmd.Context(), cfg, opt); err != nil || enginesOnly {
					return err
				}
				progress("copies")
				m.Copies = calibrate.Copies()
				progress("the front of an idle system")
				binary, err := os.Executable()
				if err == nil {
					m.Front, err = simcheck.MeasureFront(cmd.Context(), binary, cfg)
				}
				return err
			})
			if err != nil {
				return err
			}
			m.Name = fmt.Sprintf("%s/%s, %d processors, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), time.Now().UTC().Format(time.DateOnly))
			if out == "" {
				return writeMachine(cmd.OutOrStdout(), m)
			}
			if err := writeInto(out, func(w io.Writer) error { return writeMachine(w, m) }); err != nil {
				return err
			}
			return writeFits(cmd.OutOrStdout(), m, fits)
		},
	}
	f := c.Flags()
	f.StringVarP(&file, "config", "c", "", "configuration whose models are measured (default: the built-in one)")
	f.StringVarP(&out, "output", "o", "", "file for the result, and print how good it is (default: print the result)")
	f.IntVar(&opt.Rounds, "rounds", 5, "rounds, 3 to 1000; medians count")
	f.BoolVar(&enginesOnly, "engines-only", false, "measure the engines alone")
	return c
}

func writeMachine(w io.Writer, m sim.Machine) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(m)
}

// writeFits tells how well the machine's figures describe what was measured.
func writeFits(w io.Writer, m sim.Machine, fits []calibrate.Fit) error {
	var b strings.Builder
	for i := range fits {
		f := &fits[i]
		r := &f.Residuals
		fmt.Fprintf(&b, "%s: %d batches; steps reckoned are off by %.1f %% (median), %.1f %% (P90), %.1f %% (most), %+.1f %% on the average\n",
			f.Source, r.Samples, 100*r.P50, 100*r.P90, 100*r.Max, 100*r.Bias)
		for _, t := range r.Undetermined() {
			fmt.Fprintf(&b, "  %s: %s\n", t.Name, t.Note)
		}
	}
	if m.Copies > 0 {
		fmt.Fprintf(&b, "copies: %.1f GB/s by one core\n", m.Copies/1e9)
	}
	if m.Front != (sim.Front{}) {
		fmt.Fprintf(&b, "front: %s for a request, %s more for every token of its prompt\n", m.Front.Request.Round(time.Microsecond), m.Front.Token)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
