package jinja

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// filterFunc is a filter: the value on its left, its arguments.
type filterFunc func(r *renderer, v any, a args) (any, error)

// filters by name. Filters that apply others find them through the renderer.
var filters = map[string]filterFunc{
	"abs":        absFilter,
	"capitalize": stringFilter(capitalize),
	"count":      lengthFilter,
	"d":          defaultFilter,
	"default":    defaultFilter,
	"dictsort":   dictSort,
	"e":          stringFilter(escape),
	"escape":     stringFilter(escape),
	"first":      firstFilter,
	"float":      floatFilter,
	"indent":     indentFilter,
	"int":        intFilter,
	"items":      itemsFilter,
	"join":       joinFilter,
	"last":       lastFilter,
	"length":     lengthFilter,
	"list":       listFilter,
	"lower":      stringFilter(lower),
	"map":        mapFilter,
	"max":        extremeFilter(1),
	"min":        extremeFilter(-1),
	"reject":     selectFilter(false, false),
	"rejectattr": selectFilter(false, true),
	"replace":    replaceFilter,
	"reverse":    reverseFilter,
	"round":      roundFilter,
	"safe":       stringFilter(func(s string) string { return s }),
	"select":     selectFilter(true, false),
	"selectattr": selectFilter(true, true),
	"sort":       sortFilter,
	"string":     stringFilter(func(s string) string { return s }),
	"sum":        sumFilter,
	"title":      stringFilter(titleFilter),
	"tojson":     toJSON,
	"trim":       trimFilter,
	"unique":     uniqueFilter,
	"upper":      stringFilter(upper),
	"wordcount":  wordCount,
}

// stringFilter makes a filter of a function on strings.
func stringFilter(fn func(string) string) filterFunc {
	return func(r *renderer, v any, a args) (any, error) {
		if err := a.take(nil); err != nil {
			return nil, err
		}
		s, err := r.text(v)
		if err != nil {
			return nil, err
		}
		return r.str(fn(s))
	}
}

func capitalize(s string) string {
	for i, c := range s {
		n := i + len(string(c))
		return string(unicode.ToTitle(c)) + strings.ToLower(s[n:])
	}
	return s
}

var escaper = strings.NewReplacer("&", "&amp;", ">", "&gt;", "<", "&lt;", "'", "&#39;", `"`, "&#34;")

func escape(s string) string { return escaper.Replace(s) }

// titleFilter begins words after white space, hyphens and brackets.
func titleFilter(s string) string {
	first := true
	return strings.Map(func(c rune) rune {
		begins := first
		first = unicode.IsSpace(c) || strings.ContainsRune("-({[<", c)
		if begins {
			return unicode.ToUpper(c)
		}
		return unicode.ToLower(c)
	}, s)
}

func absFilter(_ *renderer, v any, a args) (any, error) {
	i, f, isInt, ok := number(v)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s has no absolute value", typeName(v))
	case isInt && i < 0:
		return -i, nil
	case isInt:
		return i, nil
	}
	return math.Abs(f), a.take(nil)
}

func lengthFilter(_ *renderer, v any, a args) (any, error) {
	n, err := length(v)
	if err == nil {
		err = a.take(nil)
	}
	return int64(n), err
}

func defaultFilter(_ *renderer, v any, a args) (any, error) {
	var otherwise, boolean any = "", false
	if err := a.take([]string{"default_value", "boolean"}, &otherwise, &boolean); err != nil {
		return nil, err
	}
	if _, missing := v.(undefined); missing || truthy(boolean) && !truthy(v) {
		return otherwise, nil
	}
	return v, nil
}

func firstFilter(r *renderer, v any, _ args) (any, error) {
	items, err := r.iterate(v)
	if err != nil || len(items) == 0 {
		return undefined{"the first item of an empty sequence"}, err
	}
	return items[0], nil
}

func lastFilter(r *renderer, v any, _ args) (any, error) {
	items, err := r.iterate(v)
	if err != nil || len(items) == 0 {
		return undefined{"the last item of an empty sequence"}, err
	}
	return items[len(items)-1], nil
}

func listFilter(r *renderer, v any, _ args) (any, error) {
	items, err := r.iterate(v)
	if err == nil {
		err = r.made(8 * len(items))
	}
	return &List{Items: slices.Clone(items)}, err
}

func itemsFilter(r *renderer, v any, _ args) (any, error) {
	if _, ok := v.(undefined); ok {
		return &List{}, nil
	}
	d, ok := v.(*Dict)
	if !ok {
		return nil, fmt.Errorf("%s has no items", typeName(v))
	}
	return r.pairs(d)
}

// pairs lists the keys and values of a dictionary as tuples.
func (r *renderer) pairs(d *Dict) (*List, error) {
	l := &List{}
	if err := r.made(48 * len(d.keys)); err != nil {
		return l, err
	}
	for _, k := range d.keys {
		l.Items = append(l.Items, &List{Items: []any{k, d.values[k]}, tuple: true})
	}
	return l, nil
}

