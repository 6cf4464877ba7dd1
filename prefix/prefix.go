// Package prefix knows blocks of KV by what they hold: a block's key is a
// chained hash of everything that its KV depends on, so equal prefixes of
// requests have equal keys, wherever their KV lies (DESIGN section 7).
package prefix

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Key is the identity of a block: 128 bits over the model, the tenant's salt and
// all tokens up to the block's last. The zero Key is nobody's.
type Key struct{ Hi, Lo uint64 }

// Root is where the chains of one model and one tenant begin. Parts are what
// their KV depends on beside the tokens: digest of the weights, element type,
// layout, adapter, salt. They are length-prefixed, so that no two lists of
// parts are alike.
func Root(parts ...[]byte) Key {
	var b []byte
	for _, p := range parts {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	h := xxh3.Hash128(b)
	return Key{h.Hi, h.Lo}
}
