package configs

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// schemaNode is one node of a JSON Schema, in the order in which it prints.
type schemaNode struct {
	Schema      string                 `json:"$schema,omitempty"`
	ID          string                 `json:"$id,omitempty"`
	Title       string                 `json:"title,omitempty"`
	Description string                 `json:"description,omitempty"`
	Type        any                    `json:"type,omitempty"` // string, or []string
	AnyOf       []*schemaNode          `json:"anyOf,omitempty"`
	Enum        []string               `json:"enum,omitempty"`
	Pattern     string                 `json:"pattern,omitempty"`
	Minimum     *int64                 `json:"minimum,omitempty"`
	Maximum     *int64                 `json:"maximum,omitempty"`
	MultipleOf  *int64                 `json:"multipleOf,omitempty"`
	MinItems    int                    `json:"minItems,omitempty"`
	Default     any                    `json:"default,omitempty"`
	Examples    []string               `json:"examples,omitempty"`
	Items       *schemaNode            `json:"items,omitempty"`
	Properties  map[string]*schemaNode `json:"properties,omitempty"`
	Required    []string               `json:"required,omitempty"`
	Closed      *bool                  `json:"additionalProperties,omitempty"`
}

// Schema returns the JSON Schema (draft 2020-12) of a configuration file, for
// editors. It is built from the same struct tags that the parser obeys; what
// spans several keys only the parser checks.
func Schema() []byte {
	base := baseline()
	root := schemaOf(reflect.ValueOf(base).Elem(), "", true)
	root.Schema = "https://json-schema.org/draft/2020-12/schema"
	root.ID = "https://github.com/kvlend/kvlend/configs/kvlend.schema.json"
	root.Title = "kvlend configuration"
	root.Properties["models"].MinItems = 1
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return append(text, '\n')
}

// schemaOf describes the type of v. Its values are the defaults, where
// withDefaults is set.
func schemaOf(v reflect.Value, tag reflect.StructTag, withDefaults bool) *schemaNode {
	n := &schemaNode{Description: tag.Get("doc")}
	quantity := func(pattern, example string) {
		n.Type, n.Pattern, n.Examples = "string", pattern, []string{example}
	}
	switch v.Interface().(type) {
	case APIKey:
		form := &schemaNode{}
		schemaKind(form, reflect.ValueOf(keyForm{}), "", false)
		form.Type = "object"
		n.AnyOf = []*schemaNode{{Type: "string"}, form}
		return n
	case Bytes:
		// YAML has no suffix for a plain number of bytes: it is an integer.
		quantity(patternBytes, "16GiB")
		n.Type, n.Minimum = []string{"string", "integer"}, new(int64)
	case Rate:
		quantity(patternRate, "400GB/s")
	case Duration:
		quantity(patternDuration, "60s")
		n.Type, n.Minimum, n.Maximum = []string{"string", "integer"}, new(int64), new(int64) // 0 needs no unit
	case Percent:
		quantity(patternPercent, "5%")
	default:
		schemaKind(n, v, tag, withDefaults)
		return n
	}
	if withDefaults && !v.IsZero() {
		n.Default = v.Interface()
	} else if def := tag.Get("def"); def != "" {
		n.Default = def
	}
	return n
}

// schemaKind describes a value without a type of its own.
func schemaKind(n *schemaNode, v reflect.Value, tag reflect.StructTag, withDefaults bool) {
	switch v.Kind() {
	case reflect.Struct:
		n.Type = []string{"object", "null"}
		closed := false
		n.Closed = &closed
		n.Properties = map[string]*schemaNode{}
		for key, f := range fieldsOf(v.Type()) {
			n.Properties[key] = schemaOf(v.FieldByIndex(f.Index), f.Tag, withDefaults)
			if f.Tag.Get("req") == "true" {
				n.Required = append(n.Required, key)
			}
		}
		if slices.Sort(n.Required); n.Required != nil {
			n.Type = "object"
		}
	case reflect.Slice:
		n.Type = []string{"array", "null"}
		n.Items = schemaOf(reflect.New(v.Type().Elem()).Elem(), "", false)
	case reflect.String:
		// The parser takes any scalar as text, so that a model may be called 7.
		n.Type = []string{"string", "number", "boolean"}
		if words := tag.Get("enum"); words != "" {
			n.Type, n.Enum = "string", strings.Split(words, ",")
		}
		setDefault(n, v, tag, withDefaults)
	case reflect.Bool:
		n.Type = "boolean"
		setDefault(n, v, tag, withDefaults)
	case reflect.Int:
		n.Type = "integer"
		n.Minimum, n.Maximum, n.MultipleOf = limit(tag.Get("min")), limit(tag.Get("max")), limit(tag.Get("mult"))
		if n.Minimum == nil {
			n.Minimum = new(int64)
		}
		setDefault(n, v, tag, withDefaults)
	default:
		panic("BUG: no schema for " + v.Type().String())
	}
}

func limit(text string) *int64 {
	if text == "" {
		return nil
	}
	i, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return &i
}

func setDefault(n *schemaNode, v reflect.Value, tag reflect.StructTag, withDefaults bool) {
	def := tag.Get("def")
	switch {
	case withDefaults:
		n.Default = v.Interface()
	case def != "" && v.Kind() == reflect.Int:
		n.Default = limit(def)
	case def != "":
		n.Default = def
	}
}

// SchemaKeys lists every path of the schema, such as models[].arena, for tests
// of documentation.
func SchemaKeys() []string {
	keys := map[string]bool{}
	var walk func(t reflect.Type, path string)
	walk = func(t reflect.Type, path string) {
		for key, f := range fieldsOf(t) {
			at := join(path, key)
			keys[at] = true
			switch ft := f.Type; {
			case ft.Kind() == reflect.Struct:
				walk(ft, at)
			case ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Struct && ft.Elem() != reflect.TypeFor[APIKey]():
				walk(ft.Elem(), at+"[]")
			}
		}
	}
	walk(reflect.TypeFor[Config](), "")
	return slices.Sorted(maps.Keys(keys))
}
