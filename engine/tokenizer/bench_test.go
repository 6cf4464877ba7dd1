package tokenizer

import (
	"strconv"
	"strings"
	"testing"
)

// benchTexts are English-like and mixed texts of about 1 MB.
func benchTexts(b *testing.B, o *oracle) map[string]string {
	b.Helper()
	var english, mixed strings.Builder
	for i := 0; english.Len() < 1<<20; i++ {
		// A changing word each time, so that not every word is in the cache.
		english.WriteString("Memory that one model does not need is lent to another, block by block, and given back in constant time. ")
		for n := i; n > 0; n /= 7 {
			english.WriteByte("etaoinsh"[n%7])
		}
		english.WriteString(".\n")
	}
	for i := 0; mixed.Len() < 1<<20; i++ {
		mixed.WriteString(o.Strings[i%len(o.Strings)])
		mixed.WriteByte(' ')
	}
	return map[string]string{"english": english.String(), "mixed": mixed.String()}
}

func BenchmarkEncode(b *testing.B) {
	o := loadOracle(b)
	texts := benchTexts(b, o)
	for _, c := range o.Tokenizers {
		if c.Name != "qwen3" && c.Name != "llama3" && c.Name != "llama2" && c.Name != "o200k" {
			continue
		}
		tok, err := Parse(o.file(&c))
		if err != nil {
			b.Fatal(err)
		}
		for _, name := range []string{"english", "mixed"} {
			b.Run(c.Name+"/"+name, func(b *testing.B) {
				b.SetBytes(int64(len(texts[name])))
				for b.Loop() {
					if _, err := tok.Encode(texts[name], EncodeOptions{}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkLongWord shows that the time grows with n log n.
func BenchmarkLongWord(b *testing.B) {
	o := loadOracle(b)
	tok, err := Parse(o.file(&o.Tokenizers[0]))
	if err != nil {
		b.Fatal(err)
	}
	for _, kb := range []int{1, 16, 256} {
		word := strings.Repeat("etaoinshrdluabcd", kb*64)
		b.Run(strconv.Itoa(kb)+"KiB", func(b *testing.B) {
			b.SetBytes(int64(len(word)))
			for b.Loop() {
				if _, err := tok.Encode(word, EncodeOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
