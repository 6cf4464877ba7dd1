package jinja

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// method returns a bound method of a string, list or dictionary, or nil.
// Methods that change their object do not exist in the sandbox.
func method(v any, name string) any {
	switch v := v.(type) {
	case string:
		if m, ok := stringMethods[name]; ok {
			return function(func(r *renderer, a args) (any, error) {
				out, err := m(r, v, a)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", name, err)
				}
				return out, nil
			})
		}
	case *Dict:
		if m, ok := dictMethods[name]; ok {
			return function(func(r *renderer, a args) (any, error) { return m(r, v, a) })
		}
	case *List:
		if m, ok := listMethods[name]; ok {
			return function(func(r *renderer, a args) (any, error) { return m(r, v, a) })
		}
	}
	return nil
}

var dictMethods = map[string]func(r *renderer, d *Dict, a args) (any, error){
	"get": func(_ *renderer, d *Dict, a args) (any, error) {
		var key, otherwise any
		if err := a.take([]string{"key", "default"}, &key, &otherwise); err != nil {
			return nil, fmt.Errorf("get: %w", err)
		}
		if v, ok := d.get(key); ok {
			return v, nil
		}
		return otherwise, nil
	},
	"items": func(r *renderer, d *Dict, _ args) (any, error) { return r.pairs(d) },
	"keys": func(r *renderer, d *Dict, _ args) (any, error) {
		return &List{Items: d.keys}, nil
	},
	"values": func(r *renderer, d *Dict, _ args) (any, error) {
		l := &List{Items: make([]any, len(d.keys))}
		for i, k := range d.keys {
			l.Items[i] = d.values[k]
		}
		return l, r.made(8 * len(d.keys))
	},
}

var listMethods = map[string]func(r *renderer, l *List, a args) (any, error){
	"count": func(r *renderer, l *List, a args) (any, error) {
		v, err := one(a)
		n := int64(0)
		for _, each := range l.Items {
			if err != nil {
				return nil, err
			}
			var same bool
			if same, err = r.equal(each, v); same {
				n++
			}
		}
		return n, err
	},
	"index": func(r *renderer, l *List, a args) (any, error) {
		v, err := one(a)
		if err != nil {
			return nil, err
		}
		for i, each := range l.Items {
			if same, err := r.equal(each, v); err != nil || same {
				return int64(i), err
			}
		}
		return nil, fmt.Errorf("index: the value is not in the list")
	},
}

// stringMethod is a method of s.
type stringMethod func(r *renderer, s string, a args) (any, error)

var stringMethods = map[string]stringMethod{
	"capitalize":   mapString(capitalize),
	"count":        countMethod,
	"endswith":     affixMethod(strings.HasSuffix),
	"find":         findMethod(strings.Index),
	"isalnum":      allOf(func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) }),
	"isalpha":      allOf(unicode.IsLetter),
	"isdecimal":    allOf(unicode.IsDigit),
	"isdigit":      allOf(unicode.IsDigit),
	"islower":      func(r *renderer, s string, a args) (any, error) { return tests["lower"](r, s, a) },
	"isspace":      allOf(unicode.IsSpace),
	"isupper":      func(r *renderer, s string, a args) (any, error) { return tests["upper"](r, s, a) },
	"join":         func(r *renderer, s string, a args) (any, error) { return joinMethod(r, s, a) },
	"lower":        mapString(lower),
	"lstrip":       stripMethod(true, false),
	"removeprefix": cutMethod(strings.TrimPrefix),
	"removesuffix": cutMethod(strings.TrimSuffix),
	"replace":      replaceMethod,
	"rfind":        findMethod(strings.LastIndex),
	"rsplit":       splitMethod(true),
	"rstrip":       stripMethod(false, true),
	"split":        splitMethod(false),
	"splitlines":   splitLinesMethod,
	"startswith":   affixMethod(strings.HasPrefix),
	"strip":        stripMethod(true, true),
	"title":        mapString(titleMethod),
	"upper":        mapString(upper),
}

// upper and lower map case as Python does, with special casing such as that
// of the German sharp s and the Greek final sigma.
func upper(s string) string { return cases.Upper(language.Und).String(s) }

func lower(s string) string { return cases.Lower(language.Und, cases.HandleFinalSigma(true)).String(s) }

func mapString(fn func(string) string) stringMethod {
	return func(r *renderer, s string, a args) (any, error) {
		if err := a.take(nil); err != nil {
			return nil, err
		}
		return r.str(fn(s))
	}
}

func allOf(fn func(rune) bool) stringMethod {
	return func(_ *renderer, s string, a args) (any, error) {
		return s != "" && !strings.ContainsFunc(s, func(c rune) bool { return !fn(c) }), a.take(nil)
	}
}

// titleMethod is Python's str.title: words are runs of letters.
func titleMethod(s string) string {
	inside := false
	return strings.Map(func(c rune) rune {
		begins := !inside
		inside = unicode.IsLetter(c)
		if begins {
			return unicode.ToTitle(c)
		}
		return unicode.ToLower(c)
	}, s)
}

