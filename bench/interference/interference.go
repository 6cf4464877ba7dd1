// Package interference measures what a master's traffic costs the worker whose
// memory it borrows: the worker's time to first token and time per token under a
// steady load of its own, alone, while a master saturates its link to the
// worker's arena, and while the link has a budget.
//
// A real worker (scheduler, cache, engine with one thread) serves one request
// after another. All that it can spare is lent, in every mode, so that only the
// traffic differs. The master is a stream of the shm fabric that copies between
// the lent units and a buffer of its own, four loads to a store; the buffer stays
// in its core's cache, since on GPUs it is the master's own memory.
//
// So that computing does not confound it, the worker's scheduler and the
// stream's goroutine are locked to threads and these to a core each
// (sched_setaffinity). Modes are interleaved in rounds, each round beginning with
// another one.
package interference

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvlend/kvlend/bench/enginebench"
	"github.com/kvlend/kvlend/bench/roofline"
	"github.com/kvlend/kvlend/engine"
)

// Options say what to measure. Zero fields have the defaults named.
type Options struct {
	// Model is a built-in model, or "Qwen3-0.6B" for its shape (the default).
	Model    string
	Cores    []int   // of worker and master; 0 and 1
	Rounds   int     // 8
	Requests int     // of each mode in a round; 2
	Prompt   int     // tokens; 128
	Tokens   int     // drawn per request; 16
	Lent     int64   // bytes that the worker lends; 256 MiB
	Budget   float64 // the budget's share of the memory bandwidth of all cores; 0.1
	Progress func(string)
}

// Result is a run of the benchmark.
type Result struct {
	Model    string  `json:"model"`
	Cores    []int   `json:"cores"`
	Rounds   int     `json:"rounds"`
	Requests int     `json:"requests"` // of each mode
	Prompt   int     `json:"prompt_tokens"`
	Tokens   int     `json:"tokens"`
	Lent     int64   `json:"lent_bytes"`
	Memory   float64 `json:"memory_bytes_per_second"` // of all cores
	Modes    []Mode  `json:"modes"`
}

// Mode is the worker beside one kind of traffic.
type Mode struct {
	Name        string  `json:"name"`
	BytesPerSec float64 `json:"master_bytes_per_second"`
	TTFT        Times   `json:"ttft"`
	PerToken    Times   `json:"time_per_token"`
}

// Times are in milliseconds. Ratio is to the worker alone, the median of the
// rounds' ratios of medians.
type Times struct {
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	Ratio float64 `json:"ratio"`
	// P99Ratio is that of P99 over all rounds.
	P99Ratio float64 `json:"p99_ratio"`
	// CPURatio is Ratio of the worker's CPU time, in which other processes that
	// take its core do not count.
	CPURatio float64 `json:"cpu_ratio"`
}

// The modes.
const (
	Alone     = "alone"
	Saturated = "link saturated"
	Budgeted  = "link with a budget"
)

