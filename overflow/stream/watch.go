package stream

import (
	"sync"
	"time"

	"github.com/kvlend/kvlend/overflow/device"
)

// watcher looks after I/Os that take too long. It works from a timer, so that a
// stream that copies or stands in a Submit does not keep it from doing so.
type watcher struct {
	mu     sync.Mutex
	timer  *time.Timer
	closed bool
	// I/Os that are in flight, by when they were submitted.
	oldest, newest *unit
	abandoned      []*unit // for the stream's goroutine

	spare []*unit // of the stream's goroutine
}

// watch begins to watch I/Os that were submitted just now.
func (s *Stream) watch(ios []*device.IO) {
	if s.opt.Timeout == 0 && s.opt.Slow == nil {
		return
	}
	now := time.Now()
	w := &s.watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	idle := w.oldest == nil
	for _, io := range ios {
		u := io.Owner.(*unit)
		if u.state.Load() != flying {
			continue
		}
		u.watched, u.sent = true, now
		u.older, u.newer = w.newest, nil
		if w.newest != nil {
			w.newest.newer = u
		} else {
			w.oldest = u
		}
		w.newest = u
	}
	if idle && w.oldest != nil {
		s.arm(s.firstStep())
	}
}

// unwatch ends the watch over the units of a list and returns those that were
// abandoned meanwhile.
func (s *Stream) unwatch(list *unit) []*unit {
	if s.opt.Timeout == 0 && s.opt.Slow == nil {
		return nil
	}
	w := &s.watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	for u := list; u != nil; u = u.next {
		if u.watched {
			w.remove(u)
		}
	}
	given := w.abandoned
	clear(w.spare)
	w.abandoned, w.spare = w.spare[:0], given
	return given
}

func (w *watcher) remove(u *unit) {
	if u.older != nil {
		u.older.newer = u.newer
	} else {
		w.oldest = u.newer
	}
	if u.newer != nil {
		u.newer.older = u.older
	} else {
		w.newest = u.older
	}
	u.older, u.newer, u.watched = nil, nil, false
}

// firstStep is the age at which something is done about an I/O.
func (s *Stream) firstStep() time.Duration {
	if s.opt.Timeout == 0 || s.opt.Slow != nil && s.opt.SlowAfter < s.opt.Timeout {
		return s.opt.SlowAfter
	}
	return s.opt.Timeout
}

// arm has look called after d.
func (s *Stream) arm(d time.Duration) {
	w := &s.watcher
	switch {
	case w.closed:
	case w.timer == nil:
		w.timer = time.AfterFunc(d, s.look)
	default:
		w.timer.Reset(d)
	}
}

// look does what is due.
func (s *Stream) look() {
	w := &s.watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	now, first := time.Now(), s.firstStep()
	soonest := time.Duration(-1)
	for u, newer := w.oldest, (*unit)(nil); u != nil; u = newer {
		newer = u.newer
		age := now.Sub(u.sent)
		if age < first {
			if soonest < 0 || first-age < soonest {
				soonest = first - age
			}
			break // the others are younger
		}
		if due := s.act(u, age); due > age && (soonest < 0 || due-age < soonest) {
			soonest = due - age
		}
	}
	if soonest >= 0 {
		s.arm(soonest)
	}
	if len(w.abandoned) > 0 {
		s.wakeUp()
	}
}

// act does what is due about an I/O of some age and returns the age at which
// there is more to do; 0: never.
func (s *Stream) act(u *unit, age time.Duration) time.Duration {
	if u.state.Load() != flying {
		return 0
	}
	next := time.Duration(0)
	if s.opt.Slow != nil && !u.told {
		if age >= s.opt.SlowAfter {
			u.told = true
			s.opt.Slow(u.arena.info.Name, age)
		} else {
			next = s.opt.SlowAfter
		}
	}
	if s.opt.Timeout == 0 {
		return next
	}
	giveUp := s.opt.Timeout + s.opt.Timeout/4
	switch {
	case !u.cancelled && age < s.opt.Timeout:
		if next == 0 || s.opt.Timeout < next {
			next = s.opt.Timeout
		}
	case !u.cancelled:
		u.cancelled = true
		u.arena.dev.Cancel(&u.io)
		return max(giveUp, age+s.opt.Timeout/4) // the timer may have been late
	case age < giveUp:
		return giveUp
	default:
		s.watcher.giveUp(u)
	}
	return next
}

// giveUp abandons u, unless it has just ended.
func (w *watcher) giveUp(u *unit) {
	// The device still uses it; Done releases. The batch holds it now.
	u.arena.refs.Add(1)
	if !u.state.CompareAndSwap(flying, abandoned) {
		u.arena.Release()
		return
	}
	w.remove(u)
	w.abandoned = append(w.abandoned, u)
}

// close ends the watch: nothing is in flight any more, or it was abandoned.
func (w *watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
}
