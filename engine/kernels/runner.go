package kernels

import (
	"errors"
	"fmt"
	"runtime"
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
	refused error // why better instruction sets are not in use
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
	o, refused, err := choose(detect(), opt.ISA)
	if err != nil {
		return nil, err
	}
	threads := opt.Threads
	if threads == 0 {
		threads = min(runtime.GOMAXPROCS(0), maxThreads)
	}
	return &Runner{ops: o, refused: refused, pool: newPool(threads), threads: threads,
		workers: make([]scratch, threads)}, nil
}

// choose picks the instruction set that is asked for, or the first that passes
// its check; refused says what was passed over.
func choose(all []ops, isa string) (o ops, refused, err error) {
	var names []string
	for _, o := range all {
		names = append(names, o.name())
		if isa != "" && isa != o.name() {
			continue
		}
		err := selfCheck(o)
		switch {
		case err == nil:
			return o, refused, nil
		case isa != "":
			return nil, nil, err
		}
		refused = errors.Join(refused, err)
	}
	if isa == "" {
		return nil, nil, refused
	}
	return nil, nil, fmt.Errorf("kernels: Options.ISA is %q, this machine has %q", isa, names)
}

// Refused says why instruction sets that the processor has are not in use:
// their results differ from the reference. It is nil where all is well.
func (r *Runner) Refused() error { return r.refused }

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
