package scheduler

import (
	"time"
)

// tolerance is by how much streaming may lower the tokens per second while others
// wait: prompts that are computed in the same steps hide streams that this leaves
// out.
const tolerance = 1.1

// unfinished is the least share of the mean answer that is expected of a request
// that has outlived it.
const unfinished = 0.25

// Streams is what admitting a sequence would have every step stream.
type Streams struct {
	// Now is how long the streams take that admitting it at once adds to every
	// step, its own and those of others whose KV makes way for it; Alone is how
	// long its own would take if nobody else ran.
	Now, Alone time.Duration
}

// worthStreaming decides whether q runs at once although that adds streams to
// every step, or waits until somebody else ends.
//
// Streaming costs q, and those that run beside it, a longer step for each token
// that q will probably draw; those with all KV at home lose less, since the
// others take turns (takeTurns). Waiting costs q the time until the next of them
// probably ends. The cheaper is chosen; and since lengths of answers are guesses,
// q has waited enough when it has waited as long as streaming would have cost:
// the rule of ski rental (Karlin et al. 1988), at most twice the cost of knowing
// the future. The caller asks again whenever memory has changed.
//
// While others wait behind q the server is at its limit, and what counts is how
// much it gets done: then q waits for as long as fewer tokens a second would be drawn
// with it than without it. Those that run end, so that it is never longer than it
// would be without borrowed memory.
func (s *Scheduler) worthStreaming(q *seq, st Streams, now time.Time) bool {
	if len(s.running) == 0 {
		return true
	}
	if s.queue.n > 1 && s.slower(q, st) {
		return false
	}
	cost, wait := s.streamCost(q, st)
	cost = min(cost, s.opt.BypassTime/2)
	if q.waitsSince.IsZero() {
		q.waitsSince = now
	}
	q.waitsUntil = q.waitsSince.Add(cost)
	return wait >= cost || !now.Before(q.waitsUntil)
}

// slower reports that with q beside them fewer tokens a second are drawn than
// without: its streams make every step longer by more than its own token is worth.
func (s *Scheduler) slower(q *seq, st Streams) bool {
	var work Work
	var streams time.Duration
	for _, r := range s.running {
		work.Add(len(r.tokens)-1, 1)
		streams += r.stream
	}
	before := max(s.cost.Step(work), streams)
	work.Add(len(q.tokens)-1, 1)
	after := max(s.cost.Step(work), streams+st.Now)
	n := len(s.running)
	return tolerance*float64(n+1)*before.Seconds() < float64(n)*after.Seconds()
}

// streamCost estimates what streaming costs all requests together, and how long
// it takes until the first of those that run ends.
func (s *Scheduler) streamCost(q *seq, st Streams) (cost, wait time.Duration) {
	var work Work
	var streams time.Duration
	for _, r := range s.running {
		work.Add(len(r.tokens)-1, 1)
		streams += r.stream
	}
	before := max(s.cost.Step(work), streams)
	work.Add(len(q.tokens)-1, 1)
	computing := s.cost.Step(work)
	if computing == 0 {
		return 0, 0 // nothing is known
	}
	longer := max(computing, streams+st.Now)
	own := longer - max(computing, min(st.Alone, streams+st.Now))
	others := longer - max(computing, streams)
	home := min(others, time.Duration(s.opt.StreamFactor*float64(computing)))
	left := s.expected(q)
	cost = time.Duration(left * float64(own))
	first := -1.0
	for _, r := range s.running {
		theirs := s.expected(r)
		if first < 0 || theirs < first {
			first = theirs
		}
		loss := others
		if r.stream == 0 {
			loss = home
		}
		cost += time.Duration(min(left, theirs) * float64(loss))
	}
	return cost, time.Duration(first * float64(before))
}

// expected is how many more tokens a request will probably draw.
func (s *Scheduler) expected(q *seq) float64 {
	most := float64(q.req.MaxTokens - q.generated())
	if s.answer == 0 {
		return most
	}
	return min(most, max(s.answer-float64(q.generated()), s.answer*unfinished))
}

// noteLength keeps the mean length of answers.
func (s *Scheduler) noteLength(tokens int) {
	if s.answer == 0 {
		s.answer = float64(tokens)
	}
	s.answer += (float64(tokens) - s.answer) / 16
}

// rethink reports that q, which rather waited than streamed, has waited enough.
func (q *seq) rethink(now time.Time) bool {
	return !q.waitsUntil.IsZero() && !now.Before(q.waitsUntil)
}
