package scheduler

import (
	"errors"
	"slices"
	"time"
)

// bypassAhead is how far behind the first request of the queue the scheduler
// looks for one that fits.
const bypassAhead = 8

// admit starts requests from the front of the queue while there is budget for
// a part of their prompt and memory for all of it.
func (s *Scheduler) admit(now time.Time, budget int) (moved bool) {
	defer s.expect()
	for len(s.running) < s.opt.MaxRunning {
		q := s.queue.next()
		if q == nil || q.chunk(budget, s.block) == 0 {
			break
		}
		asked := q.refusedGen != s.memGen || q.rethink(now)
		err := s.enter(q, now)
		switch {
		case err == nil:
			s.queue.offered(q)
			s.start(q, now, budget, false)
			budget -= q.take
		case !errors.Is(err, ErrWait):
			s.finish(q, now, Event{Err: s.reserveError(q, err)})
		case s.waitedTooLong(q, now):
			s.finish(q, now, Event{Err: &AdmissionError{
				Tokens: q.room(len(q.tokens)+1, s.block), Limit: s.cache.MaxTokens(), Waited: s.opt.AdmissionTimeout, Err: err}})
		default:
			s.stuck(q, now)
			if !asked || !s.expired(q, now) {
				return s.bypass(now, budget) || moved
			}
			freed, ok := s.sendHome()
			if !ok {
				return moved
			}
			budget += freed
		}
		moved = true
	}
	return moved
}

func (s *Scheduler) waitedTooLong(q *seq, now time.Time) bool {
	return s.idleFor == q && now.Sub(s.idleSince) >= s.opt.AdmissionTimeout
}

// stuck keeps q, which the cache has refused, first in the queue.
func (s *Scheduler) stuck(q *seq, now time.Time) {
	s.queue.choose(q)
	if q.stuckSince.IsZero() {
		q.stuckSince = now
	}
}

// expired reports that nobody may overtake q any more because of the time.
func (s *Scheduler) expired(q *seq, now time.Time) bool {
	return !q.stuckSince.IsZero() && now.Sub(q.stuckSince) >= s.opt.BypassTime
}

// bypass admits a request from behind the first one, which waits for memory:
// what is free is not enough for that one, and would lie idle. At most one a
// step, and nobody overtakes a request MaxBypass times or after BypassTime.
// Who has overtaken is a guest: it gives up its memory before the others of its
// priority, and its turn in the queue is still to come.
func (s *Scheduler) bypass(now time.Time, budget int) (moved bool) {
	if len(s.running)+1 >= s.opt.MaxRunning {
		return false // the last place is for the first in the queue
	}
	s.peeked = s.queue.ahead(s.peeked[:0], 1+bypassAhead)
	for i, q := range s.peeked {
		if i > 0 && q.chunk(budget, s.block) == 0 {
			break
		}
		if i > 0 && (q.refusedGen != s.memGen || q.rethink(now)) {
			err := s.enter(q, now)
			if err == nil {
				s.overtake(s.peeked[:i])
				s.start(q, now, budget, true)
				return true
			}
			if !errors.Is(err, ErrWait) {
				s.finish(q, now, Event{Err: s.reserveError(q, err)})
				return true // the list is not the queue's any more
			}
		}
		if q.overtaken >= s.opt.MaxBypass || s.expired(q, now) {
			break
		}
	}
	return false
}

// overtake notes that somebody from behind them is admitted before others.
func (s *Scheduler) overtake(others []*seq) {
	s.stats.Bypasses++
	for _, q := range others {
		if q.overtaken++; q.overtaken == 1 {
			s.overtaken++
		}
	}
}

// sendHome takes the memory of the last guest for a request that may not be
// overtaken any more and was refused although memory has changed. It returns the
// token budget that the guest had in this step; ok is false without guests.
func (s *Scheduler) sendHome() (budget int, ok bool) {
	for i := len(s.running) - 1; i >= 0; i-- {
		q := s.running[i]
		if !q.guest {
			continue
		}
		if j := slices.Index(s.batch, q); j >= 0 {
			budget = q.take
			s.batch = slices.Delete(s.batch, j, j+1)
		}
		s.stats.Preemptions++
		s.requeue(q, "it overtook a request that needs its memory")
		return budget, true
	}
	return 0, false
}

// dequeue takes q out of the queue. When nobody is left there who was
// overtaken, there are no guests any more.
func (s *Scheduler) dequeue(q *seq) {
	s.queue.remove(q)
	overtaken := q.overtaken > 0
	q.overtaken, q.stuckSince = 0, time.Time{}
	q.waitsSince, q.waitsUntil = time.Time{}, time.Time{}
	if !overtaken {
		return
	}
	if s.overtaken--; s.overtaken > 0 {
		return
	}
	for _, r := range s.running {
		r.guest = false
	}
	slices.SortFunc(s.running, byRank)
}

// start makes q, which has memory, one of those that run. What was cached of it
// counts in whole blocks, so the budget for a part of it without any cache is
// enough for a part of what is left.
func (s *Scheduler) start(q *seq, now time.Time, budget int, guest bool) {
	s.dequeue(q)
	q.guest = guest
	q.state = inRunning
	q.target = len(q.tokens)
	q.take = q.chunk(budget, s.block)
	if s.coster != nil {
		_, q.stream = s.coster.StepCost(q.id)
	}
	if q.admitted.IsZero() {
		q.admitted = now
		s.firstAdmission(q)
	}
	s.running = insert(s.running, q)
	s.count(q, -1, 1)
	s.batch = append(s.batch, q)
}
