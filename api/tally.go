package api

import "sync"

// tally counts what is running. Unlike a sync.WaitGroup it may be waited for
// while more is started, and with a select.
type tally struct {
	mu   sync.Mutex // guards the fields below
	n    int
	idle chan struct{} // closed and forgotten when n gets to 0
}

func (t *tally) add() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
}

func (t *tally) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// none is closed as soon as nothing is running.
func (t *tally) none() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == 0 {
		now := make(chan struct{})
		close(now)
		return now
	}
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	return t.idle
}
