package configs

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// keysOf lists the YAML keys of a struct type in order of declaration.
func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		if key := yamlKey(t.Field(i)); key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}

// fieldsOf maps YAML keys to fields.
func fieldsOf(t reflect.Type) map[string]reflect.StructField {
	fields := make(map[string]reflect.StructField, t.NumField())
	for i := range t.NumField() {
		if key := yamlKey(t.Field(i)); key != "" {
			fields[key] = t.Field(i)
		}
	}
	return fields
}

func yamlKey(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return key
}

// setDefaults fills an element of a list from the def tags of its fields.
func setDefaults(v reflect.Value) {
	if v.Kind() != reflect.Struct {
		return
	}
	for i := range v.NumField() {
		def := v.Type().Field(i).Tag.Get("def")
		if def == "" {
			continue
		}
		if err := setText(v.Field(i), def); err != nil {
			panic(fmt.Sprintf("BUG: default of %s.%s: %v", v.Type(), v.Type().Field(i).Name, err))
		}
	}
}

// setText sets a scalar field from the text of a struct tag.
func setText(v reflect.Value, text string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Int:
		i, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return err
		}
		v.SetInt(i)
	default:
		return fmt.Errorf("no text form for %s", v.Type())
	}
	return nil
}

// bound returns the number in a min or max tag, in v's own unit.
func bound(v reflect.Value, text string) int64 {
	b := reflect.New(v.Type()).Elem()
	if err := setText(b, text); err != nil {
		panic(fmt.Sprintf("BUG: bound %q of %s: %v", text, v.Type(), err))
	}
	return b.Int()
}

// outOfRange checks a decoded scalar against its field's tags and says what is
// wrong with it, or nothing.
func outOfRange(v reflect.Value, tag reflect.StructTag) string {
	if accepted := tag.Get("enum"); accepted != "" {
		words := strings.Split(accepted, ",")
		for _, w := range words {
			if w == v.String() {
				return ""
			}
		}
		if near := nearest(v.String(), words); near != "" {
			return fmt.Sprintf("unknown, did you mean %q?", near)
		}
		return "unknown"
	}
	if v.Kind() != reflect.Int && v.Kind() != reflect.Int64 {
		return ""
	}
	low := "0"
	if tag.Get("min") != "" {
		low = tag.Get("min")
	}
	switch high, mult := tag.Get("max"), tag.Get("mult"); {
	case low == "0" && v.Int() < 0, low != "0" && v.Int() < bound(v, low):
		return "too small"
	case high != "" && v.Int() > bound(v, high):
		return "too large"
	case mult != "" && v.Int()%bound(v, mult) != 0:
		return "not a multiple of " + mult
	}
	return ""
}

// acceptedBy says which values a field takes.
func acceptedBy(v reflect.Value, tag reflect.StructTag) string {
	if words := tag.Get("enum"); words != "" {
		return "one of " + strings.ReplaceAll(words, ",", ", ")
	}
	var kind string
	switch v.Interface().(type) {
	case Bytes:
		kind = acceptBytes
	case Rate:
		kind = acceptRate
	case Duration:
		kind = acceptDuration
	case Percent:
		return acceptPercent
	case bool:
		return "true or false"
	case string:
		return "a string"
	case int:
		kind = "a whole number"
	default:
		if v.Kind() == reflect.Slice {
			return "a list"
		}
		return "a mapping with the keys " + strings.Join(keysOf(v.Type()), ", ")
	}
	low, high, mult := tag.Get("min"), tag.Get("max"), tag.Get("mult")
	switch {
	case low != "" && high != "":
		kind += " from " + low + " to " + high
	case low != "":
		kind += " of at least " + low
	case high != "":
		kind += " of at most " + high
	}
	if mult != "" {
		kind += ", a multiple of " + mult
	}
	return kind
}
