package scheduler

import (
	"cmp"
	"slices"
	"time"
)

// lightShare is how much less than the most a sequence streams that does not take
// turns with those that stream most.
const lightShare = 4

// takeTurns decides which decoding sequences sit out the step because their
// borrowed KV would have to be streamed for it.
//
// Every step streams the borrowed blocks of every sequence in it once, beside
// the computing. As long as that takes no longer than StreamFactor times the
// computing of all decoding sequences, all take part. If it takes longer, those
// whose KV is at home, or nearly all of it (a quarter of the most that anybody
// streams), would wait for the streams of others at every token. Then those
// others take turns, who waited longest first:
//
//   - as many as StreamFactor times the computing covers, with what the light ones
//     stream, take part in a step;
//   - in every second step at least so many take part that all have had a turn
//     within StreamTurns steps, though the step gets longer;
//   - who has sat out StreamTurns-1 steps takes part, whatever it costs.
//
// Sequences with nobody lighter beside them have nobody to wait for them: all
// take part. While nothing is known of the computing it counts as nothing, so
// that steps without streams are there to learn from.
func (s *Scheduler) takeTurns() {
	if s.coster == nil {
		return
	}
	s.streamed = s.streamed[:0]
	all := 0
	var work Work
	var total, most time.Duration
	for _, q := range s.running {
		q.sitsOut = false
		if _, q.stream = s.coster.StepCost(q.id); q.stalled || !q.decoding() {
			continue
		}
		work.Add(q.done, 1)
		all++
		total += q.stream
		most = max(most, q.stream)
	}
	computing := s.cost.Step(work)
	hidden := time.Duration(s.opt.StreamFactor * float64(computing))
	light := time.Duration(0)
	for _, q := range s.running {
		switch {
		case q.stream <= 0 || q.stalled || !q.decoding():
		case q.stream <= most/lightShare:
			light += q.stream
		default:
			s.streamed = append(s.streamed, q)
		}
	}
	if len(s.streamed) == all || total <= hidden {
		s.longStep = false
		for _, q := range s.streamed {
			q.satOut = 0
		}
		return
	}
	s.rotate(max(hidden, light), light)
}

// rotate picks from streamed, beside what the others stream.
func (s *Scheduler) rotate(hidden, used time.Duration) {
	slices.SortStableFunc(s.streamed, func(a, b *seq) int { return cmp.Compare(b.satOut, a.satOut) })
	share := 0
	if !s.longStep {
		share = (2*len(s.streamed) + s.opt.StreamTurns - 1) / s.opt.StreamTurns
	}
	taken := 0
	for _, q := range s.streamed {
		if q.satOut < s.opt.StreamTurns-1 && taken >= share && used+q.stream > hidden {
			q.satOut++
			q.sitsOut = true
			s.stats.SatOut++
			continue
		}
		q.satOut = 0
		used += q.stream
		taken++
	}
	s.longStep = used > hidden
}

// learn feeds a measured step to the cost model, before its sequences advance.
// A step that took less than twice as long as its streams says little of
// computing.
func (s *Scheduler) learn(d time.Duration) {
	var work Work
	var streams time.Duration
	for _, q := range s.batch {
		work.Add(q.done, q.take)
		streams += q.stream
	}
	if d >= 2*streams {
		s.cost.Observe(work, d)
	}
}