// text1 returns an argument that must be a string.
func text1(v any) (string, error) {
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("the argument is %s: it must be a string", typeName(v))
	}
	return s, nil
}

func countMethod(_ *renderer, s string, a args) (any, error) {
	v, err := one(a)
	if err != nil {
		return nil, err
	}
	sub, err := text1(v)
	return int64(strings.Count(s, sub)), err
}

func affixMethod(has func(s, affix string) bool) stringMethod {
	return func(_ *renderer, s string, a args) (any, error) {
		v, err := one(a)
		if err != nil {
			return nil, err
		}
		if l, ok := v.(*List); ok && l.tuple {
			return slices.ContainsFunc(l.Items, func(each any) bool {
				affix, ok := each.(string)
				return ok && has(s, affix)
			}), nil
		}
		affix, err := text1(v)
		return has(s, affix), err
	}
}

func findMethod(find func(s, sub string) int) stringMethod {
	return func(_ *renderer, s string, a args) (any, error) {
		v, err := one(a)
		if err != nil {
			return nil, err
		}
		sub, err := text1(v)
		i := find(s, sub)
		if i > 0 {
			i = utf8.RuneCountInString(s[:i])
		}
		return int64(i), err
	}
}

func joinMethod(r *renderer, s string, a args) (any, error) {
	v, err := one(a)
	if err != nil {
		return nil, err
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	parts := make([]string, len(items))
	size := 0
	for i, item := range items {
		if parts[i], err = text1(item); err != nil {
			return nil, err
		}
		size += len(parts[i]) + len(s)
	}
	if err := r.made(size); err != nil {
		return nil, err
	}
	return strings.Join(parts, s), nil
}

func stripMethod(left, right bool) stringMethod {
	return func(_ *renderer, s string, a args) (any, error) {
		var chars any
		if err := a.take([]string{"chars"}, &chars); err != nil {
			return nil, err
		}
		return strip(s, chars, left, right)
	}
}

// strip removes white space, or the characters in chars, at the ends.
func strip(s string, chars any, left, right bool) (any, error) {
	drop := isPythonSpace
	if chars != nil {
		set, err := text1(chars)
		if err != nil {
			return nil, err
		}
		drop = func(c rune) bool { return strings.ContainsRune(set, c) }
	}
	if left {
		s = strings.TrimLeftFunc(s, drop)
	}
	if right {
		s = strings.TrimRightFunc(s, drop)
	}
	return s, nil
}

// isPythonSpace is str.isspace, which counts the separators U+001C to U+001F.
func isPythonSpace(c rune) bool { return unicode.IsSpace(c) || c >= 0x1c && c <= 0x1f }

func cutMethod(cut func(s, affix string) string) stringMethod {
	return func(_ *renderer, s string, a args) (any, error) {
		v, err := one(a)
		if err != nil {
			return nil, err
		}
		affix, err := text1(v)
		return cut(s, affix), err
	}
}

func replaceMethod(r *renderer, s string, a args) (any, error) {
	var from, to, count any
	if err := a.take([]string{"old", "new", "count"}, &from, &to, &count); err != nil {
		return nil, err
	}
	return r.replace(s, from, to, count)
}

func (r *renderer) replace(s string, from, to, count any) (any, error) {
	old, err := text1(from)
	if err != nil {
		return nil, err
	}
	with, err := text1(to)
	if err != nil {
		return nil, err
	}
	n := -1
	if c, ok := count.(int64); ok {
		n = int(c)
	}
	times := strings.Count(s, old)
	if n >= 0 {
		times = min(times, n)
	}
	if len(with) > 0 && times > r.limits.Bytes/len(with) {
		return nil, r.made(-1)
	}
	if err := r.made(len(s) + times*len(with)); err != nil {
		return nil, err
	}
	return strings.Replace(s, old, with, n), nil
}

func splitMethod(fromRight bool) stringMethod {
	return func(r *renderer, s string, a args) (any, error) {
		var sep, limit any = nil, int64(-1)
		if err := a.take([]string{"sep", "maxsplit"}, &sep, &limit); err != nil {
			return nil, err
		}
		n, ok := limit.(int64)
		if !ok {
			return nil, fmt.Errorf("maxsplit is %s: it must be an integer", typeName(limit))
		}
		var parts []string
		if sep == nil {
			parts = splitSpace(s, int(n), fromRight)
		} else {
			text, err := text1(sep)
			if err == nil && text == "" {
				err = fmt.Errorf("the separator is empty")
			}
			if err != nil {
				return nil, err
			}
			parts = splitText(s, text, int(n), fromRight)
		}
		l := &List{Items: make([]any, len(parts))}
		for i, p := range parts {
			l.Items[i] = p
		}
		return l, r.made(16 * len(parts))
	}
}

// splitText splits at most n times (any number if n is negative).
func splitText(s, sep string, n int, fromRight bool) []string {
	if !fromRight {
		if n < 0 {
			return strings.Split(s, sep)
		}
		return strings.SplitN(s, sep, n+1)
	}
	var parts []string
	for ; n != 0; n-- {
		i := strings.LastIndex(s, sep)
		if i < 0 {
			break
		}
		parts = append(parts, s[i+len(sep):])
		s = s[:i]
	}
	parts = append(parts, s)
	slices.Reverse(parts)
	return parts
}

// splitSpace splits at runs of white space, without empty parts.
func splitSpace(s string, n int, fromRight bool) []string {
	var parts []string
	for {
		if fromRight {
			s = strings.TrimRightFunc(s, isPythonSpace)
		} else {
			s = strings.TrimLeftFunc(s, isPythonSpace)
		}
		if s == "" {
			break
		}
		var part string
		if i := strings.IndexFunc(s, isPythonSpace); n == 0 || i < 0 {
			part, s = s, ""
		} else if fromRight {
			i = strings.LastIndexFunc(s, isPythonSpace)
			_, size := utf8.DecodeRuneInString(s[i:])
			part, s = s[i+size:], s[:i]
		} else {
			part, s = s[:i], s[i:]
		}
		parts = append(parts, part)
		n--
	}
	if fromRight {
		slices.Reverse(parts)
	}
	return parts
}

func splitLinesMethod(r *renderer, s string, a args) (any, error) {
	if err := a.take(nil); err != nil {
		return nil, err
	}
	lines := splitLines(s)
	l := &List{Items: make([]any, len(lines))}
	for i, line := range lines {
		l.Items[i] = line
	}
	return l, r.made(16 * len(lines))
}

// splitLines is Python's str.splitlines.
func splitLines(s string) []string {
	var lines []string
	for s != "" {
		i := strings.IndexAny(s, "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029")
		if i < 0 {
			return append(lines, s)
		}
		lines = append(lines, s[:i])
		_, n := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			n = 2
		}
		s = s[i+n:]
	}
	return lines
}

