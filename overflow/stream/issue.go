package stream

import (
	"errors"
	"time"

	"github.com/kvlend/kvlend/overflow/device"
)

// issue moves the cursor on: it starts the I/O of what is enqueued, in order, as
// far as it may start.
func (s *Stream) issue() {
	s.gate = nil
	for ; s.cursor < len(s.queue); s.cursor++ {
		o := &s.queue[s.cursor]
		switch o.kind {
		case opCopy:
			if !s.start(o.batch) {
				return
			}
			if o.batch.reads > 0 {
				s.blockers++
			}
			if o.batch.reads < len(o.batch.groups) {
				s.writers++
			}
		case opCall:
			s.blockers++
		case opWait:
			if !isDone(o.wait) {
				s.gate = o.wait.Done()
				return
			}
		case opRecord:
		}
	}
}

// passed undoes, for an operation that is over, what issue counted.
func (s *Stream) passed(o *op) {
	switch {
	case o.kind == opCall:
		s.blockers--
	case o.kind == opCopy:
		if o.batch.reads > 0 {
			s.blockers--
		}
		if o.batch.reads < len(o.batch.groups) {
			s.writers--
		}
	}
}

// start submits what may be submitted of the batch at the cursor. It reports
// whether that is all of it.
func (s *Stream) start(b *batch) bool {
	if !s.clear(b) {
		return false
	}
	if !s.submit(b, b.groups[:b.reads]) {
		return false
	}
	if b.reads == len(b.groups) {
		return true
	}
	// The sources must be what they are after everything before, except writes.
	return s.blockers == 0 && b.readsLeft == 0 && s.submit(b, b.groups[b.reads:])
}

// clear reports whether no write before the batch at the cursor that is not
// over touches the same blocks.
func (s *Stream) clear(b *batch) bool {
	if b.after > s.base+uint64(s.head) {
		return false // the one that was found is not over
	}
	if b.cleared || s.writers == 0 {
		b.cleared = true
		return true
	}
	for i := s.head; i < s.cursor; i++ {
		if o := &s.queue[i]; o.kind == opCopy && o.batch.left > 0 && b.overlaps(o.batch) {
			b.after = s.base + uint64(i) + 1
			return false
		}
	}
	b.cleared = true
	return true
}

// submit starts extents of groups while there are buffers, and reports whether
// that was all of them.
func (s *Stream) submit(b *batch, groups []group) bool {
	var rest int64
	for i := range groups {
		g := &groups[i]
		if g.next < g.hi {
			s.skipIfStuck(b, g)
		}
		rest += g.rest
	}
	if rest == 0 {
		return true
	}
	// Where buffers are scarce, wait for some of them: I/Os of one Submit are
	// cheaper than alone.
	if s.held > 0 && s.opt.Staging-s.held < min(rest, s.opt.Staging/4) {
		return false
	}
	more := true
	for more {
		g := furthest(groups)
		if g == nil {
			break
		}
		more = s.prepare(b, g)
	}
	for i := range groups {
		if g := &groups[i]; len(g.ios) > 0 {
			s.send(b, g)
		}
	}
	return more
}

// furthest is the group of which the smallest share has been started: all
// devices work until the end. Nil: all have been started whole.
func furthest(groups []group) *group {
	var best *group
	for i := range groups {
		g := &groups[i]
		if g.next == g.hi {
			continue
		}
		if best == nil || (g.next-g.lo)*(best.hi-best.lo) < (best.next-best.lo)*(g.hi-g.lo) {
			best = g
		}
	}
	return best
}

// prepare makes the I/O of the group's next extent; false: there is no buffer.
func (s *Stream) prepare(b *batch, g *group) bool {
	u, e := s.take(), b.exts[g.next]
	if !s.room(u, e) {
		s.units = append(s.units, u)
		return false
	}
	g.next++
	g.rest -= int64(e.n)
	u.b, u.arena, u.io.Write, u.io.Off = b, g.arena, g.write, e.off
	if g.write {
		if err := u.gather(); err != nil {
			s.over(u, err)
			return true
		}
	}
	u.state.Store(flying)
	g.ios = append(g.ios, &u.io)
	return true
}