func (o *Options) defaults() error {
	if o.Model == "" {
		o.Model = "Qwen3-0.6B"
	}
	if o.Cores == nil {
		o.Cores = []int{0, 1}
	}
	set := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	set(&o.Rounds, 8)
	set(&o.Requests, 2)
	set(&o.Prompt, 128)
	set(&o.Tokens, 16)
	if o.Lent == 0 {
		o.Lent = 256 << 20
	}
	if o.Budget == 0 {
		o.Budget = 0.1
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if len(o.Cores) != 2 || o.Cores[0] == o.Cores[1] || min(o.Cores[0], o.Cores[1]) < 0 {
		return fmt.Errorf("interference: cores are %v, want two different ones: the worker's and the master's", o.Cores)
	}
	if min(o.Rounds, o.Requests, o.Prompt) < 1 || o.Tokens < 2 {
		return fmt.Errorf("interference: %d rounds of %d requests with %d tokens and %d new ones, want at least 1, 1, 1 and 2", o.Rounds, o.Requests, o.Prompt, o.Tokens)
	}
	if o.Lent < 1<<20 || !(o.Budget > 0 && o.Budget <= 1) {
		return fmt.Errorf("interference: %d bytes lent and a budget of %v, want at least 1 MiB, and above 0 to 1", o.Lent, o.Budget)
	}
	return nil
}

// samples are the times of a mode by round.
type samples struct {
	ttft, perToken [][]took
	bytes          int64
	seconds        float64
}

// Run measures. It takes minutes with the defaults.
func Run(ctx context.Context, opt Options) (*Result, error) {
	if err := opt.defaults(); err != nil {
		return nil, err
	}
	opt.Progress("building " + opt.Model)
	eng, err := build(opt.Model)
	if err != nil {
		return nil, err
	}
	defer eng.Close()
	memory := roofline.Measure(0).ReadAll
	w, err := startWorker(eng, &opt)
	if err != nil {
		return nil, err
	}
	defer w.close()
	names := []string{Alone, Saturated, Budgeted}
	rates := map[string]int64{Budgeted: int64(opt.Budget * memory)}
	all := map[string]*samples{}
	for _, name := range names {
		all[name] = &samples{}
	}
	if _, _, err := w.serve(ctx); err != nil { // warms up
		return nil, err
	}
	for round := range opt.Rounds {
		for i := range names {
			name := names[(round+i)%len(names)]
			opt.Progress(fmt.Sprintf("round %d of %d: %s", round+1, opt.Rounds, name))
			if err := measure(ctx, w, &opt, name, rates[name], all[name]); err != nil {
				return nil, err
			}
		}
	}
	res := &Result{Model: opt.Model, Cores: opt.Cores, Rounds: opt.Rounds, Requests: opt.Rounds * opt.Requests,
		Prompt: opt.Prompt, Tokens: opt.Tokens, Lent: w.lentBytes, Memory: memory}
	for _, name := range names {
		res.Modes = append(res.Modes, mode(name, all[name], all[Alone]))
	}
	return res, nil
}

// build makes the worker's engine, with one thread.
func build(model string) (*engine.Model, error) {
	opt := engine.Options{Threads: 1, BlockTokens: blockTokens}
	if slices.Contains(engine.BuiltinNames(), model) {
		return engine.Builtin(model, opt)
	}
	if model != "Qwen3-0.6B" {
		return nil, fmt.Errorf("interference: model %q, want Qwen3-0.6B or one of %q", model, engine.BuiltinNames())
	}
	return engine.Random(enginebench.Qwen3Small(), 1, opt)
}

// measure runs one mode of a round.
func measure(ctx context.Context, w *worker, opt *Options, name string, rate int64, s *samples) (err error) {
	if name != Alone {
		m, err := startMaster(w, opt.Cores[1], rate)
		if err != nil {
			return err
		}
		began := time.Now()
		defer func() {
			bytes, merr := m.stop()
			s.bytes += bytes
			s.seconds += time.Since(began).Seconds()
			err = errors.Join(err, merr)
		}()
	}
	var ttft, perToken []took
	for range opt.Requests {
		first, rest, err := w.serve(ctx)
		if err != nil {
			return err
		}
		ttft, perToken = append(ttft, first), append(perToken, rest...)
	}
	s.ttft, s.perToken = append(s.ttft, ttft), append(s.perToken, perToken)
	return nil
}

func mode(name string, s, alone *samples) Mode {
	m := Mode{Name: name, TTFT: times(s.ttft, alone.ttft), PerToken: times(s.perToken, alone.perToken)}
	if s.seconds > 0 {
		m.BytesPerSec = float64(s.bytes) / s.seconds
	}
	return m
}

func times(rounds, alone [][]took) Times {
	wall := func(t took) float64 { return t.wall }
	all := slices.Concat(rounds...)
	t := Times{P50: quantile(all, 0.5, wall), P99: quantile(all, 0.99, wall)}
	t.P99Ratio = t.P99 / quantile(slices.Concat(alone...), 0.99, wall)
	t.Ratio = ratio(rounds, alone, wall)
	t.CPURatio = ratio(rounds, alone, func(t took) float64 { return t.cpu })
	return t
}

// ratio is the median of the rounds' ratios of medians.
func ratio(rounds, alone [][]took, of func(took) float64) float64 {
	var ratios []float64
	for i := range rounds {
		ratios = append(ratios, quantile(rounds[i], 0.5, of)/quantile(alone[i], 0.5, of))
	}
	return quantile(ratios, 0.5, func(v float64) float64 { return v })
}

// quantile is the smallest value that a share p of them does not exceed.
func quantile[T any](list []T, p float64, of func(T) float64) float64 {
	v := make([]float64, len(list))
	for i := range list {
		v[i] = of(list[i])
	}
	slices.Sort(v)
	return v[min(int(p*float64(len(v))), len(v)-1)]
}

// prompt draws a prompt that no request has had before, so that no prefix of it
// is kept.
func prompt(r *rand.Rand, n, vocab int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(r.IntN(vocab))
	}
	return out
}
