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
// ErrLate, and says whether a device had any. It is for those who have something
// better to do than to wait. Writes, and what is enqueued later, go on, but for
// devices that keep what was given up: see ErrAbandoned, in place of which ErrLate is
// reported then.
func (s *Stream) GiveUp() bool {
	w := &s.watcher
	w.mu.Lock()
	late := false
	for u := w.oldest; u != nil; u = u.newer {
		if u.io.Write || u.state.Load() != flying {
			continue
		}
		late, u.late = true, true
		if !u.cancelled {
			u.cancelled = true
			u.arena.dev.Cancel(&u.io)
		}
	}
	if late {
		time.AfterFunc(lateGrace, s.abandonLate)
	}
	w.mu.Unlock()
	if late {
		s.mu.Lock()
		s.hurried = true
		s.fresh.Store(true)
		s.mu.Unlock()
		s.wakeUp()
	}
	return late
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

// hurry marks what is enqueued as given up.
func (s *Stream) hurry() {
	for i := s.head; i < len(s.queue); i++ {
		if o := &s.queue[i]; o.kind == opCopy {
			o.batch.late = true
		}
	}
}
