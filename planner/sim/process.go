package sim

import (
	"context"
	"time"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/planner/perf"
	"github.com/kvlend/kvlend/scheduler"
)

// process is one model's: its scheduler over its cache, on its device.
type process struct {
	clock
	model  *planner.Model
	device *device
	engine *perf.Engine
	cache  scheduler.Cache
	sched  *scheduler.Scheduler
	conf   engine.Config
	passes *passes // of masters

	turning bool          // a turn is planned
	until   time.Duration // busy until
	jobs    []func()      // to do before the next turn
	waits   uint64        // number of the present wait for a deadline

	batch  []perf.Seq
	logits [][]float32
	output engine.Output
	steps  uint64
	worked time.Duration // spent in steps
	slowed time.Duration // of it, because of others' traffic
}

// start makes the scheduler over the process's cache.
func (p *process) start(cache scheduler.Cache, opt scheduler.Options) {
	p.cache = cache
	opt.Clock, opt.Sampler, opt.Identity = &p.clock, sample, []byte(p.model.Config.Name)
	p.sched = scheduler.New(p, cache, opt)
}

// Config implements engine.Runner.
func (p *process) Config() *engine.Config { return &p.conf }

// KVLayout implements engine.Runner.
func (p *process) KVLayout() kernels.KVLayout { return kernels.KVLayout{} }

// Forward implements engine.Runner: it takes the time that the model says.
func (p *process) Forward(_ context.Context, batch []engine.Sequence, kv engine.KV) (*engine.Output, error) {
	if _, err := kv.Layer(0); err != nil {
		return nil, err
	}
	p.batch, p.logits = p.batch[:0], p.logits[:0]
	for i := range batch {
		s := &batch[i]
		p.batch = append(p.batch, perf.Seq{Start: s.Start, New: len(s.Tokens)})
		if s.Logits != engine.NoLogits {
			p.logits = append(p.logits, nil)
		}
	}
	cost := p.engine.Step(p.batch)
	began := p.t
	p.slow(&cost)
	if p.passes != nil {
		p.passes.now.run(cost)
	} else {
		p.advance(p.t + cost.Fixed + time.Duration(p.conf.Layers)*cost.Layer)
	}
	p.steps++
	p.worked += p.t - began
	p.output.Logits = p.logits
	return &p.output, nil
}

// slow stretches a step by the memory bandwidth that others take from its device
// while it runs. What they took in the time before stands for it.
func (p *process) slow(c *perf.Cost) {
	if p.device.hbm <= 0 {
		return
	}
	total := c.Fixed + time.Duration(p.conf.Layers)*c.Layer
	share := min(0.9, p.device.served.rate(p.t-max(total, 4*trafficSlice), p.t)/p.device.hbm)
	if share <= 0 {
		return
	}
	f := 1 / (1 - share)
	p.slowed += time.Duration(float64(total) * (f - 1))
	c.Layer = time.Duration(float64(c.Layer) * f)
	c.Attention = time.Duration(float64(c.Attention) * f)
	c.Fixed = time.Duration(float64(c.Fixed) * f)
}

// sample draws a token that depends on nothing but the request and its place.
func sample(_ []float32, _, _ []int32, index int, p sampling.Params, _ *sampling.Scratch) (sampling.Token, error) {
	return sampling.Token{ID: int32(mix(p.Seed^uint64(index)*0x9e3779b97f4a7c15) % vocabulary)}, nil
}

// vocabulary of prompts and answers. That tokens differ is all that counts.
const vocabulary = 1 << 30

// mix is splitmix64's finaliser.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// kick has the scheduler look for work as soon as the process is not busy.
func (p *process) kick() {
	if p.turning {
		return
	}
	p.turning = true
	p.waits++
	p.at(max(p.t, p.until), p.turn)
}

// nudge kicks if the cache has signalled.
func (p *process) nudge() {
	if len(p.cache.Changed()) > 0 {
		p.kick()
	}
}

// turn is one round of the scheduler.
func (p *process) turn() {
	p.turning = false
	jobs := p.jobs
	p.jobs = nil
	for _, f := range jobs {
		f()
	}
	busy := p.sched.Turn(context.Background())
	p.until = max(p.until, p.t)
	if busy || len(p.cache.Changed()) > 0 {
		p.kick()
		return
	}
	at, ok := p.sched.Deadline(p.Now())
	if !ok {
		return
	}
	p.waits++
	mine := p.waits
	p.at(at.Sub(epoch), func() {
		if p.waits == mine {
			p.kick()
		}
	})
}

// idle runs f, in which the process's cache is used, when no step is under way:
// now, or before the next turn.
func (p *process) idle(f func()) {
	if p.until <= p.t {
		f()
		p.nudge()
		return
	}
	p.jobs = append(p.jobs, f)
	p.kick()
}

// every calls f regularly.
func (p *process) every(d time.Duration, f func()) {
	if d <= 0 {
		return
	}
	p.at(p.t+d, func() {
		p.idle(f)
		p.every(d, f)
	})
}
