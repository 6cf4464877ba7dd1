// Package roofline measures what this machine can do at best (memory reads,
// float32 FMA, bf16 dot products) and how much of it the kernels of package
// engine/kernels reach, in one run on the same cores. Every figure is the best
// of many short rounds, so that other work on the machine disturbs it little.
package roofline

import (
	"runtime"
	"sync"
	"time"
)

// Roof is what a machine can do at best, per second. A zero means that the
// machine has no such instruction.
type Roof struct {
	Threads  int
	ReadOne  float64 // bytes of memory read by one thread
	ReadAll  float64 // by all threads together
	FloatOne float64 // float32 operations of FMA, one thread
	FloatAll float64
	DotOne   float64 // operations of bf16 dot products, one thread
	DotAll   float64
}

// peaks are the loops of an instruction set. Units are bytes or operations.
type peaks struct {
	read          func([]byte)
	float, dot    func(rounds int)
	floatPerRound float64
	dotPerRound   float64
}

const (
	readBuffer = 256 << 20 // more than any last-level cache slice of a thread
	// A round lasts one or two milliseconds, against which waking the other
	// threads is short.
	readSlice   = 64 << 20
	computeLoop = 600_000
	rounds      = 60
)

// Measure takes about a second. threads is how many to use for the figures of
// all threads; 0 means GOMAXPROCS.
func Measure(threads int) Roof {
	if threads == 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	p := detect()
	r := Roof{Threads: threads}
	r.ReadOne, r.ReadAll = readBandwidth(p, 1), readBandwidth(p, threads)
	compute := func(f func(int), per float64, threads int) float64 {
		if f == nil {
			return 0
		}
		t := Best(rounds, func(int) { parallel(threads, func(int) { f(computeLoop) }) })
		return per * computeLoop * float64(threads) / t.Seconds()
	}
	r.FloatOne = compute(p.float, p.floatPerRound, 1)
	r.FloatAll = compute(p.float, p.floatPerRound, threads)
	r.DotOne = compute(p.dot, p.dotPerRound, 1)
	r.DotAll = compute(p.dot, p.dotPerRound, threads)
	return r
}

func readBandwidth(p peaks, threads int) float64 {
	buf := buffer(readBuffer)
	for i := 0; i < len(buf); i += 4096 {
		buf[i] = 1 // a page that was never written is not memory
	}
	slice := readSlice / threads &^ 4095
	n := len(buf) / (slice * threads)
	t := Best(rounds, func(i int) {
		at := i % n * slice * threads
		parallel(threads, func(j int) { p.read(buf[at+j*slice:][:slice]) })
	})
	return float64(slice*threads) / t.Seconds()
}

// parallel runs f on n goroutines and waits.
func parallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := 1; i < n; i++ {
		wg.Go(func() { f(i) })
	}
	f(0)
	wg.Wait()
}

// Best returns the shortest of n runs of f, which is told the number of the
// run.
func Best(n int, f func(i int)) time.Duration {
	best := time.Duration(1<<63 - 1)
	for i := range n {
		start := time.Now()
		f(i)
		best = min(best, time.Since(start))
	}
	return best
}
