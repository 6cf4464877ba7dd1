package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/bench/serve"
	"github.com/kvlend/kvlend/bench/simcheck"
	"github.com/kvlend/kvlend/internal/trace"
	"github.com/kvlend/kvlend/planner/calibrate"
)

func benchSimulateCmd() *cobra.Command {
	f := &serveFlags{load: loadFlags{synth: trace.DefaultSynthetic(), short: trace.DefaultSynthetic()}}
	f.load.short.Turns = 2
	var machine string
	var o simcheck.Options
	c := &cobra.Command{
		Use:   "simulate",
		Short: "Measure what the simulator says, and tell how far off it is",
		Long: `Replays a trace, or synthetic conversations, against systems that it starts as real
processes, as bench serve does, and simulates the same on what 'kvlend calibrate' found
out about this machine. Prints both with the difference in percent. Measured figures
are medians of the rounds.`,
		Example: `  kvlend calibrate -o machine.json
  kvlend bench simulate --machine machine.json --rounds 3 --baselines lending,local-only`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Machine, err = calibrate.Load(machine); err != nil {
				return &codeError{exitUsage, err}
			}
			return f.simulate(cmd, o)
		},
	}
	f.register(c.Flags())
	c.Flags().StringVar(&machine, "machine", "", "what kvlend calibrate wrote")
	c.Flags().Float64Var(&o.Steady, "steady", 1.15, "most that the machine's speed may change during a round, as a ratio")
	c.Flags().IntVar(&o.Again, "again", 0, "most repetitions of a round that was not steady; the steadiest try counts")
	c.MarkFlagRequired("machine") // of a flag that is there
	for _, name := range []string{"url", "key", "plots", "reference"} {
		c.Flags().Lookup(name).Hidden = true
	}
	return c
}

// simulate runs both.
func (f *serveFlags) simulate(cmd *cobra.Command, o simcheck.Options) error {
	var err error
	if f.opt.Binary, err = os.Executable(); err != nil {
		return err
	}
	if err = f.prepare(cmd.Flags()); err == nil {
		err = f.opt.Validate()
	}
	if err != nil {
		return &codeError{exitUsage, err}
	}
	var r *simcheck.Result
	err = counted("simulate", func(progress func(serve.Progress)) error {
		f.opt.Progress = progress
		o.Serve = f.opt
		r, err = simcheck.Run(cmd.Context(), o)
		return err
	})
	if err != nil {
		return err
	}
	if f.samples != "" {
		if err := writeInto(f.samples, r.Measured.WriteSamples); err != nil {
			return err
		}
	}
	if err := show(cmd, r, f.json); err != nil {
		return err
	}
	return r.Measured.Err()
}