// globalFunctions are the functions that every template can call.
var globalFunctions = map[string]any{
	"range": function(rangeFunction),
	"dict": function(func(_ *renderer, a args) (any, error) {
		return keywordDict(a)
	}),
	"namespace": function(func(_ *renderer, a args) (any, error) {
		d, err := keywordDict(a)
		return &namespace{d}, err
	}),
	"raise_exception": function(func(_ *renderer, a args) (any, error) {
		v, err := one(a)
		if err != nil {
			return nil, err
		}
		return nil, &RaisedError{fmt.Sprint(v)}
	}),
}

// keywordDict makes a dictionary of a dictionary and keyword arguments.
func keywordDict(a args) (*Dict, error) {
	d := NewDict()
	for _, v := range a.positional {
		from, ok := v.(*Dict)
		if !ok || len(a.positional) > 1 {
			return nil, fmt.Errorf("takes one dictionary and keyword arguments")
		}
		for _, k := range from.keys {
			d.set(k, from.values[k])
		}
	}
	for i, n := range a.names {
		d.set(n, a.values[i])
	}
	return d, nil
}

func rangeFunction(r *renderer, a args) (any, error) {
	bounds := [3]int64{0, 0, 1}
	for i, v := range a.positional {
		n, ok := v.(int64)
		if !ok || i > 2 || len(a.names) > 0 {
			return nil, fmt.Errorf("range takes one to three integers")
		}
		bounds[i] = n
	}
	if len(a.positional) == 1 {
		bounds[0], bounds[1] = 0, bounds[0]
	}
	start, stop, step := bounds[0], bounds[1], bounds[2]
	if step == 0 || len(a.positional) == 0 {
		return nil, fmt.Errorf("range takes one to three integers, the third not 0")
	}
	l := &List{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if err := r.made(24); err != nil {
			return nil, err
		}
		l.Items = append(l.Items, i)
	}
	return l, nil
}

// strftimeLayouts are the directives of strftime in Go's layouts.
var strftimeLayouts = map[byte]string{
	'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM",
	'b': "Jan", 'h': "Jan", 'B': "January", 'a': "Mon", 'A': "Monday", 'j': "002", 'Z': "MST", 'z': "-0700",
	'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04", 'e': "_2", 'f': "000000",
	'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
}

// strftime formats now in the C locale.
func strftime(now time.Time, format string) (any, error) {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		strip := format[i] == '-' && i+1 < len(format) // %-d: no leading zero
		if strip {
			i++
		}
		layout, ok := strftimeLayouts[format[i]]
		switch {
		case format[i] == '%':
			b.WriteByte('%')
		case format[i] == 'f':
			fmt.Fprintf(&b, "%06d", now.Nanosecond()/1000)
		case !ok:
			return nil, fmt.Errorf("strftime_now: directive %%%c is not supported", format[i])
		default:
			text := now.Format(layout)
			if strip {
				if text = strings.TrimLeft(text, "0 "); text == "" {
					text = "0"
				}
			}
			b.WriteString(text)
		}
	}
	return b.String(), nil
}
