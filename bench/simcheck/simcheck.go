// Package simcheck compares the simulator with the system that it stands for: the
// same configurations and the same trace are measured, as real processes (package
// serve), and simulated, on what a calibration says of this machine. It tells how
// far each percentile of the simulation is from the measured one.
//
// Machines that are shared have no constant speed. So a few of the engine's steps are
// timed before and after each round, and the simulation of the round reckons with
// engines that are as much slower than calibrated as these were. Figures are medians
// of the rounds' percentiles, on both sides.
package simcheck

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/kvlend/kvlend/bench/serve"
	"github.com/kvlend/kvlend/bench/serve/report"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/internal/trace"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/planner/calibrate"
	"github.com/kvlend/kvlend/planner/sim"
)

// Options of a comparison.
type Options struct {
	// Serve says what is measured. It starts systems; a gateway that runs already
	// has a configuration that nobody knows.
	Serve   serve.Options
	Machine sim.Machine
	// Steady is the most that the machine's speed may change from the beginning of
	// a round to its end, as a ratio; a round in which it changes more is measured
	// again, at most Again times, and the steadiest try counts. 0: 1.15.
	Steady float64
	Again  int
}

const defaultSteady = 1.15

// Result is a comparison.
type Result struct {
	Machine string `json:"machine,omitempty"`
	Rows    []Row  `json:"rows"`
	// Measured is what the rows' left side comes from.
	Measured *serve.Result `json:"measured"`
}

// Row is one model in one system.
type Row struct {
	System    string  `json:"system"`
	Model     string  `json:"model"`
	Measured  Figures `json:"measured"`
	Simulated Figures `json:"simulated"`
	Rounds    []Round `json:"rounds"`
	// Spread is how far apart the rounds' own percentiles are: the largest over
	// the smallest, less 1.
	Spread Times `json:"spread_of_rounds"`

	rounds []Figures // simulated
}

// Round says what the machine was like.
type Round struct {
	// Before and After are how much longer the engine's steps took than the
	// machine's figures say; the simulation of the round takes their geometric mean.
	Before float64 `json:"slow_before"`
	After  float64 `json:"slow_after"`
	// Others is the share of the machine's processor time that went to processes
	// which are no part of the measurement, the kernel's own included.
	Others float64 `json:"others"`
	Tries  int     `json:"tries"`
}

// change is by how much the machine's speed changed.
func (r Round) change() float64 { return max(r.Before, r.After) / min(r.Before, r.After) }

// Figures of one side.
type Figures struct {
	Requests int `json:"requests"`
	Failed   int `json:"failed"`
	Times
	// Shares of the prompts' tokens, by where their KV came from.
	Computed float64 `json:"computed"`
	Local    float64 `json:"local"`
	Borrowed float64 `json:"borrowed"`
	Host     float64 `json:"host"`
	Pool     float64 `json:"pool"`
}

// Times are percentiles in milliseconds.
type Times struct {
	TTFT  Percentiles `json:"ttft_ms"`
	Token Percentiles `json:"time_per_token_ms"`
}

// Percentiles of one distribution.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// Run measures and simulates, round after round, every system in each.
func Run(ctx context.Context, opt Options) (*Result, error) {
	s := opt.Serve
	if s.URL != "" || len(s.Systems) == 0 {
		return nil, errors.New("simcheck: want systems to start: the configuration of a running gateway is not known")
	}
	if opt.Steady == 0 {
		opt.Steady = defaultSteady
	}
	if !(opt.Steady >= 1) || opt.Again < 0 {
		return nil, fmt.Errorf("simcheck: Steady is %g and Again %d, want at least 1 and 0", opt.Steady, opt.Again)
	}
	loads, shape, err := fit(&s)
	if err != nil {
		return nil, err
	}
	s.Shape = shape
	c := &comparison{opt: opt, serve: s, loads: loads, res: &Result{Machine: opt.Machine.Name}}
	if err := c.probe(); err != nil {
		return nil, err
	}
	defer c.probes.Close()
	for k := range max(1, s.Rounds) {
		for i := range s.Systems {
			if err := c.round(ctx, k, i); err != nil {
				return nil, err
			}
		}
	}
	c.res.Measured.Fill()
	c.res.fill()
	return c.res, nil
}

