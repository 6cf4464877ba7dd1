// Package prefix knows blocks of KV by what they hold: a block's key is a
// chained hash of everything that its KV depends on, so equal prefixes of
// requests have equal keys, wherever their KV lies (DESIGN section 7).
//
// Index keeps the blocks of one model by prefix and says which to lose first.
// Keys find blocks, but they prove nothing: the index compares the tokens
// themselves and the chain that leads to them, so two prefixes with one key are
// a miss and never somebody else's KV.
package prefix

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/blake3"
	"github.com/zeebo/xxh3"
)

// Key is the identity of a block: 128 bits over the model, the tenant's salt and
// all tokens up to the block's last. The zero Key is nobody's.
type Key struct{ Hi, Lo uint64 }

// String is the key in 32 hexadecimal digits.
func (k Key) String() string { return fmt.Sprintf("%016x%016x", k.Hi, k.Lo) }

// Root is where the chains of one model and one tenant begin. Parts are what
// their KV depends on beside the tokens: digest of the weights, element type,
// layout, adapter, salt. They are length-prefixed, so that no two lists of
// parts are alike.
//
// Nothing compares the parts of two equal roots, and clients choose salts, so
// the hash is one in which nobody can find collisions: the first 16 bytes of
// BLAKE3, big-endian. It runs once per request.
func Root(parts ...[]byte) Key {
	var b []byte
	for _, p := range parts {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	h := blake3.Sum256(b)
	return Key{binary.BigEndian.Uint64(h[:8]), binary.BigEndian.Uint64(h[8:16])}
}

// stackTokens is how many tokens Next encodes at once, on its stack.
const stackTokens = 64

// Next is the key of the block that follows k and holds exactly these tokens:
// XXH3-128 of k.Hi, k.Lo and the tokens, all little-endian. It depends on
// neither machine nor process, so keys may be kept on disk. It does not
// allocate.
//
// XXH3 is fast and not collision-resistant: whoever trusts a key with data has
// to compare the tokens, as Index does.
func (k Key) Next(tokens []int32) Key {
	var b [16 + 4*stackTokens]byte
	binary.LittleEndian.PutUint64(b[:8], k.Hi)
	binary.LittleEndian.PutUint64(b[8:16], k.Lo)
	if len(tokens) <= stackTokens {
		h := xxh3.Hash128(b[:16+encode(b[16:], tokens)])
		return Key{h.Hi, h.Lo}
	}
	return nextLong(b[:], tokens)
}

// nextLong is Next for long blocks; b begins with the 16 bytes of the key. It
// gives what hashing all at once would give.
func nextLong(b []byte, tokens []int32) Key {
	var h xxh3.Hasher
	n := 16 // bytes of b that wait to be hashed
	for at := 0; at < len(tokens); at += stackTokens {
		n += encode(b[n:], tokens[at:min(at+stackTokens, len(tokens))])
		h.Write(b[:n]) // never fails
		n = 0
	}
	s := h.Sum128()
	return Key{s.Hi, s.Lo}
}

// encode writes the tokens little-endian to dst and says how many bytes.
func encode(dst []byte, tokens []int32) int {
	n := 4 * len(tokens)
	dst = dst[:n]
	for _, t := range tokens {
		binary.LittleEndian.PutUint32(dst, uint32(t))
		dst = dst[4:]
	}
	return n
}
