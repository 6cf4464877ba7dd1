package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// bpe is a byte-pair encoding model.
type bpe struct {
	vocab  map[string]int32
	tokens []string // by id; "" where known is false
	known  []bool
	limit  int32 // one more than the greatest id
	merges mergeTable

	unk          string
	fuseUnk      bool
	byteFallback bool
	ignoreMerges bool
	prefix       string // of symbols that continue a word
	suffix       string // of the symbol that ends a word

	byteLevel bool
	byteID    [256]int32       // byte-level: ids of the byte symbols
	fastBytes bool             // byte-level and byteID covers every byte
	whole     map[string]int32 // with ignoreMerges: tokens by the text (or raw bytes) they stand for
	fallback  [256]int32       // byte fallback: ids of <0x00> and so on
	cache     wordCache
	// cuts is set where a word can be encoded in parts, cut before each mark
	// that follows another character, because no merge spans such a place.
	cuts bool
}

// mark is what sentencepiece writes for a space.
const mark = "\u2581"

// modelJSON is the "model" of tokenizer.json.
type modelJSON struct {
	Type                    *string          `json:"type"`
	Dropout                 *float64         `json:"dropout"`
	UnkToken                *string          `json:"unk_token"`
	ContinuingSubwordPrefix *string          `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string          `json:"end_of_word_suffix"`
	FuseUnk                 bool             `json:"fuse_unk"`
	ByteFallback            bool             `json:"byte_fallback"`
	IgnoreMerges            bool             `json:"ignore_merges"`
	Vocab                   map[string]int64 `json:"vocab"`
	Merges                  mergesJSON       `json:"merges"`
}

// mergesJSON accepts ["a b", ...] and [["a", "b"], ...].
type mergesJSON [][2]string

// UnmarshalJSON implements json.Unmarshaler.
func (m *mergesJSON) UnmarshalJSON(data []byte) error {
	var pairs [][]string
	if json.Unmarshal(data, &pairs) == nil {
		for i, p := range pairs {
			if len(p) != 2 {
				return fmt.Errorf("merges[%d] has %d parts: it must have 2", i, len(p))
			}
			*m = append(*m, [2]string{p[0], p[1]})
		}
		return nil
	}
	var lines []string
	if err := json.Unmarshal(data, &lines); err != nil {
		return fmt.Errorf("merges: %w", err)
	}
	for i, l := range lines {
		if strings.HasPrefix(l, "#version") {
			continue
		}
		a, b, ok := strings.Cut(l, " ")
		if !ok || strings.Contains(b, " ") {
			return fmt.Errorf("merges[%d] is %q: it must be two symbols with one space between them", i, l)
		}
		*m = append(*m, [2]string{a, b})
	}
	return nil
}

func parseModel(raw json.RawMessage, byteLevel bool) (*bpe, error) {
	if isNull(raw) {
		return nil, fmt.Errorf("is missing")
	}
	var kind struct {
		Type *string `json:"type"`
	}
	if err := json.Unmarshal(raw, &kind); err != nil {
		return nil, err
	}
	if kind.Type != nil && *kind.Type != "BPE" {
		return nil, unsupported(*kind.Type)
	}
	var c modelJSON
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	if c.Dropout != nil && *c.Dropout != 0 {
		return nil, fmt.Errorf("dropout is %v: only 0 and null are supported", *c.Dropout)
	}
	m := &bpe{fuseUnk: c.FuseUnk, byteFallback: c.ByteFallback, ignoreMerges: c.IgnoreMerges, byteLevel: byteLevel}
	for _, f := range []struct {
		dst *string
		src *string
	}{{&m.unk, c.UnkToken}, {&m.prefix, c.ContinuingSubwordPrefix}, {&m.suffix, c.EndOfWordSuffix}} {
		if f.src != nil {
			*f.dst = *f.src
		}
	}
	if err := m.setVocab(c.Vocab); err != nil {
		return nil, err
	}
	if m.unk != "" {
		if _, ok := m.vocab[m.unk]; !ok {
			return nil, fmt.Errorf("unk_token %q is not in vocab", m.unk)
		}
	}
	if err := m.setMerges(c.Merges); err != nil {
		return nil, err
	}
	m.index()
	m.cuts = m.canCut(c.Merges)
	return m, nil
}

func (m *bpe) setVocab(vocab map[string]int64) error {
	// Ids index slices, so a few absurd ones must not cost gigabytes.
	limit := int64(len(vocab))*4 + 1<<16
	m.vocab = make(map[string]int32, len(vocab))
	for tok, id := range vocab {
		if id < 0 || id >= limit {
			return fmt.Errorf("vocab has id %d for %q: it must be in [0, %d) with %d tokens", id, tok, limit, len(vocab))
		}
		m.vocab[tok] = int32(id)
		m.limit = max(m.limit, int32(id)+1)
	}
	m.tokens = make([]string, m.limit)
	m.known = make([]bool, m.limit)
	for tok, id := range m.vocab {
		if m.known[id] {
			return fmt.Errorf("vocab has id %d twice, for %q and %q", id, m.tokens[id], tok)
		}
		m.tokens[id], m.known[id] = tok, true
	}
	return nil
}

func (m *bpe) setMerges(merges mergesJSON) error {
	m.merges.init(len(merges))
	for rank, p := range merges {
		if !strings.HasPrefix(p[1], m.prefix) {
			return fmt.Errorf("merges[%d] has %q, which lacks the prefix %q", rank, p[1], m.prefix)
		}
		joined := p[0] + p[1][len(m.prefix):]
		var ids [3]int32
		for i, tok := range [3]string{p[0], p[1], joined} {
			id, ok := m.vocab[tok]
			if !ok {
				return fmt.Errorf("merges[%d] needs the token %q, which is not in vocab", rank, tok)
			}
			ids[i] = id
		}
		m.merges.set(ids[0], ids[1], merge{uint32(rank), ids[2]})
	}
	return nil
}

// canCut reports whether encoding in parts gives the same ids. Llama 2 has no
// pre-tokenizer, so that the whole text is one word; in parts it comes from
// the cache. The mark must be a token, so that no unknown token spans a cut.
func (m *bpe) canCut(merges mergesJSON) bool {
	if _, ok := m.vocab[mark]; !ok || m.byteLevel || m.ignoreMerges || m.prefix != "" || m.suffix != "" {
		return false
	}
	for _, p := range merges {
		if strings.HasPrefix(p[1], mark) && !strings.HasSuffix(p[0], mark) {
			return false
		}
	}
	return true
}

// index builds the tables that are derived from the vocabulary.
func (m *bpe) index() {
	m.fastBytes = m.byteLevel && m.prefix == "" && m.suffix == ""
	for b := range 256 {
		m.byteID[b], m.fallback[b] = noToken, noToken
		if id, ok := m.vocab[fmt.Sprintf("<0x%02X>", b)]; ok {
			m.fallback[b] = id
		}
		if id, ok := m.vocab[string(byteRune(byte(b)))]; ok {
			m.byteID[b] = id
		} else {
			m.fastBytes = false
		}
	}
	if !m.ignoreMerges {
		return
	}
	m.whole = m.vocab
	if m.byteLevel {
		m.whole = make(map[string]int32, len(m.vocab))
		for tok, id := range m.vocab {
			if raw, ok := unmapBytes(tok); ok {
				m.whole[raw] = id
			}
		}
	}
}

// token returns the spelling of a token.
func (m *bpe) token(id int32) (string, bool) {
	if id < 0 || id >= m.limit || !m.known[id] {
		return "", false
	}
	return m.tokens[id], true
}

// encode appends the ids of a word: text, or raw bytes if byteLevel.
func (m *bpe) encode(ids []int32, word string, s *bpeScratch) []int32 {
	for m.cuts {
		i := len(word) - len(strings.TrimLeft(word, mark)) // past the leading marks
		n := strings.Index(word[i:], mark)
		if n < 0 {
			break
		}
		ids = m.encodePart(ids, word[:i+n], s)
		word = word[i+n:]
	}
	return m.encodePart(ids, word, s)
}

// encodePart encodes a word, or a part of one, as a whole.
func (m *bpe) encodePart(ids []int32, word string, s *bpeScratch) []int32 {
	if m.ignoreMerges {
		if id, ok := m.whole[word]; ok {
			return append(ids, id)
		}
	}
	if len(word) == 1 && m.fastBytes {
		return append(ids, m.byteID[word[0]])
	}
	cached := len(word) <= maxCachedWord
	if cached {
		if got, ok := m.cache.get(word); ok {
			return append(ids, got...)
		}
	}
	from := len(ids)
	s.symbols = s.symbols[:0]
	switch {
	case m.fastBytes:
		for i := range len(word) {
			s.add(m.byteID[word[i]])
		}
	case m.byteLevel:
		m.addSymbols(mapBytes(word), s)
	default:
		m.addSymbols(word, s)
	}
	ids = s.merge(ids, &m.merges)
	if cached {
		m.cache.put(word, ids[from:])
	}
	return ids
}

// addSymbols appends the word's initial symbols: one for each character,
// with prefix, suffix, byte fallback and unknown tokens.
func (m *bpe) addSymbols(word string, s *bpeScratch) {
	unk := noToken // a pending unknown token; runs of them may fuse
	for i := 0; i < len(word); {
		_, n := utf8.DecodeRuneInString(word[i:])
		sym := word[i : i+n]
		if i > 0 && m.prefix != "" {
			sym = m.prefix + sym
		}
		if i+n == len(word) && m.suffix != "" {
			sym += m.suffix
		}
		i += n
		if id, ok := m.vocab[sym]; ok {
			if unk != noToken {
				s.add(unk)
				unk = noToken
			}
			s.add(id)
			continue
		}
		if m.byteFallback && m.addBytes(sym, s) {
			continue // the Rust library leaves a pending unknown token pending
		}
		if m.unk == "" {
			continue
		}
		if unk != noToken && !m.fuseUnk {
			s.add(unk)
		}
		unk = m.vocab[m.unk]
	}
	if unk != noToken {
		s.add(unk)
	}
}

// addBytes appends the fallback symbols of sym if the vocabulary has all of them.
func (m *bpe) addBytes(sym string, s *bpeScratch) bool {
	for i := range len(sym) {
		if m.fallback[sym[i]] == noToken {
			return false
		}
	}
	for i := range len(sym) {
		s.add(m.fallback[sym[i]])
	}
	return true
}
