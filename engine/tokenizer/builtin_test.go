package tokenizer

import (
	"slices"
	"testing"
)

func TestBuiltinIsOneIDPerByte(t *testing.T) {
	tok := Builtin()
	all := make([]byte, 256)
	want := make([]int32, 256)
	for i := range all {
		all[i], want[i] = byte(i), int32(i)
	}
	for _, opt := range []EncodeOptions{{}, {AddSpecial: true}, {ParseSpecial: true}} {
		got, err := tok.Encode(string(all), opt)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("Encode of all bytes with %+v: %v, %v", opt, got, err)
		}
	}
	if got := tok.VocabSize(); got != 259 {
		t.Fatalf("VocabSize is %d, want 259", got)
	}
}

func TestBuiltinSpecialTokens(t *testing.T) {
	tok := Builtin()
	const text = "<|im_start|>user\nhi<|im_end|><|endoftext|>"
	got, err := tok.Encode(text, EncodeOptions{ParseSpecial: true})
	want := []int32{BuiltinIMStart, 'u', 's', 'e', 'r', '\n', 'h', 'i', BuiltinIMEnd, BuiltinEndOfText}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %v, %v, want %v", got, err, want)
	}
	if s := tok.Decode(got, false); s != text {
		t.Errorf("Decode: %q", s)
	}
	if s := tok.Decode(got, true); s != "user\nhi" {
		t.Errorf("Decode without special tokens: %q", s)
	}
	plain, err := tok.Encode(text, EncodeOptions{})
	if err != nil || len(plain) != len(text) {
		t.Errorf("special tokens in plain text: %d ids, %v, want %d", len(plain), err, len(text))
	}
}

func TestWriteByteLevel(t *testing.T) {
	dir := t.TempDir()
	if err := WriteByteLevel(dir); err != nil {
		t.Fatal(err)
	}
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for id := range int32(tok.VocabSize()) {
		want, _ := Builtin().IDToToken(id)
		if got, ok := tok.IDToToken(id); !ok || got != want {
			t.Errorf("token %d is %q, want %q", id, got, want)
		}
	}
}
