package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/sampling"
)

// step computes the batch. Sequences advance only after Commit, so a step that
// failed can run again: without the sequences whose KV was lost, and a bounded
// number of times for other errors.
func (s *Scheduler) step(ctx context.Context) {
	for attempt := 1; len(s.batch) > 0; {
		began := s.opt.Clock.Now()
		out, err := s.forward(ctx)
		now := s.opt.Clock.Now()
		if err == nil {
			s.stats.LastStep = now.Sub(began)
			s.learn(s.stats.LastStep)
			s.deliver(out, now)
			return
		}
		if ctx.Err() != nil {
			return
		}
		if s.dropLost(err) {
			continue
		}
		s.stats.StepErrors++
		s.opt.Logger.Warn("step failed", "attempt", attempt, "sequences", len(s.batch), "error", err)
		if attempt > s.opt.StepRetries {
			failure := &InternalError{Op: "computing a step", Attempts: attempt, Err: err}
			for _, q := range s.batch {
				s.finish(q, now, Event{Err: failure})
			}
			return
		}
		attempt++
		s.batch = slices.DeleteFunc(s.batch, func(q *seq) bool { return q.cancelled.Load() })
	}
}

// forward runs one attempt at the batch.
func (s *Scheduler) forward(ctx context.Context) (*engine.Output, error) {
	s.steps, s.seqs = s.steps[:0], s.seqs[:0]
	for _, q := range s.batch {
		end := q.done + q.take
		mode := engine.NoLogits
		if end == len(q.tokens) {
			mode = engine.LastLogits
		}
		s.steps = append(s.steps, StepSeq{ID: q.id, Start: q.done, New: q.take, Tokens: q.tokens[q.done:end]})
		s.seqs = append(s.seqs, engine.Sequence{Tokens: q.tokens[q.done:end], Start: q.done, Logits: mode})
	}
	st, err := s.cache.Begin(ctx, s.steps)
	if err != nil {
		return nil, err
	}
	out, err := s.runner.Forward(ctx, s.seqs, st)
	if err != nil {
		st.Abort()
		return nil, err
	}
	return out, st.Commit()
}

// dropLost puts the sequences of a *LostError, and those that the cache evicted
// during the step, back into the queue. It reports whether there were any.
func (s *Scheduler) dropLost(err error) bool {
	dropped := false
	var lost *LostError
	if errors.As(err, &lost) {
		for _, id := range lost.IDs {
			dropped = s.evict(id, err) || dropped
		}
	}
	// An eviction may be the very reason for another error: it is no reason to
	// fail the batch.
	dropped = s.noteEvicted() || dropped
	s.batch = slices.DeleteFunc(s.batch, func(q *seq) bool { return q.state != inRunning })
	return dropped
}

// deliver advances the batch by a step that succeeded, and draws a token for
// each sequence that has all its logits.
func (s *Scheduler) deliver(out *engine.Output, now time.Time) {
	s.stats.Steps++
	s.stats.BatchTokens = 0
	row := 0
	for _, q := range s.batch {
		if q.decoding() {
			s.stats.DecodeTokens++
		} else {
			s.stats.PrefillTokens += uint64(q.take)
		}
		s.stats.BatchTokens += q.take
		q.done += q.take
		if q.done < len(q.tokens) {
			continue
		}
		if row == len(out.Logits) {
			panic(fmt.Sprintf("BUG: the model returned %d rows of logits, too few for the batch", row))
		}
		logits := out.Logits[row]
		row++
		if !q.cancelled.Load() {
			s.draw(q, logits, now)
		}
	}
	if row != len(out.Logits) {
		panic(fmt.Sprintf("BUG: the model returned %d rows of logits, the batch asked for %d", len(out.Logits), row))
	}
}

// draw samples q's next token and sends it.
func (s *Scheduler) draw(q *seq, logits []float32, now time.Time) {
	q.hash = HashRow(q.hash, logits)
	tok, err := s.opt.Sampler(logits, q.tokens[:q.prompt], q.tokens[q.prompt:], q.generated(), q.req.Sampling, &s.scratch)
	if err != nil {
		s.finish(q, now, Event{Err: &InternalError{Op: "drawing a token", Attempts: 1, Err: err}})
		return
	}
	if len(tok.Top) > 0 {
		tok.Top = append([]sampling.TopToken(nil), tok.Top...) // the scratch owns it
	}
	s.stats.Sampled++
	q.tokens = append(q.tokens, tok.ID)
	q.flow.service += outputWeight
	q.losses = 0
	if q.firstToken.IsZero() {
		q.firstToken = now
	}
	ev := Event{Token: tok, HasToken: true}
	switch {
	case !q.req.IgnoreEOS && slices.Contains(q.req.StopIDs, tok.ID):
		ev.Finish = FinishStop
	case q.generated() == q.req.MaxTokens:
		ev.Finish = FinishLength
	default:
		q.req.Sink(ev)
		return
	}
	s.finish(q, now, ev)
}
