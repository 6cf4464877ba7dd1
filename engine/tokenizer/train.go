package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
)

// specialTokens are those of the built-in tokenizer and of trained ones.
var specialTokens = []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"}

// minTrained is the least vocabulary of a trained tokenizer: the bytes and
// the special tokens.
const minTrained = 256 + 3

// Train learns a byte-level BPE tokenizer from texts and returns its
// tokenizer.json: Qwen's pre-tokenizer, ids 0 to 255 for the bytes, then the
// merges in the order learned, then <|endoftext|>, <|im_start|> and
// <|im_end|>. The vocabulary has vocab entries at most: merges end where no
// pair occurs twice. Equal texts give equal files, whatever their order.
//
// The algorithm is that of Sennrich, Haddow and Birch, "Neural machine
// translation of rare words with subword units" (2016): merge the pair that
// occurs most, again and again. Of equally frequent pairs the one with the
// smaller ids goes first.
func Train(texts iter.Seq[string], vocab int) ([]byte, error) {
	if vocab < minTrained || vocab > 1<<16 {
		return nil, fmt.Errorf("tokenizer: a vocabulary of %d cannot be trained, want %d to %d", vocab, minTrained, 1<<16)
	}
	t := newTrainer(texts)
	if len(t.words) == 0 {
		return nil, errors.New("tokenizer: there is no text to train on")
	}
	for len(t.symbols) < vocab-len(specialTokens) && t.mergeNext() {
	}
	data, err := t.file()
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if _, err := Parse(data); err != nil {
		return nil, fmt.Errorf("BUG: the trained file cannot be read: %w", err)
	}
	return data, nil
}

// trainWord is a distinct word of the texts.
type trainWord struct {
	ids   []int32
	count int
}

type pair [2]int32

// trainer holds the words as sequences of symbols, and where pairs occur.
type trainer struct {
	symbols []string // raw bytes, by id
	merges  [][2]string
	words   []trainWord
	counts  map[pair]int
	where   map[pair]map[int]bool // indices in words; may name words that lost the pair
}

func newTrainer(texts iter.Seq[string]) *trainer {
	t := &trainer{counts: map[pair]int{}, where: map[pair]map[int]bool{}}
	for b := range 256 {
		t.symbols = append(t.symbols, string([]byte{byte(b)}))
	}
	seen := map[string]int{}
	for text := range texts {
		for len(text) > 0 {
			n := scanLlama3(text, 1)
			seen[text[:n]]++
			text = text[n:]
		}
	}
	for word, count := range seen {
		w := trainWord{count: count}
		for _, b := range []byte(word) {
			w.ids = append(w.ids, int32(b))
		}
		t.words = append(t.words, w)
	}
	for i := range t.words {
		t.account(i, 1)
	}
	return t
}

// account adds the pairs of word i to the counts, or takes them away.
func (t *trainer) account(i, sign int) {
	w := &t.words[i]
	for j := 1; j < len(w.ids); j++ {
		p := pair{w.ids[j-1], w.ids[j]}
		if t.counts[p] += sign * w.count; t.counts[p] == 0 {
			delete(t.counts, p)
			delete(t.where, p)
			continue
		}
		if sign > 0 {
			if t.where[p] == nil {
				t.where[p] = map[int]bool{}
			}
			t.where[p][i] = true
		}
	}
}

// mergeNext merges the most frequent pair; it reports false if none occurs
// twice.
func (t *trainer) mergeNext() bool {
	var best pair
	most := 1
	for p, n := range t.counts {
		if n > most || n == most && n > 1 && slices.Compare(p[:], best[:]) < 0 {
			best, most = p, n
		}
	}
	if most < 2 {
		return false
	}
	id := int32(len(t.symbols))
	a, b := t.symbols[best[0]], t.symbols[best[1]]
	t.symbols = append(t.symbols, a+b)
	t.merges = append(t.merges, [2]string{mapBytes(a), mapBytes(b)})
	for i := range t.where[best] {
		t.account(i, -1)
		t.words[i].ids = replacePair(t.words[i].ids, best, id)
		t.account(i, 1)
	}
	return true
}

// replacePair writes id for each occurrence of p, from the left.
func replacePair(ids []int32, p pair, id int32) []int32 {
	out := ids[:0]
	for i := 0; i < len(ids); i++ {
		if i+1 < len(ids) && ids[i] == p[0] && ids[i+1] == p[1] {
			out = append(out, id)
			i++
			continue
		}
		out = append(out, ids[i])
	}
	return out
}

// file is the tokenizer.json.
func (t *trainer) file() ([]byte, error) {
	type object = map[string]any
	vocab := make(map[string]int, len(t.symbols))
	for id, s := range t.symbols {
		vocab[mapBytes(s)] = id
	}
	byteLevel := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}
	split := object{"type": "Split", "pattern": object{"Regex": qwen2Pattern}, "behavior": "Isolated", "invert": false}
	pre := object{"type": "Sequence", "pretokenizers": []any{split, byteLevel}}
	return tokenizerJSON(vocab, t.merges, pre, byteLevel)
}

// tokenizerJSON is the tokenizer.json of a byte-level BPE model; the special
// tokens come after the vocabulary.
func tokenizerJSON(vocab map[string]int, merges [][2]string, pre, decoder any) ([]byte, error) {
	type object = map[string]any
	var added []addedToken
	for i, name := range specialTokens {
		added = append(added, addedToken{ID: int64(len(vocab) + i), Content: name, Special: true})
	}
	return json.MarshalIndent(object{
		"version": "1.0", "truncation": nil, "padding": nil,
		"added_tokens": added, "normalizer": nil,
		"pre_tokenizer": pre, "post_processor": nil, "decoder": decoder,
		"model": object{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil,
			"end_of_word_suffix": nil, "fuse_unk": false, "byte_fallback": false,
			"ignore_merges": false, "vocab": vocab, "merges": merges,
		},
	}, "", " ")
}

// Write writes a tokenizer.json that Train made to dir, with a
// tokenizer_config.json that has ChatML as its chat template.
func Write(dir string, data []byte) error {
	config, err := json.MarshalIndent(map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": nil, "eos_token": "<|im_end|>",
		"pad_token": "<|endoftext|>", "unk_token": nil, "chat_template": chatML,
		"clean_up_tokenization_spaces": false,
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	for name, content := range map[string][]byte{"tokenizer.json": data, "tokenizer_config.json": config} {
		if err := os.WriteFile(filepath.Join(dir, name), append(content, '\n'), 0o644); err != nil {
			return fmt.Errorf("tokenizer: %w", err)
		}
	}
	return nil
}
