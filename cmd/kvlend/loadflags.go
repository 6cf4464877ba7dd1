package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/kvlend/kvlend/internal/trace"
)

// loadFlags say what models are asked, by a benchmark or by a simulation: a trace
// or synthetic conversations, how they are changed, and what other models are
// asked meanwhile.
type loadFlags struct {
	trace   string
	format  string
	limit   int
	shape   trace.Shape
	synth   trace.Synthetic // and its defaults
	lengths string
	timing  string
	length  time.Duration
	seed    uint64
	model   string
	beside  []string
	// short describes the conversations of --beside; their number, rate and seed
	// are worked out.
	short trace.Synthetic
}

// besideLoad is what another model is asked.
type besideLoad struct {
	model string
	trace *trace.Trace
}

// synthetic names the flags that only conversations without a trace have.
var synthetic = [...]string{"sessions", "turns", "think", "first", "next", "answer", "sigma", "lengths", "system", "system-share"}

func (f *loadFlags) register(fs *pflag.FlagSet) {
	s, l := &f.shape, &f.synth
	fs.StringVar(&f.model, "model", "", "model that is asked (default: the first master)")
	fs.StringArrayVar(&f.beside, "beside", nil, "MODEL=RATE: so many short synthetic conversations per second with another model meanwhile; may be repeated")

	fs.StringVar(&f.trace, "trace", "", "trace file (default: synthetic conversations)")
	fs.StringVar(&f.format, "format", "", "its format (default: found out)")
	fs.IntVar(&f.limit, "limit", 0, "sessions of the trace that are read; 0: all")
	fs.Float64Var(&s.Tokens, "scale-tokens", 1, "divides the trace's lengths")
	fs.Float64Var(&s.Output, "scale-output", 0, "divides the trace's answer lengths; 0: as --scale-tokens")
	fs.Float64Var(&s.Time, "scale-time", 1, "divides the trace's times: 2 is twice as fast")
	fs.IntVar(&s.MaxContext, "max-context", 0, "longest prompt and answer in tokens; a session ends before the first turn that is longer (default: what all systems can serve)")
	fs.BoolVar(&s.Whole, "whole", false, "drop a session that has a turn beyond --max-context, instead of cutting it")
	fs.StringVar(&f.timing, "timing", "think", "when later turns are due: think (after the answer) or trace (when the trace has them)")
	fs.DurationVar(&f.length, "duration", 0, "turns due later are not sent; 0: all are")

	fs.Uint64Var(&f.seed, "seed", 1, "seed of prompts, arrivals and synthetic conversations")
	fs.Float64Var(&l.Rate, "rate", l.Rate, "sessions that begin per second, a Poisson process; with a trace, instead of its own arrivals")
	fs.IntVar(&l.Sessions, "sessions", l.Sessions, "synthetic: conversations")
	fs.Float64Var(&l.Turns, "turns", l.Turns, "synthetic: mean turns of a conversation")
	fs.DurationVar(&l.Think, "think", l.Think, "synthetic: mean time to think")
	fs.Float64Var(&l.First, "first", l.First, "synthetic: median tokens of the first message")
	fs.Float64Var(&l.Next, "next", l.Next, "synthetic: median tokens of the others")
	fs.Float64Var(&l.Answer, "answer", l.Answer, "synthetic: median tokens of an answer")
	fs.Float64Var(&l.Sigma, "sigma", l.Sigma, "synthetic: deviation of the lengths' logarithms")
	fs.StringVar(&f.lengths, "lengths", "", "synthetic: draw lengths from this trace instead (after --scale-tokens)")
	fs.IntVar(&l.System, "system", l.System, "synthetic: tokens of a shared system prompt")
	fs.Float64Var(&l.SystemShare, "system-share", l.SystemShare, "synthetic: share of conversations that have it")
}

// read reads or makes the main load. The shape is to be applied to it.
func (f *loadFlags) read(fs *pflag.FlagSet) (*trace.Trace, error) {
	f.shape.Seed, f.synth.Seed = f.seed, f.seed
	if f.trace != "" {
		for _, name := range synthetic {
			if fs.Changed(name) {
				return nil, fmt.Errorf("--%s is for synthetic conversations, and --trace names a file: want one of them", name)
			}
		}
		if fs.Changed("rate") {
			f.shape.Rate = f.synth.Rate
		}
		return trace.Load(f.trace, trace.Format(f.format), f.limit)
	}
	for _, name := range []string{"format", "limit"} {
		if fs.Changed(name) && f.lengths == "" {
			return nil, fmt.Errorf("--%s is for a trace: want --trace FILE too", name)
		}
	}
	if f.lengths != "" {
		t, err := trace.Load(f.lengths, trace.Format(f.format), f.limit)
		if err != nil {
			return nil, err
		}
		// The lengths that are drawn are the scaled ones.
		if f.synth.Lengths, _, err = (&trace.Shape{Tokens: f.shape.Tokens}).Apply(t); err != nil {
			return nil, err
		}
		f.shape.Tokens = 1
	}
	return f.synth.Make()
}

// readBeside makes the loads of other models: for as long as sessions of the
// main one begin.
func (f *loadFlags) readBeside(main *trace.Trace) ([]besideLoad, error) {
	var out []besideLoad
	for i, v := range f.beside {
		model, rate, ok := strings.Cut(v, "=")
		perSecond, err := strconv.ParseFloat(rate, 64)
		if !ok || model == "" || err != nil {
			return nil, fmt.Errorf("--beside is %q: want MODEL=RATE, such as birch=2", v)
		}
		s := f.short
		s.Seed, s.Rate = f.seed+uint64(i)+1, perSecond
		sessions := main.Sessions
		last := sessions[len(sessions)-1].Start.Seconds()
		switch {
		case f.shape.Rate > 0:
			last = float64(len(sessions)) / f.shape.Rate
		case f.shape.Time > 0:
			last /= f.shape.Time
		}
		s.Sessions = max(1, int(last*perSecond))
		t, err := s.Make()
		if err != nil {
			return nil, fmt.Errorf("--beside %s: %w", v, err)
		}
		out = append(out, besideLoad{model, t})
	}
	return out, nil
}
