//go:build cuda && cgo

package cuda

import (
	"errors"
	"time"
)

// point is a place in a stream's order, at which the waiter gives back what was
// in use until there and tells others.
type point struct {
	work       bool   // something was issued since the last point
	cu         uint64 // has happened when it is reached; 0 with work: the lane must be synchronised
	start, end uint64 // before and after the copies, 0: there were none

	batches      []*batch
	home         resources
	away         []resourcesOf
	sums         []sumsFrom
	after        []*event  // that the device waited for: they are done first
	err          error     // the first of issuing
	began, ended time.Time // of a call before the copies

	barrier chan struct{} // closed when it is reached
	event   *event
}

type resourcesOf struct {
	lane *lane
	resources
}

func (p *point) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

// keep has an event of a lane recycled at the point.
func (p *point) keep(ln *lane, e uint64) {
	p.away = append(p.away, resourcesOf{ln, resources{events: []uint64{e}}})
}

// post ends pending and hands it to the waiter.
func (s *Stream) post(e *event, barrier chan struct{}) {
	p := s.pending
	p.event, p.barrier = e, barrier
	s.markEnd()
	p.start, p.end = s.start, s.end
	s.start, s.end, s.batches = 0, 0, 0
	p.cu = p.end
	if p.work && (p.end == 0 || s.waited) {
		// What the stream waited for after its copies counts, too.
		if cu, err := s.home.mark(); err != nil {
			p.fail(err)
			p.cu = 0
		} else {
			p.cu = cu
		}
	}
	s.waited = false
	p.home.lists = append(p.home.lists, s.home.takeUsed()...)
	for _, ln := range s.away {
		if used := ln.takeUsed(); len(used) > 0 {
			p.away = append(p.away, resourcesOf{ln, resources{lists: used}})
		}
	}
	if e != nil {
		e.cu = p.cu // nobody reads it before issued is closed
		close(e.issued)
	}
	s.pending = &point{}
	s.points <- p
}

// await is the waiter: it completes points in order until there are no more,
// then releases the stream.
func (s *Stream) await() {
	defer close(s.done)
	var began, ended time.Time // of copies and calls since the last event
	ran := func(from, to time.Time) {
		if from.IsZero() {
			return
		}
		if began.IsZero() {
			began = from
		}
		ended = to
	}
	for p := range s.points {
		ran(p.began, p.ended)
		ran(s.reach(p))
		if p.event != nil {
			p.event.retire()
		}
		s.restore(p) // who waits for the event may close arenas
		if p.event != nil {
			p.event.Settle(s.err, began, ended)
			s.err, began, ended = nil, time.Time{}, time.Time{}
		}
		if p.barrier != nil {
			close(p.barrier)
		}
	}
	if err := s.home.dev.do(s.release); err != nil {
		s.failed(err)
	}
}

// reach waits for a point, and says when its copies ran.
func (s *Stream) reach(p *point) (began, ended time.Time) {
	s.failed(p.err)
	drv, dev, spin := s.home.drv, s.home.dev, s.fabric.cfg.Spin
	reached := true
	if p.end != 0 {
		if err := drv.wait(dev, p.end, spin); err != nil {
			reached = s.lost(err)
		} else if took, err := drv.elapsed(dev, p.start, p.end); err == nil {
			ended = time.Now()
			began = ended.Add(-took)
		} else {
			s.failed(err)
		}
	}
	switch {
	case p.cu == 0 && p.work:
		reached = s.lost(nil) && reached
	case p.cu != 0 && p.cu != p.end:
		if err := drv.wait(dev, p.cu, spin); err != nil {
			reached = s.lost(err) && reached
		}
	}
	for _, e := range p.after {
		<-e.Done() // it has happened; its own waiter may not have said so yet
	}
	if reached { // an error of a call before it changes no checksum
		for i := range p.sums {
			p.sums[i].copy()
		}
	}
	return began, ended
}

// lost deals with a point that could not be waited for: err says why, if that is
// not known already. Nothing may be given back while the device may still use it.
// It reports whether the device has done all there was.
func (s *Stream) lost(err error) bool {
	s.failed(err)
	err = s.home.drv.sync(s.home.dev, s.home.stream)
	s.failed(err)
	return err == nil
}

func (s *Stream) failed(err error) {
	if s.err == nil && err != nil {
		s.err = errors.Join(streamError{s.name, err})
	}
}

// streamError names the stream.
type streamError struct {
	name string
	err  error
}

func (e streamError) Error() string { return "stream \"" + e.name + "\": " + e.err.Error() }
func (e streamError) Unwrap() error { return e.err }

// restore gives back what a point held.
func (s *Stream) restore(p *point) {
	for _, b := range p.batches {
		s.give(b)
	}
	for _, e := range [...]uint64{p.start, p.end} {
		if e != 0 {
			p.home.events = append(p.home.events, e)
		}
	}
	if p.cu != 0 && p.cu != p.end {
		p.home.events = append(p.home.events, p.cu)
	}
	s.home.recycle(&p.home)
	for i := range p.away {
		p.away[i].lane.recycle(&p.away[i].resources)
	}
}

// release frees what the stream has of the driver. Both goroutines are past it.
func (s *Stream) release() error {
	var errs []error
	if s.staging != nil {
		errs = append(errs, s.staging.free(s.home))
	}
	for _, ln := range s.away {
		errs = append(errs, ln.close())
	}
	return errors.Join(append(errs, s.home.close())...)
}
