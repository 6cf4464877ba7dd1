package kernels

import (
	"fmt"
	"runtime"
	"slices"
)

// Options configure a Runner.
type Options struct {
	// ISA is one of Available, or "" for the best.
	ISA string
	// Threads is how many goroutines compute, the caller's included; 0 means
	// GOMAXPROCS. It never changes a result.
	Threads int
}

// Runner runs the operators. It is not safe for concurrent use: the operators
// share scratch memory and run on the same workers.
//
// Operators panic with "BUG:" when a slice is shorter than the shapes say.
type Runner struct {
	ops     ops
	pool    *pool
	threads int
	inputs  operand // rounded inputs of the current product
	workers []scratch
	attn    attnScratch
}

// maxThreads bounds Options.Threads.
const maxThreads = 1024

// Available lists the instruction sets of this machine that give the canonical
// results, best first. The last one is "go".
func Available() []string {
	var names []string
	for _, o := range detect() {
		if selfCheck(o) == nil {
			names = append(names, o.name())
		}
	}
	return names
}

// New makes a Runner. An instruction set that disagrees with the reference on
// a set of random vectors is refused with an error when it was asked for by
// name, and passed over otherwise.
func New(opt Options) (*Runner, error) {
	if opt.Threads < 0 || opt.Threads > maxThreads {
		return nil, fmt.Errorf("kernels: Options.Threads is %d, want 0 (GOMAXPROCS) to %d", opt.Threads, maxThreads)
	}
	o, err := choose(detect(), opt.ISA)
	if err != nil {
		return nil, err
	}
	threads := opt.Threads
	if threads == 0 {
		threads = min(runtime.GOMAXPROCS(0), maxThreads)
	}
	return &Runner{ops: o, pool: newPool(threads), threads: threads, workers: make([]scratch, threads)}, nil
}

func choose(all []ops, isa string) (ops, error) {
	if isa == "" {
		for _, o := range all {
			if selfCheck(o) == nil {
				return o, nil
			}
		}
	}
	i := slices.IndexFunc(all, func(o ops) bool { return o.name() == isa })
	if i < 0 {
		var names []string
		for _, o := range all {
			names = append(names, o.name())
		}
		return nil, fmt.Errorf("kernels: Options.ISA is %q, this machine has %q", isa, names)
	}
	if err := selfCheck(all[i]); err != nil {
		return nil, err
	}
	return all[i], nil
}

// Name returns the instruction set in use.
func (r *Runner) Name() string { return r.ops.name() }

// Threads returns how many goroutines compute.
func (r *Runner) Threads() int { return r.threads }

// Close ends the workers. The Runner must not be used afterwards.
func (r *Runner) Close() { r.pool.close() }

// operand grows o to n elements in the form that BF16 products take.
func (r *Runner) operand(o *operand, n int) operand {
	if r.ops.halfInputs() {
		o.half = grow(o.half, n)
		return operand{half: o.half}
	}
	o.full = grow(o.full, n)
	return operand{full: o.full}
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		s = make([]T, n+n/4)
	}
	return s[:n]
}

// need panics when a slice is too short for the shapes of a call.
func need(what string, have, want int) {
	if have < want {
		panic(fmt.Sprintf("BUG: %s has %d elements, want %d", what, have, want))
	}
}
