package safetensors

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Encode writes tensors in the given order, with a header padded so that the
// data starts at a multiple of 64 bytes. Tensor lengths must match shapes.
func Encode(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	return encode(w, tensors, metadata, func(t *Tensor) ([]byte, error) { return t.Data, nil })
}

func encode(w io.Writer, tensors []Tensor, metadata map[string]string, data func(*Tensor) ([]byte, error)) error {
	raw, err := encodeHeader(tensors, metadata)
	if err != nil {
		return err
	}
	if err := binary.Write(w, binary.LittleEndian, uint64(len(raw))); err != nil {
		return err
	}
	if _, err := w.Write(raw); err != nil {
		return err
	}
	for i := range tensors {
		t := &tensors[i]
		b, err := data(t)
		if err != nil {
			return err
		}
		if want := t.Elems() * t.DType.Size(); want != len(b) {
			return &FormatError{File: t.File, Tensor: t.Name, Field: "data length", Value: fmt.Sprint(len(b)),
				Want: fmt.Sprintf("%d bytes for %s of shape %v", want, t.DType, t.Shape)}
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

func encodeHeader(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	type head struct {
		DType   DType    `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	header := map[string]any{}
	if len(metadata) > 0 {
		header["__metadata__"] = metadata
	}
	var at int64
	for i := range tensors {
		t := &tensors[i]
		if t.DType.Size() == 0 {
			return nil, &FormatError{File: t.File, Tensor: t.Name, Field: "dtype", Value: fmt.Sprintf("%q", t.DType), Want: "a known element type"}
		}
		if _, dup := header[t.Name]; dup || t.Name == "__metadata__" {
			return nil, &FormatError{File: t.File, Tensor: t.Name, Field: "name", Value: "given twice or reserved", Want: "unique names"}
		}
		shape := t.Shape
		if shape == nil {
			shape = []int{}
		}
		end := at + int64(t.Elems()*t.DType.Size())
		header[t.Name] = head{t.DType, shape, [2]int64{at, end}}
		at = end
	}
	raw, err := json.Marshal(header)
	if err != nil {
		return nil, fmt.Errorf("safetensors: encode the header: %w", err)
	}
	for (8+len(raw))%64 != 0 {
		raw = append(raw, ' ')
	}
	return raw, nil
}

// Write encodes tensors to a new file at path. The file appears whole or not
// at all: it is written beside path and renamed.
func Write(path string, tensors []Tensor, metadata map[string]string) error {
	return WriteFunc(path, tensors, metadata, func(t *Tensor) ([]byte, error) { return t.Data, nil })
}

// WriteFunc is Write for tensors that need not fit in memory together: data
// yields the bytes of one tensor at a time, in order.
func WriteFunc(path string, tensors []Tensor, metadata map[string]string, data func(*Tensor) ([]byte, error)) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".safetensors-*")
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("safetensors: write %s: %w", path, errors.Join(err, f.Close(), os.Remove(f.Name())))
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	if err := encode(w, tensors, metadata, data); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return f.Close()
}
