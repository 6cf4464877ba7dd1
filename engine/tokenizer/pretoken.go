package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// preTokenizer cuts pieces into words, step by step.
type preTokenizer []preStep

// preStep cuts one piece and appends the parts that are not empty.
type preStep interface {
	cut(dst []piece, p piece) ([]piece, error)
}

// split cuts words, with spare as memory; it returns the result and the
// memory that is free now.
func (t preTokenizer) split(words, spare []piece) (result, free []piece, err error) {
	for _, step := range t {
		spare = spare[:0]
		for _, p := range words {
			if spare, err = step.cut(spare, p); err != nil {
				return words, spare, err
			}
		}
		words, spare = spare, words
	}
	return words, spare, nil
}

// preConfig is what a pre_tokenizer says.
type preConfig struct {
	steps     []preStep
	byteLevel bool // the last one maps bytes to byte symbols
	custom    bool // some step has a custom regular expression
}

func (c preConfig) chain() preTokenizer { return c.steps }

func parsePreTokenizer(raw json.RawMessage, depth int) (preConfig, error) {
	var none preConfig
	if isNull(raw) {
		return none, nil
	}
	kind, err := component(raw, depth)
	if err != nil {
		return none, err
	}
	switch kind {
	case "ByteLevel":
		c := byteLevelStep{AddPrefixSpace: true, UseRegex: true}
		if err := unmarshal(raw, kind, &c); err != nil {
			return none, err
		}
		return preConfig{steps: []preStep{c}, byteLevel: true}, nil
	case "Metaspace":
		m, err := parseMetaspace(raw)
		return preConfig{steps: []preStep{m}}, err
	case "Digits":
		var c struct {
			Individual bool `json:"individual_digits"`
		}
		err := unmarshal(raw, kind, &c)
		step := splitStep{pattern: classPattern(classNumeric), behavior: "Contiguous"}
		if c.Individual {
			step.behavior = "Isolated"
		}
		return preConfig{steps: []preStep{step}}, err
	case "Punctuation":
		c := struct {
			Behavior string `json:"behavior"`
		}{"Isolated"}
		if err := unmarshal(raw, kind, &c); err != nil {
			return none, err
		}
		return preConfig{steps: []preStep{splitStep{classPattern(classPunct), c.Behavior, false}}}, checkBehavior(c.Behavior)
	case "Split":
		return parseSplit(raw)
	case "Sequence":
		return parsePreSequence(raw, depth)
	}
	return none, unsupported(kind)
}

func parsePreSequence(raw json.RawMessage, depth int) (preConfig, error) {
	var all preConfig
	var c struct {
		Pretokenizers []json.RawMessage `json:"pretokenizers"`
	}
	if err := unmarshal(raw, "Sequence", &c); err != nil {
		return all, err
	}
	for _, r := range c.Pretokenizers {
		part, err := parsePreTokenizer(r, depth+1)
		if err != nil {
			return all, err
		}
		if all.byteLevel && len(part.steps) > 0 {
			return all, errors.New("ByteLevel must be the last of a Sequence")
		}
		all.steps = append(all.steps, part.steps...)
		all.byteLevel = all.byteLevel || part.byteLevel
		all.custom = all.custom || part.custom
	}
	return all, nil
}

// splitStep cuts by a pattern.
type splitStep struct {
	pattern  pattern
	behavior string
	invert   bool
}

