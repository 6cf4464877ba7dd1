// Package safetensors reads and writes the safetensors checkpoint format.
//
// A file is an 8-byte little-endian header length N, N bytes of JSON, and one
// buffer of tensor bytes:
//
//	{"__metadata__": {"k": "v"}, "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...}
//
// The reader is strict, as the format's reference implementation is: the
// tensors tile the buffer without a gap or an overlap, every length equals
// shape times element size, names are unique, unknown fields are refused.
// Every refusal is a *FormatError that names the file, the tensor, the value
// and what would have been accepted.
//
// Files are mapped, not read: a tensor's bytes are pages of the file until
// Close, so a model is resident once, after packing. A file that another
// process truncates while it is mapped makes reads fault, as with any mapping.
package safetensors

import (
	"fmt"
	"sort"
)

// DType is an element type as the format spells it.
type DType string

// The element types that weights may have. Others are accepted by the reader
// (a checkpoint may carry integer buffers) and listed by Size.
const (
	F32  DType = "F32"
	F16  DType = "F16"
	BF16 DType = "BF16"
)

// Size is the bytes of one element, 0 for an unknown type.
func (d DType) Size() int {
	switch d {
	case "BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0":
		return 1
	case "U16", "I16", F16, BF16:
		return 2
	case "U32", "I32", F32:
		return 4
	case "U64", "I64", "F64", "C64":
		return 8
	}
	return 0
}

// MaxHeader is the longest header that is accepted, in bytes; it is the
// limit of the format's reference implementation.
const MaxHeader = 100_000_000

// Tensor is one tensor of a checkpoint. Data is little-endian, row-major and,
// for a mapped file, valid and read-only until the file is closed.
type Tensor struct {
	Name  string
	DType DType
	Shape []int
	Data  []byte
	File  string // the file that holds it
}

// Elems is the number of elements.
func (t *Tensor) Elems() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// FormatError says why a file is not an acceptable checkpoint.
type FormatError struct {
	File   string // path
	Tensor string // tensor name, "" for the file itself
	Field  string // what is wrong: "header length", "data_offsets", ...
	Value  string // what was found
	Want   string // what would have been accepted
}

func (e *FormatError) Error() string {
	where := e.File
	if e.Tensor != "" {
		where += fmt.Sprintf(": tensor %q", e.Tensor)
	}
	return fmt.Sprintf("safetensors: %s: %s is %s, want %s", where, e.Field, e.Value, e.Want)
}

// Content is the parsed form of one file's bytes.
type Content struct {
	Metadata map[string]string
	Tensors  []Tensor // in order of their bytes
}

// Parse reads a whole file's bytes. The tensors' Data alias data; file is
// used in errors and in Tensor.File.
func Parse(file string, data []byte) (*Content, error) {
	p := parser{file: file}
	if err := p.parse(data); err != nil {
		return nil, err
	}
	return &p.content, nil
}

// layout orders entries by offset and checks that they tile buf exactly.
func (p *parser) layout(buf []byte) error {
	sort.SliceStable(p.entries, func(i, j int) bool {
		a, b := p.entries[i], p.entries[j]
		if a.begin != b.begin {
			return a.begin < b.begin
		}
		return a.end < b.end
	})
	size, at := int64(len(buf)), int64(0)
	p.content.Tensors = make([]Tensor, 0, len(p.entries))
	for _, e := range p.entries {
		offsets := fmt.Sprintf("[%d, %d]", e.begin, e.end)
		switch {
		case e.begin < at:
			return p.errorf(e.Name, "data_offsets", offsets+" (overlaps the tensor before it)", "a begin of %d", at)
		case e.begin > at:
			return p.errorf(e.Name, "data_offsets", offsets+" (leaves a gap before it)", "a begin of %d", at)
		case e.end > size:
			return p.errorf(e.Name, "data_offsets", offsets, "an end of at most %d, the bytes that the file has after its header", size)
		}
		e.Data, e.File = buf[e.begin:e.end:e.end], p.file
		p.content.Tensors = append(p.content.Tensors, e.Tensor)
		at = e.end
	}
	if at != size {
		return p.errorf("", "data length", fmt.Sprint(size), "%d, the end of the last tensor", at)
	}
	return nil
}
