package tokenizer

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestTrainMergesTheMostFrequentPair(t *testing.T) {
	// "low" 5 times, "lower" 2, "newest" 6, "widest" 3: the example of the
	// paper, without its end-of-word symbol. es and st tie with 9, then est.
	texts := []string{}
	for word, n := range map[string]int{"low": 5, "lower": 2, "newest": 6, "widest": 3} {
		for range n {
			texts = append(texts, word)
		}
	}
	data, err := Train(slices.Values(texts), minTrained+5)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"es", "est", "lo", "low", "ew"} {
		if got, _ := tok.IDToToken(int32(256 + i)); got != want {
			t.Errorf("merge %d is %q, want %q", i, got, want)
		}
	}
	if got := tok.VocabSize(); got != minTrained+5 {
		t.Errorf("%d entries, want %d", got, minTrained+5)
	}
	if id, ok := tok.TokenToID("<|im_end|>"); !ok || !tok.IsSpecial(id) || int(id) != tok.VocabSize()-1 {
		t.Errorf("<|im_end|> is token %d, special: %v", id, ok)
	}
}

func TestTrainedTokenizersRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(rapid.StringMatching(`[a-d' 0-2\n]{1,40}`), 1, 20).Draw(t, "texts")
		vocab := rapid.IntRange(minTrained, minTrained+60).Draw(t, "vocab")
		data, err := Train(slices.Values(texts), vocab)
		if err != nil {
			t.Fatal(err)
		}
		slices.Reverse(texts)
		again, err := Train(slices.Values(texts), vocab)
		if err != nil || !bytes.Equal(data, again) {
			t.Fatalf("the order of the texts matters: %v", err)
		}
		tok, err := Parse(data)
		if err != nil || tok.VocabSize() > vocab {
			t.Fatalf("%v, %d entries of %d", err, tok.VocabSize(), vocab)
		}
		for _, s := range append(texts, "Größe <|im_start|>") {
			ids, err := tok.Encode(s, EncodeOptions{})
			if err != nil || tok.Decode(ids, false) != s {
				t.Fatalf("%q becomes %q, %v", s, tok.Decode(ids, false), err)
			}
		}
	})
}

func TestTrainRefuses(t *testing.T) {
	if _, err := Train(slices.Values([]string{"a"}), 10); err == nil || !strings.Contains(err.Error(), "want 259 to 65536") {
		t.Errorf("a vocabulary of 10: %v", err)
	}
	if _, err := Train(slices.Values([]string{}), 300); err == nil {
		t.Error("no text: no error")
	}
}
