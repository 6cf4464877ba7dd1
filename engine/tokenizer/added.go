package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// addedVocab are the tokens that are cut out of the text before the model
// sees it.
type addedVocab struct {
	ids        map[string]int32
	byID       map[int32]addedToken
	special    map[string]bool
	limit      int32   // one more than the greatest id
	raw        matcher // tokens matched in the text as given
	normalized matcher // tokens matched in the normalized text
}

// newAddedVocab assigns ids as the Rust library does: a token that the model
// has keeps the model's id, others are numbered from the vocabulary's end,
// whatever id the file states.
func newAddedVocab(tokens []addedToken, model *bpe, norm normalizer) (*addedVocab, error) {
	v := &addedVocab{ids: map[string]int32{}, byID: map[int32]addedToken{}, special: map[string]bool{}}
	var ordered [2][]addedToken // special first
	last := int64(-1)
	for _, tok := range tokens {
		if _, dup := v.ids[tok.Content]; dup || tok.Content == "" {
			continue
		}
		id, ok := model.vocab[tok.Content]
		if !ok {
			next := int64(len(model.vocab))
			if last >= next || next == 0 {
				next = last + 1
			}
			if next > math.MaxInt32-1 {
				return nil, errors.New("too many")
			}
			id = int32(next)
		}
		last = max(last, int64(id))
		v.ids[tok.Content] = id
		v.byID[id] = tok
		v.limit = max(v.limit, id+1)
		rank := 1
		if tok.Special {
			v.special[tok.Content] = true
			rank = 0
		}
		ordered[rank] = append(ordered[rank], tok)
	}
	for _, tok := range append(ordered[0], ordered[1]...) {
		m, spelling := &v.raw, tok.Content
		if tok.Normalized {
			m = &v.normalized
			if norm != nil {
				spelling = norm.apply(piece{text: spelling}).text
			}
		}
		if spelling == "" {
			return nil, fmt.Errorf("%q is empty after normalization", tok.Content)
		}
		m.add(spelling, v.ids[tok.Content], tok)
	}
	return v, nil
}

// matcher finds added tokens: at each place the longest, leftmost first.
type matcher struct {
	nodes []trieNode
	first [256]bool // bytes that begin a token
}

type trieNode struct {
	next  map[byte]int32
	ends  bool // a token ends here
	id    int32
	token addedToken
}

func (m *matcher) add(spelling string, id int32, tok addedToken) {
	if len(m.nodes) == 0 {
		m.nodes = append(m.nodes, trieNode{next: map[byte]int32{}})
	}
	m.first[spelling[0]] = true
	at := int32(0)
	for i := range len(spelling) {
		n, ok := m.nodes[at].next[spelling[i]]
		if !ok {
			n = int32(len(m.nodes))
			m.nodes = append(m.nodes, trieNode{next: map[byte]int32{}})
			m.nodes[at].next[spelling[i]] = n
		}
		at = n
	}
	if node := &m.nodes[at]; !node.ends {
		node.ends, node.id, node.token = true, id, tok
	}
}

// longest returns the node of the longest token that begins s, and its end.
func (m *matcher) longest(s string) (found *trieNode, end int) {
	at := int32(0)
	for i := range len(s) {
		n, ok := m.nodes[at].next[s[i]]
		if !ok {
			break
		}
		at = n
		if m.nodes[at].ends {
			found, end = &m.nodes[at], i+1
		}
	}
	return found, end
}

// split appends p cut at the tokens in it. Without special, special tokens
// are text (but still hide shorter tokens inside them, as in the Rust library).
func (m *matcher) split(dst []piece, p piece, special bool) []piece {
	if len(m.nodes) == 0 {
		return append(dst, p)
	}
	s, done := p.text, 0
	for i := 0; i < len(s); {
		if !m.first[s[i]] {
			i++
			continue
		}
		node, n := m.longest(s[i:])
		if node == nil {
			i++
			continue
		}
		start, stop := i, i+n
		i = stop
		tok := &node.token
		if tok.Special && !special || tok.SingleWord && !isolated(s, start, stop) {
			continue
		}
		if tok.LStrip {
			start = max(trimSpaceRight(s[:start]), done)
		}
		if tok.RStrip {
			stop += leadingSpace(s[stop:])
		}
		if done < start {
			dst = append(dst, piece{s[done:start], noToken, p.start && done == 0})
		}
		dst = append(dst, piece{id: node.id})
		done = stop
	}
	if done < len(s) {
		dst = append(dst, piece{s[done:], noToken, p.start && done == 0})
	}
	return dst
}

// isolated reports that no word character touches s[start:stop].
func isolated(s string, start, stop int) bool {
	before, _ := utf8.DecodeLastRuneInString(s[:start])
	after, _ := utf8.DecodeRuneInString(s[stop:])
	return (start == 0 || !classOf(before).is(classWord)) && (stop == len(s) || !classOf(after).is(classWord))
}

// trimSpaceRight returns the length of s without its trailing white space.
func trimSpaceRight(s string) int {
	for len(s) > 0 {
		r, n := utf8.DecodeLastRuneInString(s)
		if !classOf(r).is(classSpace) {
			break
		}
		s = s[:len(s)-n]
	}
	return len(s)
}

// leadingSpace returns the length of the white space that begins s.
func leadingSpace(s string) int {
	for i, r := range s {
		if !classOf(r).is(classSpace) {
			return i
		}
	}
	return len(s)
}