// comparison is one under way.
type comparison struct {
	opt    Options
	serve  serve.Options
	loads  []sim.Load
	probes *calibrate.Probe
	res    *Result
}

// probe loads the engine of the model that is asked.
func (c *comparison) probe() error {
	cfg := c.serve.Systems[0].Config
	sys, err := planner.Resolve(cfg, source.Geometry)
	if err != nil {
		return err
	}
	c.probes, err = calibrate.NewProbe(sys.Model(c.loads[0].Model), sim.NewHardware(cfg, c.opt.Machine))
	return err
}

// round measures one system, until the machine is steady meanwhile, and simulates
// it on the machine as it was then.
func (c *comparison) round(ctx context.Context, k, i int) error {
	var best *serve.Result
	var at Round
	for try := range c.opt.Again + 1 {
		res, r, err := c.measure(ctx, i)
		if err != nil {
			return err
		}
		r.Tries = try + 1
		if best == nil || r.change() < at.change() {
			best, at = res, r
		}
		at.Tries = r.Tries
		if at.change() <= c.opt.Steady {
			break
		}
	}
	s := &c.serve.Systems[i]
	rows, err := simulate(ctx, s, calibrate.Slower(c.opt.Machine, math.Sqrt(at.Before*at.After)), c.loads)
	if err != nil {
		return fmt.Errorf("simcheck: %s: %w", s.Name, err)
	}
	c.add(k, i, best, rows, at)
	return nil
}

// measure is one try.
func (c *comparison) measure(ctx context.Context, i int) (*serve.Result, Round, error) {
	s := c.serve
	s.Systems, s.Rounds = s.Systems[i:i+1], 1
	var at Round
	var err error
	if at.Before, err = c.probes.Slow(ctx); err != nil {
		return nil, at, err
	}
	busy := newOthers()
	res, err := serve.Run(ctx, s)
	if err != nil {
		return nil, at, err
	}
	at.Others = busy.share()
	at.After, err = c.probes.Slow(ctx)
	return res, at, err
}

// add puts a round beside those before.
func (c *comparison) add(k, i int, res *serve.Result, rows []Row, at Round) {
	n := len(rows)
	if k == 0 {
		c.res.Rows = append(c.res.Rows, rows...)
		if i == 0 {
			c.res.Measured = res
		} else {
			c.res.Measured.Configs = append(c.res.Measured.Configs, res.Configs...)
		}
	} else {
		for j := range n {
			to := &c.res.Measured.Configs[i*n+j]
			to.Rounds = append(to.Rounds, res.Configs[j].Rounds...)
		}
	}
	if m := c.res.Measured; m != res {
		m.Checks.Add(&res.Checks)
		m.Problems = append(m.Problems, res.Problems...)
	}
	for j := range rows {
		row := &c.res.Rows[i*n+j]
		row.rounds = append(row.rounds, rows[j].Simulated)
		row.Rounds = append(row.Rounds, at)
	}
}

// fit finds what is asked of which model, as package serve does, and the shape of
// the main load.
func fit(s *serve.Options) ([]sim.Load, trace.Shape, error) {
	shape := s.Shape
	if s.Trace == nil {
		return nil, shape, errors.New("simcheck: Trace is nil")
	}
	model, most, err := serve.Longest(s.Systems, s.Model)
	if err != nil {
		return nil, shape, err
	}
	if shape.MaxContext == 0 {
		shape.MaxContext = most
	}
	var loads []sim.Load
	add := func(model string, t *trace.Trace, sh trace.Shape) error {
		fitted, _, err := sh.Apply(t)
		loads = append(loads, sim.Load{Model: model, Trace: fitted, Timing: sim.Timing(s.Timing), Length: s.Length, Seed: s.Seed})
		return err
	}
	if err := add(model, s.Trace, shape); err != nil {
		return nil, shape, err
	}
	for _, b := range s.Beside {
		name, most, err := serve.Longest(s.Systems, b.Model)
		if err != nil {
			return nil, shape, err
		}
		if err := add(name, b.Trace, trace.Shape{MaxContext: most}); err != nil {
			return nil, shape, err
		}
	}
	return loads, shape, nil
}

