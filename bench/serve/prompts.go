package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvlend/kvlend/engine/tokenizer"
	"github.com/kvlend/kvlend/internal/dialogue"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/internal/trace"
)

// Prompts says what prompts are made of. Their lengths and what they share with
// others is the trace's to say.
type Prompts string

// Contents of prompts.
const (
	// PromptsDialogue: slices of dialogues such as the built-in models were
	// trained on, with names and values that were held out.
	PromptsDialogue Prompts = "dialogue"
	// PromptsRandom: token ids drawn at random.
	PromptsRandom Prompts = "random"
)

// AllPrompts lists the contents of prompts.
func AllPrompts() []Prompts { return []Prompts{PromptsDialogue, PromptsRandom} }

// The text that prompts are slices of is made before anything is measured. It is
// longer than any one prompt, and short enough to be made in a moment and to be
// tokenized by a server that is asked for it.
const (
	textTokens     = 128 << 10 // at least
	dialogueTokens = 4 << 10   // of one dialogue, about
)

// The marks of ChatML that dialogues have.
const (
	markStart = "<|im_start|>"
	markEnd   = "<|im_end|>"
)

// encode turns text with special tokens into token ids, and adds none.
type encode func(text string) ([]int32, error)

// errNoMarks is the error of a tokenizer that dialogues cannot be written with.
var errNoMarks = errors.New("its tokenizer does not have the marks of ChatML")

// contents chooses what the prompts of every part are made of, and makes it.
func (r *run) contents(ctx context.Context) error {
	r.opt.Progress(Progress{"making prompts", 0, 0})
	for _, p := range r.parts {
		p.content = trace.Content{Seed: r.opt.Seed, Vocab: r.opt.Vocab}
		r.res.Prompts[p.model] = string(PromptsRandom)
		if r.opt.Prompts == PromptsRandom {
			continue
		}
		text, err := r.text(ctx, p.model)
		switch {
		case err == nil:
			p.content.Text, r.res.Prompts[p.model] = text, string(PromptsDialogue)
		case ctx.Err() != nil:
			return ctx.Err()
		case r.opt.Prompts == PromptsDialogue:
			return fmt.Errorf("serve: dialogues for %s: %w", p.model, err)
		default:
			r.res.Notes = append(r.res.Notes, fmt.Sprintf("the prompts of %s are random token ids below %d: %v", p.model, r.opt.Vocab, err))
		}
	}
	return nil
}

// text is the text that a model's prompts are slices of.
func (r *run) text(ctx context.Context, model string) (*trace.Text, error) {
	if r.opt.URL != "" {
		g := newGateway(r.opt.URL, r.opt.Key, model, r.opt.Timeout)
		defer g.close()
		return dialogues(r.opt.Seed, func(text string) ([]int32, error) { return g.tokenize(ctx, text) })
	}
	m, _ := r.opt.Systems[0].Config.Model(model)
	text, err := source.LoadText(m)
	if err != nil {
		return nil, err
	}
	return dialogues(r.opt.Seed, func(s string) ([]int32, error) {
		return text.Tokenizer.Encode(s, tokenizer.EncodeOptions{ParseSpecial: true})
	})
}

// dialogues is the text of a seed, for Content. Its slices begin with messages of
// the user.
func dialogues(seed uint64, enc encode) (*trace.Text, error) {
	var marks []int32
	for _, name := range []string{markStart, markEnd} {
		ids, err := enc(name)
		if err != nil {
			return nil, err
		}
		if len(ids) != 1 {
			return nil, fmt.Errorf("%w: %s is %d tokens", errNoMarks, name, len(ids))
		}
		marks = append(marks, ids[0])
	}
	user, err := enc(markStart + "user\n")
	if err != nil {
		return nil, err
	}
	var tokens []int32
	for n := uint64(0); len(tokens) < textTokens; n++ {
		// How many tokens a dialogue really has does not matter: none are counted.
		d, err := dialogue.Generate(seed, n, dialogue.Options{Tokens: dialogueTokens, HeldOut: true})
		if err != nil {
			return nil, err
		}
		var text strings.Builder
		for _, m := range d.Messages {
			text.WriteString(m.Text())
		}
		ids, err := enc(text.String())
		if err != nil {
			return nil, err
		}
		if len(ids) == 0 {
			return nil, fmt.Errorf("a dialogue of %d bytes has no tokens", text.Len())
		}
		tokens = append(tokens, ids...)
	}
	var starts []int
	for i := range tokens {
		// The mark and what follows tell the user from the assistant.
		if slices.Equal(tokens[i:min(len(tokens), i+2)], user[:min(len(user), 2)]) {
			starts = append(starts, i)
		}
	}
	return trace.NewText(tokens, starts, marks...)
}
