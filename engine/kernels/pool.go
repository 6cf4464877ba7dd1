package kernels

import (
	"sync"
	"sync/atomic"
)

// pool runs loops over a few goroutines. Units of a loop are claimed one by
// one, so a worker that wakes late only does less; the caller takes part and
// waits for no one who has not started.
type pool struct {
	wake []chan *loop
	done sync.WaitGroup
}

// loop is one parallel loop. A late worker may look at a loop that is over: it
// finds no unit left and never touches what the loop worked on.
type loop struct {
	n     int64
	f     func(worker, i int)
	next  atomic.Int64 // the next unit to claim
	left  atomic.Int64 // units not yet finished
	ended chan struct{}
}

// newPool starts threads-1 goroutines, which sleep until there is work.
func newPool(threads int) *pool {
	p := &pool{wake: make([]chan *loop, threads-1)}
	for i := range p.wake {
		c := make(chan *loop, 1)
		p.wake[i] = c
		p.done.Go(func() {
			for l := range c {
				l.work(i + 1)
			}
		})
	}
	return p
}

func (p *pool) close() {
	for _, c := range p.wake {
		close(c)
	}
	p.done.Wait()
}

// run calls f(worker, i) for each i in [0, n). Calls with the same worker
// number never overlap; worker 0 is the calling goroutine.
func (p *pool) run(n int, f func(worker, i int)) {
	if n == 1 || len(p.wake) == 0 {
		for i := range n {
			f(0, i)
		}
		return
	}
	l := &loop{n: int64(n), f: f, ended: make(chan struct{})}
	l.left.Store(int64(n))
	for i, c := range p.wake {
		if i+1 >= n {
			break
		}
		select {
		case c <- l:
		default: // still busy waking for the loop before
		}
	}
	l.work(0)
	<-l.ended
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
