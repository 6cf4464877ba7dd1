package trace

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Shape fits a trace to a server. Zero values leave it as it is.
type Shape struct {
	// Tokens divides all lengths. Text that was shared stays shared.
	Tokens float64
	// Output divides the answers' lengths instead of Tokens, if it is not 0.
	Output float64
	// Time divides all times: 2 is twice as fast.
	Time float64
	// Rate replaces the arrivals of the sessions by a Poisson process of so
	// many a second (after Time). It is needed where the trace has none.
	Rate float64
	// MaxContext is the longest turn, prompt and answer, in tokens after
	// Tokens. A session ends before the first turn that is longer; one that has
	// none left is dropped, or with Whole, one that has any such turn.
	MaxContext int
	Whole      bool
	Seed       uint64 // of the arrivals
}

// Cut counts what did not fit.
type Cut struct {
	Sessions int `json:"sessions_dropped"`
	Turns    int `json:"turns_cut"` // those of dropped sessions included
}

// Validate reports what is out of range.
func (s *Shape) Validate() error {
	for _, f := range []struct {
		name        string
		value       float64
		least, most float64
	}{{"the divisor of lengths", s.Tokens, 1, maxTokens}, {"the divisor of answers", s.Output, 1, maxTokens},
		{"the divisor of times", s.Time, 1e-6, 1e9}, {"the rate of sessions", s.Rate, 1e-6, 1e6}} {
		if f.value != 0 && !(f.value >= f.least && f.value <= f.most) {
			return fmt.Errorf("trace: %s is %v: want 0 (as it is) or from %.10g to %.10g", f.name, f.value, f.least, f.most)
		}
	}
	if s.MaxContext < 0 || s.MaxContext == 1 {
		return fmt.Errorf("trace: the longest context is %d: want 0 (no limit) or at least 2 tokens", s.MaxContext)
	}
	return nil
}

// Apply shapes a trace. The result shares no memory that is written.
func (s *Shape) Apply(t *Trace) (*Trace, Cut, error) {
	var cut Cut
	if err := s.Validate(); err != nil {
		return nil, cut, err
	}
	out := &Trace{Name: t.Name, Format: t.Format, Notes: slices.Clone(t.Notes)}
	for i := range t.Sessions {
		one := s.session(&t.Sessions[i])
		if s.fits(&one, &cut) {
			out.Sessions = append(out.Sessions, one)
		}
	}
	if len(out.Sessions) == 0 {
		return nil, cut, fmt.Errorf("trace: no session of %s fits into %d tokens: use a larger divisor of lengths", t.Name, s.MaxContext)
	}
	if s.Rate > 0 {
		s.arrivals(out)
	}
	return out, cut, nil
}

func (s *Shape) session(in *Session) Session {
	out := Session{ID: in.ID, Start: s.time(in.Start), Turns: make([]Turn, len(in.Turns))}
	for k, t := range in.Turns {
		out.Turns[k] = s.turn(t)
	}
	for _, sub := range in.Subs {
		out.Subs = append(out.Subs, Sub{After: sub.After, At: s.time(sub.At), Think: s.time(sub.Think), Session: s.session(&sub.Session)})
	}
	return out
}

func (s *Shape) time(d time.Duration) time.Duration {
	if s.Time == 0 {
		return d
	}
	return time.Duration(float64(d) / s.Time)
}

// turn divides places in the prompt, not lengths: so the same blocks begin and
// end at the same tokens wherever they follow the same text, and nothing adds up
// to more than the whole.
func (s *Shape) turn(t Turn) Turn {
	out := Turn{At: s.time(t.At), Think: s.time(t.Think), Keep: t.Keep, Output: t.Output, Append: t.Append}
	if by := cmp.Or(s.Output, s.Tokens); by > 1 {
		out.Output = max(1, int(math.Round(float64(t.Output)/by)))
	}
	if s.Tokens <= 1 {
		return out
	}
	at := func(place int) int { return int(float64(place) / s.Tokens) }
	place := max(0, t.Keep)
	if t.Keep != KeepAll {
		out.Keep = at(place)
	}
	out.Append = nil
	for _, sp := range t.Append {
		n := at(place+sp.Tokens) - at(place)
		if place += sp.Tokens; n > 0 {
			out.Append = append(out.Append, Span{sp.ID, n})
		}
	}
	if len(out.Append) == 0 && out.Keep <= 0 {
		out.Append = []Span{{t.Append[len(t.Append)-1].ID, 1}} // no prompt is empty
	}
	return out
}

// fits cuts a session to the longest context; false if nothing is left.
func (s *Shape) fits(one *Session, cut *Cut) bool {
	if s.MaxContext == 0 {
		return true
	}
	n := len(one.Turns)
	for k, p := range one.Prompts() {
		if p+one.Turns[k].Output > s.MaxContext {
			n = k
			break
		}
	}
	if n < len(one.Turns) && (s.Whole || n == 0) {
		var all Size
		one.count(&all)
		cut.Sessions += all.Sessions
		cut.Turns += all.Turns
		return false
	}
	cut.Turns += len(one.Turns) - n
	one.Turns = one.Turns[:n]
	kept := one.Subs[:0]
	for i := range one.Subs {
		sub := &one.Subs[i]
		if sub.After >= n {
			var all Size
			sub.Session.count(&all)
			cut.Sessions += all.Sessions
			cut.Turns += all.Turns
		} else if s.fits(&sub.Session, cut) {
			kept = append(kept, *sub)
		}
	}
	one.Subs = kept
	return true
}

// arrivals draws the times of a Poisson process.
func (s *Shape) arrivals(t *Trace) {
	rng := rand.New(rand.NewPCG(s.Seed, 0xa221))
	var at float64
	for i := range t.Sessions {
		t.Sessions[i].Start = time.Duration(at * float64(time.Second))
		at += rng.ExpFloat64() / s.Rate
	}
}

// Timeless reports whether a trace has no arrivals of its own: everything
// starts at once.
func (t *Trace) Timeless() bool {
	return !slices.ContainsFunc(t.Sessions, func(s Session) bool { return s.Start > 0 })
}

// Single reports whether no session has more than one turn.
func (t *Trace) Single() bool {
	return !slices.ContainsFunc(t.Sessions, func(s Session) bool { return len(s.Turns) > 1 || len(s.Subs) > 0 })
}
