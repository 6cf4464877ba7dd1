package scheduler

import (
	"fmt"
	"time"
)

// expectAhead is how many requests of the queue a PrefixCache hears of.
const expectAhead = 8

// enter asks the cache for the memory of q, which waits: room for all that is
// known of it and one token. Where the cache keeps prefixes, q then begins
// behind what was found of it. A refusal stands until memory has changed.
func (s *Scheduler) enter(q *seq, now time.Time) error {
	patient := !q.rethink(now)
	if patient && q.refusedGen == s.memGen {
		return q.refused
	}
	q.waitsUntil = time.Time{}
	a := s.admission(q)
	if s.prefix == nil {
		return s.noteAnswer(q, a.Room, s.cache.Reserve(q.id, a.Room))
	}
	a.Compute = s.cost.Estimate
	if s.coster != nil && patient {
		a.Worth = func(st Streams) bool {
			if s.worthStreaming(q, st, now) {
				return true
			}
			s.stats.RatherWaited++
			return false
		}
	}
	cached, err := s.prefix.Admit(a)
	if err == nil {
		if cached < 0 || cached >= len(q.tokens) || cached%s.block != 0 {
			panic(fmt.Sprintf("BUG: the cache says that %d of %d tokens are cached, want whole blocks of %d and fewer than all", cached, len(q.tokens), s.block))
		}
		q.done = cached
	}
	return s.noteAnswer(q, a.Room, err)
}

func (s *Scheduler) admission(q *seq) Admission {
	return Admission{
		ID:     q.id,
		Root:   q.root,
		Tokens: q.tokens,
		Room:   q.room(min(len(q.tokens)+1, q.maxKV()), s.block),
	}
}

// firstAdmission keeps the account of what q found in the cache, before q has
// any KV of its own there, and charges its tenant for the rest of the prompt.
func (s *Scheduler) firstAdmission(q *seq) {
	s.stats.PromptTokens += uint64(q.prompt)
	if s.prefix != nil {
		q.cached, q.receipt = q.done, s.prefix.Receipt(q.id)
		s.stats.CachedTokens += uint64(q.cached)
	}
	q.flow.service += uint64(q.prompt - q.cached)
}

// expect tells the cache which requests come next, once each until memory has
// changed, so that it can bring nearer what they will find.
func (s *Scheduler) expect() {
	if s.prefix == nil {
		return
	}
	s.peeked = s.queue.ahead(s.peeked[:0], expectAhead)
	for _, q := range s.peeked {
		if q.expectedGen != s.memGen {
			q.expectedGen = s.memGen
			s.prefix.Expect(s.admission(q))
		}
	}
}
