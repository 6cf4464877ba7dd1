package jinja

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// tokenKind is the kind of a token.
type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokData
	tokBlockBegin
	tokBlockEnd
	tokVarBegin
	tokVarEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
)

type token struct {
	kind tokenKind
	text string // for strings, unescaped
	line int
}

// lexer follows jinja2.lexer, whose treatment of white space around tags
// depends on what came just before.
type lexer struct {
	src    string
	pos    int
	line   int
	tokens []token
	starts bool // the last thing consumed ended a line
}

var (
	tagRE    = regexp.MustCompile(`\{%[-+]?\s*raw\s*(?:-%\}\s*|%\})|\{[%{#][-+]?`)
	endrawRE = regexp.MustCompile(`\{%([-+]?)\s*endraw\s*(?:\+%\}|-%\}\s*|%\}\n?)`)
	floatRE  = regexp.MustCompile(`^(?:\d+_)*\d+(?:(?:\.(?:\d+_)*\d+)?[eE][+-]?(?:\d+_)*\d+|\.(?:\d+_)*\d+)`)
	intRE    = regexp.MustCompile(`^(?:0[bB](?:_?[01])+|0[oO](?:_?[0-7])+|0[xX](?:_?[0-9a-fA-F])+|[1-9](?:_?\d)*|0(?:_?0)*)`)
	nameRE   = regexp.MustCompile(`^[\pL_][\pL\pN\p{Mn}_]*`)
	spaceRE  = regexp.MustCompile(`^\s*`)
)

// operators, longest first.
var operators = []string{"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";"}

func lex(src string) ([]token, error) {
	src = strings.ReplaceAll(strings.ReplaceAll(src, "\r\n", "\n"), "\r", "\n")
	l := &lexer{src: strings.TrimSuffix(src, "\n"), line: 1, starts: true}
	for l.pos < len(l.src) {
		if err := l.root(); err != nil {
			return nil, errorAt(l.line, err)
		}
	}
	return append(l.tokens, token{tokEOF, "the end of the template", l.line}), nil
}

func (l *lexer) emit(kind tokenKind, text string) {
	l.tokens = append(l.tokens, token{kind, text, l.line})
}

// advance consumes n bytes.
func (l *lexer) advance(n int) {
	consumed := l.src[l.pos : l.pos+n]
	l.line += strings.Count(consumed, "\n")
	l.starts = strings.HasSuffix(consumed, "\n")
	l.pos += n
}

// root consumes text and the tag that follows it.
func (l *lexer) root() error {
	rest := l.src[l.pos:]
	at := tagRE.FindStringIndex(rest)
	if at == nil {
		l.emit(tokData, rest)
		l.advance(len(rest))
		return nil
	}
	tag := rest[at[0]:at[1]]
	if text := l.strip(rest[:at[0]], tag); text != "" {
		l.emit(tokData, text)
	}
	l.advance(at[1])
	switch {
	case len(tag) > 3: // raw
		return l.raw()
	case tag[1] == '#':
		return l.comment()
	case tag[1] == '%':
		l.emit(tokBlockBegin, "{%")
		return l.expression(tokBlockEnd)
	}
	l.emit(tokVarBegin, "{{")
	return l.expression(tokVarEnd)
}

// strip removes white space before a tag: all of it for "-", else that which
// is alone on its line, unless the tag prints or has a "+".
func (l *lexer) strip(text, tag string) string {
	sign := byte(0)
	if len(tag) > 2 {
		sign = tag[2]
	}
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, unicode.IsSpace)
	case sign == '+' || tag[1] == '{':
		return text
	}
	line := strings.LastIndexByte(text, '\n') + 1
	if (line > 0 || l.starts) && strings.TrimSpace(text[line:]) == "" {
		return text[:line]
	}
	return text
}

func (l *lexer) raw() error {
	rest := l.src[l.pos:]
	at := endrawRE.FindStringSubmatchIndex(rest)
	if at == nil {
		return fmt.Errorf("raw is not closed")
	}
	if text := l.strip(rest[:at[0]], "{%"+rest[at[2]:at[3]]); text != "" {
		l.emit(tokData, text)
	}
	l.advance(at[1])
	return nil
}

func (l *lexer) comment() error {
	end := strings.Index(l.src[l.pos:], "#}")
	if end < 0 {
		return fmt.Errorf("comment is not closed")
	}
	sign := byte(0)
	if end > 0 {
		sign = l.src[l.pos+end-1]
	}
	l.advance(end + 2)
	l.afterTag(sign, true)
	return nil
}

