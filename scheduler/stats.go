package scheduler

import "time"

// Stats is a Scheduler's state and its counters since New.
type Stats struct {
	Waiting, Running int
	// Draining: no more requests are taken.
	Draining bool

	Steps         uint64
	PrefillTokens uint64 // computed in prefill, recomputation included
	DecodeTokens  uint64 // computed one by one
	Sampled       uint64 // tokens drawn
	// PromptTokens counts the prompts of requests admitted for the first time,
	// CachedTokens how many of their tokens a PrefixCache had.
	PromptTokens, CachedTokens uint64

	// Preemptions counts sequences that lost their KV to another sequence,
	// Evictions those that lost it to the cache (Evicted or *LostError);
	// LostTokens is how many tokens of KV that was.
	Preemptions, Evictions, LostTokens uint64
	// Bypasses counts requests admitted before one that waited for memory.
	Bypasses uint64
	// Refusals counts ErrWait of Reserve and Admit.
	Refusals uint64
	// SatOut counts steps that sequences sat out because their KV is streamed.
	SatOut uint64
	// RatherWaited counts the times that a request was left in the queue
	// because streaming would have cost more than waiting.
	RatherWaited uint64
	// StepErrors counts failed steps, *LostError excepted.
	StepErrors uint64

	Finished FinishCounts
	// LastStep is how long the last step took, Begin to Commit.
	LastStep time.Duration
	// BatchTokens is how many tokens the last step computed.
	BatchTokens int
	// Cost is what was learned from the steps so far.
	Cost CostStats
}

// FinishCounts counts ended requests by how they ended.
type FinishCounts struct{ Stop, Length, Cancelled, Failed uint64 }

func (c *FinishCounts) count(ev *Event) {
	switch {
	case ev.Err != nil:
		c.Failed++
	case ev.Finish == FinishStop:
		c.Stop++
	case ev.Finish == FinishLength:
		c.Length++
	default:
		c.Cancelled++
	}
}

// Stats returns the state as of the last step boundary; Waiting counts
// requests submitted since then as well.
func (s *Scheduler) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.published
	st.Running = int(s.nRunning.Load())
	st.Waiting = s.waiting()
	st.Draining = s.draining
	return st
}

// pace estimates how often a request ends, which is how often one leaves the
// queue.
type pace struct {
	last     time.Time
	interval time.Duration // smoothed; 0: unknown
}

func (p *pace) ended(now time.Time) {
	if !p.last.IsZero() {
		d := now.Sub(p.last)
		if p.interval == 0 {
			p.interval = d
		}
		p.interval += (d - p.interval) / 8
	}
	p.last = now
}

// retryAfter is when about n more requests will have ended.
func (p *pace) retryAfter(n int) time.Duration {
	return min(max((time.Duration(n)*p.interval).Round(time.Second), time.Second), time.Minute)
}
