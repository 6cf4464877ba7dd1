// Package dialogue makes dialogues for a model to learn to remember: a user
// states facts, talks of other things, corrects some facts and asks about
// them later, and an assistant answers. Every word comes from a seed, so that
// the same dialogue can be made anywhere at any time. Each question carries its
// answer, its kind and its distance from what it asks for, so that the same
// dialogues measure what a model recalls.
//
// Names, values and phrasings are split in two: those for training and those
// held out for evaluation (Options.HeldOut). The two sides share only the
// small talk, the words that the assistant answers with and the syllables.
package dialogue

import (
	"fmt"
	"slices"
)

// Message is one turn.
type Message struct {
	Role    string `json:"role"` // "user" or "assistant"
	Content string `json:"content"`
}

// Text is the message in ChatML, which is how models see it.
func (m Message) Text() string {
	return "<|im_start|>" + m.Role + "\n" + m.Content + "<|im_end|>\n"
}

// Kind is a kind of question.
type Kind string

// The kinds of questions.
const (
	Recall    Kind = "recall"    // a fact as it was told
	Corrected Kind = "corrected" // a fact that was corrected: the last value counts
	Unknown   Kind = "unknown"   // something that was never told
	Count     Kind = "count"     // how many facts were told about someone
	About     Kind = "about"     // all that was told about someone
)

// Kinds lists the kinds of questions.
func Kinds() []Kind { return []Kind{Recall, Corrected, Unknown, Count, About} }

// Fact is one thing that the user said, or a correction of it.
type Fact struct {
	Entity    string `json:"entity"` // "" is the user
	Attribute string `json:"attribute"`
	Value     string `json:"value"`
	Message   int    `json:"message"` // index of the user's message
	Corrects  bool   `json:"corrects,omitempty"`
}

// Question is a question of the user.
type Question struct {
	Kind      Kind   `json:"kind"`
	Message   int    `json:"message"` // index of the assistant's answer; the question stands before it
	Entity    string `json:"entity"`
	Attribute string `json:"attribute,omitempty"`
	// Value is what an answer must contain to be right: the fact's value, or
	// for the kind Count a number, 0 spelled "nothing"; for the others Answer.
	Value  string `json:"value"`
	Answer string `json:"answer"` // in the assistant's own words
	// Distance is the number of tokens from the end of the exchange that last
	// mentioned what the answer needs (of several facts, the one longest ago)
	// to the question. It is 0 where there is no such fact.
	Distance int `json:"distance"`
	Facts    int `json:"facts"` // facts told before the question
}

// Dialogue is what Generate makes. Messages alternate, the user's first.
type Dialogue struct {
	Messages  []Message  `json:"messages"`
	Facts     []Fact     `json:"facts"`
	Questions []Question `json:"questions"`
	Tokens    int        `json:"tokens"` // by Options.Count
}

// Options say what a dialogue is like. The zero value of a field leaves the
// choice to the seed, except where it says otherwise.
type Options struct {
	// Tokens is the length that the dialogue comes near to and never exceeds,
	// at least MinTokens.
	Tokens int
	// Facts is how many facts are told, corrections not counted.
	Facts int
	// Kind is the kind of the last question.
	Kind Kind
	// Distance is about how many tokens lie between the last question, of kind
	// Recall or Corrected, and what it asks for, which nothing mentions in
	// between. It turns all other questions off.
	Distance int
	// Quiet leaves all questions out: they are asked afterwards (Probes). Facts
	// are told anywhere and about a quarter corrected, but with kind Recall none
	// and with kind Corrected at least one.
	Quiet bool
	// HeldOut selects the names, values and phrasings for evaluation.
	HeldOut bool
	// Casual has the user type as people do, without capital letters here and
	// there, the last full stop, or British spelling, and name towns, colours,
	// foods and pets that are in no list.
	Casual bool
	// Count returns the tokens of a message's Text; nil is Estimate.
	Count func(text string) int
}

// MinTokens and MaxTokens bound Options.Tokens.
const (
	MinTokens = 224
	MaxTokens = 1 << 20
)

// The tokens that a fact and the last question need at most, about.
const (
	factTokens  = 64
	finalTokens = 80
)

// Estimate is the number of tokens of a message's Text, about, with a
// vocabulary in which most words are one token: one for each six letters of a
// word, each other character that is not a space, and each mark of ChatML.
func Estimate(text string) int {
	n, run, mark := 0, 0, false
	for _, c := range text {
		switch {
		case mark:
			mark = c != '>'
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
			if run%6 == 0 {
				n++
			}
			run++
		default:
			run = 0
			mark = c == '<'
			if c != ' ' {
				n++
			}
		}
	}
	return n
}

// Validate checks o. Errors name the field as the flag is called, its value and what
// is accepted.
func (o *Options) Validate() error {
	if o.Tokens < MinTokens || o.Tokens > MaxTokens {
		return fmt.Errorf("dialogue: tokens is %d, want at least %d and at most %d", o.Tokens, MinTokens, MaxTokens)
	}
	if most := o.mostFacts(); o.Facts < 0 || o.Facts > most {
		return fmt.Errorf("dialogue: facts is %d, want 0 to %d with %d tokens", o.Facts, most, o.Tokens)
	}
	if o.Kind != "" && !slices.Contains(Kinds(), o.Kind) {
		return fmt.Errorf("dialogue: kind is %q, want one of %v", o.Kind, Kinds())
	}
	if o.Quiet && o.Kind != "" && o.Kind != Recall && o.Kind != Corrected {
		return fmt.Errorf("dialogue: kind is %q with Quiet, want none, %s or %s", o.Kind, Recall, Corrected)
	}
	if o.Distance == 0 {
		return nil
	}
	if o.Quiet {
		return fmt.Errorf("dialogue: distance is %d with Quiet, want 0: there is no last question", o.Distance)
	}
	if o.Kind != "" && o.Kind != Recall && o.Kind != Corrected {
		return fmt.Errorf("dialogue: distance is %d with kind %s, want 0: only %s and %s have one", o.Distance, o.Kind, Recall, Corrected)
	}
	if most := o.Tokens - finalTokens - 2*factTokens; o.Distance < 0 || o.Distance > most {
		return fmt.Errorf("dialogue: distance is %d, want 0 to %d with %d tokens", o.Distance, most, o.Tokens)
	}
	return nil
}

// mostFacts is how many facts there is room for; a correction takes as much.
func (o *Options) mostFacts() int {
	n := (o.Tokens - finalTokens) / factTokens
	if o.Kind == Corrected {
		n--
	}
	return n
}

// Generate makes dialogue number n of a seed. It is deterministic and safe for
// concurrent use if Options.Count is.
func Generate(seed, n uint64, o Options) (*Dialogue, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Count == nil {
		o.Count = Estimate
	}
	b := newBuilder(newRandom(seed, n), o)
	if err := b.run(); err != nil {
		return nil, fmt.Errorf("dialogue %d of seed %d: %w", n, seed, err)
	}
	return &b.d, nil
}