// behaviors are what a splitStep may do with matches.
var behaviors = [...]string{"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}

func checkBehavior(b string) error {
	if slices.Contains(behaviors[:], b) {
		return nil
	}
	return fmt.Errorf("behavior is %q: it must be one of %s", b, strings.Join(behaviors[:], ", "))
}

func parseSplit(raw json.RawMessage) (preConfig, error) {
	var c struct {
		Pattern  patternJSON `json:"pattern"`
		Behavior string      `json:"behavior"`
		Invert   bool        `json:"invert"`
	}
	if err := unmarshal(raw, "Split", &c); err != nil {
		return preConfig{}, err
	}
	pat, custom, err := c.Pattern.compile()
	if err != nil {
		return preConfig{}, fmt.Errorf("in Split: %w", err)
	}
	if err := checkBehavior(c.Behavior); err != nil {
		return preConfig{}, fmt.Errorf("in Split: %w", err)
	}
	return preConfig{steps: []preStep{splitStep{pat, c.Behavior, c.Invert}}, custom: custom}, nil
}

func (s splitStep) cut(dst []piece, p piece) ([]piece, error) {
	if scan, ok := s.pattern.(scanner); ok && s.behavior == "Isolated" {
		return scan.cut(dst, p), nil
	}
	spans, err := s.pattern.find(nil, p.text)
	if err != nil {
		return dst, err
	}
	if s.invert {
		for i := range spans {
			spans[i].match = !spans[i].match
		}
	}
	if s.behavior == "Removed" {
		spans = slices.DeleteFunc(spans, func(x span) bool { return x.match })
	} else {
		spans = joinSpans(spans, s.behavior)
	}
	for _, x := range spans {
		if x.start < x.end {
			dst = append(dst, piece{p.text[x.start:x.end], noToken, p.start && x.start == 0})
		}
	}
	return dst, nil
}

// cut appends the matches.
func (f scanner) cut(dst []piece, p piece) []piece {
	s, first := p.text, p.start
	for len(s) > 0 {
		n := f(s)
		dst = append(dst, piece{s[:n], noToken, first})
		s, first = s[n:], false
	}
	return dst
}

// joinSpans merges neighbours as the behavior says. A match that follows a
// match (in the direction of merging) is never merged, so of two delimiters in
// a row the second stands alone.
func joinSpans(spans []span, behavior string) []span {
	out := spans[:0]
	switch behavior {
	case "Contiguous", "MergedWithPrevious":
		previous := false
		for _, x := range spans {
			join := x.match && !previous
			if behavior == "Contiguous" {
				join = x.match == previous
			}
			previous = x.match
			if join && len(out) > 0 {
				out[len(out)-1].end = x.end
			} else {
				out = append(out, x)
			}
		}
	case "MergedWithNext":
		for i, x := range spans {
			// The delimiter just before a text opens that text's span.
			if i > 0 && spans[i-1].match && !x.match && len(out) > 0 {
				out[len(out)-1].end = x.end
			} else {
				out = append(out, x)
			}
		}
	default:
		return spans
	}
	return out
}

// byteLevelStep is the ByteLevel pre-tokenizer. The words stay raw bytes; the
// model spells them.
type byteLevelStep struct {
	AddPrefixSpace bool `json:"add_prefix_space"`
	UseRegex       bool `json:"use_regex"`
}

func (b byteLevelStep) cut(dst []piece, p piece) ([]piece, error) {
	if b.AddPrefixSpace && !strings.HasPrefix(p.text, " ") {
		p.text = " " + p.text
	}
	if !b.UseRegex {
		return append(dst, p), nil
	}
	return scanner(scanGPT2).cut(dst, p), nil
}

// metaspace is the Metaspace pre-tokenizer and decoder.
type metaspace struct {
	mark   string // what stands for a space
	scheme string // when one is put first: always, first or never
	split  bool
}

func parseMetaspace(raw json.RawMessage) (metaspace, error) {
	c := struct {
		Replacement    string  `json:"replacement"`
		AddPrefixSpace *bool   `json:"add_prefix_space"`
		PrependScheme  *string `json:"prepend_scheme"`
		Split          *bool   `json:"split"`
	}{}
	if err := unmarshal(raw, "Metaspace", &c); err != nil {
		return metaspace{}, err
	}
	if utf8.RuneCountInString(c.Replacement) != 1 {
		return metaspace{}, fmt.Errorf("in Metaspace: replacement is %q: it must be one character", c.Replacement)
	}
	m := metaspace{mark: c.Replacement, scheme: "always", split: c.Split == nil || *c.Split}
	if c.PrependScheme != nil {
		m.scheme = *c.PrependScheme
		if !slices.Contains([]string{"always", "first", "never"}, m.scheme) {
			return m, fmt.Errorf("in Metaspace: prepend_scheme is %q: it must be always, first or never", m.scheme)
		}
	}
	if c.AddPrefixSpace != nil && !*c.AddPrefixSpace {
		if c.PrependScheme != nil && m.scheme != "never" {
			return m, fmt.Errorf("in Metaspace: add_prefix_space is false where prepend_scheme is %q", m.scheme)
		}
		m.scheme = "never"
	}
	return m, nil
}

func (m metaspace) cut(dst []piece, p piece) ([]piece, error) {
	p.text = strings.ReplaceAll(p.text, " ", m.mark)
	if (m.scheme == "always" || m.scheme == "first" && p.start) && !strings.HasPrefix(p.text, m.mark) {
		p.text = m.mark + p.text
	}
	if !m.split {
		return append(dst, p), nil
	}
	return splitStep{pattern: literal(m.mark), behavior: "MergedWithNext"}.cut(dst, p)
}
