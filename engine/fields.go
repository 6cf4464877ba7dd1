package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ConfigError says which field of a model's configuration is not acceptable.
type ConfigError struct {
	File  string // path, or the name of a built-in
	Field string // dotted path inside the file
	Value string // what was found
	Want  string // what would have been accepted
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("%s: %s is %s, want %s", e.File, e.Field, e.Value, e.Want)
}

// fields reads typed values of one JSON object and collects every violation
// rather than the first. A value of null counts as absent, as in Python.
type fields struct {
	file   string
	prefix string
	raw    map[string]json.RawMessage
	errs   *[]error
}

func parseFields(file string, data []byte) (*fields, error) {
	f := &fields{file: file, errs: new([]error)}
	if err := json.Unmarshal(data, &f.raw); err != nil {
		return nil, &ConfigError{file, "content", "invalid JSON (" + err.Error() + ")", "a JSON object"}
	}
	if f.raw == nil {
		return nil, &ConfigError{file, "content", "null", "a JSON object"}
	}
	return f, nil
}

func (f *fields) err() error { return errors.Join(*f.errs...) }

func (f *fields) bad(key, value, want string, args ...any) {
	*f.errs = append(*f.errs, &ConfigError{f.file, f.prefix + key, value, fmt.Sprintf(want, args...)})
}

// get returns the raw value of a key that is present and not null.
func (f *fields) get(key string) (json.RawMessage, bool) {
	v, ok := f.raw[key]
	if !ok || string(v) == "null" {
		return nil, false
	}
	return v, true
}

// object returns a nested object, nil when it is absent.
func (f *fields) object(key string) *fields {
	v, ok := f.get(key)
	if !ok {
		return nil
	}
	sub := &fields{file: f.file, prefix: f.prefix + key + ".", errs: f.errs}
	if err := json.Unmarshal(v, &sub.raw); err != nil {
		f.bad(key, shorten(v), "an object or null")
		return nil
	}
	return sub
}

// number returns the value as float64; ok is false when it is absent or bad.
func (f *fields) number(key, want string, args ...any) (float64, bool) {
	v, ok := f.get(key)
	if !ok {
		return 0, false
	}
	x, err := strconv.ParseFloat(string(v), 64)
	if err != nil || math.IsInf(x, 0) || math.IsNaN(x) {
		f.bad(key, shorten(v), want, args...)
		return 0, false
	}
	return x, true
}

// required marks the absence of a field as an error.
const required = math.MinInt

// int reads an integer in [lo, hi], with def where it is absent.
func (f *fields) int(key string, def, lo, hi int) int {
	want := fmt.Sprintf("an integer from %d to %d", lo, hi)
	if _, ok := f.get(key); !ok {
		if def == required {
			f.bad(key, "missing", "%s", want)
		}
		return def
	}
	x, ok := f.number(key, "%s", want)
	if ok && (x != math.Trunc(x) || x < float64(lo) || x > float64(hi)) {
		f.bad(key, shorten(f.raw[key]), "%s", want)
	}
	if !ok || x < float64(lo) || x > float64(hi) {
		return lo
	}
	return int(x)
}

// float reads a number in (0, hi], with def where it is absent; def 0 means
// that it is required.
func (f *fields) float(key string, def, hi float64) float64 {
	if _, ok := f.get(key); !ok {
		if def == 0 {
			f.bad(key, "missing", "a number above 0, at most %g", hi)
		}
		return def
	}
	x, ok := f.number(key, "a number above 0, at most %g", hi)
	if ok && (x <= 0 || x > hi) {
		f.bad(key, shorten(f.raw[key]), "a number above 0, at most %g", hi)
	}
	return x
}

func (f *fields) bool(key string, def bool) bool {
	v, ok := f.get(key)
	if !ok {
		return def
	}
	var b bool
	if err := json.Unmarshal(v, &b); err != nil {
		f.bad(key, shorten(v), "true or false")
	}
	return b
}

func (f *fields) str(key, def string) string {
	v, ok := f.get(key)
	if !ok {
		return def
	}
	var s string
	if err := json.Unmarshal(v, &s); err != nil {
		f.bad(key, shorten(v), "a string")
	}
	return s
}

// ids reads a token id or a list of token ids.
func (f *fields) ids(key string, vocab int) []int32 {
	v, ok := f.get(key)
	if !ok {
		return nil
	}
	want := fmt.Sprintf("a token id from 0 to %d, or a list of them", vocab-1)
	var list []int64
	if err := json.Unmarshal(v, &list); err != nil {
		var one int64
		if json.Unmarshal(v, &one) != nil {
			f.bad(key, shorten(v), "%s", want)
			return nil
		}
		list = []int64{one}
	}
	out := make([]int32, 0, len(list))
	for _, id := range list {
		if id < 0 || id >= int64(vocab) {
			f.bad(key, strconv.FormatInt(id, 10), "%s", want)
			continue
		}
		out = append(out, int32(id))
	}
	return out
}

// shorten quotes a JSON value for an error message.
func shorten(v json.RawMessage) string {
	s := strings.Join(strings.Fields(string(v)), " ")
	if len(s) > 60 {
		s = s[:57] + "..."
	}
	return s
}
