// Package trace turns request traces, and descriptions of synthetic load, into
// one common form: sessions of turns with arrival and think times, prompts as
// chains of spans of tokens, and answer lengths.
//
// Traces hold no text, only lengths and identities. The tokens are made up from
// a span's identity and a seed, at random or as slices of a text (Content), so
// that what a trace says is the same text is the same tokens, in every run and on
// every server, and what it does not say is different ones.
//
// Five formats are read, plain or gzipped (see Formats). Everything that a line
// says is checked before it is used; an error names line, field, value and what
// is accepted.
package trace

import (
	"fmt"
	"time"
)

// Trace is a load. It is read-only once it is made; scaling and fitting return
// new ones or belong to making it.
type Trace struct {
	Name     string    // of the file, or "synthetic"
	Format   Format    // "" for synthetic load
	Sessions []Session // by Start
	// Notes say what was left out of the file, and why.
	Notes []string
}

// Session is a conversation: turns one after the other.
type Session struct {
	ID    string
	Start time.Duration // of the first turn, since the trace's start; 0 in a Sub
	Turns []Turn
	Subs  []Sub
}

// Sub is a session that another starts, such as a sub-agent. It runs beside
// the rest of its parent.
type Sub struct {
	// After is the parent's turn that starts it; -1: it starts with the parent.
	After int
	// At is its start since the parent's; Think is the time from the answer of
	// After to it.
	At, Think time.Duration
	Session   Session
}

// KeepAll is the Turn.Keep of a turn that goes on after the whole of the turn
// before it: its prompt and the answer that the model really gave.
const KeepAll = -1

// Turn is one request.
type Turn struct {
	// At is when the trace has it, since the session's start. Think is the time
	// between the answer to the turn before and this one; in a first turn 0.
	At, Think time.Duration
	// Keep is how many tokens of the previous turn's prompt this one begins
	// with, or KeepAll. 0 in a first turn.
	Keep   int
	Append []Span
	Output int // tokens of the answer, at least 1
}

// Span is a run of tokens. Spans with equal ID and seed have equal tokens, as
// far as the shorter one goes.
type Span struct {
	ID     uint64
	Tokens int
}

// Limits on what a trace may say. They keep a damaged file from asking for more
// memory than there is.
const (
	maxTokens   = 4 << 20 // of a prompt or an answer
	maxSeconds  = 1e8     // about three years
	maxSessions = 1 << 22
)

// Size counts a trace.
type Size struct {
	Sessions     int `json:"sessions"` // subordinate ones included
	Turns        int `json:"turns"`
	PromptTokens int `json:"prompt_tokens"`
	OutputTokens int `json:"output_tokens"`
	LongestTurn  int `json:"longest_turn"` // prompt and answer
}

// Size counts sessions, turns and tokens.
func (t *Trace) Size() Size {
	var n Size
	for i := range t.Sessions {
		t.Sessions[i].count(&n)
	}
	return n
}

func (s *Session) count(n *Size) {
	n.Sessions++
	prompts := s.Prompts()
	for k, p := range prompts {
		n.Turns++
		n.PromptTokens += p
		n.OutputTokens += s.Turns[k].Output
		n.LongestTurn = max(n.LongestTurn, p+s.Turns[k].Output)
	}
	for i := range s.Subs {
		s.Subs[i].Session.count(n)
	}
}

// Prompts are the prompt lengths of the session's turns, if every answer has
// the length that it should.
func (s *Session) Prompts() []int {
	out := make([]int, len(s.Turns))
	for k, t := range s.Turns {
		switch {
		case t.Keep != KeepAll:
			out[k] = t.Keep
		case k > 0:
			out[k] = out[k-1] + s.Turns[k-1].Output
		}
		for _, sp := range t.Append {
			out[k] += sp.Tokens
		}
	}
	return out
}

// LineError says what is wrong with a line of a trace.
type LineError struct {
	File     string
	Line     int
	Field    string
	Value    string
	Accepted string
}

// Error implements error.
func (e *LineError) Error() string {
	return fmt.Sprintf("%s:%d: %s is %s: want %s", e.File, e.Line, e.Field, shorten(e.Value), e.Accepted)
}

// shorten keeps a message readable whatever the file holds.
func shorten(v string) string {
	const most = 60
	if len(v) > most {
		return fmt.Sprintf("%.*q... (%d bytes)", most, v, len(v))
	}
	return fmt.Sprintf("%q", v)
}
