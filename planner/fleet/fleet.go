// Package fleet simulates many independent servers behind a router: how what
// lending brings, and what it costs in messages, grow with their number.
//
// The servers share nothing, so each is a simulation of its own (package sim) of
// the sessions that the router sends it, and their answers are added up. The
// router decides by what it has sent before (see Policy), session by session.
//
// Of thousands of servers a sample is enough: they are alike, and only the router
// has to see all sessions. Counts are then scaled up, and say so; percentiles are
// those of the sample.
package fleet

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/internal/trace"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/planner/sim"
)

// Options of a run.
type Options struct {
	// System and Hardware describe each server.
	System   *planner.System
	Hardware sim.Hardware
	Model    string // that is asked
	// Load is what one server gets: the fleet gets as many times that, each time
	// other conversations, with shared prompts in common.
	Load    *trace.Trace
	Servers int // at least 1
	Policy  Policy
	// Sample is how many servers are simulated at most; 0: all.
	Sample   int
	Timing   sim.Timing
	Length   time.Duration
	Seed     uint64
	Progress func(done, total int) // may be called concurrently; nil: nobody is told
}

// MaxServers bounds a fleet.
const MaxServers = 100_000

// Validate reports what is out of range.
func (o *Options) Validate() error {
	switch {
	case o.Servers < 1 || o.Servers > MaxServers:
		return fmt.Errorf("fleet: %d servers, want from 1 to %d", o.Servers, MaxServers)
	case o.Sample < 0:
		return fmt.Errorf("fleet: a sample of %d servers, want 0 (all) or more", o.Sample)
	case o.Load == nil || len(o.Load.Sessions) == 0:
		return fmt.Errorf("fleet: the load has no sessions")
	case o.System.Model(o.Model) == nil:
		return fmt.Errorf("fleet: model %q: the configuration has none of that name", o.Model)
	}
	_, err := ParsePolicy(string(o.Policy))
	return err
}

// Result is what a fleet came to.
type Result struct {
	Servers   int    `json:"servers"`
	Simulated int    `json:"simulated"` // of them
	Policy    Policy `json:"policy"`
	Sessions  int    `json:"sessions"`
	// Answers are those of the simulated servers together.
	Answers *sim.Answers `json:"answers"`
	// Hit is the share of the prompts' tokens that was not computed.
	Hit float64 `json:"hit_share"`
	// LentMean is bytes lent at a time, of a mean server.
	LentMean float64 `json:"lent_bytes_per_server"`
	// Messages of the lending protocol per second of virtual time, and their
	// bytes, of the whole fleet: scaled up from the sample.
	Messages     float64 `json:"control_messages_per_second"`
	MessageBytes float64 `json:"control_bytes_per_second"`
	Reclaims     float64 `json:"reclaims_per_second"`
	// Imbalance is the work of the most loaded server over the mean.
	Imbalance float64 `json:"imbalance"`
	// Prefixes is how many the router remembers.
	Prefixes int           `json:"router_prefixes"`
	End      time.Duration `json:"end_ns"` // of the server that was last
}

// Run simulates a fleet. Equal options give an equal result.
func Run(ctx context.Context, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	r := &Result{Servers: o.Servers, Policy: o.Policy}
	shares := o.divide(r)
	picked := pickSample(o.Servers, o.Sample, o.Seed)
	r.Simulated = len(picked)
	results, err := o.simulate(ctx, picked, shares)
	if err != nil {
		return nil, err
	}
	o.collect(r, results)
	return r, nil
}

// divide sends every session of the fleet to a server.
func (o *Options) divide(r *Result) [][]trace.Session {
	rt := newRouter(o.Policy, o.Servers, o.Seed)
	shares := make([][]trace.Session, o.Servers)
	work := make([]float64, o.Servers)
	whole := 0.0
	wanted := map[int]bool{}
	for _, s := range pickSample(o.Servers, o.Sample, o.Seed) {
		wanted[s] = true
	}
	for s := range o.sessions() {
		server := rt.route(&s, s.Start)
		work[server] += weight(&s)
		whole += weight(&s)
		r.Sessions++
		if wanted[server] {
			shares[server] = append(shares[server], s)
		}
	}
	r.Imbalance = slices.Max(work) / (whole / float64(o.Servers))
	r.Prefixes = len(rt.known)
	return shares
}