// simulate runs the loads on one system.
func simulate(ctx context.Context, s *serve.System, m sim.Machine, loads []sim.Load) ([]Row, error) {
	sys, err := planner.Resolve(s.Config, source.Geometry)
	if err != nil {
		return nil, err
	}
	res, err := sim.Run(ctx, sim.Options{System: sys, Hardware: sim.NewHardware(s.Config, m), Loads: loads})
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, a := range res.Answers {
		row := Row{System: s.Name, Model: a.Model}
		f := &row.Simulated
		for _, n := range a.Refused {
			f.Failed += n
		}
		f.Requests = a.Answered + f.Failed
		f.TTFT, f.Token = quantiles(&a.All), quantiles(&a.Token)
		if p := float64(a.Prompt); p > 0 {
			t := &a.Tiers
			f.Computed, f.Local, f.Borrowed = float64(t.Computed)/p, float64(t.Local)/p, float64(t.Borrowed)/p
			f.Host, f.Pool = float64(t.Host)/p, float64(t.Pool)/p
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// quantiles are in milliseconds.
func quantiles(d *sim.Distribution) Percentiles {
	return Percentiles{d.Quantile(.5) * 1e3, d.Quantile(.9) * 1e3, d.Quantile(.99) * 1e3}
}

// fill works out the rows from the rounds.
func (r *Result) fill() {
	for i := range r.Rows {
		row := &r.Rows[i]
		row.fill(&r.Measured.Configs[i])
		row.Simulated = row.rounds[0]
		s := &row.Simulated
		s.TTFT = medians(row.rounds, func(f *Figures) *Percentiles { return &f.TTFT })
		s.Token = medians(row.rounds, func(f *Figures) *Percentiles { return &f.Token })
	}
}

// medians are those of the rounds, percentile by percentile.
func medians(rounds []Figures, of func(*Figures) *Percentiles) Percentiles {
	var p50, p90, p99 []float64
	for i := range rounds {
		p := of(&rounds[i])
		p50, p90, p99 = append(p50, p.P50), append(p90, p.P90), append(p99, p.P99)
	}
	return Percentiles{report.Median(p50), report.Median(p90), report.Median(p99)}
}

func (r *Row) fill(c *report.Config) {
	f := &r.Measured
	f.Requests, f.Failed = c.All.Requests, c.All.Requests-c.All.OK
	if p := float64(c.All.PromptTokens); p > 0 && c.All.Receipts > 0 {
		t := &c.All.Tiers
		f.Local, f.Borrowed, f.Host, f.Pool = t.Local/p, t.Borrowed/p, t.Host/p, t.Pool/p
		f.Computed = 1 - f.Local - f.Borrowed - f.Host - f.Pool
	}
	for _, x := range []struct {
		of   func(*report.Summary) report.Dist
		to   *Percentiles
		rest *Percentiles
	}{
		{func(s *report.Summary) report.Dist { return s.TTFT }, &f.TTFT, &r.Spread.TTFT},
		{func(s *report.Summary) report.Dist { return s.TPOT }, &f.Token, &r.Spread.Token},
	} {
		var p50, p90, p99 []float64
		for k := range c.Rounds {
			if d := x.of(&c.Rounds[k].Summary); d.N > 0 {
				p50, p90, p99 = append(p50, d.P50), append(p90, d.P90), append(p99, d.P99)
			}
		}
		if len(p50) == 0 {
			continue
		}
		*x.to = Percentiles{report.Median(p50), report.Median(p90), report.Median(p99)}
		*x.rest = Percentiles{spread(p50), spread(p90), spread(p99)}
	}
}
