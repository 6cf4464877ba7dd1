package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/internal/trace"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/planner/facts"
	"github.com/kvlend/kvlend/planner/sim"
)

// Options of a comparison.
type Options struct {
	Systems []Candidate // at least one; the others are compared with the first
	Machine sim.Machine

	Trace *trace.Trace
	// Shape fits the trace. Without a MaxContext it is the longest that all
	// systems can serve.
	Shape  trace.Shape
	Timing sim.Timing    // default sim.ByThink
	Length time.Duration // turns due later are not sent; 0: all are
	Seed   uint64        // of the prompts' tokens
	Model  string        // that is asked; default: the first master
	Beside []Beside      // loads of other models meanwhile

	Parallel int // simulations at the same time; default GOMAXPROCS
	// Progress, if not nil, is called now and then, never concurrently.
	Progress func(Progress)
}

// Candidate is a configuration with the name that tables give it.
type Candidate struct {
	Name   string
	Config *configs.Config
}

// Beside is a load of another model.
type Beside struct {
	Model string
	Trace *trace.Trace
}

// Progress is how far a comparison is.
type Progress struct {
	Done, Total int    // requests
	Doing       string // what of, in virtual time
}

// Comparison is checked and ready to run.
type Comparison struct {
	opt     Options
	systems []*planner.System
	loads   []sim.Load
	report  *Report
}