// sessions are those of the whole fleet in the order of their start: the load, once
// for every server, with other texts where the load has texts of its own.
func (o *Options) sessions() func(yield func(trace.Session) bool) {
	common := o.common()
	last := o.Load.Sessions[len(o.Load.Sessions)-1].Start
	return func(yield func(trace.Session) bool) {
		// The copies of a session are spread over the time to the next one, so
		// that they do not come at once.
		for i := range o.Load.Sessions {
			s := &o.Load.Sessions[i]
			gap := last/time.Duration(max(1, len(o.Load.Sessions)-1)) + 1
			if i+1 < len(o.Load.Sessions) {
				gap = o.Load.Sessions[i+1].Start - s.Start
			}
			for c := range o.Servers {
				if !yield(other(s, uint64(c), s.Start+gap*time.Duration(c)/time.Duration(o.Servers), common)) {
					return
				}
			}
		}
	}
}

// common are the spans that several sessions of the load begin with: what the
// copies share too, such as system prompts.
func (o *Options) common() map[uint64]bool {
	firsts := map[uint64]int{}
	for i := range o.Load.Sessions {
		if spans := o.Load.Sessions[i].Turns[0].Append; len(spans) > 0 {
			firsts[spans[0].ID]++
		}
	}
	out := map[uint64]bool{}
	for id, n := range firsts {
		if n > 1 {
			out[id] = true
		}
	}
	return out
}

// other is a session with texts of another user.
func other(s *trace.Session, copyOf uint64, start time.Duration, common map[uint64]bool) trace.Session {
	out := *s
	out.Start = start
	if copyOf == 0 {
		return out
	}
	out.ID = s.ID + "." + strconv.FormatUint(copyOf, 10)
	out.Turns = slices.Clone(s.Turns)
	for k := range out.Turns {
		out.Turns[k].Append = slices.Clone(out.Turns[k].Append)
		for i := range out.Turns[k].Append {
			if sp := &out.Turns[k].Append[i]; !common[sp.ID] {
				sp.ID = mix(sp.ID ^ mix(copyOf))
			}
		}
	}
	out.Subs = slices.Clone(s.Subs)
	for i := range out.Subs {
		out.Subs[i].Session = other(&s.Subs[i].Session, copyOf, s.Subs[i].Session.Start, common)
	}
	return out
}

// pickSample draws servers, in ascending order.
func pickSample(servers, sample int, seed uint64) []int {
	all := make([]int, servers)
	for i := range all {
		all[i] = i
	}
	if sample == 0 || sample >= servers {
		return all
	}
	for i := range sample {
		j := i + int(mix(seed^uint64(i+1))%uint64(servers-i))
		all[i], all[j] = all[j], all[i]
	}
	all = all[:sample]
	slices.Sort(all)
	return all
}

// simulate runs the picked servers, as many at a time as there are cores.
func (o *Options) simulate(ctx context.Context, picked []int, shares [][]trace.Session) ([]*sim.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make([]*sim.Result, len(picked))
	var next, done atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(picked)) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(picked) {
					return
				}
				if sessions := shares[picked[i]]; len(sessions) > 0 {
					r, err := o.server(ctx, picked[i], sessions)
					if err != nil {
						cancel(err)
						return
					}
					results[i] = r
				}
				if o.Progress != nil {
					o.Progress(int(done.Add(1)), len(picked))
				}
			}
		})
	}
	wg.Wait()
	return results, context.Cause(ctx)
}

// server runs one server.
func (o *Options) server(ctx context.Context, number int, sessions []trace.Session) (*sim.Result, error) {
	slices.SortStableFunc(sessions, func(a, b trace.Session) int { return int(min(1, max(-1, a.Start-b.Start))) })
	r, err := sim.Run(ctx, sim.Options{System: o.System, Hardware: o.Hardware, Loads: []sim.Load{{
		Model: o.Model, Trace: &trace.Trace{Name: o.Load.Name, Format: o.Load.Format, Sessions: sessions}, Timing: o.Timing, Length: o.Length, Seed: o.Seed,
	}}})
	if err != nil {
		return nil, fmt.Errorf("server %d: %w", number, err)
	}
	return r, nil
}

// collect adds up what the servers did.
func (o *Options) collect(r *Result, results []*sim.Result) {
	r.Answers = sim.NewAnswers(o.Model)
	var messages, bytes, reclaims, lent float64
	for _, s := range results {
		if s == nil {
			continue
		}
		r.Answers.Merge(s.Answers[0])
		messages += float64(s.Control.Messages)
		bytes += float64(s.Control.Bytes)
		reclaims += float64(s.Control.Reclaims)
		lent += s.Lent.Mean
		r.End = max(r.End, s.End)
	}
	if r.Answers.Prompt > 0 {
		r.Hit = 1 - float64(r.Answers.Tiers.Computed)/float64(r.Answers.Prompt)
	}
	up := float64(r.Servers) / float64(r.Simulated)
	if seconds := r.End.Seconds(); seconds > 0 {
		r.Messages, r.MessageBytes, r.Reclaims = messages/seconds*up, bytes/seconds*up, reclaims/seconds*up
	}
	r.LentMean = lent / float64(r.Simulated)
}
