package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// file builds a file's bytes from a header and a data length.
func file(header string, data int) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	out = append(out, header...)
	return append(out, make([]byte, data)...)
}

func TestParseRefuses(t *testing.T) {
	const ok = `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`
	cases := []struct {
		name  string
		data  []byte
		field string
		text  string
	}{
		{"empty", nil, "file length", "at least 8"},
		{"short", []byte{1, 2, 3}, "file length", "at least 8"},
		{"zero header", make([]byte, 16), "header length", "2 to"},
		{"absurd header", append(bytes.Repeat([]byte{0xff}, 8), ok...), "header length", "18446744073709551615"},
		{"header past end", file(ok, 8)[:20], "header length", "at most 12"},
		{"not json", file(`[1,2]`, 0), "header's first byte", "'{'"},
		{"cut json", file(ok[:len(ok)-3], 8), "header", "invalid JSON"},
		{"trailing json", file(ok+`{}`, 8), "header", "after the closing brace"},
		{"not utf-8", file("{\"\xff\":1}", 0), "header", "UTF-8"},
		{"entry is a number", file(`{"a":7}`, 0), "header", "where an object should start"},
		{"unknown field", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}}`, 8), "field", `"x"`},
		{"missing field", file(`{"a":{"dtype":"F32","shape":[2]}}`, 8), "entry", "data_offsets"},
		{"unknown dtype", file(`{"a":{"dtype":"Q4","shape":[2],"data_offsets":[0,8]}}`, 8), "dtype", `"Q4"`},
		{"wrong size for dtype", file(`{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,8]}}`, 8), "data_offsets", "4 bytes for BF16"},
		{"negative dim", file(`{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}`, 8), "shape[0]", "-2"},
		{"fractional dim", file(`{"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,8]}}`, 8), "shape[0]", "1.5"},
		{"overflowing shape", file(`{"a":{"dtype":"F32","shape":[4194304,4194304,4194304],"data_offsets":[0,8]}}`, 8), "shape[2]", "4194304"},
		{"huge dim", file(`{"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]}}`, 8), "shape[0]", "9223372036854775808"},
		{"three offsets", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}}`, 8), "data_offsets", "3 numbers"},
		{"negative offset", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}}`, 8), "data_offsets[0]", "-8"},
		{"out of file", file(ok, 4), "data_offsets", "at most 4"},
		{"bytes left over", file(ok, 9), "data length", "8"},
		{"overlap", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8), "data_offsets", "overlaps"},
		{"gap", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}}`, 16), "data_offsets", "gap"},
		{"duplicate name", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8), "name", "a second time"},
		{"duplicate field", file(`{"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}}`, 4), "name", `"dtype" a second time`},
		{"metadata value", file(`{"__metadata__":{"k":1}}`, 0), "__metadata__.k", "a string"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("m.safetensors", c.data)
			var fe *FormatError
			if !errors.As(err, &fe) {
				t.Fatalf("error %v, want a *FormatError", err)
			}
			if fe.Field != c.field || !strings.Contains(err.Error(), c.text) || fe.File != "m.safetensors" {
				t.Errorf("got %v (field %q), want field %q and text %q", err, fe.Field, c.field, c.text)
			}
		})
	}
}

func TestParseAccepts(t *testing.T) {
	c, err := Parse("f", file(`{"b":{"dtype":"I64","shape":[],"data_offsets":[4,12]},"__metadata__":{"format":"pt"},`+
		`"e":{"dtype":"F32","shape":[0,4611686018427],"data_offsets":[4,4]},"a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}   `, 12))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, x := range c.Tensors {
		names = append(names, x.Name)
	}
	if want := []string{"a", "e", "b"}; !cmp.Equal(names, want) || c.Metadata["format"] != "pt" {
		t.Errorf("got %v %v, want %v", names, c.Metadata, want)
	}
}

// genTensors draws tensors with distinct names, some of them empty.
func genTensors(t *rapid.T) []Tensor {
	names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z."\\é]{1,12}`), 0, 6, rapid.ID[string]).Draw(t, "names")
	var out []Tensor
	for _, n := range names {
		x := Tensor{Name: n, DType: rapid.SampledFrom([]DType{F32, F16, BF16, "I64", "U8"}).Draw(t, "dtype")}
		x.Shape = rapid.SliceOfN(rapid.IntRange(0, 4), 0, 3).Draw(t, "shape")
		size := x.Elems() * x.DType.Size()
		x.Data = rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "data")
		out = append(out, x)
	}
	return out
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genTensors(t)
		var buf bytes.Buffer
		if err := Encode(&buf, want, map[string]string{"format": "pt"}); err != nil {
			t.Fatal(err)
		}
		got, err := Parse("x", buf.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		byName := map[string]Tensor{}
		for _, x := range got.Tensors {
			byName[x.Name] = x
		}
		if len(byName) != len(want) {
			t.Fatalf("%d tensors, want %d", len(byName), len(want))
		}
		for _, w := range want {
			g := byName[w.Name]
			if g.DType != w.DType || len(g.Shape) != len(w.Shape) || !bytes.Equal(g.Data, w.Data) {
				t.Fatalf("%q: got %+v, want %+v", w.Name, g, w)
			}
		}
	})
}

