package kernels

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// pool runs loops over a few goroutines. Units of a loop are claimed one by
// one, so a worker that wakes late only does less; the caller takes part and
// waits for no one who has not started.
type pool struct {
	workers []*worker
	current atomic.Pointer[loop]
	closed  atomic.Bool
	done    sync.WaitGroup
	seq     uint64 // of the last loop, used by the caller only
}

// worker sleeps on wake. Whoever changes parked from true to false owes it one
// token.
type worker struct {
	parked atomic.Bool
	wake   chan struct{}
}

// loop is one parallel loop. A late worker may look at a loop that is over: it
// finds no unit left and never touches what the loop worked on.
type loop struct {
	seq   uint64
	n     int64
	f     func(worker, i int)
	next  atomic.Int64 // the next unit to claim
	left  atomic.Int64 // units not yet finished
	ended chan struct{}
}

// spins is how often a worker looks for another loop before it sleeps: about
// 20 microseconds. The operators of a forward pass follow each other faster
// than that and sleepers wake slower; between passes everyone sleeps, as
// several processes share the cores.
const spins = 128

// newPool starts threads-1 goroutines, which sleep until there is work.
func newPool(threads int) *pool {
	p := &pool{workers: make([]*worker, threads-1)}
	for i := range p.workers {
		w := &worker{wake: make(chan struct{}, 1)}
		p.workers[i] = w
		p.done.Go(func() { p.serve(w, i+1) })
	}
	return p
}

// serve is a worker's life.
func (p *pool) serve(w *worker, number int) {
	var seen uint64
	for !p.closed.Load() {
		l := p.wait(w, seen)
		if l == nil {
			continue
		}
		seen = l.seq
		l.work(number)
	}
}

// wait returns a loop newer than seen, or nil when it was woken for another
// reason.
func (p *pool) wait(w *worker, seen uint64) *loop {
	for range spins {
		if l := p.current.Load(); l != nil && l.seq != seen {
			return l
		}
		// Let the process's other goroutines run.
		runtime.Gosched()
	}
	w.parked.Store(true)
	// A loop published before parked was set has woken no one.
	l := p.current.Load()
	if fresh := l != nil && l.seq != seen; (fresh || p.closed.Load()) && w.parked.CompareAndSwap(true, false) {
		return l
	}
	<-w.wake
	return nil
}

func (w *worker) unpark() {
	if w.parked.CompareAndSwap(true, false) {
		w.wake <- struct{}{}
	}
}

// close ends the workers and waits for them.
func (p *pool) close() {
	p.closed.Store(true)
	for _, w := range p.workers {
		w.unpark()
	}
	p.done.Wait()
}

// run calls f(worker, i) for each i in [0, n). Calls with the same worker
// number never overlap; worker 0 is the calling goroutine.
func (p *pool) run(n int, f func(worker, i int)) {
	if n <= 1 || len(p.workers) == 0 {
		for i := range n {
			f(0, i)
		}
		return
	}
	p.seq++
	l := &loop{seq: p.seq, n: int64(n), f: f, ended: make(chan struct{})}
	l.left.Store(int64(n))
	p.current.Store(l)
	for _, w := range p.workers[:min(n-1, len(p.workers))] {
		w.unpark()
	}
	l.work(0)
	for range spins {
		if l.left.Load() == 0 {
			break
		}
		runtime.Gosched()
	}
	<-l.ended
	p.current.Store(nil) // keep nothing alive
}

func (l *loop) work(worker int) {
	for {
		i := l.next.Add(1) - 1
		if i >= l.n {
			return
		}
		l.f(worker, int(i))
		if l.left.Add(-1) == 0 {
			close(l.ended)
		}
	}
}
