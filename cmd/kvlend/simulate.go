package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlend/kvlend/bench/serve"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/trace"
	"github.com/kvlend/kvlend/planner/calibrate"
	"github.com/kvlend/kvlend/planner/facts"
	"github.com/kvlend/kvlend/planner/sim"
	simreport "github.com/kvlend/kvlend/planner/sim/report"
)

// simulated is the embedded example that is simulated without -c: the built-in
// default runs on CPUs that nobody has measured.
const simulated = "h100-qwen3.yaml"

type simulateFlags struct {
	load    loadFlags
	config  string
	systems []string
	others  []string
	machine string
	gpu     string
	host    string
	html    string
	json    bool
}

func simulateCmd() *cobra.Command {
	f := &simulateFlags{load: loadFlags{synth: longConversations(), short: shortConversations()}}
	c := &cobra.Command{
		Use:   "simulate",
		Short: "What a configuration would do, on hardware that need not be there",
		Long: `Replays a trace, or synthetic conversations without one, on a virtual clock: the
running system's own schedulers, caches and lending protocol on GPUs and links that
are calculated. Systems are compared with the first: -c changed into each of
--systems, and those of --config. Without -c it simulates the example
` + simulated + ` (kvlend config print --example): Qwen3-32B on four H100.

Times rest on assumptions, which are printed. --machine takes what was measured of
a machine; --gpu puts all models on GPUs of another kind, of
` + kinds() + `.

Trace formats: mooncake, agentic, azure, sharegpt, vidur; plain or gzipped.
Equal input gives equal output, to the byte.

Exit codes: 0 done, 1 the first system answered nothing, 2 wrong flags, trace or configuration.`,
		Example: `  kvlend simulate
  kvlend simulate --rate 1 --systems lending,local-only --html report.html
  kvlend simulate --beside qwen3-8b=4 --duration 5m
  kvlend simulate -c my.yaml --trace conversation.jsonl.gz --scale-time 2 --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.register(c.Flags())
	c.AddCommand(simulateFleetCmd(), simulateValidateCmd())
	return c
}

// longConversations fit models with contexts of tens of thousands of tokens.
func longConversations() trace.Synthetic {
	return trace.Synthetic{Sessions: 80, Rate: 0.25, Turns: 6, Think: 20 * time.Second, First: 2000, Next: 300, Answer: 200, Sigma: 0.7, System: 500, SystemShare: 1}
}

// shortConversations are what workers are asked.
func shortConversations() trace.Synthetic {
	return trace.Synthetic{Turns: 2, Think: 10 * time.Second, First: 500, Next: 200, Answer: 150, Sigma: 0.7, System: 200, SystemShare: 1}
}

func kinds() string {
	var names []string
	for _, g := range facts.GPUs() {
		names = append(names, g.Name)
	}
	return strings.Join(names, ", ")
}

func (f *simulateFlags) register(fs *pflag.FlagSet) {
	f.load.register(fs)
	fs.StringVarP(&f.config, "base", "c", "", "configuration that --systems change (default: the example "+simulated+")")
	fs.StringSliceVar(&f.systems, "systems", nil, "systems to compare, the first is what the others are compared with: "+strings.Join(configs.Baselines(), ", ")+" (default lending,local-only,host-offload, and pool if the configuration has disks; with --config none)")
	fs.StringArrayVar(&f.others, "config", nil, "NAME=FILE: another system; may be repeated")
	fs.StringVar(&f.machine, "machine", "", "what kvlend calibrate wrote: figures that were measured come before those of a device's kind")
	fs.StringVar(&f.gpu, "gpu", "", "put all models on GPUs of this kind, instead of their devices'")
	fs.StringVar(&f.host, "host-memory", "", "memory of the host for each master that offloads to it, such as 512GiB (default: 64 times the master's arena)")
	fs.StringVar(&f.html, "html", "", "also write a page with plots into this file")
	fs.BoolVar(&f.json, "json", false, "print JSON")
}

func (f *simulateFlags) run(cmd *cobra.Command) error {
	opt, err := f.options(cmd.Flags())
	if err != nil {
		return &codeError{exitUsage, err}
	}
	if f.html != "" { // better now than after minutes
		if err := writeInto(f.html, func(io.Writer) error { return nil }); err != nil {
			return &codeError{exitUsage, err}
		}
	}
	var r *simreport.Report
	err = counted("simulate", func(progress func(serve.Progress)) error {
		opt.Progress = func(p simreport.Progress) { progress(serve.Progress{Done: p.Done, Total: p.Total, Doing: p.Doing}) }
		c, err := simreport.Prepare(opt)
		if err == nil {
			r, err = c.Run(cmd.Context())
		}
		return err
	})
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, sim.ErrStuck):
		return err
	case err != nil:
		return &codeError{exitUsage, err}
	}
	if f.html != "" {
		if err := writeInto(f.html, r.WriteHTML); err != nil {
			return err
		}
	}
	if err := show(cmd, r, f.json); err != nil {
		return err
	}
	return r.Err()
}

// options turns flags into options.
func (f *simulateFlags) options(fs *pflag.FlagSet) (o simreport.Options, err error) {
	l := &f.load
	if f.machine != "" {
		if o.Machine, err = calibrate.Load(f.machine); err != nil {
			return o, fmt.Errorf("--machine: %w", err)
		}
	}
	if o.Systems, err = f.candidates(); err != nil {
		return o, err
	}
	if o.Trace, err = l.read(fs); err != nil {
		return o, err
	}
	beside, err := l.readBeside(o.Trace)
	for _, b := range beside {
		o.Beside = append(o.Beside, simreport.Beside{Model: b.model, Trace: b.trace})
	}
	o.Shape, o.Timing, o.Length, o.Seed, o.Model = l.shape, sim.Timing(l.timing), l.length, l.seed, l.model
	return o, err
}

// candidates reads and makes the configurations.
func (f *simulateFlags) candidates() (out []simreport.Candidate, err error) {
	base, err := f.base()
	if err != nil {
		return nil, err
	}
	names := f.systems
	if len(names) == 0 && (len(f.others) == 0 || f.config != "") {
		names = []string{"lending", "local-only", "host-offload"}
		if _, err := configs.Baseline("pool", base); err == nil {
			names = append(names, "pool")
		}
	}
	for _, name := range names {
		c, err := configs.Baseline(name, base)
		if err != nil {
			return nil, fmt.Errorf("--systems: %w", err)
		}
		if err := f.bound(c); err != nil {
			return nil, err
		}
		out = append(out, simreport.Candidate{Name: name, Config: c})
	}
	for _, v := range f.others {
		name, file, ok := strings.Cut(v, "=")
		if !ok || name == "" || file == "" {
			return nil, fmt.Errorf("--config is %q: want NAME=FILE", v)
		}
		if slices.ContainsFunc(out, func(c simreport.Candidate) bool { return c.Name == name }) {
			return nil, fmt.Errorf("--config is %q: want another name, %s is taken", v, name)
		}
		c, err := configs.Load(file)
		if err == nil {
			c, err = f.replaced(c)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, simreport.Candidate{Name: name, Config: c})
	}
	return out, nil
}

// bound gives masters that offload to the host the memory of --host-memory.
func (f *simulateFlags) bound(c *configs.Config) error {
	if f.host == "" {
		return nil
	}
	var size configs.Bytes
	if err := size.UnmarshalText([]byte(f.host)); err != nil {
		return fmt.Errorf("--host-memory: %w", err)
	}
	for i := range c.Models {
		if h := &c.Models[i].Host; h.Bytes > 0 {
			h.Bytes = size
		}
	}
	return nil
}

// base is the configuration that systems are made of.
func (f *simulateFlags) base() (*configs.Config, error) {
	if f.config != "" {
		c, err := configs.Load(f.config)
		if err != nil {
			return nil, err
		}
		return f.replaced(c)
	}
	text, err := configs.Example(simulated)
	if err != nil {
		return nil, err
	}
	c, err := configs.Parse(text, simulated)
	if err != nil {
		return nil, err
	}
	return f.replaced(c)
}

// replaced is the configuration on GPUs of the kind of --gpu.
func (f *simulateFlags) replaced(c *configs.Config) (*configs.Config, error) {
	if f.gpu == "" {
		return c, nil
	}
	g, err := facts.LookupGPU(f.gpu)
	if err != nil {
		return nil, fmt.Errorf("--gpu: %w", err)
	}
	for i := range c.Devices {
		if d := &c.Devices[i]; d.Name != configs.HostDevice {
			d.Kind, d.Memory = g.Name, configs.Bytes(g.Memory)
		}
	}
	text, err := c.Marshal()
	if err != nil {
		return nil, err
	}
	out, err := configs.Parse(text, "")
	var wrong configs.Errors
	if errors.As(err, &wrong) {
		for i := range wrong {
			wrong[i].Line = 0 // no file has it
		}
	}
	if err != nil {
		return nil, fmt.Errorf("--gpu %s: %w", g.Name, err)
	}
	return out, nil
}
