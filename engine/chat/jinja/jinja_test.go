package jinja

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// caseFile is testdata/cases.json, which testdata/cases.py wrote with Jinja2.
type caseFile struct {
	Vars  map[string]json.RawMessage
	Cases []struct{ Template, Want, Error string }
}

func loadCases(t testing.TB) (*caseFile, map[string]any) {
	t.Helper()
	data, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var file caseFile
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	vars := map[string]any{}
	for name, raw := range file.Vars {
		if vars[name], err = FromGo(raw); err != nil {
			t.Fatal(err)
		}
	}
	return &file, vars
}

// testNow is the time that the Python script pretends.
var testNow = time.Date(2025, 3, 4, 5, 6, 7, 0, time.UTC)

func render(source string, vars map[string]any) (string, error) {
	t, err := Parse(source)
	if err != nil {
		return "", err
	}
	return t.Render(vars, testNow, DefaultLimits)
}

func TestAgainstJinja2(t *testing.T) {
	file, vars := loadCases(t)
	if len(file.Cases) < 100 {
		t.Fatalf("%d cases, want 100 at least", len(file.Cases))
	}
	for _, c := range file.Cases {
		got, err := render(c.Template, vars)
		switch {
		case c.Error != "" && err == nil:
			t.Errorf("%s\n got %q\nwant the error %s", c.Template, got, c.Error)
		case c.Error == "" && (err != nil || got != c.Want):
			t.Errorf("%s\n got %q, %v\nwant %q", c.Template, got, err, c.Want)
		}
	}
}

func TestHostileTemplates(t *testing.T) {
	limits := Limits{Steps: 200_000, Bytes: 1 << 20, Depth: 200}
	for name, source := range map[string]string{
		"endless loops":     `{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}`,
		"endless recursion": `{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}`,
		"long range":        `{{ range(1000000000000) | length }}`,
		"long string":       `{{ ('x' * 1000000000000) | length }}`,
		"long list":         `{{ ([1] * 1000000000000) | length }}`,
		"doubling text":     `{% set ns = namespace(s='xx') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}`,
		"doubling by tilde": `{% set ns = namespace(s='xx') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}`,
		"doubling blocks":   `{% set s = 'xx' %}` + strings.Repeat(`{% set s %}{{ s }}{{ s }}{% endset %}`, 64),
		"doubling lists":    `{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}`,
		"shared lists":      `{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}`,
		"shared as JSON":    `{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | tojson | length }}`,
		"shared compared":   `{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(64) %}{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}`,
		"deep lists":        `{% set ns = namespace(s=[]) %}{% for i in range(10000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}`,
		"replacements":      `{{ ('a' * 100000) | replace('a', 'b' * 100000) | length }}`,
		"joins":             `{{ range(30000) | join('x' * 1000) | length }}`,
		"indents":           `{{ ('a\n' * 100000) | indent(1000) | length }}`,
		"iterations":        `{% for c in 'x' * 500000 %}{% for d in 'y' * 500000 %}{% endfor %}{% endfor %}`,
		"loop recursion":    `{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}`,
		"filters":           `{% for i in range(9999) %}{{ range(9999) | map('string') | join | length }}{% endfor %}`,
	} {
		t.Run(name, func(t *testing.T) {
			tmpl, err := Parse(source)
			if err != nil {
				t.Fatal(err)
			}
			if out, err := tmpl.Render(nil, testNow, limits); !errors.Is(err, ErrLimit) {
				t.Errorf("got %.100q, %v, want a limit's error", out, err)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for source, want := range map[string]string{
		"\n{{ s | groupby('x') }}":        `template line 2: filter "groupby" is not supported`,
		"{{ s is testish }}":              `test "testish" is not supported`,
		"{% include 'x' %}":               `the tag "include" is not supported`,
		"{% import 'x' as y %}":           `the tag "import" is not supported`,
		"{% extends 'x' %}":               `the tag "extends" is not supported`,
		"{% call m() %}{% endcall %}":     `the tag "call" is not supported`,
		"{{ f(*x) }}":                     "unpacked arguments are not supported",
		strings.Repeat("{% if x %}", 500): "nested more than",
		"{{ " + strings.Repeat("(", 5000) + strings.Repeat(")", 5000) + "}}": "nested more than",
		"{{ " + strings.Repeat("-", 5000) + "1 }}":                           "nested more than",
		"{{ " + strings.Repeat("not ", 5000) + "1 }}":                        "nested more than",
	} {
		if _, err := Parse(source); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: got error %v, want one with %q", source, err, want)
		}
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	_, err := render("a\n{% if true %}\n{{ missing.x }}\n{% endif %}", nil)
	if err == nil || err.Error() != `template line 3: "missing" is undefined` {
		t.Errorf("got %v", err)
	}
}

func TestRaisedError(t *testing.T) {
	_, err := render("{% for i in [1] %}{{ raise_exception('No system role') }}{% endfor %}", nil)
	var raised *RaisedError
	if !errors.As(err, &raised) || raised.Message != "No system role" || err.Error() != "No system role" {
		t.Errorf("got %v", err)
	}
}

func TestFromGo(t *testing.T) {
	type id string
	for _, c := range []struct {
		in   any
		want string
	}{
		{json.RawMessage(`{"z": 1, "a": [1.0, 18446744073709551616, null, true, "x"]}`), `{"z": 1, "a": [1.0, 18446744073709551616, null, true, "x"]}`},
		{map[string]any{"z": 1, "a": []string{"x"}}, `{"a": ["x"], "z": 1}`},
		{uint64(1 << 63), `9223372036854775808`},
		{float32(0.5), `0.5`},
		{id("x"), `"x"`},
		{[]map[string]int{{"a": 1}}, `[{"a": 1}]`},
	} {
		v, err := FromGo(c.in)
		if err != nil {
			t.Errorf("%v: %v", c.in, err)
			continue
		}
		if got, err := render("{{ v | tojson }}", map[string]any{"v": v}); err != nil || got != c.want {
			t.Errorf("%v: got %s, %v, want %s", c.in, got, err, c.want)
		}
	}
	for _, bad := range []any{make(chan int), struct{ X int }{1}, map[int]int{1: 2}, json.RawMessage(`{"a"`), json.RawMessage(`1 2`),
		json.RawMessage(strings.Repeat("[", 200) + strings.Repeat("]", 200))} {
		if v, err := FromGo(bad); err == nil {
			t.Errorf("%v of type %T became %v", bad, bad, v)
		}
	}
}

func FuzzTemplate(f *testing.F) {
	file, vars := loadCases(f)
	for _, c := range file.Cases {
		f.Add(c.Template)
	}
	limits := Limits{Steps: 20_000, Bytes: 1 << 18, Depth: 100}
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse(source)
		if err != nil {
			return
		}
		before, err := tmpl.Render(vars, testNow, limits)
		again, err2 := tmpl.Render(vars, testNow, limits)
		if before != again || (err == nil) != (err2 == nil) {
			t.Errorf("rendered twice: %q, %v and %q, %v", before, err, again, err2)
		}
		if len(before) > limits.Bytes {
			t.Errorf("%d bytes of output", len(before))
		}
	})
}
