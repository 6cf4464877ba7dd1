package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// printer builds the text of a value within the limits.
type printer struct {
	r *renderer
	b strings.Builder

	json     bool
	ascii    bool   // escape what is not ASCII
	sorted   bool   // sort keys
	indent   string // "" with compact set: one line
	pretty   bool
	itemSep  string
	keySep   string
	failed   error
	nestings int
}

func (p *printer) write(s string) {
	if p.failed == nil {
		p.failed = p.r.made(len(s))
	}
	if p.failed == nil {
		p.b.WriteString(s)
	}
}

func (p *printer) fail(err error) {
	if p.failed == nil {
		p.failed = err
	}
}

// text is Python's str.
func (r *renderer) text(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case undefined:
		return "", nil
	}
	p := &printer{r: r, itemSep: ", ", keySep: ": "}
	p.value(v)
	return p.b.String(), p.failed
}

func (p *printer) value(v any) {
	if p.failed == nil {
		p.failed = p.r.step()
	}
	if p.nestings++; p.nestings > maxCompared {
		p.fail(fmt.Errorf("%w: data nested more than %d deep", ErrLimit, maxCompared))
	}
	defer func() { p.nestings-- }()
	if p.failed != nil {
		return
	}
	switch v := v.(type) {
	case nil:
		p.word("None", "null")
	case bool:
		if v {
			p.word("True", "true")
		} else {
			p.word("False", "false")
		}
	case int64:
		p.write(strconv.FormatInt(v, 10))
	case bigInt:
		p.write(string(v))
	case float64:
		s := floatString(v)
		if name, ok := map[string]string{"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[s]; ok && p.json {
			s = name
		}
		p.write(s)
	case string:
		if p.json {
			p.jsonString(v)
		} else {
			p.write(quote(v))
		}
	case *List:
		p.list(v)
	case *Dict:
		p.dict(v)
	case undefined:
		if p.json {
			p.fail(v.err())
		}
		p.write("Undefined")
	default:
		if p.json {
			p.fail(fmt.Errorf("%s has no JSON form", typeName(v)))
			return
		}
		p.write("<" + strings.TrimPrefix(typeName(v), "a ") + ">")
	}
}

func (p *printer) word(python, json string) {
	if p.json {
		python = json
	}
	p.write(python)
}

// newline begins a line of pretty JSON.
func (p *printer) newline(depth int) {
	if p.pretty {
		p.write("\n")
		for range depth {
			p.write(p.indent)
		}
	}
}

func (p *printer) list(l *List) {
	open, closing := "[", "]"
	if l.tuple && !p.json {
		open, closing = "(", ")"
		if len(l.Items) == 1 {
			closing = ",)"
		}
	}
	p.write(open)
	for i, v := range l.Items {
		if i > 0 {
			p.write(p.itemSep)
		}
		p.newline(p.nestings)
		p.value(v)
	}
	if len(l.Items) > 0 {
		p.newline(p.nestings - 1)
	}
	p.write(closing)
}

func (p *printer) dict(d *Dict) {
	keys := d.keys
	if p.sorted {
		var err error
		if keys, err = p.r.sorted(keys, func(v any) any { return v }, true, false); err != nil {
			p.fail(err)
			return
		}
	}
	p.write("{")
	for i, k := range keys {
		if i > 0 {
			p.write(p.itemSep)
		}
		p.newline(p.nestings)
		if _, isString := k.(string); p.json && !isString {
			p.write(`"`)
			p.value(k)
			p.write(`"`)
		} else {
			p.value(k)
		}
		p.write(p.keySep)
		p.value(d.values[k])
	}
	if len(keys) > 0 {
		p.newline(p.nestings - 1)
	}
	p.write("}")
}

// jsonString writes a string as json.dumps does.
func (p *printer) jsonString(s string) {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case c == '\b':
			b.WriteString(`\b`)
		case c == '\f':
			b.WriteString(`\f`)
		case c < 0x20 || p.ascii && c >= 0x7f && c < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, c)
		case p.ascii && c >= 0x10000:
			c -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+c>>10, 0xdc00+c&0x3ff)
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	p.write(b.String())
}

// quote is Python's repr of a string.
func quote(s string) string {
	q := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = '"'
	}
	var b strings.Builder
	b.WriteByte(q)
	for _, c := range s {
		switch {
		case c == rune(q) || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case c == ' ' || unicode.IsPrint(c):
			b.WriteRune(c)
		case c < 0x100:
			fmt.Fprintf(&b, `\x%02x`, c)
		case c < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			fmt.Fprintf(&b, `\U%08x`, c)
		}
	}
	b.WriteByte(q)
	return b.String()
}

// toJSON is transformers' tojson filter: json.dumps without ASCII escapes.
func toJSON(r *renderer, v any, a args) (any, error) {
	var ascii, indent, separators, sorted any = false, nil, nil, false
	err := a.take([]string{"ensure_ascii", "indent", "separators", "sort_keys"}, &ascii, &indent, &separators, &sorted)
	if err != nil {
		return nil, err
	}
	p := &printer{r: r, json: true, ascii: truthy(ascii), sorted: truthy(sorted), itemSep: ", ", keySep: ": "}
	switch n := indent.(type) {
	case nil:
	case string:
		p.pretty, p.indent, p.itemSep = true, n, ","
	case int64:
		if n > 100 {
			return nil, fmt.Errorf("indent is %d: it must be at most 100", n)
		}
		p.pretty, p.indent, p.itemSep = true, strings.Repeat(" ", int(max(n, 0))), ","
	default:
		return nil, fmt.Errorf("indent is %s: it must be an integer or a string", typeName(indent))
	}
	if l, ok := separators.(*List); ok && len(l.Items) == 2 {
		first, ok1 := l.Items[0].(string)
		second, ok2 := l.Items[1].(string)
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("separators must be strings")
		}
		p.itemSep, p.keySep = first, second
	} else if separators != nil {
		return nil, fmt.Errorf("separators must be a pair of strings")
	}
	p.value(v)
	return p.b.String(), p.failed
}