// send submits the I/Os that were prepared for a group.
func (s *Stream) send(b *batch, g *group) {
	now := time.Now()
	if b.began.IsZero() {
		b.began = now
	}
	var bytes int64
	for _, io := range g.ios {
		bytes += int64(len(io.Buf))
	}
	s.stats.submits.Add(1)
	if g.write {
		s.stats.writes.Add(int64(len(g.ios)))
		s.stats.written.Add(bytes)
	} else {
		s.stats.reads.Add(int64(len(g.ios)))
		s.stats.read.Add(bytes)
	}
	err := g.arena.dev.Submit(g.ios)
	if err != nil {
		s.failed(b, g.arena, g.write, g.ios[0].Owner.(*unit).ext, len(g.ios), err)
		for _, io := range g.ios {
			s.over(io.Owner.(*unit), nil)
		}
	} else {
		s.watch(g.ios)
	}
	clear(g.ios)
	g.ios = g.ios[:0]
}

// skipIfStuck fails what is left of a group if the device has an I/O that was
// abandoned, or the batch was given up.
func (s *Stream) skipIfStuck(b *batch, g *group) {
	err := s.stuckOn(g.arena)
	if err == nil && b.late && !g.write {
		err = ErrLate
	}
	if err == nil {
		return
	}
	n := g.hi - g.next
	s.failed(b, g.arena, g.write, b.exts[g.next], n, err)
	b.left -= n
	if !g.write {
		b.readsLeft -= n
	}
	g.next, g.rest = g.hi, 0
}

// failed notes that n extents from e on failed at the device.
func (s *Stream) failed(b *batch, a *Arena, write bool, e extent, n int, err error) {
	de := deviceError(a, write, e, err)
	s.stats.errors.Add(int64(n))
	if b.err == nil {
		b.err = de
	}
	if s.opt.OnError != nil {
		s.opt.OnError(de)
	}
}

// over ends a unit that is not in flight, with an error of the host's side.
func (s *Stream) over(u *unit, err error) {
	b := u.b
	if err != nil && b.err == nil {
		b.err = err
	}
	b.left--
	if !u.io.Write {
		b.readsLeft--
	}
	s.recycle(u)
}

// stuckOn is an error if the device still has an I/O that was abandoned.
func (s *Stream) stuckOn(a *Arena) (found error) {
	kept := s.stuck[:0]
	for _, u := range s.stuck {
		if u.state.Load() == gone {
			continue
		}
		kept = append(kept, u)
		switch {
		case !u.arena.same(a) || found == ErrAbandoned:
		case u.late:
			found = ErrLate
		default:
			found = ErrAbandoned
		}
	}
	clear(s.stuck[len(kept):])
	s.stuck = kept
	return found
}

// settle takes note of the I/Os that have ended or were given up.
func (s *Stream) settle() {
	first := s.finished.Swap(nil)
	given := s.unwatch(first)
	for u := first; u != nil; {
		next := u.next
		s.land(u)
		u = next
	}
	for _, u := range given {
		b := u.b
		s.stats.timeouts.Add(1)
		s.stats.abandoned.Add(1)
		err := ErrAbandoned
		if u.late {
			err = ErrLate
		}
		s.failed(b, u.arena, u.io.Write, u.ext, 1, err)
		u.b = nil
		s.held -= int64(u.ext.n)
		b.left--
		if !u.io.Write {
			b.readsLeft--
		}
		s.stuck = append(s.stuck, u)
	}
}

// land ends a unit whose Done was called; bytes that were read wait in it.
func (s *Stream) land(u *unit) {
	err := u.io.Err
	if err == nil && !u.io.Write {
		u.next, u.b.landed = u.b.landed, u
		return
	}
	if err != nil {
		if u.cancelled && errors.Is(err, device.ErrCancelled) {
			s.stats.timeouts.Add(1)
			if err = ErrTimeout; u.late {
				err = ErrLate
			}
		}
		s.failed(u.b, u.arena, u.io.Write, u.ext, 1, err)
	}
	s.over(u, nil)
}
