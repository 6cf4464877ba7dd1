package sim

import (
	"time"
)

// kernel is the virtual clock and what is to happen. Events of one time happen
// in the order in which they were planned, so that a run is the same each time.
type kernel struct {
	heap   []event
	number uint64
	events uint64 // that have happened
}

type event struct {
	at time.Duration
	n  uint64
	do func()
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.n < o.n }

// plan has f called at a time. What is planned for the past happens next.
func (k *kernel) plan(at time.Duration, f func()) {
	k.number++
	k.heap = append(k.heap, event{at, k.number, f})
	h := k.heap
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(&h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

// next takes the earliest event; false: there is none.
func (k *kernel) next() (event, bool) {
	h := k.heap
	if len(h) == 0 {
		return event{}, false
	}
	first := h[0]
	last := len(h) - 1
	h[0] = h[last]
	h[last] = event{}
	h = h[:last]
	k.heap = h
	for i := 0; ; {
		down := 2*i + 1
		if down >= len(h) {
			break
		}
		if r := down + 1; r < len(h) && h[r].before(&h[down]) {
			down = r
		}
		if !h[down].before(&h[i]) {
			break
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
	k.events++
	return first, true
}

// clock is the time of one process. While an event of it happens its clock runs
// ahead of the kernel's: a step takes place at once, and the process is busy
// until the time that its clock then shows.
type clock struct {
	k *kernel
	t time.Duration
}

// now is the time since the start of the simulation.
func (c *clock) now() time.Duration { return c.t }

// advance waits until a time.
func (c *clock) advance(to time.Duration) { c.t = max(c.t, to) }

// at plans an event of this process.
func (c *clock) at(at time.Duration, f func()) {
	c.k.plan(at, func() {
		c.t = at
		f()
	})
}

// epoch is the time of day at which simulations start.
var epoch = time.Unix(0, 0).UTC()

// Now implements scheduler.Clock.
func (c *clock) Now() time.Time { return epoch.Add(c.t) }

// Timer implements scheduler.Clock. Nobody waits for it: Scheduler.Deadline is
// planned instead.
func (c *clock) Timer(time.Duration) (<-chan time.Time, func()) { return nil, func() {} }