// Every strict prefix of a valid file and every file with one more byte is refused.
func TestLengthIsExact(t *testing.T) {
	var buf bytes.Buffer
	if err := Encode(&buf, []Tensor{{Name: "a", DType: F32, Shape: []int{3}, Data: make([]byte, 12)}}, nil); err != nil {
		t.Fatal(err)
	}
	for n := range buf.Len() {
		if _, err := Parse("x", buf.Bytes()[:n]); err == nil {
			t.Errorf("a file cut at %d of %d bytes was accepted", n, buf.Len())
		}
	}
	if _, err := Parse("x", append(buf.Bytes(), 0)); err == nil {
		t.Error("a trailing byte was accepted")
	}
}

func TestEncodeRefuses(t *testing.T) {
	a := Tensor{Name: "a", DType: F32, Shape: []int{1}, Data: make([]byte, 4)}
	short := a
	short.Data = a.Data[:3]
	for name, in := range map[string][]Tensor{"twice": {a, a}, "short": {short}, "dtype": {{Name: "x", DType: "Q"}}} {
		var fe *FormatError
		if err := Encode(&bytes.Buffer{}, in, nil); !errors.As(err, &fe) {
			t.Errorf("%s: error %v, want a *FormatError", name, err)
		}
	}
}

func writeShards(t *testing.T, dir string, index map[string]string) {
	t.Helper()
	one := func(name string, v byte) []Tensor {
		return []Tensor{{Name: name, DType: BF16, Shape: []int{2}, Data: []byte{v, v, v, v}}}
	}
	for file, tensors := range map[string][]Tensor{"s1.safetensors": one("a", 1), "s2.safetensors": one("b", 2), "s3.safetensors": one("a", 3)} {
		if err := Write(filepath.Join(dir, file), tensors, nil); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := json.Marshal(map[string]any{"weight_map": index})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, IndexFile), raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpenDirSharded(t *testing.T) {
	dir := t.TempDir()
	writeShards(t, dir, map[string]string{"a": "s1.safetensors", "b": "s2.safetensors"})
	c, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, want := c.Names(), []string{"a", "b"}; !cmp.Equal(got, want) {
		t.Errorf("names %v, want %v", got, want)
	}
	if x, ok := c.Tensor("b"); !ok || x.Data[0] != 2 || c.Bytes() != 8 || len(c.Files()) != 2 {
		t.Errorf("tensor b is %+v, %d bytes in all, files %v", x, c.Bytes(), c.Files())
	}
}

func TestOpenDirPrefersSingle(t *testing.T) {
	dir := t.TempDir()
	writeShards(t, dir, map[string]string{"a": "s1.safetensors"})
	if err := Write(filepath.Join(dir, SingleFile), []Tensor{{Name: "z", DType: F32, Shape: []int{0}}}, nil); err != nil {
		t.Fatal(err)
	}
	c, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.Names(); !cmp.Equal(got, []string{"z"}) {
		t.Errorf("names %v", got)
	}
}

func TestOpenDirRefuses(t *testing.T) {
	cases := map[string]struct {
		index map[string]string
		text  string
	}{
		"path outside":   {map[string]string{"a": "../s1.safetensors"}, "same directory"},
		"dot":            {map[string]string{"a": ".."}, "same directory"},
		"missing file":   {map[string]string{"a": "none.safetensors"}, "no such file"},
		"two shards":     {map[string]string{"a": "s1.safetensors", "b": "s3.safetensors"}, "also in"},
		"lacks tensor":   {map[string]string{"a": "s1.safetensors", "c": "s2.safetensors"}, "lacks the tensor"},
		"wrong shard":    {map[string]string{"a": "s2.safetensors", "b": "s1.safetensors"}, "lacks the tensor"},
		"empty map":      {nil, "weight_map"},
		"not an archive": {map[string]string{"a": IndexFile}, "header length"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			writeShards(t, dir, c.index)
			if _, err := OpenDir(dir); err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want one with %q", err, c.text)
			}
		})
	}
	if _, err := OpenDir(t.TempDir()); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), SingleFile) {
		t.Errorf("empty directory: %v", err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, SingleFile), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(dir); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("directory in the file's place: %v", err)
	}
}

func TestWriteFailureLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := Write(filepath.Join(dir, "m"), []Tensor{{Name: "a", DType: "Q"}}, nil); err == nil {
		t.Fatal("a bad tensor was written")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8))
	f.Add(file(`{"__metadata__":{"k":"v"},"a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}}`, 2))
	f.Add(file(`{}`, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f", data)
		if err != nil {
			var fe *FormatError
			if !errors.As(err, &fe) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		total := 0
		for _, x := range c.Tensors {
			if x.Elems()*x.DType.Size() != len(x.Data) {
				t.Fatalf("%q: %d bytes for %v %s", x.Name, len(x.Data), x.Shape, x.DType)
			}
			total += len(x.Data)
		}
		if total > len(data) {
			t.Fatalf("tensors cover %d of %d bytes", total, len(data))
		}
	})
}
