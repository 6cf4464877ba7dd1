// Package timeline records what a process did when: a ring of spans that
// exists only while somebody asks for it, and a writer of the Chrome
// trace-event format, which Perfetto and chrome://tracing open.
//
// While nobody asks, a hook costs one atomic load and no memory is held.
package timeline

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Categories of spans.
const (
	Load      = "load"      // layer blocks travel into stream slots
	Promote   = "promote"   // layer blocks travel into the regular cache
	Store     = "store"     // layer blocks travel out
	Attention = "attention" // from KV at hand to attention's end, with the projections before it
	FFN       = "ffn"       // the rest of a layer
	Wait      = "wait"      // computing waits for KV
	Step      = "step"      // a forward pass
	Admit     = "admit"     // a request gets its memory
	Queue     = "queue"     // a request waits
)

// NoLayer is the Layer of a span that belongs to none.
const NoLayer = -1

// Span is something that took time. Strings are kept as they are: use
// constants, so that a span costs no allocation.
type Span struct {
	Track    string // what it happened on: a stream, the engine, the scheduler
	Name     string
	Category string // one of the categories above
	Layer    int    // or NoLayer
	ID       uint64 // of the step or sequence; 0: none
	Start    time.Time
	End      time.Time
	Bytes    int64 // moved; for a step its tokens
}

// ringSize is how many spans are kept: minutes of a small model, seconds of a
// large one. When more come the oldest go.
const ringSize = 1 << 16

// Recorder takes spans while somebody collects. Its methods are safe for
// concurrent use, and on a nil Recorder do nothing. The zero value is ready.
type Recorder struct {
	ring atomic.Pointer[ring] // nil: nobody collects

	mu    sync.Mutex // guards users; held to change ring
	users int
}

// ring is a circle of slots. Writers draw numbers and meet only when one laps
// another.
type ring struct {
	next  atomic.Uint64
	slots []slot
}

type slot struct {
	mu   sync.Mutex // guards the fields below; held for a copy
	n    uint64     // the span's number, from 1; 0: empty
	span Span
}

// On reports whether somebody collects: hooks ask before they read a clock.
func (r *Recorder) On() bool { return r != nil && r.ring.Load() != nil }

// Add keeps s if somebody collects.
func (r *Recorder) Add(s Span) {
	if r == nil {
		return
	}
	g := r.ring.Load()
	if g == nil {
		return
	}
	n := g.next.Add(1)
	at := &g.slots[(n-1)%uint64(len(g.slots))]
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.n < n { // a writer that was held up for a whole turn lost its place
		at.n, at.span = n, s
	}
}

// Recording is what was collected.
type Recording struct {
	From, To time.Time
	Spans    []Span // those that ended in between, by start
	Lost     uint64 // spans that did not fit
}

// Collect records until d is over or ctx ends. Several may collect at once.
func (r *Recorder) Collect(ctx context.Context, d time.Duration) Recording {
	g := r.open(ringSize)
	defer r.close()
	rec := Recording{From: time.Now()}
	before := g.next.Load()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	rec.To = time.Now()
	if drawn := g.next.Load() - before; drawn > uint64(len(g.slots)) {
		rec.Lost = drawn - uint64(len(g.slots))
	}
	rec.Spans = g.between(rec.From, rec.To)
	return rec
}

func (r *Recorder) open(size int) *ring {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users++
	g := r.ring.Load()
	if g == nil {
		g = &ring{slots: make([]slot, size)}
		r.ring.Store(g)
	}
	return g
}

func (r *Recorder) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users--; r.users == 0 {
		r.ring.Store(nil)
	}
}

func (g *ring) between(from, to time.Time) []Span {
	var out []Span
	for i := range g.slots {
		at := &g.slots[i]
		at.mu.Lock()
		n, s := at.n, at.span
		at.mu.Unlock()
		if n > 0 && !s.End.Before(from) && !s.End.After(to) {
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b Span) int { return a.Start.Compare(b.Start) })
	return out
}
