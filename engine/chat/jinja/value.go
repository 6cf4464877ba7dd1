package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Values are Go values of these types: nil (none), bool, int64, float64,
// string, bigInt, *List, *Dict, undefined, *namespace, function, *loopState.

// List is a list or tuple.
type List struct {
	Items []any
	tuple bool
}

// Dict is a dictionary that keeps its order. Its keys are strings, or other
// values that compare by ==.
type Dict struct {
	keys   []any
	values map[any]any
}

// NewDict returns an empty dictionary.
func NewDict() *Dict { return &Dict{values: map[any]any{}} }

// Set adds or replaces an entry; the value must be one that FromGo makes.
func (d *Dict) Set(key string, value any) { d.set(key, value) }

func (d *Dict) set(key, value any) {
	key = dictKey(key)
	if _, ok := d.values[key]; !ok {
		d.keys = append(d.keys, key)
	}
	d.values[key] = value
}

func (d *Dict) get(key any) (any, bool) {
	if !hashable(key) {
		return nil, false
	}
	v, ok := d.values[dictKey(key)]
	return v, ok
}

// dictKey makes equal numbers equal keys.
func dictKey(key any) any {
	switch k := key.(type) {
	case bool:
		if k {
			return int64(1)
		}
		return int64(0)
	case float64:
		if n := int64(k); float64(n) == k {
			return n
		}
	}
	return key
}

func hashable(key any) bool {
	switch key.(type) {
	case nil, bool, int64, float64, string, bigInt:
		return true
	}
	return false
}

// bigInt is an integer beyond int64 as written; it can only be printed.
type bigInt string

// undefined is a missing value and what it would have been.
type undefined struct{ what string }

func (u undefined) err() error { return fmt.Errorf("%s is undefined", u.what) }

// namespace is the one object that templates may change.
type namespace struct{ vars *Dict }

// function is a callable value; it gets evaluated arguments.
type function func(r *renderer, a args) (any, error)

// args are evaluated arguments.
type args struct {
	positional []any
	names      []string
	values     []any
}

// take distributes arguments over parameters, in Python's manner: missing
// ones keep what dst has.
func (a args) take(params []string, dst ...*any) error {
	if len(a.positional) > len(params) {
		return fmt.Errorf("takes at most %d arguments, got %d", len(params), len(a.positional))
	}
	for i, v := range a.positional {
		*dst[i] = v
	}
	for i, n := range a.names {
		at := slices.Index(params, n)
		if at < 0 {
			return fmt.Errorf("has no parameter %q", n)
		}
		if at < len(a.positional) {
			return fmt.Errorf("got parameter %q twice", n)
		}
		*dst[at] = a.values[i]
	}
	return nil
}

// FromGo converts data to values: JSON's types as encoding/json makes them,
// integers, json.RawMessage (which keeps the order of objects), slices, maps
// with string keys (in order of the keys), and what this package exports.
func FromGo(v any) (any, error) { return fromGo(v, 0) }

// maxData bounds the nesting of data.
const maxData = 100

func fromGo(v any, depth int) (any, error) {
	if depth > maxData {
		return nil, fmt.Errorf("data is nested more than %d deep", maxData)
	}
	switch v := v.(type) {
	case nil, bool, int64, float64, string, *List, *Dict:
		return v, nil
	case json.RawMessage:
		return fromJSON(v)
	case json.Number:
		return fromNumber(v)
	}
	rv := reflect.ValueOf(v)
	switch rv.Kind() {
	case reflect.Bool:
		return rv.Bool(), nil
	case reflect.String:
		return rv.String(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return rv.Int(), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fromNumber(json.Number(strconv.FormatUint(rv.Uint(), 10)))
	case reflect.Float32, reflect.Float64:
		return rv.Float(), nil
	case reflect.Slice, reflect.Array:
		l := &List{Items: make([]any, rv.Len())}
		for i := range l.Items {
			var err error
			if l.Items[i], err = fromGo(rv.Index(i).Interface(), depth+1); err != nil {
				return nil, err
			}
		}
		return l, nil
	case reflect.Map:
		return fromMap(rv, depth)
	}
	return nil, fmt.Errorf("cannot use a value of type %T in a template", v)
}

func fromMap(rv reflect.Value, depth int) (any, error) {
	if rv.Type().Key().Kind() != reflect.String {
		return nil, fmt.Errorf("cannot use a value of type %s in a template", rv.Type())
	}
	keys := rv.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	d := NewDict()
	for _, k := range keys {
		v, err := fromGo(rv.MapIndex(k).Interface(), depth+1)
		if err != nil {
			return nil, err
		}
		d.set(k.String(), v)
	}
	return d, nil
}

func fromNumber(n json.Number) (any, error) {
	if !strings.ContainsAny(string(n), ".eE") {
		if i, err := n.Int64(); err == nil {
			return i, nil
		}
		if b, ok := new(big.Int).SetString(string(n), 10); ok {
			return bigInt(b.String()), nil
		}
	}
	f, err := strconv.ParseFloat(string(n), 64)
	if err != nil && !math.IsInf(f, 0) {
		return nil, fmt.Errorf("bad number %q", n)
	}
	return f, nil
}

// fromJSON decodes one JSON value, keeping the order of objects.
func fromJSON(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	v, err := decodeValue(dec, 0)
	if err != nil {
		return nil, err
	}
	if dec.More() {
		return nil, errors.New("more than one JSON value")
	}
	return v, nil
}

func decodeValue(dec *json.Decoder, depth int) (any, error) {
	if depth > maxData {
		return nil, fmt.Errorf("data is nested more than %d deep", maxData)
	}
	t, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		return fromNumber(t)
	case json.Delim:
		if t == '[' {
			l := &List{Items: []any{}}
			for dec.More() {
				v, err := decodeValue(dec, depth+1)
				if err != nil {
					return nil, err
				}
				l.Items = append(l.Items, v)
			}
			_, err = dec.Token()
			return l, err
		}
		d := NewDict()
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return nil, err
			}
			v, err := decodeValue(dec, depth+1)
			if err != nil {
				return nil, err
			}
			d.set(key, v)
		}
		_, err = dec.Token()
		return d, err
	}
	return t, nil
}

func truthy(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return len(v.keys) > 0
	}
	return true
}

func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "none"
	case bool:
		return "a boolean"
	case int64, bigInt:
		return "an integer"
	case float64:
		return "a float"
	case string:
		return "a string"
	case *List:
		return "a list"
	case *Dict:
		return "a dictionary"
	case undefined:
		return "undefined"
	case *namespace:
		return "a namespace"
	}
	return "a function"
}

// number returns v as an integer or a float; booleans are integers.
func number(v any) (i int64, f float64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case int64:
		return v, float64(v), true, true
	case float64:
		return 0, v, false, true
	}
	return 0, 0, false, false
}

// length is the number of items, or of characters.
func length(v any) (int, error) {
	switch v := v.(type) {
	case string:
		return utf8.RuneCountInString(v), nil
	case *List:
		return len(v.Items), nil
	case *Dict:
		return len(v.keys), nil
	case undefined:
		return 0, nil
	}
	return 0, fmt.Errorf("%s has no length", typeName(v))
}

// floatString is Python's repr of a float.
func floatString(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
