package tokenizer

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// normalizer rewrites text before it is cut into words. Implementations keep
// piece.start if the result still begins with what came from the first
// character, so that Metaspace knows where the input begins.
type normalizer interface {
	apply(p piece) piece
}

type normalizers []normalizer

func (n normalizers) apply(p piece) piece {
	for _, each := range n {
		p = each.apply(p)
	}
	return p
}

// textNormalizer is a normalizer that never removes the first character.
type textNormalizer func(string) string

func (f textNormalizer) apply(p piece) piece {
	p.text = f(p.text)
	return p
}

func parseNormalizer(raw json.RawMessage, depth int) (normalizer, error) {
	if isNull(raw) {
		return nil, nil
	}
	kind, err := component(raw, depth)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "NFC":
		return unicodeForm{norm.NFD, true}, nil
	case "NFD":
		return unicodeForm{norm.NFD, false}, nil
	case "NFKC":
		return unicodeForm{norm.NFKD, true}, nil
	case "NFKD":
		return unicodeForm{norm.NFKD, false}, nil
	case "Lowercase":
		return textNormalizer(lowercase), nil
	case "StripAccents":
		return stripAccents{}, nil
	case "Strip":
		var s strip
		return &s, unmarshal(raw, kind, &s)
	case "Prepend":
		var c struct {
			Prepend string `json:"prepend"`
		}
		if err := unmarshal(raw, kind, &c); err != nil {
			return nil, err
		}
		return textNormalizer(func(s string) string {
			if s == "" {
				return s
			}
			return c.Prepend + s
		}), nil
	case "Replace":
		return parseReplace(raw)
	case "Sequence":
		var c struct {
			Normalizers []json.RawMessage `json:"normalizers"`
		}
		if err := unmarshal(raw, kind, &c); err != nil {
			return nil, err
		}
		var all normalizers
		for _, r := range c.Normalizers {
			n, err := parseNormalizer(r, depth+1)
			if err != nil {
				return nil, err
			}
			if n != nil {
				all = append(all, n)
			}
		}
		return all, nil
	}
	return nil, unsupported(kind)
}

// strip removes white space at the ends.
type strip struct {
	Left  bool `json:"strip_left"`
	Right bool `json:"strip_right"`
}

func (s *strip) apply(p piece) piece {
	if s.Right {
		p.text = p.text[:trimSpaceRight(p.text)]
	}
	if s.Left {
		n := leadingSpace(p.text)
		p.text, p.start = p.text[n:], p.start && n == 0
	}
	return p
}

// stripAccents removes combining marks.
type stripAccents struct{}

func (stripAccents) apply(p piece) piece {
	r, _ := utf8.DecodeRuneInString(p.text)
	p.start = p.start && !classOf(r).is(classMark)
	p.text = strings.Map(func(r rune) rune {
		if classOf(r).is(classMark) {
			return -1
		}
		return r
	}, p.text)
	return p
}

// replace puts content in the place of each match.
type replace struct {
	literal string // if pattern is nil
	pattern pattern
	content string
}

func parseReplace(raw json.RawMessage) (*replace, error) {
	var c struct {
		Pattern patternJSON `json:"pattern"`
		Content string      `json:"content"`
	}
	if err := unmarshal(raw, "Replace", &c); err != nil {
		return nil, err
	}
	pat, custom, err := c.Pattern.compile()
	if err != nil {
		return nil, fmt.Errorf("in Replace: %w", err)
	}
	if custom {
		// It runs where errors (of a pattern that takes too long) have no way out.
		return nil, fmt.Errorf("in Replace: the regular expression %q is not supported", *c.Pattern.Regex)
	}
	if lit, ok := pat.(literal); ok {
		return &replace{literal: string(lit), content: c.Content}, nil
	}
	return &replace{pattern: pat, content: c.Content}, nil
}

func (r *replace) apply(p piece) piece {
	removed := r.content == "" && r.matchesStart(p.text)
	p.text, p.start = r.text(p.text), p.start && !removed
	return p
}

func (r *replace) matchesStart(s string) bool {
	if r.pattern == nil {
		return r.literal != "" && strings.HasPrefix(s, r.literal)
	}
	return s != ""
}

func (r *replace) text(s string) string {
	if r.pattern == nil {
		if r.literal == "" {
			return s
		}
		return strings.ReplaceAll(s, r.literal, r.content)
	}
	// The built-in patterns match everywhere.
	spans, _ := r.pattern.find(nil, s)
	return strings.Repeat(r.content, len(spans))
}

// lowercase maps each character by itself, as the Rust library does: without
// the final sigma, but with U+0130's two characters.
func lowercase(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for _, r := range s {
		switch i := sort.Search(len(lowerRanges), func(i int) bool { return lowerRanges[i].hi >= r }); {
		case r == 0x130:
			b.WriteString("i\u0307")
		case i < len(lowerRanges) && r >= lowerRanges[i].lo:
			b.WriteRune(r + lowerRanges[i].delta)
		default:
			b.WriteRune(unicode.ToLower(r))
		}
	}
	return b.String()
}