func joinFilter(r *renderer, v any, a args) (any, error) {
	var sep, attr any = "", nil
	if err := a.take([]string{"d", "attribute"}, &sep, &attr); err != nil {
		return nil, err
	}
	separator, err := r.text(sep)
	if err != nil {
		return nil, err
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for i, item := range items {
		if attr != nil {
			if item, err = attributePath(item, attr); err != nil {
				return nil, err
			}
		}
		text, err := r.text(item)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			text = separator + text
		}
		if err := r.made(len(text)); err != nil {
			return nil, err
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

func trimFilter(r *renderer, v any, a args) (any, error) {
	var chars any
	if err := a.take([]string{"chars"}, &chars); err != nil {
		return nil, err
	}
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	return strip(s, chars, true, true)
}

func replaceFilter(r *renderer, v any, a args) (any, error) {
	var from, to, count any
	if err := a.take([]string{"old", "new", "count"}, &from, &to, &count); err != nil {
		return nil, err
	}
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	return r.replace(s, from, to, count)
}

func reverseFilter(r *renderer, v any, _ args) (any, error) {
	items, err := r.iterate(v)
	if err == nil {
		err = r.made(8 * len(items))
	}
	if err != nil {
		return nil, err
	}
	out := slices.Clone(items)
	slices.Reverse(out)
	if _, ok := v.(string); ok {
		var b strings.Builder
		for _, c := range out {
			b.WriteString(c.(string))
		}
		return b.String(), nil
	}
	return &List{Items: out}, nil
}

func intFilter(_ *renderer, v any, a args) (any, error) {
	var otherwise, base any = int64(0), int64(10)
	if err := a.take([]string{"default", "base"}, &otherwise, &base); err != nil {
		return nil, err
	}
	if s, ok := v.(string); ok {
		b, _ := base.(int64)
		if b != 0 && (b < 2 || b > 36) {
			return nil, fmt.Errorf("base is %d: it must be 0 or from 2 to 36", b)
		}
		s = strings.TrimSpace(s)
		if prefix := map[int64]string{2: "0b", 8: "0o", 16: "0x"}[b]; prefix != "" {
			s = strings.TrimPrefix(strings.ToLower(s), prefix)
		}
		if n, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), int(b), 64); err == nil {
			return n, nil
		}
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return otherwise, nil
		}
		v = f
	}
	i, f, isInt, ok := number(v)
	switch {
	case !ok || !isInt && !(math.Abs(f) < 1<<63):
		return otherwise, nil
	case isInt:
		return i, nil
	}
	return int64(f), nil
}

func floatFilter(_ *renderer, v any, a args) (any, error) {
	var otherwise any = 0.0
	if err := a.take([]string{"default"}, &otherwise); err != nil {
		return nil, err
	}
	if s, ok := v.(string); ok {
		if f, err := strconv.ParseFloat(strings.TrimSpace(s), 64); err == nil {
			return f, nil
		}
		return otherwise, nil
	}
	if _, f, _, ok := number(v); ok {
		return f, nil
	}
	return otherwise, nil
}

func roundFilter(_ *renderer, v any, a args) (any, error) {
	var precision, how any = int64(0), "common"
	if err := a.take([]string{"precision", "method"}, &precision, &how); err != nil {
		return nil, err
	}
	i, f, whole, ok := number(v)
	p, isInt := precision.(int64)
	if whole && how == "common" && p >= 0 {
		return i, nil
	}
	if !ok || !isInt || p < -300 || p > 300 {
		return nil, fmt.Errorf("cannot round %s", typeName(v))
	}
	scale := math.Pow(10, float64(p))
	switch how {
	case "common":
		if p < 0 {
			return math.RoundToEven(f*scale) / scale, nil
		}
		// Python rounds the exact decimal value, as strconv does.
		return strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(p), 64), 64)
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	case "floor":
		return math.Floor(f*scale) / scale, nil
	}
	return nil, fmt.Errorf("method must be common, ceil or floor")
}

func wordCount(r *renderer, v any, _ args) (any, error) {
	s, err := r.text(v)
	return int64(len(strings.Fields(s))), err
}

func indentFilter(r *renderer, v any, a args) (any, error) {
	var width, first, blank any = int64(4), false, false
	if err := a.take([]string{"width", "first", "blank"}, &width, &first, &blank); err != nil {
		return nil, err
	}
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	prefix, ok := width.(string)
	if n, isInt := width.(int64); isInt && n <= 1000 {
		prefix, ok = strings.Repeat(" ", int(max(n, 0))), true
	}
	if !ok {
		return nil, fmt.Errorf("width must be an integer up to 1000 or a string")
	}
	lines := splitLines(s + "\n")
	if err := r.made(len(s) + len(lines)*(len(prefix)+1)); err != nil {
		return nil, err
	}
	for i := range lines {
		if i > 0 && (lines[i] != "" || truthy(blank)) || i == 0 && truthy(first) {
			lines[i] = prefix + lines[i]
		}
	}
	return strings.Join(lines, "\n"), nil
}