// afterTag consumes the white space that a closed tag swallows.
func (l *lexer) afterTag(sign byte, block bool) {
	rest := l.src[l.pos:]
	switch {
	case sign == '-':
		if n := len(spaceRE.FindString(rest)); n > 0 {
			l.advance(n)
		}
	case block && sign != '+' && strings.HasPrefix(rest, "\n"):
		l.advance(1)
	}
}

// expression consumes tokens up to the tag's end.
func (l *lexer) expression(end tokenKind) error {
	closing := "}}"
	if end == tokBlockEnd {
		closing = "%}"
	}
	var open []byte
	for {
		l.advance(len(spaceRE.FindString(l.src[l.pos:])))
		rest := l.src[l.pos:]
		if rest == "" {
			return fmt.Errorf("tag is not closed")
		}
		if len(open) == 0 {
			body, sign := rest, byte(0)
			if rest[0] == '-' || rest[0] == '+' && end == tokBlockEnd {
				body, sign = rest[1:], rest[0]
			}
			if strings.HasPrefix(body, closing) {
				l.emit(end, closing)
				l.advance(len(rest) - len(body) + len(closing))
				l.afterTag(sign, end == tokBlockEnd)
				return nil
			}
		}
		if err := l.token(&open); err != nil {
			return err
		}
	}
}

// token consumes one token; open is the stack of expected closing brackets.
func (l *lexer) token(open *[]byte) error {
	rest := l.src[l.pos:]
	afterDot := l.pos > 0 && l.src[l.pos-1] == '.'
	for _, k := range []struct {
		kind tokenKind
		re   *regexp.Regexp
	}{{tokFloat, floatRE}, {tokInt, intRE}, {tokName, nameRE}} {
		if m := k.re.FindString(rest); m != "" && !(k.kind == tokFloat && afterDot) {
			text := m
			if k.kind != tokName {
				text = strings.ReplaceAll(m, "_", "")
			}
			l.emit(k.kind, text)
			l.advance(len(m))
			return nil
		}
	}
	if rest[0] == '\'' || rest[0] == '"' {
		return l.string(rest[0])
	}
	for _, op := range operators {
		if !strings.HasPrefix(rest, op) {
			continue
		}
		switch op {
		case "(":
			*open = append(*open, ')')
		case "[":
			*open = append(*open, ']')
		case "{":
			*open = append(*open, '}')
		case ")", "]", "}":
			n := len(*open)
			if n == 0 || (*open)[n-1] != op[0] {
				return fmt.Errorf("unexpected %q", op)
			}
			*open = (*open)[:n-1]
		}
		l.emit(tokOp, op)
		l.advance(len(op))
		return nil
	}
	r, _ := utf8.DecodeRuneInString(rest)
	return fmt.Errorf("unexpected character %q", r)
}

// string consumes a string literal with Python's escapes.
func (l *lexer) string(quote byte) error {
	var b strings.Builder
	for i := l.pos + 1; i < len(l.src); i++ {
		switch c := l.src[i]; c {
		case quote:
			l.emit(tokString, b.String())
			l.advance(i + 1 - l.pos)
			return nil
		case '\\':
			n, err := unescape(&b, l.src[i+1:])
			if err != nil {
				return err
			}
			i += n
		default:
			b.WriteByte(c)
		}
	}
	return fmt.Errorf("string is not closed")
}

// simpleEscapes are those of one character.
var simpleEscapes = map[byte]string{'\n': "", '\\': "\\", '\'': "'", '"': "\"", 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v"}

// unescape writes what the escape sequence that begins s (after the
// backslash) stands for and returns the sequence's length.
func unescape(b *strings.Builder, s string) (int, error) {
	if s == "" {
		return 0, fmt.Errorf("string is not closed")
	}
	if e, ok := simpleEscapes[s[0]]; ok {
		b.WriteString(e)
		return 1, nil
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[0]]
	if digits > 0 {
		if len(s) <= digits {
			return 0, fmt.Errorf("truncated escape \\%c", s[0])
		}
		v, err := strconv.ParseUint(s[1:1+digits], 16, 32)
		if err != nil || v > unicode.MaxRune {
			return 0, fmt.Errorf("bad escape \\%s", s[:1+digits])
		}
		b.WriteRune(rune(v))
		return 1 + digits, nil
	}
	n, v := 0, rune(0)
	for n < 3 && n < len(s) && s[n] >= '0' && s[n] <= '7' {
		v = v*8 + rune(s[n]-'0')
		n++
	}
	if n > 0 {
		b.WriteRune(v)
		return n, nil
	}
	b.WriteByte('\\') // unknown escapes stay
	return 0, nil
}