// unicodeForm is NFC, NFD, NFKC or NFKD. x/text has the tables, but its own
// normalization is of the stream-safe kind (it breaks up more than 30 marks)
// and of a newer Unicode version than the Rust library's. So the algorithm is
// here, and characters whose marks or decompositions that version does not
// know are left alone.
type unicodeForm struct {
	decomposition norm.Form // NFD or NFKD
	compose       bool
}

func (f unicodeForm) apply(p piece) piece {
	form := f.decomposition
	if f.compose {
		form -= norm.NFD - norm.NFC
	}
	if !form.IsNormalString(p.text) {
		p.text = string(f.normalize(p.text))
	}
	return p
}

// markedRune is a character and its canonical combining class.
type markedRune struct {
	r   rune
	ccc uint8
}

func (f unicodeForm) normalize(s string) []byte {
	out := make([]byte, 0, len(s)+len(s)/4)
	var run []markedRune // a starter and what follows it, up to the next starter
	for _, r := range s {
		before := len(run)
		run = f.decompose(run, r)
		for i := before; i < len(run); i++ {
			// A run ends before a starter that does not compose with what it follows.
			if i > 0 && run[i].ccc == 0 && !(f.compose && joins(run[i].r)) {
				out = f.flush(out, run[:i])
				run = run[:copy(run, run[i:])]
				i = 0
			}
		}
	}
	return f.flush(out, run)
}

// joins reports whether a starter may compose with a character before it.
func joins(r rune) bool {
	var buf [utf8.UTFMax]byte
	n := utf8.EncodeRune(buf[:], r)
	return !norm.NFC.Properties(buf[:n]).BoundaryBefore()
}

// decompose appends the decomposition of r.
func (f unicodeForm) decompose(run []markedRune, r rune) []markedRune {
	var buf [utf8.UTFMax]byte
	if !classOf(r).is(classDecomp) {
		return append(run, marked(r))
	}
	n := utf8.EncodeRune(buf[:], r)
	if r >= 0xac00 && r <= 0xd7a3 { // Hangul syllables, by arithmetic
		r -= 0xac00
		run = append(run, markedRune{0x1100 + r/588, 0}, markedRune{0x1161 + r%588/28, 0})
		if r%28 != 0 {
			run = append(run, markedRune{0x11a7 + r%28, 0})
		}
		return run
	}
	parts := f.decomposition.Properties(buf[:n]).Decomposition()
	if parts == nil {
		return append(run, marked(r))
	}
	for len(parts) > 0 {
		part, n := utf8.DecodeRune(parts)
		run = append(run, marked(part))
		parts = parts[n:]
	}
	return run
}

func marked(r rune) markedRune {
	if !classOf(r).is(classMark) {
		return markedRune{r, 0}
	}
	var buf [utf8.UTFMax]byte
	n := utf8.EncodeRune(buf[:], r)
	return markedRune{r, norm.NFD.Properties(buf[:n]).CCC()}
}

// flush puts the marks of a run in order, composes it and appends it.
func (f unicodeForm) flush(out []byte, run []markedRune) []byte {
	for i := 0; i < len(run); {
		j := i
		for j < len(run) && run[j].ccc != 0 {
			j++
		}
		sort.SliceStable(run[i:j], func(a, b int) bool { return run[i+a].ccc < run[i+b].ccc })
		i = j + 1
	}
	if f.compose {
		run = composeRun(run)
	}
	for _, m := range run {
		out = utf8.AppendRune(out, m.r)
	}
	return out
}

// composeRun composes in place: each character joins the last starter unless
// one of at least its class, or another starter, stands between them.
func composeRun(run []markedRune) []markedRune {
	starter := -1
	kept := run[:0]
	for _, m := range run {
		if starter >= 0 {
			between := kept[len(kept)-1]
			adjacent := len(kept)-1 == starter
			if adjacent || between.ccc != 0 && between.ccc < m.ccc {
				if r, ok := composePair(kept[starter].r, m.r); ok {
					kept[starter].r = r
					continue
				}
			}
		}
		kept = append(kept, m)
		if m.ccc == 0 {
			starter = len(kept) - 1
		}
	}
	return kept
}

// composePair returns the canonical composite of two characters.
func composePair(a, b rune) (rune, bool) {
	var buf, out [2 * utf8.UTFMax]byte
	n := utf8.EncodeRune(buf[:], a)
	n += utf8.EncodeRune(buf[n:], b)
	got := norm.NFC.Append(out[:0], buf[:n]...)
	r, size := utf8.DecodeRune(got)
	if size != len(got) || !classOf(r).is(classDecomp) {
		return 0, false
	}
	return r, true
}
