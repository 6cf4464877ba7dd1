package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// GPT-2's byte symbols: printable bytes stand for themselves, the others are
// numbered from U+0100 in order.

// byteRune returns the symbol of a byte.
func byteRune(b byte) rune {
	switch {
	case b <= ' ':
		return 0x100 + rune(b)
	case b >= 0x7f && b <= 0xa0:
		return 0x100 + rune(b) - 0x7f + 33
	case b == 0xad:
		return 0x143
	}
	return rune(b)
}

// runeByte is the inverse of byteRune.
func runeByte(r rune) (byte, bool) {
	switch {
	case r > ' ' && r < 0x7f, r > 0xa0 && r < 0x100 && r != 0xad:
		return byte(r), true
	case r >= 0x100 && r <= 0x120:
		return byte(r - 0x100), true
	case r >= 0x121 && r <= 0x142:
		return byte(r - 0x121 + 0x7f), true
	case r == 0x143:
		return 0xad, true
	}
	return 0, false
}

// mapBytes spells raw bytes in byte symbols.
func mapBytes(raw string) string {
	var b strings.Builder
	b.Grow(2 * len(raw))
	for i := range len(raw) {
		b.WriteRune(byteRune(raw[i]))
	}
	return b.String()
}

// unmapBytes is the inverse; ok is false if s has other characters.
func unmapBytes(s string) (raw string, ok bool) {
	buf := make([]byte, 0, len(s))
	for _, r := range s {
		b, ok := runeByte(r)
		if !ok {
			return "", false
		}
		buf = append(buf, b)
	}
	return string(buf), true
}

// sequence looks at the UTF-8 sequence that begins b, which is not empty: its
// length, whether it is well-formed, and if not, whether more bytes could
// make it so. Of an ill-formed sequence n covers the maximal subpart (Unicode
// 15, section 3.9), which is what one U+FFFD stands for.
func sequence[T string | []byte](b T) (n int, ok, partial bool) {
	lo, hi, need := byte(0x80), byte(0xbf), 0
	switch c := b[0]; {
	case c < 0x80:
		return 1, true, false
	case c >= 0xc2 && c <= 0xdf:
		need = 1
	case c >= 0xe0 && c <= 0xef:
		need = 2
		if c == 0xe0 {
			lo = 0xa0
		} else if c == 0xed {
			hi = 0x9f
		}
	case c >= 0xf0 && c <= 0xf4:
		need = 3
		if c == 0xf0 {
			lo = 0x90
		} else if c == 0xf4 {
			hi = 0x8f
		}
	default:
		return 1, false, false
	}
	for n = 1; n <= need; n++ {
		if n == len(b) {
			return n, false, true
		}
		if b[n] < lo || b[n] > hi {
			return n, false, false
		}
		lo, hi = 0x80, 0xbf
	}
	return n, true, false
}

// lossy replaces each maximal ill-formed sequence with U+FFFD.
func lossy(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		n, ok, _ := sequence(s)
		if ok {
			b.WriteString(s[:n])
		} else {
			b.WriteRune(utf8.RuneError)
		}
		s = s[n:]
	}
	return b.String()
}
