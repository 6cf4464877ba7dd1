package serve

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/engine/tokenizer"
	"github.com/kvlend/kvlend/engine/trained"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/internal/trace"
)

func tokenizerOf(t testing.TB, model string) (*tokenizer.Tokenizer, encode) {
	t.Helper()
	tok, err := source.Tokenizer(model)
	if err != nil {
		t.Fatal(err)
	}
	return tok, func(s string) ([]int32, error) {
		return tok.Encode(s, tokenizer.EncodeOptions{ParseSpecial: true})
	}
}

// contentOf is dialogues in a built-in model's tokens.
func contentOf(t testing.TB, model string, seed uint64) trace.Content {
	t.Helper()
	_, enc := tokenizerOf(t, model)
	x, err := dialogues(seed, enc)
	if err != nil {
		t.Fatal(err)
	}
	return trace.Content{Seed: seed, Text: x}
}

// TestDialogueSlices: what a span holds after its first words is messages of a
// dialogue, the user's first; the same for a seed, and another for another.
func TestDialogueSlices(t *testing.T) {
	for _, model := range append(trained.Names(), "random-atlas") {
		c, same, other := contentOf(t, model, 1), contentOf(t, model, 1), contentOf(t, model, 2)
		other.Seed = c.Seed
		if n := c.Text.Len(); n < textTokens || n > textTokens+16*dialogueTokens {
			t.Errorf("%s: the text has %d tokens, want %d and little more", model, n, textTokens)
		}
		tok, _ := tokenizerOf(t, model)
		for id := range uint64(50) {
			s := trace.Span{ID: id, Tokens: 1200}
			span := c.Add(nil, s)
			if !slices.Equal(same.Add(nil, s), span) {
				t.Fatalf("%s: the same seed gives other tokens", model)
			}
			if slices.Equal(other.Add(nil, s), span) {
				t.Fatalf("%s: another seed gives the same tokens", model)
			}
			text := tok.Decode(span, false)
			words, rest, ok := strings.Cut(text, markStart+"user\n")
			if !ok || strings.Contains(words, "<|") || len(words) > 100 || !strings.Contains(rest, markEnd+"\n"+markStart+"assistant\n") {
				t.Fatalf("%s: span %d is %q", model, id, text)
			}
		}
	}
}

// TestDialoguePrompts: conversations have the lengths that they should, share
// their system prompt and nothing else, and in the tokens of the model that is asked.
func TestDialoguePrompts(t *testing.T) {
	tr, err := (&trace.Synthetic{Sessions: 300, Rate: 1, Turns: 3, First: 40, Next: 20, Answer: 5, Sigma: 0.7, System: 64, SystemShare: 1}).Make()
	if err != nil {
		t.Fatal(err)
	}
	c := contentOf(t, "birch", 1)
	tok, _ := tokenizerOf(t, "birch")
	var first [][]int32
	for i := range tr.Sessions {
		s := &tr.Sessions[i]
		var prompt, answer []int32
		for k, want := range s.Prompts() {
			before := slices.Concat(prompt, answer)
			prompt = c.Prompt(&s.Turns[k], prompt, answer)
			if len(prompt) != want || !slices.Equal(prompt[:len(before)], before) {
				t.Fatalf("session %d turn %d: %d tokens, want the %d before and %d in all", i, k, len(prompt), len(before), want)
			}
			if slices.Min(prompt) < 0 || int(slices.Max(prompt)) >= tok.VocabSize() {
				t.Fatalf("session %d turn %d: tokens from %d to %d of %d", i, k, slices.Min(prompt), slices.Max(prompt), tok.VocabSize())
			}
			answer = c.Stand(prompt, s.Turns[k].Output)
			if k == 0 {
				first = append(first, prompt)
			}
		}
	}
	slices.SortFunc(first, slices.Compare)
	for i := 1; i < len(first); i++ {
		a, b := first[i-1], first[i]
		n := 0
		for n < min(len(a), len(b)) && a[n] == b[n] {
			n++
		}
		// Chance gives some pair a few words.
		if n < 64 || n > 64+3 {
			t.Errorf("two conversations share %d tokens, want the 64 of the system prompt", n)
		}
	}
}

