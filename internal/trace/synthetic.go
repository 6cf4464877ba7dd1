package trace

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"
)

// Synthetic describes conversations that no trace holds.
type Synthetic struct {
	Sessions int
	Rate     float64 // sessions that begin per second, a Poisson process
	// Turns is the mean number of turns; their number is geometric, so that
	// most conversations are short and some long.
	Turns float64
	Think time.Duration // mean, exponential
	// First, Next and Answer are median lengths in tokens of a conversation's
	// first message, of the others and of the answers; their logarithms are
	// normal with the deviation Sigma, as ShareGPT's are.
	First, Next, Answer float64
	Sigma               float64
	// Lengths, if it has any, replaces First, Next and Answer: messages and
	// answers get the lengths of requests drawn from its turns.
	Lengths *Trace
	// System is the length of a system prompt that the share SystemShare of
	// the conversations begins with.
	System      int
	SystemShare float64
	Seed        uint64
}

// DefaultSynthetic are short conversations for the small built-in models.
func DefaultSynthetic() Synthetic {
	return Synthetic{Sessions: 32, Rate: 4, Turns: 4, Think: 500 * time.Millisecond, First: 160, Next: 60, Answer: 24, Sigma: 0.7,
		System: 64, SystemShare: 1}
}

// maxTurns bounds a conversation.
const maxTurns = 1000

// Validate reports what is out of range.
func (s *Synthetic) Validate() error {
	bad := func(name string, v any, accepted string) error {
		return fmt.Errorf("synthetic load: %s is %v: want %s", name, v, accepted)
	}
	within := func(v, least, most float64) bool { return v >= least && v <= most } // no NaN passes
	switch {
	case s.Sessions < 1 || s.Sessions > maxSessions:
		return bad("the number of sessions", s.Sessions, fmt.Sprintf("from 1 to %d", maxSessions))
	case !within(s.Rate, 1e-6, 1e6):
		return bad("the rate of sessions", s.Rate, "from 0.000001 to 1000000 per second")
	case !within(s.Turns, 1, maxTurns):
		return bad("the mean number of turns", s.Turns, fmt.Sprintf("from 1 to %d", maxTurns))
	case s.Think < 0 || s.Think.Seconds() > maxSeconds:
		return bad("the mean time to think", s.Think, fmt.Sprintf("from 0 to %g s", maxSeconds))
	case !within(s.First, 1, maxTokens) || !within(s.Next, 1, maxTokens) || !within(s.Answer, 1, maxTokens):
		return bad("the median lengths of first message, next and answer", []float64{s.First, s.Next, s.Answer}, fmt.Sprintf("from 1 to %d tokens", maxTokens))
	case !within(s.Sigma, 0, 4):
		return bad("the deviation of the lengths' logarithms", s.Sigma, "from 0 to 4")
	case s.System < 0 || s.System > maxTokens:
		return bad("the length of the system prompt", s.System, fmt.Sprintf("from 0 to %d tokens", maxTokens))
	case !within(s.SystemShare, 0, 1):
		return bad("the share of conversations with the system prompt", s.SystemShare, "from 0 to 1")
	}
	return nil
}

// Make makes the conversations. Equal descriptions make equal ones.
func (s *Synthetic) Make() (*Trace, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(s.Seed, 0x57a7))
	lengths := s.drawer(rng)
	t := &Trace{Name: "synthetic"}
	var at float64
	for i := range s.Sessions {
		one := Session{ID: strconv.Itoa(i), Start: time.Duration(at * float64(time.Second))}
		at += rng.ExpFloat64() / s.Rate
		system := rng.Float64() < s.SystemShare && s.System > 0
		for k := range s.turns(rng) {
			in, out := lengths(k == 0)
			turn := Turn{Keep: KeepAll, Output: out, Append: []Span{{spanID(kindOwn, uint64(i), uint64(k)), in}}}
			if k > 0 {
				turn.Think = time.Duration(rng.ExpFloat64() * float64(s.Think))
				turn.At = one.Turns[k-1].At + turn.Think
			} else if turn.Keep = 0; system {
				turn.Append = append([]Span{{spanID(kindSystem, 0, 0), s.System}}, turn.Append...)
			}
			one.Turns = append(one.Turns, turn)
		}
		t.Sessions = append(t.Sessions, one)
	}
	return t, nil
}

// turns draws a geometric number with the mean Turns.
func (s *Synthetic) turns(rng *rand.Rand) int {
	if s.Turns == 1 {
		return 1
	}
	return min(maxTurns, 1+int(math.Log(1-rng.Float64())/math.Log(1-1/s.Turns)))
}

// drawer draws lengths of a message and its answer.
func (s *Synthetic) drawer(rng *rand.Rand) func(first bool) (in, out int) {
	if s.Lengths != nil {
		var pairs [][2]int
		for i := range s.Lengths.Sessions {
			one := &s.Lengths.Sessions[i]
			for k, p := range one.Prompts() {
				pairs = append(pairs, [2]int{p, one.Turns[k].Output})
			}
		}
		if len(pairs) > 0 {
			return func(bool) (int, int) {
				p := pairs[rng.IntN(len(pairs))]
				return p[0], p[1]
			}
		}
	}
	normal := func(median float64) int {
		return int(min(maxTokens, max(1, math.Round(median*math.Exp(s.Sigma*rng.NormFloat64())))))
	}
	return func(first bool) (int, int) {
		if first {
			return normal(s.First), normal(s.Answer)
		}
		return normal(s.Next), normal(s.Answer)
	}
}
