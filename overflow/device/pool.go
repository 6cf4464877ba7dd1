package device

import "sync"

// result is the end of an operation that ran in a thread.
type result struct {
	o   *op
	res int32
}

// pool runs blocking operations in a bounded number of goroutines, which are
// started as they are needed.
type pool struct {
	work chan *op
	max  int
	wg   sync.WaitGroup
	busy int // operations pushed and not done; the loop's own
	n    int // goroutines; the loop's own
	e    *Engine
}

func newPool(e *Engine, n int) *pool {
	return &pool{work: make(chan *op, maxOps), max: n, e: e}
}

// push has o performed. It does not block: there are no more operations than
// places. Called by the loop, as done is.
func (p *pool) push(o *op) {
	p.busy++
	if p.n < min(p.busy, p.max) {
		p.n++
		p.wg.Add(1)
		go p.run()
	}
	p.work <- o
}

func (p *pool) done() { p.busy-- }

func (p *pool) run() {
	defer p.wg.Done()
	for o := range p.work {
		res := o.s.medium.perform(o)
		p.e.mu.Lock()
		p.e.results = append(p.e.results, result{o, res})
		wake := p.e.wakeLocked()
		p.e.mu.Unlock()
		if wake {
			p.e.loop.wake()
		}
	}
}

// close waits for the goroutines. Nothing is under way.
func (p *pool) close() {
	close(p.work)
	p.wg.Wait()
}