func TestDialoguesBadTokenizer(t *testing.T) {
	bad := errors.New("broken")
	_, good := tokenizerOf(t, "atlas")
	ones := func(n int) []int32 { return slices.Repeat([]int32{1}, n) }
	for name, tc := range map[string]struct {
		enc  encode
		is   error
		want string
	}{
		"no marks": {func(s string) ([]int32, error) { return ones(len(s)), nil }, errNoMarks, markStart + " is 12 tokens"},
		"no end": {func(s string) ([]int32, error) {
			if s == markEnd {
				return nil, nil
			}
			return good(s)
		}, errNoMarks, markEnd + " is 0 tokens"},
		"broken": {func(string) ([]int32, error) { return nil, bad }, bad, ""},
		"broken later": {func(s string) ([]int32, error) {
			if len(s) > 100 {
				return nil, bad
			}
			return good(s)
		}, bad, ""},
		"empty later": {func(s string) ([]int32, error) {
			if len(s) > 100 {
				return nil, nil
			}
			return good(s)
		}, nil, "no tokens"},
		"one word": {func(s string) ([]int32, error) { return ones(max(1, len(s)-11)), nil }, nil, "0 different words"},
	} {
		if _, err := dialogues(1, tc.enc); err == nil || tc.is != nil && !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// tokenizing is liar with a tokenizer; without, it has no such path.
func tokenizing(t *testing.T, tok *tokenizer.Tokenizer) *httptest.Server {
	inner := liar(t, false)
	t.Cleanup(inner.Close)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/tokenize" {
			inner.Config.Handler.ServeHTTP(w, r)
			return
		}
		var body struct {
			Model, Prompt string
			Add           *bool `json:"add_special_tokens"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Model != "mine" || body.Add == nil || *body.Add {
			t.Errorf("asked to tokenize %+v: %v", body, err)
		}
		if tok == nil {
			http.NotFound(w, r)
			return
		}
		ids, err := tok.Encode(body.Prompt, tokenizer.EncodeOptions{ParseSpecial: true})
		if err != nil {
			t.Error(err)
		}
		raw, err := json.Marshal(map[string]any{"tokens": ids})
		if err != nil {
			t.Error(err)
		}
		w.Write(raw)
	}))
	t.Cleanup(srv.Close)
	return srv
}

// TestPromptsOfGateway: a gateway tokenizes dialogues, if it can and nobody wants
// random prompts; the result says what was used and why.
func TestPromptsOfGateway(t *testing.T) {
	tok, _ := tokenizerOf(t, "atlas")
	one, err := (&trace.Synthetic{Sessions: 4, Rate: 1000, Turns: 1, First: 30, Next: 5, Answer: 3}).Make()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		tok           *tokenizer.Tokenizer
		prompts, used Prompts
		note, err     string
	}{
		{tok, "", PromptsDialogue, "", ""},
		{tok, PromptsDialogue, PromptsDialogue, "", ""},
		{tok, PromptsRandom, PromptsRandom, "", ""},
		{nil, "", PromptsRandom, "the prompts of mine are random token ids below 256: the server does not tokenize", ""},
		{nil, PromptsDialogue, "", "", "dialogues for mine: the server does not tokenize"},
		{nil, PromptsRandom, PromptsRandom, "", ""},
	} {
		r, err := Run(t.Context(), Options{URL: tokenizing(t, tc.tok).URL, Trace: one, Prompts: tc.prompts})
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%q: %v, want %q", tc.prompts, err, tc.err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var table strings.Builder
		if err := r.WriteTable(&table); err != nil {
			t.Fatal(err)
		}
		if r.Prompts["mine"] != string(tc.used) || !strings.Contains(table.String(), "model mine, "+string(tc.used)+" prompts") || r.Checks.Distinct != 4 {
			t.Errorf("%q: used %q, checks %+v", tc.prompts, r.Prompts, r.Checks)
		}
		told := slices.ContainsFunc(r.Notes, func(n string) bool { return strings.HasPrefix(n, "the prompts of") })
		if told != (tc.note != "") || !strings.Contains(table.String(), tc.note) {
			t.Errorf("%q: notes %q, want %q", tc.prompts, r.Notes, tc.note)
		}
	}
}

// TestPromptsOfSystems: systems that are started have their models' tokenizers.
func TestPromptsOfSystems(t *testing.T) {
	s, err := Baseline("lending", configs.Default())
	if err != nil {
		t.Fatal(err)
	}
	opt := Options{Trace: small(t), Beside: []Beside{{"birch", small(t)}}, Binary: "b", Systems: []System{s}}
	if err := opt.setDefaults(); err != nil {
		t.Fatal(err)
	}
	r := &run{opt: opt}
	if err := r.fit(t.Context()); err != nil {
		t.Fatal(err)
	}
	span := trace.Span{ID: 1, Tokens: 64}
	for _, p := range r.parts {
		want := contentOf(t, p.model, opt.Seed).Add(nil, span)
		if r.res.Prompts[p.model] != "dialogue" || !slices.Equal(p.content.Add(nil, span), want) {
			t.Errorf("%s: prompts %q", p.model, r.res.Prompts)
		}
	}
}

// BenchmarkDialogues makes the text of a run.
func BenchmarkDialogues(b *testing.B) {
	_, enc := tokenizerOf(b, "atlas")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := dialogues(1, enc); err != nil {
			b.Fatal(err)
		}
	}
}
