package configs

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

// validate checks a decoded document against the part of JSON Schema that
// Schema uses. Keywords that it does not know are a failure, so that the schema
// cannot grow past its test.
func validate(schema map[string]any, doc any, path string) []string {
	var out []string
	fail := func(format string, args ...any) { out = append(out, path+": "+fmt.Sprintf(format, args...)) }
	for key, want := range schema {
		switch key {
		case "$schema", "$id", "title", "description", "default", "examples":
		case "type":
			if !hasType(want, doc) {
				fail("%v is not %v", doc, want)
			}
		case "anyOf":
			if !slices.ContainsFunc(want.([]any), func(s any) bool { return len(validate(s.(map[string]any), doc, path)) == 0 }) {
				fail("matches no alternative")
			}
		case "enum":
			if !slices.Contains(want.([]any), doc) {
				fail("%v is not one of %v", doc, want)
			}
		case "pattern":
			if s, ok := doc.(string); ok && !regexp.MustCompile(want.(string)).MatchString(s) {
				fail("%q does not match %s", s, want)
			}
		case "minimum", "maximum", "multipleOf":
			if f, ok := doc.(float64); ok && !inLimit(key, f, want.(float64)) {
				fail("%v breaks %s %v", f, key, want)
			}
		case "minItems":
			if l, ok := doc.([]any); ok && len(l) < int(want.(float64)) {
				fail("%d items", len(l))
			}
		case "items":
			l, _ := doc.([]any)
			for i, item := range l {
				out = append(out, validate(want.(map[string]any), item, fmt.Sprintf("%s[%d]", path, i))...)
			}
		case "required":
			m, isMap := doc.(map[string]any)
			for _, k := range want.([]any) {
				if _, ok := m[k.(string)]; isMap && !ok {
					fail("%s is missing", k)
				}
			}
		case "properties":
			m, _ := doc.(map[string]any)
			for k, v := range m {
				if s, ok := want.(map[string]any)[k]; ok {
					out = append(out, validate(s.(map[string]any), v, path+"."+k)...)
				} else if schema["additionalProperties"] == false {
					fail("unknown key %s", k)
				}
			}
		case "additionalProperties":
		default:
			fail("schema keyword %s is not known to this test", key)
		}
	}
	return out
}

func hasType(want, doc any) bool {
	if list, ok := want.([]any); ok {
		return slices.ContainsFunc(list, func(w any) bool { return hasType(w, doc) })
	}
	switch v := doc.(type) {
	case nil:
		return want == "null"
	case bool:
		return want == "boolean"
	case string:
		return want == "string"
	case float64:
		return want == "number" || want == "integer" && v == math.Trunc(v)
	case []any:
		return want == "array"
	default:
		return want == "object"
	}
}

func inLimit(key string, v, limit float64) bool {
	switch key {
	case "minimum":
		return v >= limit
	case "maximum":
		return v <= limit
	default:
		return math.Mod(v, limit) == 0
	}
}

