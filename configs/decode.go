package configs

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Limits of the input. Aliases count each time they are used, so that a short
// file cannot expand without bound. Depth needs no limit: the schema has one.
const (
	maxInput = 1 << 20
	maxNodes = 100_000
)

// source remembers where in a file each path was written.
type source struct {
	name string
	pos  map[string]position
}

type position struct{ line, column int }

// has reports whether the file wrote the path.
func (s *source) has(path string) bool {
	if s == nil {
		return false
	}
	_, ok := s.pos[path]
	return ok
}

// at is the place of the path, or of the nearest parent that was written.
func (s *source) at(path string) position {
	if s == nil {
		return position{}
	}
	for {
		if p, ok := s.pos[path]; ok {
			return p
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			return s.pos[""]
		}
		path = path[:cut]
	}
}

// decoder fills a Config from YAML nodes and collects violations.
type decoder struct {
	src   *source
	errs  Errors
	nodes int
}

// decodeOnto reads data over the values that c already has.
func decodeOnto(c *Config, data []byte, name string) (*source, Errors) {
	d := &decoder{src: &source{name: name, pos: map[string]position{"": {1, 1}}}}
	if len(data) > maxInput {
		d.errs = append(d.errs, Violation{File: name, Problem: fmt.Sprintf("the file has %d bytes", len(data)), Accepted: "at most 1MiB"})
		return d.src, d.errs
	}
	stream := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := stream.Decode(&doc); err != nil {
		d.syntax(err)
		return d.src, d.errs
	}
	var second yaml.Node
	if err := stream.Decode(&second); err == nil {
		d.fail(&second, "", "", "a second YAML document", "one document")
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
	}
	if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 {
		d.value(doc.Content[0], "", reflect.ValueOf(c).Elem(), "")
	}
	return d.src, d.errs
}

// yamlLine finds the line in the parser's messages.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func (d *decoder) syntax(err error) {
	v := Violation{File: d.src.name, Line: 1, Column: 1}
	if errors.Is(err, io.EOF) {
		v.Problem, v.Accepted = "the file is empty", "at least version and models"
	} else {
		m := yamlLine.FindStringSubmatch(err.Error())
		if len(m) == 2 && m[1] != "" {
			if n, err := strconv.Atoi(m[1]); err == nil {
				v.Line = max(n, 1)
			}
		}
		v.Problem = "not YAML: " + yamlLine.ReplaceAllString(err.Error(), "")
	}
	d.errs = append(d.errs, v)
}

func (d *decoder) fail(n *yaml.Node, path, value, problem, accepted string) {
	d.errs = append(d.errs, Violation{
		File: d.src.name, Line: n.Line, Column: n.Column,
		Path: path, Value: value, Problem: problem, Accepted: accepted,
	})
}

// value decodes one node of any kind. tag is the struct tag of its field.
func (d *decoder) value(n *yaml.Node, path string, v reflect.Value, tag reflect.StructTag) {
	if d.nodes++; d.nodes > maxNodes {
		if d.nodes == maxNodes+1 {
			d.fail(n, path, "", "too many values once aliases are expanded", fmt.Sprintf("at most %d", maxNodes))
		}
		return
	}
	if n.Kind == yaml.AliasNode {
		d.value(n.Alias, path, v, tag)
		return
	}
	if _, ok := d.src.pos[path]; !ok || path == "" {
		d.src.pos[path] = position{n.Line, n.Column}
	}
	if key, ok := v.Addr().Interface().(*APIKey); ok {
		d.apiKey(n, path, key)
		return
	}
	null := n.Kind == yaml.ScalarNode && n.Tag == "!!null"
	switch {
	case v.Kind() == reflect.Struct && null, v.Kind() == reflect.Slice && null:
	case v.Kind() == reflect.Struct:
		d.mapping(n, path, v)
	case v.Kind() == reflect.Slice:
		d.sequence(n, path, v)
	case n.Kind != yaml.ScalarNode:
		d.fail(n, path, "", "is a "+kindName(n), acceptedBy(v, tag))
	case null:
		d.fail(n, path, "", "has no value", acceptedBy(v, tag))
	default:
		d.scalar(n, path, v, tag)
	}
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "mapping"
	case yaml.SequenceNode:
		return "list"
	default:
		return "single value"
	}
}

