package scheduler

import (
	"errors"
	"time"
)

// plan fills batch with the sequences of the next step and the tokens that
// each takes. It reports whether the lists changed, so that an empty batch is
// no reason to sleep yet.
func (s *Scheduler) plan(now time.Time) (moved bool) {
	s.batch = s.batch[:0]
	moved, stalled := s.grow(now)
	s.takeTurns()
	budget := s.opt.MaxBatchTokens
	for _, q := range s.running {
		if q.decoding() && !q.stalled && !q.sitsOut {
			q.take = 1
			s.batch = append(s.batch, q)
			budget--
		}
	}
	for _, q := range s.running {
		if q.decoding() {
			continue
		}
		if q.take = q.chunk(budget, s.block); q.take == 0 {
			budget = 0 // nobody overtakes it, out of the queue either
			break
		}
		s.batch = append(s.batch, q)
		budget -= q.take
	}
	if moved || stalled {
		s.expect()
		return moved // what is free belongs to those that run
	}
	return s.admit(now, budget)
}

// grow makes room for the next token of every decoding sequence, in order of
// rank. Where the cache refuses, the last in rank gives up its memory, unless waiting is better. After one sequence has stalled, later ones may not
// take memory before it.
func (s *Scheduler) grow(now time.Time) (moved, stalled bool) {
	for i := 0; i < len(s.running); {
		q := s.running[i]
		q.stalled = false
		if !q.decoding() || q.done < q.reserved {
			i++
			continue
		}
		if stalled {
			q.stalled = true
			i++
			continue
		}
		err := s.reserve(q, q.done+1)
		switch {
		case err == nil:
			q.stalledSince = time.Time{}
			i++
		case !errors.Is(err, ErrWait):
			s.finish(q, now, Event{Err: s.reserveError(q, err)})
			moved = true
		case s.mayStall(q, err, now):
			q.stalled, stalled = true, true
			i++
		default:
			s.stats.Preemptions++
			s.requeue(s.running[len(s.running)-1], "an earlier request needs its memory")
			moved = true
		}
	}
	return moved, stalled
}

// mayStall reports whether q should wait for memory with what it holds: more
// is on its way, or nobody else holds any and no earlier request, one that the
// cache evicted, waits for what q has.
func (s *Scheduler) mayStall(q *seq, refusal error, now time.Time) bool {
	alone := len(s.running) == 1 && !s.waitsBefore(q)
	if !alone && !errors.Is(refusal, ErrComing) {
		return false
	}
	if q.stalledSince.IsZero() {
		q.stalledSince = now
	}
	return now.Sub(q.stalledSince) < s.opt.GrowTimeout
}

// waitsBefore reports whether somebody in the queue would come before q, which
// runs, if q were back in the queue.
func (s *Scheduler) waitsBefore(q *seq) bool {
	next := s.queue.next()
	switch {
	case next == nil:
		return false
	case q.guest || next.req.Priority < q.req.Priority:
		return true
	}
	return next.req.Priority == q.req.Priority && next.resumed && next.id < q.id
}

// reserve asks the cache for room for n tokens of q, which runs. A refusal
// stands until memory has changed.
func (s *Scheduler) reserve(q *seq, n int) error {
	if q.refusedGen == s.memGen {
		return q.refused
	}
	n = q.room(n, s.block)
	return s.noteAnswer(q, n, s.cache.Reserve(q.id, n))
}

// noteAnswer keeps the cache's answer to q's wish for room for n tokens.
func (s *Scheduler) noteAnswer(q *seq, n int, err error) error {
	switch {
	case err == nil:
		q.reserved = n
	case errors.Is(err, ErrWait):
		q.refused, q.refusedGen = err, s.memGen
		s.stats.Refusals++
	}
	return err
}

func (s *Scheduler) reserveError(q *seq, err error) error {
	if errors.Is(err, ErrNever) {
		limit, by := s.Limit()
		return &TooLongError{PromptTokens: q.prompt, MaxTokens: q.req.MaxTokens, Limit: limit, LimitedBy: by}
	}
	return &InternalError{Op: "reserving KV memory", Attempts: 1, Err: err}
}