func schemaAsMap(t testing.TB) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(Schema(), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// asJSON turns YAML into what a JSON decoder would give.
func asJSON(t rapid.TB, text []byte) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	j, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := json.Unmarshal(j, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestSchemaAcceptsExamples(t *testing.T) {
	schema := schemaAsMap(t)
	for _, name := range ExampleNames() {
		text := mustExample(name)
		for _, problem := range validate(schema, asJSON(t, text), "") {
			t.Errorf("%s%s", name, problem)
		}
		c, err := Parse(text, name)
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range validate(schema, asJSON(t, out), "") {
			t.Errorf("%s, resolved%s", name, problem)
		}
	}
}

// TestSchemaDescribesAll: an editor has a line of help for every key.
func TestSchemaDescribesAll(t *testing.T) {
	var walk func(s map[string]any, path string)
	walk = func(s map[string]any, path string) {
		props, _ := s["properties"].(map[string]any)
		for k, v := range props {
			p := v.(map[string]any)
			if p["description"] == nil {
				t.Errorf("%s.%s has no description", path, k)
			}
			walk(p, path+"."+k)
			if items, ok := p["items"].(map[string]any); ok {
				walk(items, path+"."+k)
			}
		}
	}
	walk(schemaAsMap(t), "")
}

// TestSchemaAgrees breaks the default in one place at a time. Where parser and
// schema look at one value alone they must agree.
func TestSchemaAgrees(t *testing.T) {
	schema := schemaAsMap(t)
	lines := strings.Split(string(mustExample(DefaultName)), "\n")
	keyed := regexp.MustCompile(`^( +(?:- )?[a-z_]+: )([^#{\[]*[^#{\[ ])(.*)$`)
	var at []int
	for i, l := range lines {
		if keyed.MatchString(l) {
			at = append(at, i)
		}
	}
	values := []string{"-1", "0", "7", "48", "1.5", "1.5.5", "4MB", "04MB", "4mb", "3KB", "5us", "5", "-5s", "1h30m", "5%", "x", "true", `"16"`, "[]", "{}", "null", "lcm", "0.3B", "info"}
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.SampledFrom(at).Draw(t, "line")
		value := rapid.SampledFrom(values).Draw(t, "value")
		broken := slices.Clone(lines)
		broken[i] = keyed.ReplaceAllString(lines[i], "${1}"+value+"${3}")
		text := []byte(strings.Join(broken, "\n"))
		problems := validate(schema, asJSON(t, text), "")
		_, errs := decodeOnto(baseline(), text, "x")
		// Bounds of sizes and durations have no form in JSON Schema, nor
		// has "a whole number of bytes".
		if slices.ContainsFunc(errs, func(v Violation) bool {
			return strings.HasPrefix(v.Problem, "too ") && strings.Contains(v.Accepted, "such as") || v.Problem == "not a whole number of bytes"
		}) {
			return
		}
		if (len(problems) == 0) != (len(errs) == 0) {
			t.Fatalf("%q: the schema says %v, the parser %v", broken[i], problems, errs)
		}
	})
}

// TestDefaultFileIsComplete: the default file shows every key of the top-level
// sections, and the values of its first model are those that a file gets that
// leaves them out.
func TestDefaultFileIsComplete(t *testing.T) {
	src, errs := decodeOnto(new(Config), mustExample(DefaultName), DefaultName)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, key := range SchemaKeys() {
		if strings.HasPrefix(key, "links[]") || strings.HasPrefix(key, "models[].shares[]") || strings.HasPrefix(key, "models[].overflow.devices[]") || strings.HasPrefix(key, "lending.scale_down.") {
			continue // shown in a comment; those of other policies are refused
		}
		key = strings.Replace(key, "[]", "[0]", 1)
		if key == "models[0].floor" || key == "models[0].zero_on_return" || key == "models[0].shares" {
			key = strings.Replace(key, "[0]", "[1]", 1) // a worker's
		}
		if !src.has(key) {
			t.Errorf("%s does not show %s", DefaultName, key)
		}
	}
	short, err := Parse([]byte("version: 1\ndevices: [{name: gpu0}]\nmodels: [{name: atlas, source: builtin:atlas, role: master, device: gpu0, arena: 4MiB}]"), "short")
	if err != nil {
		t.Fatal(err)
	}
	full := Default()
	if !reflect.DeepEqual(short.Models[0], func() Model { m := full.Models[0]; m.BorrowFrom, m.Overflow.Devices = nil, nil; return m }()) {
		t.Errorf("the default file shows %+v, a short file gets %+v", full.Models[0], short.Models[0])
	}
	short.Models, short.Devices, short.Links, short.source = full.Models, full.Devices, full.Links, full.source
	if !reflect.DeepEqual(short, full) {
		t.Errorf("a short file gets %+v, the default is %+v", short, full)
	}
}
