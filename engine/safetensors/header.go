package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"
)

// entry is a header entry whose bytes have not been located yet.
type entry struct {
	Tensor
	begin, end int64
}

// parser holds the state of one Parse.
type parser struct {
	file    string
	entries []entry
	content Content
}

func (p *parser) errorf(tensor, field, value, want string, args ...any) error {
	return &FormatError{File: p.file, Tensor: tensor, Field: field, Value: value, Want: fmt.Sprintf(want, args...)}
}

func (p *parser) parse(data []byte) error {
	if len(data) < 8 {
		return p.errorf("", "file length", fmt.Sprint(len(data)), "at least 8 bytes")
	}
	n := binary.LittleEndian.Uint64(data)
	rest := data[8:]
	if n < 2 || n > MaxHeader {
		return p.errorf("", "header length", fmt.Sprint(n), "2 to %d", MaxHeader)
	}
	if n > uint64(len(rest)) {
		return p.errorf("", "header length", fmt.Sprint(n), "at most %d, the bytes that the file has after it", len(rest))
	}
	header, buf := rest[:n], rest[n:]
	if header[0] != '{' {
		return p.errorf("", "header's first byte", fmt.Sprintf("%#02x", header[0]), "'{'")
	}
	if !utf8.Valid(header) {
		return p.errorf("", "header", "not UTF-8", "UTF-8 JSON")
	}
	if err := p.header(header); err != nil {
		return err
	}
	return p.layout(buf)
}

func (p *parser) header(header []byte) error {
	dec := json.NewDecoder(bytes.NewReader(header))
	dec.UseNumber()
	err := object(dec, func(key string) error {
		if key == "__metadata__" {
			return p.metadata(dec)
		}
		e, err := p.tensor(dec, key)
		if err == nil {
			p.entries = append(p.entries, e)
		}
		return err
	})
	if err == nil {
		err = endOfInput(dec)
	}
	return p.jsonError("", err)
}

// jsonError turns what is not yet a *FormatError into one.
func (p *parser) jsonError(tensor string, err error) error {
	switch err := err.(type) {
	case nil:
		return nil
	case *FormatError:
		return err
	case *duplicateError:
		return p.errorf(tensor, "name", fmt.Sprintf("%q a second time", err.key), "unique names")
	default:
		return p.errorf(tensor, "header", "invalid JSON ("+err.Error()+")", "a JSON object of tensors")
	}
}

func (p *parser) metadata(dec *json.Decoder) error {
	p.content.Metadata = map[string]string{}
	return object(dec, func(key string) error {
		var v any
		if err := dec.Decode(&v); err != nil {
			return err
		}
		s, ok := v.(string)
		if !ok {
			return p.errorf("", "__metadata__."+key, fmt.Sprintf("a %T", v), "a string")
		}
		p.content.Metadata[key] = s
		return nil
	})
}

func (p *parser) tensor(dec *json.Decoder, name string) (entry, error) {
	e := entry{Tensor: Tensor{Name: name}}
	var dtype *string
	var shape, offsets *[]json.Number
	err := object(dec, func(key string) error {
		switch key {
		case "dtype":
			return dec.Decode(&dtype)
		case "shape":
			return dec.Decode(&shape)
		case "data_offsets":
			return dec.Decode(&offsets)
		}
		return p.errorf(name, "field", fmt.Sprintf("%q", key), "dtype, shape or data_offsets")
	})
	if err != nil {
		return e, p.jsonError(name, err)
	}
	if dtype == nil || shape == nil || offsets == nil {
		return e, p.errorf(name, "entry", "incomplete", "dtype, shape and data_offsets")
	}
	e.DType = DType(*dtype)
	if e.DType.Size() == 0 {
		return e, p.errorf(name, "dtype", fmt.Sprintf("%q", *dtype), "a known element type such as F32, F16 or BF16")
	}
	return e, p.extent(&e, *shape, *offsets)
}

// extent checks shape against data_offsets and stores both in e.
func (p *parser) extent(e *entry, shape, offsets []json.Number) error {
	const limit = 1 << 46 // 64 TiB, far from overflow of any sum or product below
	bytes := int64(e.DType.Size())
	e.Shape = make([]int, len(shape))
	empty := false
	for i, s := range shape {
		d, err := s.Int64()
		if err != nil || d < 0 || d > limit {
			return p.errorf(e.Name, fmt.Sprintf("shape[%d]", i), s.String(), "an integer from 0 to %d", int64(limit))
		}
		e.Shape[i] = int(d)
		empty = empty || d == 0
	}
	if empty {
		bytes = 0
	}
	for i, d := range e.Shape {
		if bytes == 0 {
			break
		}
		if int64(d) > limit/bytes {
			return p.errorf(e.Name, fmt.Sprintf("shape[%d]", i), fmt.Sprint(d), "a tensor of at most %d bytes", int64(limit))
		}
		bytes *= int64(d)
	}
	if len(offsets) != 2 {
		return p.errorf(e.Name, "data_offsets", fmt.Sprintf("%d numbers", len(offsets)), "2, begin and end")
	}
	for i, s := range offsets {
		v, err := s.Int64()
		if err != nil || v < 0 || v > limit {
			return p.errorf(e.Name, fmt.Sprintf("data_offsets[%d]", i), s.String(), "an integer from 0 to %d", int64(limit))
		}
		if i == 0 {
			e.begin = v
		} else {
			e.end = v
		}
	}
	if e.end-e.begin != bytes {
		return p.errorf(e.Name, "data_offsets", fmt.Sprintf("[%d, %d], %d bytes", e.begin, e.end, e.end-e.begin),
			"%d bytes for %s of shape %v", bytes, e.DType, e.Shape)
	}
	return nil
}

// duplicateError is a key that an object has twice; encoding/json would keep
// the last one without a word.
type duplicateError struct{ key string }

func (e *duplicateError) Error() string { return fmt.Sprintf("duplicate key %q", e.key) }

// object reads a JSON object from dec, calling value for each key, which must
// consume the key's value.
func object(dec *json.Decoder, value func(key string) error) error {
	t, err := dec.Token()
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		return fmt.Errorf("%v where an object should start", t)
	}
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return err
		}
		key, ok := t.(string)
		if !ok {
			return fmt.Errorf("%v where a key should be", t)
		}
		if seen[key] {
			return &duplicateError{key}
		}
		seen[key] = true
		if err := value(key); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}

// endOfInput refuses anything but white space after the header's object.
func endOfInput(dec *json.Decoder) error {
	if t, err := dec.Token(); err != io.EOF {
		if err != nil {
			return err
		}
		return fmt.Errorf("%v after the closing brace", t)
	}
	return nil
}
