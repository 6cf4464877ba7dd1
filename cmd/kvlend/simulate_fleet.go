package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/bench/serve"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/internal/trace"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/planner/calibrate"
	"github.com/kvlend/kvlend/planner/fleet"
	"github.com/kvlend/kvlend/planner/sim"
	simreport "github.com/kvlend/kvlend/planner/sim/report"
)

type fleetFlags struct {
	simulateFlags
	servers []int
	routing []string
	sample  int
}

func simulateFleetCmd() *cobra.Command {
	f := &fleetFlags{simulateFlags: simulateFlags{load: loadFlags{synth: longConversations(), short: shortConversations()}}}
	c := &cobra.Command{
		Use:   "fleet",
		Short: "Many such servers behind a router",
		Long: `Simulates fleets of independent servers, each of the configuration, behind a
router that picks a server per session. The load is that of one server: a fleet of N
gets N times as many conversations, of other users, with shared system prompts in
common. Shows how what lending brings, and its messages, grow.

Of large fleets --sample servers are simulated; the router sees all sessions.`,
		Example: `  kvlend simulate fleet
  kvlend simulate fleet --servers 10,100,1000 --routing prefix,random --sample 16 --json
  kvlend simulate fleet -c my.yaml --trace conversation.jsonl.gz --scale-time 0.5 --servers 64`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := c.Flags()
	f.load.register(fs)
	_ = fs.MarkHidden("beside") // a fleet is asked of one model
	fs.StringVarP(&f.config, "base", "c", "", "configuration of each server (default: the example "+simulated+")")
	fs.StringSliceVar(&f.systems, "systems", []string{"lending", "local-only"}, "systems to compare: "+strings.Join(configs.Baselines(), ", "))
	fs.StringVar(&f.machine, "machine", "", "JSON of what was measured of a machine")
	fs.StringVar(&f.gpu, "gpu", "", "put all models on GPUs of this kind, instead of their devices'")
	fs.IntSliceVar(&f.servers, "servers", []int{1, 16, 256}, "sizes of fleets")
	fs.StringSliceVar(&f.routing, "routing", []string{string(fleet.Prefix)}, "how the router picks: prefix, least-loaded, random")
	fs.IntVar(&f.sample, "sample", 8, "most servers of a fleet that are simulated; 0: all")
	fs.BoolVar(&f.json, "json", false, "print JSON")
	return c
}

func (f *fleetFlags) run(cmd *cobra.Command) error {
	runs, err := f.prepare(cmd)
	if err != nil {
		return &codeError{exitUsage, err}
	}
	g := &fleet.Growth{Model: runs[0].opt.Model}
	err = counted("simulate fleet", func(progress func(serve.Progress)) error {
		for i := range runs {
			r := &runs[i]
			r.opt.Progress = func(done, total int) {
				progress(serve.Progress{Done: done, Total: total, Doing: fmt.Sprintf("%d servers, %s, %s", r.opt.Servers, r.opt.Policy, r.system)})
			}
			result, err := fleet.Run(cmd.Context(), r.opt)
			if err != nil {
				return err
			}
			g.Fleets = append(g.Fleets, fleet.Fleet{System: r.system, Result: result})
		}
		return nil
	})
	if err != nil {
		return err
	}
	return show(cmd, g, f.json)
}

// fleetRun is one fleet to simulate.
type fleetRun struct {
	system string
	opt    fleet.Options
}

// prepare turns flags into fleets: every size with every policy and system.
func (f *fleetFlags) prepare(cmd *cobra.Command) ([]fleetRun, error) {
	var machine sim.Machine
	var err error
	if f.machine != "" {
		if machine, err = calibrate.Load(f.machine); err != nil {
			return nil, err
		}
	}
	candidates, err := f.candidates()
	if err != nil {
		return nil, err
	}
	load, err := f.load.read(cmd.Flags())
	if err != nil {
		return nil, err
	}
	if len(f.load.beside) > 0 {
		return nil, fmt.Errorf("--beside is for one server: a fleet is asked of one model")
	}
	var systems []*planner.System
	context, model := 0, f.load.model
	for _, c := range candidates {
		s, err := planner.Resolve(c.Config, source.Geometry)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name, err)
		}
		for _, m := range s.Models {
			if model == "" && m.Config.Role == configs.RoleMaster {
				model = m.Config.Name
			}
		}
		m := s.Model(model)
		if m == nil {
			return nil, fmt.Errorf("--model %q: configuration %s has no model of that name", model, c.Name)
		}
		hardware := sim.NewHardware(c.Config, machine)
		tokens, _ := m.MaxTokens()
		if n := hardware.Context(m); n > 0 {
			tokens = min(tokens, n)
		}
		if context == 0 || tokens < context {
			context = tokens
		}
		systems = append(systems, s)
	}
	if f.load.shape.MaxContext == 0 {
		f.load.shape.MaxContext = context
	}
	load, _, err = f.load.shape.Apply(load)
	if err != nil {
		return nil, err
	}
	return f.fleets(candidates, systems, machine, load, model)
}

func (f *fleetFlags) fleets(candidates []simreport.Candidate, systems []*planner.System, machine sim.Machine, load *trace.Trace, model string) ([]fleetRun, error) {
	var out []fleetRun
	for _, n := range f.servers {
		for _, p := range f.routing {
			for i, s := range systems {
				o := fleet.Options{
					System: s, Hardware: sim.NewHardware(s.Config, machine), Model: model, Load: load, Servers: n, Policy: fleet.Policy(p),
					Sample: f.sample, Timing: sim.Timing(f.load.timing), Length: f.load.length, Seed: f.load.seed,
				}
				if err := o.Validate(); err != nil {
					return nil, err
				}
				out = append(out, fleetRun{candidates[i].Name, o})
			}
		}
	}
	return out, nil
}
