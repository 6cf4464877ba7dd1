// Package route makes one nvlink.Stream of several: each piece of a copy goes to
// the stream that can carry it, say a fabric's or that of an SSD, and everything
// still happens in one order.
package route

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/kvlend/kvlend/nvlink"
)

// Stream is the joined stream. It implements nvlink.Stream with one exception:
// where the pieces of a batch go to several streams and a later one of these
// refuses its part, what went to the earlier ones is copied.
//
// What goes to one stream after another went to another waits for that; so
// nothing overlaps that one stream would not overlap.
type Stream struct {
	pick func(nvlink.Copy) int
	subs []nvlink.Stream

	mu      sync.Mutex
	last    int             // the stream that the last operation went to
	passed  []nvlink.Event  // where it changed since the last Record
	scratch [][]nvlink.Copy // by stream
	closed  bool
}

var _ nvlink.Stream = (*Stream)(nil)

// New joins streams, which it owns from now on. pick names the stream for a
// piece by its index.
func New(pick func(nvlink.Copy) int, streams ...nvlink.Stream) *Stream {
	if len(streams) == 0 {
		panic("BUG: route: no streams")
	}
	return &Stream{pick: pick, subs: streams, scratch: make([][]nvlink.Copy, len(streams))}
}

// CopyBatch implements nvlink.Stream.
func (s *Stream) CopyBatch(pieces []nvlink.Copy) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nvlink.ErrClosed
	}
	if len(pieces) == 0 {
		return s.subs[s.last].CopyBatch(nil) // it may be closed
	}
	for i := range s.scratch {
		s.scratch[i] = s.scratch[i][:0]
	}
	for _, p := range pieces {
		k := s.pick(p)
		if k < 0 || k >= len(s.subs) {
			return fmt.Errorf("%w: no stream carries a piece from %s to %s", nvlink.ErrBadSpan, nameOf(p.Src.Arena), nameOf(p.Dst.Arena))
		}
		s.scratch[k] = append(s.scratch[k], p)
	}
	for k, part := range s.scratch {
		if len(part) == 0 {
			continue
		}
		if err := s.turn(k); err != nil {
			return err
		}
		if err := s.subs[k].CopyBatch(part); err != nil {
			return err
		}
	}
	return nil
}

func nameOf(a nvlink.Arena) string {
	if a == nil {
		return "nothing"
	}
	return fmt.Sprintf("%q", a.Name())
}

// turn makes stream k the one that goes on, after all that went before.
func (s *Stream) turn(k int) error {
	if k == s.last {
		return nil
	}
	ev, err := s.subs[s.last].Record()
	if err != nil {
		return err
	}
	s.passed = append(s.passed, ev)
	if err := s.subs[k].WaitEvent(ev); err != nil {
		return err
	}
	s.last = k
	return nil
}

// Call implements nvlink.Stream.
func (s *Stream) Call(f func() error) error {
	return s.enqueue(func(sub nvlink.Stream) error { return sub.Call(f) })
}

// WaitEvent implements nvlink.Stream.
func (s *Stream) WaitEvent(e nvlink.Event) error {
	return s.enqueue(func(sub nvlink.Stream) error { return sub.WaitEvent(e) })
}

// enqueue has what goes to any stream go to the one whose turn it is.
func (s *Stream) enqueue(op func(nvlink.Stream) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nvlink.ErrClosed
	}
	return op(s.subs[s.last])
}

// Record implements nvlink.Stream.
func (s *Stream) Record() (nvlink.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nvlink.ErrClosed
	}
	ev, err := s.subs[s.last].Record()
	if err != nil || len(s.passed) == 0 {
		return ev, err
	}
	out := &joined{Event: ev, before: slices.Clone(s.passed)}
	s.passed = s.passed[:0]
	return out, nil
}

// Close implements nvlink.Stream.
func (s *Stream) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	passed := s.passed
	s.mu.Unlock()
	var first error
	for _, sub := range s.subs {
		if err := sub.Close(); err != nil && first == nil {
			first = err
		}
	}
	for _, ev := range passed {
		if err := ev.Err(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// joined is the event of the last stream, with the errors of those before.
type joined struct {
	nvlink.Event
	before []nvlink.Event
}

// Err implements nvlink.Event.
func (e *joined) Err() error {
	select {
	case <-e.Done():
	default:
		return nil
	}
	for _, ev := range e.before {
		if err := ev.Err(); err != nil {
			return err
		}
	}
	return e.Event.Err()
}

// Wait implements nvlink.Event.
func (e *joined) Wait(ctx context.Context) error {
	select {
	case <-e.Done():
		return e.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
