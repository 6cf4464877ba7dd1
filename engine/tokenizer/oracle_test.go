package tokenizer

import (
	"compress/gzip"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"unicode/utf8"
)

// oracle is testdata/oracle.json.gz, which testdata/oracle.py wrote with the
// Rust library.
type oracle struct {
	Strings    []string
	Shared     []json.RawMessage // vocabularies and merges, "@0" and so on in File
	Tokenizers []oracleCase
}

type oracleCase struct {
	Name    string
	File    json.RawMessage
	Size    int
	Texts   []int              // indices of strings
	IDs     [][]int32          // with special tokens
	Plain   map[string][]int32 // by index: without; only where recorded
	Decoded map[string]string  // by index, where it is not the string itself
	Skipped map[string]string  // by index, where it is not Decoded
	Random  []json.RawMessage  // [ids, decoded, decoded without special tokens]
}

func loadOracle(t testing.TB) *oracle {
	t.Helper()
	f, err := os.Open("testdata/oracle.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	o := new(oracle)
	if err := json.NewDecoder(z).Decode(o); err != nil {
		t.Fatal(err)
	}
	if len(o.Strings) < 4000 {
		t.Fatalf("the oracle has %d strings, want 4,000 at least", len(o.Strings))
	}
	return o
}

// file puts the shared parts back.
func (o *oracle) file(c *oracleCase) []byte {
	return sharedPart.ReplaceAllFunc(c.File, func(ref []byte) []byte {
		n, _ := strconv.Atoi(string(ref[2 : len(ref)-1]))
		return o.Shared[n]
	})
}

var sharedPart = regexp.MustCompile(`"@\d+"`)

// maxShown is how many failures a tokenizer's test prints.
const maxShown = 5

func TestAgainstRust(t *testing.T) {
	o := loadOracle(t)
	for _, c := range o.Tokenizers {
		t.Run(c.Name, func(t *testing.T) {
			tok, err := Parse(o.file(&c))
			if err != nil {
				t.Fatal(err)
			}
			if got := tok.VocabSize(); got != c.Size {
				t.Errorf("VocabSize is %d, want %d", got, c.Size)
			}
			wrong := 0
			for i, at := range c.Texts {
				if !checkText(t, tok, &c, o.Strings[at], at, c.IDs[i], wrong < maxShown) {
					wrong++
				}
			}
			for _, raw := range c.Random {
				if !checkRandom(t, tok, raw, wrong < maxShown) {
					wrong++
				}
			}
			if wrong > 0 {
				t.Errorf("%d of %d differ", wrong, len(c.Texts)+len(c.Random))
			}
		})
	}
}

func checkText(t *testing.T, tok *Tokenizer, c *oracleCase, text string, at int, want []int32, show bool) bool {
	t.Helper()
	key := strconv.Itoa(at)
	got, err := tok.Encode(text, EncodeOptions{AddSpecial: true, ParseSpecial: true})
	if err != nil {
		t.Errorf("%q: %v", text, err)
		return false
	}
	ok := true
	complain := func(what string, got, want any) {
		ok = false
		if show {
			t.Errorf("%s of %.200q:\n got %.400v\nwant %.400v", what, text, got, want)
		}
	}
	if !slices.Equal(got, want) {
		complain("ids", got, want)
	}
	if plain, recorded := c.Plain[key]; recorded {
		if got, err := tok.Encode(text, EncodeOptions{}); err != nil || !slices.Equal(got, plain) {
			complain("plain ids", got, plain)
		}
	}
	decoded, differs := c.Decoded[key]
	if !differs {
		decoded = text
	}
	skipped, differs := c.Skipped[key]
	if !differs {
		skipped = decoded
	}
	for skip, want := range map[bool]string{false: decoded, true: skipped} {
		if got := tok.Decode(c.IDs[slices.Index(c.Texts, at)], skip); got != want {
			complain("decoding", strconv.Quote(got), strconv.Quote(want))
		}
		if got := streamed(t, tok, c.IDs[slices.Index(c.Texts, at)], skip); got != want {
			complain("streaming", strconv.Quote(got), strconv.Quote(want))
		}
	}
	return ok
}

func checkRandom(t *testing.T, tok *Tokenizer, raw json.RawMessage, show bool) bool {
	t.Helper()
	var ids []int32
	var want, skipped string
	if err := json.Unmarshal(raw, &[]any{&ids, &want, &skipped}); err != nil {
		t.Fatal(err)
	}
	ok := true
	for skip, want := range map[bool]string{false: want, true: skipped} {
		if got := streamed(t, tok, ids, skip); got != want || tok.Decode(ids, skip) != want {
			ok = false
			if show {
				t.Errorf("ids %v:\n got %q\nwant %q", ids, got, want)
			}
		}
	}
	return ok
}

// streamed decodes token by token and checks that every piece is UTF-8.
func streamed(t *testing.T, tok *Tokenizer, ids []int32, skip bool) string {
	t.Helper()
	s := tok.NewStream(skip)
	all := ""
	for _, id := range ids {
		piece := s.Push(id)
		if !utf8.ValidString(piece) {
			t.Errorf("piece %q is not UTF-8", piece)
		}
		all += piece
	}
	return all + s.Flush()
}
