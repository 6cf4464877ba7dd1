package tokenizer

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// span is a stretch of a text that a pattern matches or does not match.
type span struct {
	start, end int
	match      bool
}

// pattern cuts a text into spans, in order and without gaps.
type pattern interface {
	find(dst []span, s string) ([]span, error)
}

// literal matches a string; the empty one matches nothing.
type literal string

func (l literal) find(dst []span, s string) ([]span, error) {
	done := 0
	for l != "" {
		i := strings.Index(s[done:], string(l))
		if i < 0 {
			break
		}
		dst = gap(dst, done, done+i)
		done += i + len(l)
		dst = append(dst, span{done - len(l), done, true})
	}
	return gap(dst, done, len(s)), nil
}

// gap appends the unmatched stretch before a match, if there is one.
func gap(dst []span, start, end int) []span {
	if start == end {
		return dst
	}
	return append(dst, span{start, end, false})
}

// classPattern matches each character that has the property, by itself.
type classPattern class

func (c classPattern) find(dst []span, s string) ([]span, error) {
	done := 0
	for i, r := range s {
		if classOf(r).is(class(c)) {
			_, n := utf8.DecodeRuneInString(s[i:])
			dst = gap(dst, done, i)
			dst = append(dst, span{i, i + n, true})
			done = i + n
		}
	}
	return gap(dst, done, len(s)), nil
}

// scanner matches at the start of any text that is not empty and returns the
// length of the match; so a text is cut into matches only.
type scanner func(s string) int

func (f scanner) find(dst []span, s string) ([]span, error) {
	for i := 0; i < len(s); {
		n := f(s[i:])
		dst = append(dst, span{i, i + n, true})
		i += n
	}
	return dst, nil
}

// patternTime bounds the matching of one custom pattern in one text.
const patternTime = 5 * time.Second

// customPattern is a regular expression that has no scanner of its own.
type customPattern struct{ re *regexp2.Regexp }

// sharedGroups are the group openings that mean the same to Oniguruma, which
// the Rust library uses (with Ruby's syntax), and to regexp2.
var sharedGroups = [...]string{"?:", "?i:", "?=", "?!", "?<=", "?<!", "?>"}

// sharedEscapes are the letters after a backslash that do; \s, \d and \p
// hardly differ, in characters that are newer than one side's Unicode.
const sharedEscapes = "sSdDpPnrtfv"

// checkSyntax refuses what the two engines read differently.
func checkSyntax(expr string) error {
	class := false
	for i := 0; i < len(expr); i++ {
		rest := expr[i:]
		bad := ""
		switch c := expr[i]; {
		case c == '\\':
			i++
			if i < len(expr) && isASCIILetterOrDigit(expr[i]) && !strings.ContainsRune(sharedEscapes, rune(expr[i])) {
				bad = expr[i-1 : i+1]
			}
		case class:
			class = c != ']'
			if c == '[' || strings.HasPrefix(rest, "&&") {
				bad = "a set inside a set"
			}
		case c == '[':
			class = true
			if strings.HasPrefix(rest, "[]") || strings.HasPrefix(rest, "[^]") {
				bad = "an unescaped ] in a set"
			}
		case c == '^' || c == '$':
			bad = expr[i : i+1]
		case strings.HasPrefix(rest, "(?"):
			bad = "(?"
			for _, g := range sharedGroups {
				if strings.HasPrefix(rest[1:], g) {
					bad = ""
				}
			}
		}
		if bad != "" {
			return fmt.Errorf("the regular expression %q has %s, which is not supported", expr, bad)
		}
	}
	return nil
}

func isASCIILetterOrDigit(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// compileRegex returns the scanner of a known pattern or a custom pattern.
func compileRegex(expr string) (p pattern, custom bool, err error) {
	switch expr {
	case gpt2Pattern:
		return scanner(scanGPT2), false, nil
	case llama3Pattern:
		return scanner(func(s string) int { return scanLlama3(s, 3) }), false, nil
	case qwen2Pattern:
		return scanner(func(s string) int { return scanLlama3(s, 1) }), false, nil
	}
	if err := checkSyntax(expr); err != nil {
		return nil, false, err
	}
	re, err := regexp2.Compile(expr, regexp2.None)
	if err != nil {
		return nil, false, fmt.Errorf("the regular expression %q is not supported: %w", expr, err)
	}
	re.MatchTimeout = patternTime
	return customPattern{re}, true, nil
}

func (c customPattern) find(dst []span, s string) ([]span, error) {
	runes := []rune(s)
	at := 0   // in runes
	pos := 0  // the same in bytes
	done := 0 // bytes
	m, err := c.re.FindRunesMatch(runes)
	for ; err == nil && m != nil; m, err = c.re.FindNextMatch(m) {
		for ; at < m.Index; at++ {
			pos += utf8.RuneLen(runes[at])
		}
		start := pos
		for ; at < m.Index+m.Length; at++ {
			pos += utf8.RuneLen(runes[at])
		}
		dst = gap(dst, done, start)
		dst = append(dst, span{start, pos, true})
		done = pos
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer: pattern %q: %w", c.re.String(), err)
	}
	return gap(dst, done, len(s)), nil
}