func (d *decoder) mapping(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, n.Value, "is a "+kindName(n), "a mapping with the keys "+strings.Join(keysOf(v.Type()), ", "))
		return
	}
	fields := fieldsOf(v.Type())
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		at := join(path, shownKey(key))
		if line, dup := seen[key.Value]; dup {
			d.fail(key, at, "", fmt.Sprintf("duplicate key, first on line %d", line), "")
			continue
		}
		seen[key.Value] = key.Line
		f, ok := fields[key.Value]
		if !ok || key.Kind != yaml.ScalarNode {
			d.unknown(key, path, v.Type())
			continue
		}
		d.src.pos[at] = position{key.Line, key.Column}
		d.value(n.Content[i+1], at, v.Field(f.Index[0]), f.Tag)
	}
	for _, key := range keysOf(v.Type()) {
		if _, ok := seen[key]; !ok && fields[key].Tag.Get("req") == "true" {
			d.fail(n, join(path, key), "", "is missing", acceptedBy(v.FieldByIndex(fields[key].Index), fields[key].Tag))
		}
	}
}

func (d *decoder) unknown(key *yaml.Node, path string, t reflect.Type) {
	keys := keysOf(t)
	problem, accepted := "unknown key", "one of "+strings.Join(keys, ", ")
	if near := nearest(key.Value, keys); near != "" {
		problem = fmt.Sprintf("unknown key, did you mean %q?", near)
		accepted = ""
	}
	d.fail(key, join(path, shownKey(key)), "", problem, accepted)
}

// shownKey is a key as messages show it: on one line, and not too long.
func shownKey(key *yaml.Node) string {
	if key.Kind != yaml.ScalarNode {
		return "?"
	}
	if q := quoteShort(key.Value); q != `"`+key.Value+`"` || strings.Contains(key.Value, ".") {
		return q
	}
	return key.Value
}

func (d *decoder) sequence(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		value := n.Value
		if v.Type().Elem() == reflect.TypeFor[APIKey]() {
			value = "" // a secret, most likely
		}
		d.fail(n, path, value, "is a "+kindName(n), "a list")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		setDefaults(v.Index(i))
		d.value(item, fmt.Sprintf("%s[%d]", path, i), v.Index(i), "")
	}
}

func (d *decoder) scalar(n *yaml.Node, path string, v reflect.Value, tag reflect.StructTag) {
	before := reflect.New(v.Type()).Elem()
	before.Set(v)
	if err := setScalar(n, v); err != nil {
		v.Set(before)
		d.fail(n, path, n.Value, err.Error(), acceptedBy(v, tag))
		return
	}
	if problem := outOfRange(v, tag); problem != "" {
		v.Set(before)
		d.fail(n, path, n.Value, problem, acceptedBy(v, tag))
	}
}

func setScalar(n *yaml.Node, v reflect.Value) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(n.Value))
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(n.Value)
	case reflect.Bool:
		if n.Tag != "!!bool" {
			return errors.New("is not true or false")
		}
		v.SetBool(strings.EqualFold(n.Value, "true"))
	case reflect.Int:
		i, err := strconv.ParseInt(n.Value, 10, 64)
		if n.Tag != "!!int" || err != nil {
			return errors.New("is not a whole number")
		}
		v.SetInt(i)
	default:
		panic("BUG: no decoder for " + v.Type().String())
	}
	return nil
}

func (d *decoder) apiKey(n *yaml.Node, path string, k *APIKey) {
	const accepted = "a string, {file: PATH} or {key: STRING}"
	if n.Kind == yaml.MappingNode {
		var f keyForm
		known := len(d.errs)
		d.mapping(n, path, reflect.ValueOf(&f).Elem())
		if len(d.errs) == known && (f.Key == "") == (f.File == "") {
			d.fail(n, path, "", "needs either a key or a file", accepted)
		}
		*k = APIKey{f.Key, f.File, f.Tenant, f.MaxInflight}
		return
	}
	// The value is a secret: messages must not repeat it.
	if n.Kind != yaml.ScalarNode || n.Value == "" {
		d.fail(n, path, "", "is not a key", accepted)
		return
	}
	k.Value = n.Value
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
