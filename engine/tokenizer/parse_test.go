package tokenizer

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fileWith returns a small tokenizer.json with some parts replaced.
func fileWith(t testing.TB, parts map[string]string) []byte {
	t.Helper()
	doc := map[string]json.RawMessage{
		"model": json.RawMessage(`{"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}`),
	}
	for k, v := range parts {
		doc[k] = json.RawMessage(v)
	}
	data, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct{ part, value, want string }{
		"model type":          {"model", `{"type": "Unigram", "vocab": []}`, `"Unigram" is not supported`},
		"no model":            {"model", `null`, "model: is missing"},
		"dropout":             {"model", `{"vocab": {}, "merges": [], "dropout": 0.1}`, "dropout is 0.1"},
		"negative id":         {"model", `{"vocab": {"a": -1}, "merges": []}`, `id -1 for "a"`},
		"absurd id":           {"model", `{"vocab": {"a": 4000000000}, "merges": []}`, `id 4000000000 for "a"`},
		"id twice":            {"model", `{"vocab": {"a": 1, "b": 1}, "merges": []}`, "id 1 twice"},
		"unknown in merge":    {"model", `{"vocab": {"a": 1, "b": 2}, "merges": ["a b"]}`, `the token "ab"`},
		"merge of three":      {"model", `{"vocab": {"a": 1}, "merges": ["a a a"]}`, "merges[0]"},
		"pair of three":       {"model", `{"vocab": {"a": 1}, "merges": [["a", "a", "a"]]}`, "merges[0] has 3 parts"},
		"unknown token":       {"model", `{"vocab": {"a": 1}, "merges": [], "unk_token": "u"}`, `unk_token "u"`},
		"normalizer type":     {"normalizer", `{"type": "Precompiled"}`, `normalizer: type "Precompiled" is not supported`},
		"nested normalizer":   {"normalizer", `{"type": "Sequence", "normalizers": [{"type": "Nmt"}]}`, `"Nmt" is not supported`},
		"no type":             {"normalizer", `{}`, `has no "type"`},
		"replace regex":       {"normalizer", `{"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""}`, `"a+" is not supported`},
		"pre-tokenizer type":  {"pre_tokenizer", `{"type": "BertPreTokenizer"}`, `"BertPreTokenizer" is not supported`},
		"behavior":            {"pre_tokenizer", `{"type": "Split", "pattern": {"String": "a"}, "behavior": "Odd"}`, `behavior is "Odd"`},
		"no pattern":          {"pre_tokenizer", `{"type": "Split", "pattern": {}, "behavior": "Isolated"}`, "pattern must have one"},
		"regex":               {"pre_tokenizer", `{"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}`, `"(" is not supported`},
		"regex word":          {"pre_tokenizer", `{"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Isolated"}`, `has \w`},
		"regex line":          {"pre_tokenizer", `{"type": "Split", "pattern": {"Regex": "a$"}, "behavior": "Isolated"}`, `has $`},
		"regex set":           {"pre_tokenizer", `{"type": "Split", "pattern": {"Regex": "[a&&b]"}, "behavior": "Isolated"}`, "a set inside a set"},
		"byte level early":    {"pre_tokenizer", `{"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]}`, "ByteLevel must be the last"},
		"metaspace scheme":    {"pre_tokenizer", `{"type": "Metaspace", "replacement": "_", "prepend_scheme": "some"}`, `prepend_scheme is "some"`},
		"metaspace mark":      {"pre_tokenizer", `{"type": "Metaspace", "replacement": "__"}`, `replacement is "__"`},
		"post-processor type": {"post_processor", `{"type": "BertProcessing"}`, `"BertProcessing" is not supported`},
		"template token":      {"post_processor", `{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}], "special_tokens": {}}`, `lacks "x"`},
		"template sequence":   {"post_processor", `{"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B"}}], "special_tokens": {}}`, `sequence "B"`},
		"decoder type":        {"decoder", `{"type": "WordPiece"}`, `decoder: type "WordPiece" is not supported`},
		"decoder strip":       {"decoder", `{"type": "Strip", "content": "ab", "start": 1, "stop": 0}`, `content is "ab"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(fileWith(t, map[string]string{c.part: c.value}))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
		})
	}
	if _, err := Parse([]byte("{")); err == nil {
		t.Error("broken JSON was accepted")
	}
	deep := strings.Repeat(`{"type":"Sequence","normalizers":[`, 40) + strings.Repeat("]}", 40)
	if _, err := Parse(fileWith(t, map[string]string{"normalizer": deep})); err == nil || !strings.Contains(err.Error(), "deep") {
		t.Errorf("deep nesting: got %v", err)
	}
}

func TestLoadErrors(t *testing.T) {
	if _, err := Load(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: got %v", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "tokenizer.json") {
		t.Errorf("got %v, want an error that names the file", err)
	}
}

// The Rust library numbers added tokens from the vocabulary's end, whatever
// their ids in the file.
func TestAddedTokenIDs(t *testing.T) {
	tok, err := Parse(fileWith(t, map[string]string{"added_tokens": `[{"id": 9, "content": "<x>", "special": true}, {"id": 2, "content": "ab"}, {"id": 4, "content": "<y>"}]`}))
	if err != nil {
		t.Fatal(err)
	}
	got, err := tok.Encode("<x>ab<y>a", EncodeOptions{ParseSpecial: true})
	if want := []int32{3, 2, 4, 0}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if !tok.IsSpecial(3) || tok.IsSpecial(4) || tok.IsSpecial(99) {
		t.Error("IsSpecial is wrong")
	}
	if id, ok := tok.TokenToID("<y>"); !ok || id != 4 {
		t.Errorf("TokenToID: %d, %v", id, ok)
	}
	if _, ok := tok.IDToToken(-1); ok {
		t.Error("id -1 has a token")
	}
}

func TestCustomPatternTimesOut(t *testing.T) {
	pre := `{"type": "Split", "pattern": {"Regex": "(a|a|aa)+b"}, "behavior": "Isolated"}`
	tok, err := Parse(fileWith(t, map[string]string{"pre_tokenizer": pre}))
	if err != nil {
		t.Fatal(err)
	}
	tok.pre[0].(splitStep).pattern.(customPattern).re.MatchTimeout = 20 * time.Millisecond
	if _, err := tok.Encode(strings.Repeat("a", 200), EncodeOptions{}); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("got %v, want a timeout", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(fileWith(f, nil), "ab<x>")
	for _, c := range loadOracle(f).Tokenizers[8:] {
		// The vocabularies are left out: small inputs mutate better.
		f.Add(sharedPart.ReplaceAll(c.File, []byte("null")), "The caf\u00e9 <s>")
	}
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		if strings.Contains(string(data), "Regex") {
			return // may take seconds by design
		}
		tok, err := Parse(data)
		if err != nil {
			return
		}
		ids, err := tok.Encode(text, EncodeOptions{AddSpecial: true, ParseSpecial: true})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := streamed(t, tok, ids, false), tok.Decode(ids, false); got != want {
			t.Errorf("streamed %q, decoded %q", got, want)
		}
	})
}
