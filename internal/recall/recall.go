// Package recall measures what a model remembers of a dialogue: it makes
// dialogues of given lengths with given numbers of facts (package dialogue),
// asks questions at their end, each as a request of its own with the same
// dialogue before it, and scores the answers.
//
// Vocabulary: a cell is a length and a number of facts; a probe is one question
// at the end of one dialogue; a share is how many probes were answered right,
// with the interval that the true rate lies in, 95 times of 100.
//
// Equal options, counts of tokens and answers give equal results, whatever the
// number of clients; only a run that its time limit cut short depends on the
// clock.
package recall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlend/kvlend/internal/dialogue"
)

// Request is a dialogue and the question that follows it.
type Request struct {
	Messages  []dialogue.Message // of the dialogue, shared: not to be changed
	Question  string
	MaxTokens int // of the answer
}

// Reply is the answer to a Request and what is known of how it came about.
type Reply struct {
	Text   string
	Prompt int    // tokens of the request
	Hash   string // equal hashes mean bit-equal computation; empty: not known
	Tiers
}

// Tiers are tokens of prompts whose KV was not computed, by where it was.
type Tiers struct {
	Cached   int `json:"cached"` // all of them
	Local    int `json:"local"`
	Borrowed int `json:"borrowed"`
	Host     int `json:"host"`
	Pool     int `json:"pool"`
	// BorrowedBlocks is the most that one request held.
	BorrowedBlocks int `json:"borrowed_blocks"`
}

// ErrTooLong says that a request does not fit into the model's context.
var ErrTooLong = errors.New("longer than the model's context")

// Answerer is who is asked. It must be safe for concurrent use where
// Options.Clients is above one. Answers
// must be greedy: a probe is asked once.
type Answerer interface {
	// Ask answers a request. An error that wraps ErrTooLong leaves the
	// request's cell out; any other ends the run.
	Ask(ctx context.Context, r Request) (Reply, error)
	// Count returns the tokens of a text with the marks of ChatML.
	Count(ctx context.Context, text string) (int, error)
}

// Options of a run.
type Options struct {
	Seed      uint64          `json:"seed"`
	Lengths   []int           `json:"lengths"`   // of dialogues with their question, in tokens, at most
	Facts     []int           `json:"facts"`     // told in a dialogue
	Kinds     []dialogue.Kind `json:"kinds"`     // of questions
	Dialogues int             `json:"dialogues"` // for each length and number of facts
	Probes    int             `json:"probes"`    // for each dialogue, at most
	// TrainingWords takes the names, values and phrasings of training, not
	// those that were held out.
	TrainingWords bool `json:"training_words,omitempty"`

	Clients int `json:"-"` // requests at once; 0: one
	// Interleave is how many dialogues a client asks about in turn; 0: one. While
	// it asks about others, a dialogue's KV may have to go elsewhere.
	Interleave int `json:"-"`
	// MaxTime ends the run early; 0: no limit. Probes that were not asked then
	// are missing from the result, which says how many.
	MaxTime time.Duration `json:"-"`
	// Longest is the model's context in tokens; 0: not known.
	Longest int `json:"-"`
	// Progress is told, often, how far the run is.
	Progress func(Progress) `json:"-"`
}

// Progress of a run.
type Progress struct {
	Done, Total int // probes
	Doing       string
}

// The answers' lengths: what the longest right one needs, and no less than
// leastAnswer, so that wrong ones can be read.
const (
	leastAnswer = 48
	spareAnswer = 16
)

// Limits of options.
const (
	MaxLength    = dialogue.MaxTokens
	MaxDialogues = 10000
	MaxProbes    = 1000
	MaxClients   = 64
	MaxTurns     = 1000
)

// Validate checks o. Errors name the field as the flag is called, its value and what is accepted.
func (o *Options) Validate() error {
	for _, list := range []struct {
		name        string
		values      []int
		least, most int
	}{
		{"lengths", o.Lengths, dialogue.MinTokens, MaxLength},
		{"facts", o.Facts, 1, MaxLength / 64},
		{"dialogues", []int{o.Dialogues}, 1, MaxDialogues},
		{"probes", []int{o.Probes}, 1, MaxProbes},
		{"clients", []int{o.Clients}, 0, MaxClients},
		{"interleave", []int{o.Interleave}, 0, MaxTurns},
	} {
		if len(list.values) == 0 {
			return fmt.Errorf("recall: %s is empty, want one or more", list.name)
		}
		for i, v := range list.values {
			if v < list.least || v > list.most {
				return fmt.Errorf("recall: %s has %d, want %d to %d", list.name, v, list.least, list.most)
			}
			if slices.Contains(list.values[:i], v) {
				return fmt.Errorf("recall: %s has %d twice", list.name, v)
			}
		}
	}
	if o.MaxTime < 0 {
		return fmt.Errorf("recall: max-time is %v, want 0 or more", o.MaxTime)
	}
	if len(o.Kinds) == 0 {
		return fmt.Errorf("recall: kinds is empty, want some of %v", dialogue.Kinds())
	}
	for i, k := range o.Kinds {
		if !slices.Contains(dialogue.Kinds(), k) {
			return fmt.Errorf("recall: kinds has %q, want some of %v", k, dialogue.Kinds())
		}
		if slices.Contains(o.Kinds[:i], k) {
			return fmt.Errorf("recall: kinds has %s twice", k)
		}
	}
	return nil
}

// dialogueKind is the dialogue.Options.Kind that gives every kind of question
// that is asked something to ask about.
func (o *Options) dialogueKind() dialogue.Kind {
	recall, corrected := slices.Contains(o.Kinds, dialogue.Recall), slices.Contains(o.Kinds, dialogue.Corrected)
	switch {
	case !corrected:
		return dialogue.Recall
	case !recall:
		return dialogue.Corrected
	}
	return ""
}

// Matches reports whether probes of another run can be the same as those of o;
// the error says why not.
func (o *Options) Matches(other *Options) error {
	common := func(a, b []int) bool {
		return slices.ContainsFunc(a, func(v int) bool { return slices.Contains(b, v) })
	}
	switch {
	case o.Seed != other.Seed:
		return fmt.Errorf("recall: the seed is %d, and %d of the other run", o.Seed, other.Seed)
	case o.TrainingWords != other.TrainingWords:
		return fmt.Errorf("recall: one run has the words of training, and the other those that were held out")
	case o.dialogueKind() != other.dialogueKind():
		return fmt.Errorf("recall: the kinds are %v, and %v of the other run: only one has both %s and %s", o.Kinds, other.Kinds, dialogue.Recall, dialogue.Corrected)
	case !common(o.Lengths, other.Lengths):
		return fmt.Errorf("recall: the lengths are %v, and %v of the other run: none is common", o.Lengths, other.Lengths)
	case !common(o.Facts, other.Facts):
		return fmt.Errorf("recall: the numbers of facts are %v, and %v of the other run: none is common", o.Facts, other.Facts)
	}
	return nil
}