// Prepare checks everything that can be wrong with what it is given: its errors
// name field or flag, and what is accepted.
func Prepare(o Options) (*Comparison, error) {
	c := &Comparison{opt: o}
	if len(o.Systems) == 0 || o.Trace == nil {
		return nil, errors.New("a comparison wants a system and a trace")
	}
	o.Timing = cmp.Or(o.Timing, sim.ByThink)
	if o.Timing != sim.ByThink && o.Timing != sim.ByTrace {
		return nil, fmt.Errorf("timing is %q: want %s or %s", o.Timing, sim.ByThink, sim.ByTrace)
	}
	if o.Length < 0 {
		return nil, fmt.Errorf("duration is %s: want 0 (everything) or more", o.Length)
	}
	for i, s := range o.Systems {
		if slices.ContainsFunc(o.Systems[:i], func(t Candidate) bool { return t.Name == s.Name }) {
			return nil, fmt.Errorf("two systems have the name %s: want another one", s.Name)
		}
		sys, err := planner.Resolve(s.Config, source.Geometry)
		if err == nil {
			err = c.fits(sys)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		c.systems = append(c.systems, sys)
	}
	c.report = &Report{Schema: Schema, Kind: "simulated", Seed: o.Seed, Timing: string(o.Timing), Duration: o.Length.Seconds(), Machine: o.Machine.Name}
	if err := c.load(o); err != nil {
		return nil, err
	}
	for i := range c.loads {
		c.loads[i].Timing, c.loads[i].Length, c.loads[i].Seed = o.Timing, o.Length, o.Seed+uint64(i)
	}
	return c, c.assume()
}

// fits checks that weights and KV caches fit into the GPUs that are known.
func (c *Comparison) fits(sys *planner.System) error {
	left, size := map[string]int64{}, map[string]int64{}
	for i, m := range sys.Models {
		d := m.Config.Device
		if _, ok := size[d]; !ok {
			size[d] = memoryOf(sys.Config, d)
			left[d] = size[d]
		}
		var weights int64
		if name, ok := strings.CutPrefix(m.Config.Source, configs.SourceCatalog); ok {
			if f, err := facts.LookupModel(name); err == nil {
				weights = f.WeightBytes(2)
			}
		}
		if left[d] -= m.AllocBytes() + weights; size[d] > 0 && left[d] < 0 {
			return fmt.Errorf("models[%d].arena (%s): %s of KV cache and %s of weights do not fit into what is left of the %s of %s: want at most %s less",
				i, m.Config.Name, configs.Bytes(m.AllocBytes()), size3(float64(weights)), size3(float64(size[d])), d, size3(float64(-left[d])))
		}
	}
	return nil
}

// memoryOf a device; 0: not known.
func memoryOf(c *configs.Config, device string) int64 {
	for _, d := range c.Devices {
		if d.Name == device {
			if d.Memory > 0 {
				return int64(d.Memory)
			}
			if g, err := facts.LookupGPU(d.Kind); err == nil {
				return g.Memory
			}
		}
	}
	return 0
}

// load fits the loads to what all systems can hold.
func (c *Comparison) load(o Options) error {
	model, err := c.pick(o.Model)
	if err != nil {
		return err
	}
	shape := o.Shape
	if shape.MaxContext == 0 {
		shape.MaxContext = c.longest(model)
	}
	t, cut, err := shape.Apply(o.Trace)
	if err != nil {
		return err
	}
	c.loads = []sim.Load{{Model: model, Trace: t}}
	size := t.Size()
	r := c.report
	r.Model = model
	r.Trace = Trace{
		Name: t.Name, Format: string(t.Format), Sessions: size.Sessions, Turns: size.Turns, PromptTokens: size.PromptTokens, OutputTokens: size.OutputTokens,
		LongestTurn: size.LongestTurn, MaxContext: shape.MaxContext, CutSessions: cut.Sessions, CutTurns: cut.Turns, Notes: slices.Clone(t.Notes),
	}
	if t.Timeless() && len(t.Sessions) > 1 {
		r.Trace.Notes = append(r.Trace.Notes, "all sessions begin at once: the trace has no arrivals, and no rate was given")
	}
	for _, b := range o.Beside {
		if _, err := c.pick(b.Model); err != nil {
			return fmt.Errorf("beside: %w", err)
		}
		if slices.ContainsFunc(c.loads, func(l sim.Load) bool { return l.Model == b.Model }) {
			return fmt.Errorf("the model %s has two loads: want one of each model", b.Model)
		}
		t, _, err := (&trace.Shape{MaxContext: c.longest(b.Model)}).Apply(b.Trace)
		if err != nil {
			return fmt.Errorf("beside %s: %w", b.Model, err)
		}
		c.loads = append(c.loads, sim.Load{Model: b.Model, Trace: t})
	}
	return nil
}

// pick finds the model in every system; "" is the first master of any, or else
// the first model.
func (c *Comparison) pick(name string) (string, error) {
	for _, s := range c.systems {
		for _, m := range s.Models {
			if name == "" && m.Config.Role == configs.RoleMaster {
				name = m.Config.Name
			}
		}
	}
	name = cmp.Or(name, c.systems[0].Models[0].Config.Name)
	for i, s := range c.systems {
		if s.Model(name) == nil {
			var have []string
			for _, m := range s.Models {
				have = append(have, m.Config.Name)
			}
			return "", fmt.Errorf("%s has no model %q: want one of %s", c.opt.Systems[i].Name, name, strings.Join(have, ", "))
		}
	}
	return name, nil
}

// longest is the longest context that the model has in every system.
func (c *Comparison) longest(model string) int {
	least := 0
	for i, s := range c.systems {
		m := s.Model(model)
		tokens, _ := m.MaxTokens()
		if made := sim.NewHardware(c.opt.Systems[i].Config, c.opt.Machine).Context(m); made > 0 {
			tokens = min(tokens, made)
		}
		if least == 0 || tokens < least {
			least = tokens
		}
	}
	return least
}

// Run simulates all systems. Errors but ctx's and sim.ErrStuck are about what
// Prepare was given.
func (c *Comparison) Run(ctx context.Context) (*Report, error) {
	results, errs := make([]*sim.Result, len(c.systems)), make([]error, len(c.systems))
	places := make(chan struct{}, cmp.Or(c.opt.Parallel, runtime.GOMAXPROCS(0)))
	watch := c.watch()
	var wg sync.WaitGroup
	for i, sys := range c.systems {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			results[i], errs[i] = sim.Run(ctx, sim.Options{
				System: sys, Hardware: sim.NewHardware(c.opt.Systems[i].Config, c.opt.Machine), Loads: c.loads,
				Progress: func(now time.Duration, answered int) { watch(i, now, answered) },
			})
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := *c.report
	for i, s := range c.opt.Systems {
		if errs[i] != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, errs[i])
		}
		config, err := s.Config.Redacted().Marshal()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		r.Systems = append(r.Systems, system(s.Name, string(config), results[i]))
	}
	r.Warnings = c.warnings(&r)
	return &r, nil
}

// watch adds up the progress of simulations.
func (c *Comparison) watch() func(system int, now time.Duration, answered int) {
	if c.opt.Progress == nil {
		return func(int, time.Duration, int) {}
	}
	var mu sync.Mutex
	done, total := make([]int, len(c.systems)), 0
	for _, l := range c.loads {
		total += l.Trace.Size().Turns * len(c.systems)
	}
	return func(i int, now time.Duration, answered int) {
		mu.Lock()
		defer mu.Unlock()
		done[i] = answered
		p := Progress{Total: total, Doing: fmt.Sprintf("%s at %s", c.opt.Systems[i].Name, now.Round(time.Second))}
		for _, n := range done {
			p.Done += n
		}
		c.opt.Progress(p)
	}
}
