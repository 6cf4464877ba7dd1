package trace

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// openBits is how much of a span's identity is in the words that open it. Even
// of a million spans hardly two begin with the same.
const openBits = 40

// Text is tokens of real text. Content takes its tokens from it in slices: a
// span is a few words drawn one by one, so that what the trace says is different
// text differs within its first tokens, and from there a slice that begins where
// a slice may. It is read-only, and safe for concurrent use.
type Text struct {
	tokens []int32
	starts []int   // of slices
	words  []int32 // each once, in order
	open   int     // words that open a span
}

// NewText makes a text. Slices begin at the indices starts; words that open
// spans are all tokens but marks, which have a meaning where they stand. The
// text goes on with its first token after its last.
func NewText(tokens []int32, starts []int, marks ...int32) (*Text, error) {
	words := slices.Clone(tokens)
	slices.Sort(words)
	words = slices.DeleteFunc(slices.Compact(words), func(w int32) bool { return slices.Contains(marks, w) })
	switch {
	case len(words) < 2:
		return nil, fmt.Errorf("trace: a text of %d tokens has %d different words, want at least 2", len(tokens), len(words))
	case len(starts) == 0:
		return nil, errors.New("trace: starts is empty, want at least 1 place in the text")
	case slices.Min(starts) < 0 || slices.Max(starts) >= len(tokens):
		return nil, fmt.Errorf("trace: starts are from %d to %d, want from 0 to %d", slices.Min(starts), slices.Max(starts), len(tokens)-1)
	}
	open := int(math.Ceil(openBits / math.Log2(float64(len(words)))))
	return &Text{tokens, starts, words, open}, nil
}

// Len is the number of tokens.
func (x *Text) Len() int { return len(x.tokens) }

// add appends n tokens of the span with this base. Fewer are the beginning of
// more.
func (x *Text) add(to []int32, base uint64, n int) []int32 {
	draw := func(i, of int) int { return int(mix(base+uint64(i)) % uint64(of)) }
	for i := range min(n, x.open) {
		to = append(to, x.words[draw(i, len(x.words))])
	}
	at := x.starts[draw(x.open, len(x.starts))]
	for n -= x.open; n > 0; {
		part := x.tokens[at:min(len(x.tokens), at+n)]
		to = append(to, part...)
		n -= len(part)
		at = 0
	}
	return to
}
