package tokenizer

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// byName parses one of the oracle's tokenizers.
func byName(t testing.TB, name string) *Tokenizer {
	t.Helper()
	o := loadOracle(t)
	for _, c := range o.Tokenizers {
		if c.Name == name {
			tok, err := Parse(o.file(&c))
			if err != nil {
				t.Fatal(err)
			}
			return tok
		}
	}
	t.Fatalf("the oracle has no tokenizer %q", name)
	return nil
}

func checkRoundTrip(t *testing.T, tok *Tokenizer, text string) {
	t.Helper()
	ids, err := tok.Encode(text, EncodeOptions{ParseSpecial: true})
	if err != nil {
		t.Fatal(err)
	}
	want := lossy(text)
	if utf8.ValidString(text) && want != text {
		t.Errorf("lossy changed %q", text)
	}
	if got := tok.Decode(ids, false); got != want {
		t.Errorf("%q came back as %q", text, got)
	}
	if got := streamed(t, tok, ids, false); got != want {
		t.Errorf("%q was streamed as %q", text, got)
	}
	var raw []byte
	for _, id := range ids {
		raw = append(raw, tok.TokenBytes(id)...)
	}
	if !bytes.Equal(raw, []byte(text)) {
		t.Errorf("the bytes of %q came back as %q", text, raw)
	}
}

func FuzzRoundTrip(f *testing.F) {
	llama3 := byName(f, "llama3")
	for _, s := range []string{"", "a", "<|im_start|>x", "\xff\xfe", "\xe2\x82", "\xf0\x9f\x98\x80\xf0\x9f", "I'Ll 1234 \r\n "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		checkRoundTrip(t, Builtin(), text)
		checkRoundTrip(t, llama3, text)
	})
}

func TestRoundTripOfAnyBytes(t *testing.T) {
	llama3 := byName(t, "llama3")
	rapid.Check(t, func(r *rapid.T) {
		text := string(rapid.SliceOf(rapid.Byte()).Draw(r, "text"))
		checkRoundTrip(t, Builtin(), text)
		checkRoundTrip(t, llama3, text)
	})
}

// A word's ids do not depend on what was encoded before (the cache) or is
// encoded at the same time.
func TestConcurrentEncode(t *testing.T) {
	o := loadOracle(t)
	tok := byName(t, "llama3")
	texts := o.Strings[:800]
	want := make([][]int32, len(texts))
	for i, s := range texts {
		fresh, err := tok.Encode(s, EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want[i] = fresh
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for k := range texts {
				i := (k*7 + g*13) % len(texts)
				if got, err := tok.Encode(texts[i], EncodeOptions{}); err != nil || !slices.Equal(got, want[i]) {
					t.Errorf("%q: got %v, %v, want %v", texts[i], got, err, want[i])
				}
			}
		})
	}
	wg.Wait()
}

func TestInvalidUTF8(t *testing.T) {
	for in, want := range map[string]string{
		"a\xffb":           "a\ufffdb",
		"\xe2\x82":         "\ufffd",
		"\xe2\x82A":        "\ufffdA",
		"\xf0\x90\x80":     "\ufffd",
		"\xed\xa0\x80":     "\ufffd\ufffd\ufffd", // a surrogate
		"\xc0\xaf":         "\ufffd\ufffd",
		"\xf4\x90\x80\x80": "\ufffd\ufffd\ufffd\ufffd",
	} {
		if got := lossy(in); got != want {
			t.Errorf("lossy(%q) is %q, want %q", in, got, want)
		}
	}
	qwen3 := byName(t, "qwen3") // normalizes, so it cannot pass bytes through
	got, err := qwen3.Encode("x\xff\xe2\x82y", EncodeOptions{})
	want, _ := qwen3.Encode("x\ufffd\ufffdy", EncodeOptions{})
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// Byte tokens wait until their run ends, other text does not wait.
func TestStreamIsPrompt(t *testing.T) {
	tok := Builtin()
	s := tok.NewStream(true)
	var got []string
	for _, b := range []byte("a\xc3\xa9\xff\xe2\x82b") {
		got = append(got, s.Push(int32(b)))
	}
	want := []string{"a", "", "\u00e9", "\ufffd", "", "", "\ufffdb"}
	if !slices.Equal(got, want) || s.Flush() != "" {
		t.Errorf("got %q, want %q", got, want)
	}
	llama2 := byName(t, "llama2")
	s = llama2.NewStream(true)
	got = got[:0]
	for _, token := range []string{"<s>", "\u2581", "t", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "e", "<0xFF>"} {
		id, ok := llama2.TokenToID(token)
		if !ok {
			t.Fatalf("no token %q", token)
		}
		got = append(got, s.Push(id))
	}
	got = append(got, s.Flush())
	if want := []string{"", "", "t", "", "", "", "", "\U0001f600e", "", "\ufffd"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWordCacheIsBounded(t *testing.T) {
	var c wordCache
	for i := range 3 * cacheShards * cacheWords {
		c.put(string(binary(i)), []int32{int32(i)})
	}
	for i := range c.shards {
		if n := len(c.shards[i].words); n > cacheWords {
			t.Fatalf("shard %d has %d words", i, n)
		}
	}
}

func binary(i int) []byte { return []byte{byte(i), byte(i >> 8), byte(i >> 16)} }
