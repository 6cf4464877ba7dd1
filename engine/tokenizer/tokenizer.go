// Package tokenizer reads Hugging Face tokenizer.json files and turns text
// into token ids and back exactly as the Rust tokenizers library does.
//
// Supported are BPE models, byte-level (GPT-2, Llama 3, Qwen) and in the
// manner of sentencepiece (Llama 2, LWM, Mistral): the normalizers NFC, NFD,
// NFKC, NFKD, Lowercase, Strip, StripAccents, Replace and Prepend; the
// pre-tokenizers Split, ByteLevel, Metaspace, Digits and Punctuation; the
// post-processors TemplateProcessing and ByteLevel; the decoders ByteLevel,
// Metaspace, ByteFallback, Fuse, Strip and Replace; and Sequence of each. A
// file that needs anything else is refused with an error that names it. The
// file's truncation and padding concern batches and are not applied.
//
// Text that is not valid UTF-8 never fails. A byte-level tokenizer without
// normalizers and custom patterns, such as Builtin, encodes such bytes as they
// are; every other tokenizer sees U+FFFD in place of each ill-formed sequence,
// which is what Decode returns for them too.
//
// Character classes and normalization follow the Unicode versions that the
// Rust library has (see tables.go), not those of the Go release. Custom Split
// patterns are the exception: their classes are Go's.
package tokenizer

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// maxFile bounds tokenizer.json; the largest in use are about 35 MB.
const maxFile = 256 << 20

// Tokenizer converts between text and token ids. It is immutable apart from
// a bounded cache and safe for concurrent use.
type Tokenizer struct {
	model     *bpe
	added     *addedVocab
	normalize normalizer // nil: none
	pre       preTokenizer
	byteLevel bool // words are raw bytes that the vocabulary spells as byte symbols
	lossless  bool // invalid UTF-8 may pass through
	post      []postPiece
	decoders  []decoderSpec
	scratch   sync.Pool // of *scratch
}

// scratch is the memory of one Encode call.
type scratch struct {
	split, norm, words, spare []piece
	bpe                       bpeScratch
}

// piece is a stretch of text on its way to becoming tokens.
type piece struct {
	text  string
	id    int32 // the added token that it is, or noToken
	start bool  // it begins at the first byte of the input
}

// noToken marks the absence of a token id.
const noToken int32 = -1

// Load reads tokenizer.json in dir.
func Load(dir string) (*Tokenizer, error) {
	path := filepath.Join(dir, "tokenizer.json")
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("tokenizer: %s is larger than %d MiB", path, maxFile>>20)
	}
	t, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// EncodeOptions are the choices of Encode.
type EncodeOptions struct {
	// AddSpecial applies the post-processor's template, which may add tokens
	// such as the beginning of sequence.
	AddSpecial bool
	// ParseSpecial recognises special tokens in the text. Without it their
	// spelling is ordinary text, as text from users should be; added tokens
	// that are not special are recognised always.
	ParseSpecial bool
}

// Encode returns the token ids of text. The error reports a custom Split
// pattern that took too long.
func (t *Tokenizer) Encode(text string, opt EncodeOptions) ([]int32, error) {
	s, _ := t.scratch.Get().(*scratch)
	if s == nil {
		s = new(scratch)
	}
	defer t.scratch.Put(s)
	if !t.lossless {
		text = lossy(text)
	}
	ids := make([]int32, 0, len(text)/3+4)
	if !opt.AddSpecial {
		return t.encode(ids, text, opt, s)
	}
	var err error
	for _, p := range t.post {
		if !p.sequence {
			ids = append(ids, p.ids...)
			continue
		}
		if ids, err = t.encode(ids, text, opt, s); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// encode appends the ids of text.
func (t *Tokenizer) encode(ids []int32, text string, opt EncodeOptions, s *scratch) ([]int32, error) {
	s.split = t.added.raw.split(s.split[:0], piece{text, noToken, true}, opt.ParseSpecial)
	for _, p := range s.split {
		if p.id != noToken {
			ids = append(ids, p.id)
			continue
		}
		if t.normalize != nil {
			p = t.normalize.apply(p)
		}
		s.norm = t.added.normalized.split(s.norm[:0], p, opt.ParseSpecial)
		for _, q := range s.norm {
			if q.id != noToken {
				ids = append(ids, q.id)
				continue
			}
			var err error
			if ids, err = t.encodeWords(ids, q, s); err != nil {
				return nil, err
			}
		}
	}
	return ids, nil
}

func (t *Tokenizer) encodeWords(ids []int32, p piece, s *scratch) ([]int32, error) {
	if p.text == "" {
		return ids, nil
	}
	s.words = append(s.words[:0], p)
	if t.pre != nil {
		var err error
		if s.words, s.spare, err = t.pre.split(s.words, s.spare); err != nil {
			return nil, err
		}
	}
	for _, w := range s.words {
		ids = t.model.encode(ids, w.text, &s.bpe)
	}
	return ids, nil
}

// Decode returns the text of ids; skipSpecial leaves special tokens out.
// Unknown ids are ignored. Bytes that are not UTF-8 become U+FFFD, one for
// each maximal ill-formed sequence. Added tokens come back as they are spelled
// in the file, as in the Rust library up to 0.22; 0.23 returns those that have
// "normalized" set in their normalized spelling, and then no longer recognises
// them as special.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	s := t.NewStream(skipSpecial)
	for _, id := range ids {
		s.feed(id)
	}
	return s.Flush()
}

// VocabSize returns one more than the greatest token id.
func (t *Tokenizer) VocabSize() int { return int(max(t.model.limit, t.added.limit)) }

// IDToToken returns the spelling of a token in the vocabulary, where bytes
// and spaces may appear as other symbols; ok is false for an unknown id.
func (t *Tokenizer) IDToToken(id int32) (token string, ok bool) {
	if tok, ok := t.added.byID[id]; ok {
		return tok.Content, true
	}
	return t.model.token(id)
}

// TokenToID is the inverse of IDToToken.
func (t *Tokenizer) TokenToID(token string) (id int32, ok bool) {
	if id, ok := t.added.ids[token]; ok {
		return id, true
	}
	id, ok = t.model.vocab[token]
	return id, ok
}

// IsSpecial reports whether id is a special token.
func (t *Tokenizer) IsSpecial(id int32) bool {
	token, ok := t.IDToToken(id)
	return ok && t.added.special[token]
}

// TokenBytes returns the bytes that a token stands for in the middle of a
// text, which need not be whole UTF-8 sequences; nil for an unknown id.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	token, ok := t.IDToToken(id)
	if !ok {
		return nil
	}
	for _, d := range t.decoders {
		token = d.piece(token)
	}
	return []byte(token)
}
