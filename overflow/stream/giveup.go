package stream

import (
	"fmt"
	"time"
)

// ErrLate says that the answer of a device was not waited for (GiveUp). It wraps
// ErrTimeout.
var ErrLate = fmt.Errorf("%w: given up early", ErrTimeout)

// lateGrace is how long an I/O that was given up has to come back by itself before
// it is abandoned.
const lateGrace = 20 * time.Millisecond

// GiveUp fails the reads that were enqueued so far and have not been answered, with
// ErrLate. It is for those who have something better to do than to wait. Writes, and
// what is enqueued later, go on, but for devices that keep what was given up: see
// ErrAbandoned, in place of which ErrLate is reported then. Without Options.Timeout
// and Slow it does nothing to what a device has already.
func (s *Stream) GiveUp() {
	s.mu.Lock()
	s.hurried, s.given = true, len(s.fed)
	s.fresh.Store(true)
	s.mu.Unlock()
	// Here, too: the stream may stand in a Submit that waits for what is stuck.
	s.cancelReads(func(*unit) bool { return true })
	s.wakeUp()
}

// cancelReads gives up reads that are in flight.
func (s *Stream) cancelReads(which func(*unit) bool) {
	w := &s.watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	any := false
	for u := w.oldest; u != nil; u = u.newer {
		if u.io.Write || u.late || u.state.Load() != flying || !which(u) {
			continue
		}
		any, u.late = true, true
		if !u.cancelled {
			u.cancelled = true
			u.arena.dev.Cancel(&u.io)
		}
	}
	if any {
		time.AfterFunc(lateGrace, s.abandonLate)
	}
}

// abandonLate abandons what was given up and has not come back.
func (s *Stream) abandonLate() {
	w := &s.watcher
	w.mu.Lock()
	for u := w.oldest; u != nil; {
		newer := u.newer
		if u.late && u.state.Load() == flying {
			w.giveUp(u)
		}
		u = newer
	}
	given := len(w.abandoned) > 0
	w.mu.Unlock()
	if given {
		s.wakeUp()
	}
}

// hurry marks queue[:end] as given up.
func (s *Stream) hurry(end int) {
	for i := s.head; i < end; i++ {
		if o := &s.queue[i]; o.kind == opCopy {
			o.batch.late = true
		}
	}
	s.cancelReads(func(u *unit) bool { return u.b.late })
}
