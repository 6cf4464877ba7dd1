package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Run is the scheduling loop. It returns when ctx ends, with ctx's error, after
// it has released all memory and ended every request with ErrStopped. It
// sleeps while there is nothing to compute.
func (s *Scheduler) Run(ctx context.Context) error {
	s.mu.Lock()
	again := s.started
	s.started = true
	s.mu.Unlock()
	if again {
		return errors.New("scheduler: Run was called twice")
	}
	for ctx.Err() == nil {
		if !s.Turn(ctx) {
			s.wait(ctx)
		}
	}
	s.stop(ctx.Err())
	return ctx.Err()
}

// Turn is one round of Run: it plans, and computes a step if there is anything
// to compute. It reports whether there was anything to do. When there was not, the
// next round makes sense after a Submit, a Cancel, a signal of Cache.Changed, or
// at Deadline. It is for those who keep the time themselves (Options.Clock), in
// place of Run.
func (s *Scheduler) Turn(ctx context.Context) bool {
	now := s.intake()
	s.noteMemory()
	s.noteEvicted()
	moved := s.plan(now)
	s.publish()
	switch {
	case s.noteEvicted():
		// A Reserve in plan may have given new, empty blocks to a
		// sequence that had just lost its own: plan again.
		return true
	case len(s.batch) > 0:
		s.idleFor = nil
		s.step(ctx)
		return true
	}
	return moved
}

// intake takes over what Submit and Cancel left. It returns the time, which is not
// before that of any of them.
func (s *Scheduler) intake() time.Time {
	s.mu.Lock()
	for _, q := range s.inbox {
		s.queue.join(q)
	}
	clear(s.inbox)
	s.inbox = s.inbox[:0]
	cancels := s.cancels
	s.cancels = nil
	s.mu.Unlock()
	now := s.opt.Clock.Now()
	for _, q := range cancels {
		if q.state != ended {
			s.finish(q, now, Event{Finish: FinishCancelled})
		}
	}
	return now
}

// noteMemory drains Changed, which level-triggers a retry of what was refused.
func (s *Scheduler) noteMemory() {
	select {
	case <-s.cache.Changed():
		s.memGen++
	default:
	}
}

// noteEvicted puts sequences that lost blocks back into the queue, and reports
// whether there were any.
func (s *Scheduler) noteEvicted() bool {
	found := false
	for _, id := range s.cache.Evicted() {
		found = s.evict(id, errEvicted) || found
	}
	return found
}

var errEvicted = errors.New("the cache gave up its blocks")

// evict takes note that the cache has lost sequence id's KV, and reports
// whether that sequence was running. A request that loses its KV too often
// without getting any further fails.
func (s *Scheduler) evict(id uint64, cause error) bool {
	q := s.findRunning(id)
	if q == nil {
		return false
	}
	s.stats.Evictions++
	if q.losses++; q.losses > s.opt.MaxLosses {
		s.finish(q, s.opt.Clock.Now(), Event{Err: &InternalError{Op: "keeping KV memory", Attempts: q.losses, Err: cause}})
		return true
	}
	s.requeue(q, cause.Error())
	return true
}

func (s *Scheduler) findRunning(id uint64) *seq {
	for _, q := range s.running {
		if q.id == id {
			return q
		}
	}
	return nil
}

// requeue releases a running sequence's memory and puts it back to its place
// in the queue, to be computed again from its tokens.
func (s *Scheduler) requeue(q *seq, why string) {
	s.stats.LostTokens += uint64(q.done)
	s.opt.Logger.Debug("request is computed again", "request", q.req.ID, "tokens", len(q.tokens), "reason", why)
	s.running = remove(s.running, q)
	s.release(q)
	q.forget()
	q.preemptions++
	q.state = inQueue
	q.resumed, q.guest = q.resumed || !q.guest, false
	s.queue.push(q)
	s.count(q, 1, -1)
}

// count notes that q has changed lists.
func (s *Scheduler) count(q *seq, waiting, running int) {
	s.nRunning.Store(int64(len(s.running)))
	s.mu.Lock()
	s.tenants.move(q.req.Tenant, waiting, running)
	s.mu.Unlock()
}

// release frees q's memory, so that refusals are worth another try.
func (s *Scheduler) release(q *seq) {
	if c, ok := s.cache.(BorrowCounter); ok {
		q.borrowed = max(q.borrowed, c.PeakBorrowed(q.id))
	}
	s.cache.Release(q.id)
	s.memGen++
}

// finish ends a request: ev, completed with the usage, is its last event.
func (s *Scheduler) finish(q *seq, now time.Time, ev Event) {
	switch q.state {
	case inQueue:
		s.dequeue(q)
		s.count(q, -1, 0)
	case inRunning:
		s.running = remove(s.running, q)
		s.release(q)
		s.count(q, 0, -1)
	case ended:
		panic("BUG: request " + q.req.ID + " ends twice")
	}
	q.state = ended
	if ev.Finish == FinishStop || ev.Finish == FinishLength {
		s.noteLength(q.generated())
	}
	s.queue.leave(q)
	s.stats.Finished.count(&ev)
	if ev.Err != nil {
		s.opt.Logger.Warn("request failed", "request", q.req.ID, "error", ev.Err)
	}
	s.mu.Lock()
	delete(s.byID, q.req.ID)
	s.pace.ended(now)
	s.published = s.stats
	s.closeIfEmpty()
	s.mu.Unlock()
	ev.Usage = q.usage(now)
	q.req.Sink(ev)
}

func (s *Scheduler) publish() {
	s.stats.Cost = s.cost.Stats()
	s.mu.Lock()
	s.published = s.stats
	s.mu.Unlock()
}

// wait sleeps until there is news from Submit, Cancel or the cache, or until a
// wait for memory has lasted too long.
func (s *Scheduler) wait(ctx context.Context) {
	var timeout <-chan time.Time
	now := s.opt.Clock.Now()
	if at, ok := s.Deadline(now); ok {
		c, release := s.opt.Clock.Timer(at.Sub(now))
		defer release()
		timeout = c
	}
	select {
	case <-ctx.Done():
	case <-s.wake:
	case <-s.cache.Changed():
		s.memGen++
	case <-timeout:
	}
}

// Deadline is when a wait for memory that follows a Turn without anything to do
// ends by itself: the growth of a stalled sequence, or the admission of the
// queue's first.
func (s *Scheduler) Deadline(now time.Time) (at time.Time, ok bool) {
	for _, q := range s.running {
		if !q.stalledSince.IsZero() {
			// Nobody is admitted meanwhile.
			return q.stalledSince.Add(s.opt.GrowTimeout), true
		}
	}
	q := s.queue.next()
	if q == nil {
		s.idleFor = nil
		return at, false
	}
	if s.idleFor != q {
		s.idleFor, s.idleSince = q, now
	}
	at = s.idleSince.Add(s.opt.AdmissionTimeout)
	if !q.waitsUntil.IsZero() && q.waitsUntil.Before(at) {
		at = q.waitsUntil
	}
	return at, true
}

// stop ends everything that is left.
func (s *Scheduler) stop(cause error) {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	now := s.intake()
	err := fmt.Errorf("%w: %w", ErrStopped, cause)
	for len(s.running) > 0 {
		s.finish(s.running[len(s.running)-1], now, Event{Err: err})
	}
	for q := s.queue.next(); q != nil; q = s.queue.next() {
		s.finish(q, now, Event{Err: err})
	}
}
