package store

import (
	"math/bits"

	"github.com/kvlend/kvlend/prefix"
)

// table finds the slot of a key: open addressing with linear probing. The keys
// themselves are where keyOf says. It never grows: a store knows how many blocks
// it can hold, and nobody has to wait for a large table to be rebuilt. It is not safe for concurrent use.
type table struct {
	// cells are a slot+1 in the low half and half of the key's hash in the
	// other, so that looking for a key rarely looks at others. 0: empty.
	cells []uint64
	mask  uint32
	n     int
	keyOf func(Slot) prefix.Key
}

// newTable has room for n keys.
func newTable(n int, keyOf func(Slot) prefix.Key) *table {
	size := 1 << bits.Len(uint(max(n, 8)*4/3))
	return &table{cells: make([]uint64, size), mask: uint32(size - 1), keyOf: keyOf}
}

// hash is where a key's search begins (high half) and its mark (low half).
// Keys are hashes, but a client may choose what is hashed.
func hash(k prefix.Key) uint64 {
	h := (k.Hi ^ bits.RotateLeft64(k.Lo, 32)) * 0x9e3779b97f4a7c15
	return (h ^ h>>32) * 0xd6e8feb86659fd93
}

func (t *table) home(h uint64) uint32 { return uint32(h>>32) & t.mask }

// cell is what stands for a slot whose key has this hash.
func cell(h uint64, s Slot) uint64 { return h<<32 | uint64(s+1) }

func (t *table) find(k prefix.Key) (Slot, bool) {
	h := hash(k)
	for i := t.home(h); ; i = (i + 1) & t.mask {
		c := t.cells[i]
		if c == 0 {
			return 0, false
		}
		if s := Slot(uint32(c) - 1); c == cell(h, s) && t.keyOf(s) == k {
			return s, true
		}
	}
}

// insert adds a slot whose key is in no other.
func (t *table) insert(k prefix.Key, s Slot) {
	h := hash(k)
	i := t.home(h)
	for t.cells[i] != 0 {
		i = (i + 1) & t.mask
	}
	t.cells[i] = cell(h, s)
	t.n++
}

// remove takes out a slot, whose key keyOf still knows, and closes the gap.
func (t *table) remove(k prefix.Key, s Slot) {
	h := hash(k)
	i := t.home(h)
	for t.cells[i] != cell(h, s) {
		if t.cells[i] == 0 {
			panic("BUG: store: a live key is not in the table")
		}
		i = (i + 1) & t.mask
	}
	t.n--
	for j := i; ; {
		j = (j + 1) & t.mask
		c := t.cells[j]
		if c == 0 {
			break
		}
		// The one at j may move to i unless its search begins in (i, j].
		home := t.home(hash(t.keyOf(Slot(uint32(c) - 1))))
		if (j-home)&t.mask >= (j-i)&t.mask {
			t.cells[i] = c
			i = j
		}
	}
	t.cells[i] = 0
}
