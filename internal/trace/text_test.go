package trace

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// counted is a text of n tokens that are their own places, 0 a mark. Slices
// begin at every tenth.
func counted(t testing.TB, n int) *Text {
	t.Helper()
	tokens := make([]int32, n)
	var starts []int
	for i := range tokens {
		tokens[i] = int32(i)
		if i%10 == 0 {
			starts = append(starts, i)
		}
	}
	x, err := NewText(tokens, starts, 0)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestTextSlices: a span is words and a slice, has the length that it should, and
// is the beginning of a longer one; other spans and other seeds begin otherwise.
func TestTextSlices(t *testing.T) {
	const all = 1000
	x := counted(t, all)
	if x.Len() != all || x.open != 5 { // 5 words of 999 make 49 bits, 4 make 39
		t.Fatalf("%d tokens, %d words open a span", x.Len(), x.open)
	}
	rapid.Check(t, func(t *rapid.T) {
		c := Content{Seed: rapid.Uint64().Draw(t, "seed"), Text: x, Vocab: 7}
		s := Span{ID: rapid.Uint64().Draw(t, "id"), Tokens: rapid.IntRange(0, 3*all).Draw(t, "tokens")}
		before := []int32{5, 6}
		got := c.Add(before, s)
		if len(got) != 2+s.Tokens || !slices.Equal(got[:2], before) {
			t.Fatalf("%d tokens after 2, want %d", len(got), s.Tokens)
		}
		got = got[2:]
		longer := s
		longer.Tokens += rapid.IntRange(0, all).Draw(t, "more")
		if !slices.Equal(c.Add(nil, longer)[:s.Tokens], got) {
			t.Fatalf("%d tokens are not the beginning of %d", s.Tokens, longer.Tokens)
		}
		words := got[:min(len(got), x.open)]
		if slices.Contains(words, 0) {
			t.Fatal("a mark opens a span")
		}
		for i, tok := range got[len(words):] {
			if first := got[len(words)]; first%10 != 0 || int(tok) != (int(first)+i)%all {
				t.Fatalf("token %d of a slice from %d is %d", i, first, tok)
			}
		}
		if s.Tokens < x.open {
			return
		}
		other := Span{s.ID + 1 + rapid.Uint64Max(1<<40).Draw(t, "to another"), s.Tokens}
		if slices.Equal(c.Add(nil, other)[:x.open], words) {
			t.Fatal("two spans begin with the same words")
		}
		c.Seed++
		if slices.Equal(c.Add(nil, s)[:x.open], words) {
			t.Fatal("two seeds begin with the same words")
		}
	})
}

// TestTextsDiffer: among very many texts, about as many words as a small
// vocabulary has, no two begin with the same block.
func TestTextsDiffer(t *testing.T) {
	const block, many = 16, 200_000
	for _, words := range []int{60, 900} {
		c := Content{Seed: 1, Text: counted(t, words)}
		seen := make(map[[block]int32]bool, many)
		for i := range uint64(many) {
			seen[[block]int32(c.Add(nil, Span{spanID(kindOwn, i, 0), block}))] = true
		}
		if len(seen) != many {
			t.Errorf("%d of %d texts of %d words begin with the same %d tokens as another", many-len(seen), many, words, block)
		}
	}
}

func TestNewTextBadInput(t *testing.T) {
	for want, f := range map[string]func() (*Text, error){
		"0 different words":              func() (*Text, error) { return NewText(nil, nil) },
		"1 different words":              func() (*Text, error) { return NewText([]int32{1, 2, 1, 3}, []int{0}, 2, 3) },
		"starts is empty":                func() (*Text, error) { return NewText([]int32{1, 2}, nil) },
		"from -1 to 1, want from 0 to 1": func() (*Text, error) { return NewText([]int32{1, 2}, []int{1, -1}) },
		"from 0 to 2, want from 0 to 1":  func() (*Text, error) { return NewText([]int32{1, 2}, []int{0, 2}) },
	} {
		if _, err := f(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// BenchmarkPrompt makes the prompt of a late turn: 4,000 tokens of before and 160
// new ones; and one of 4,000 new tokens.
func BenchmarkPrompt(b *testing.B) {
	before := make([]int32, 4000)
	text := counted(b, 1<<17)
	for name, c := range map[string]Content{"random": {Vocab: 256}, "text": {Text: text}} {
		for kind, t := range map[string]*Turn{
			"late":  {Keep: KeepAll, Append: []Span{{7, 160}}},
			"first": {Append: []Span{{7, 4000}}},
		} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				b.ReportAllocs()
				prompt := before
				if t.Keep != KeepAll {
					prompt = nil
				}
				for b.Loop() {
					c.Prompt(t, prompt, nil)
				}
			})
		}
	}
}
