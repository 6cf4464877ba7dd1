package store

import (
	"math/bits"

	"github.com/kvlend/kvlend/prefix"
)

// table finds the slot of a key: open addressing with linear probing. The keys
// themselves are where keyOf says. It never grows: a store knows how many blocks
// it can hold, and nobody has to wait for a large table to be rebuilt. It is not safe for concurrent use.
type table struct {
	cells []uint32 // slot+1; 0: empty
	mask  uint32
	n     int
	keyOf func(Slot) prefix.Key
}

// newTable has room for n keys.
func newTable(n int, keyOf func(Slot) prefix.Key) *table {
	size := 1 << bits.Len(uint(max(n, 8)*4/3))
	return &table{cells: make([]uint32, size), mask: uint32(size - 1), keyOf: keyOf}
}

// spread is where a key's search begins. Keys are hashes, but a client may
// choose what is hashed.
func (t *table) spread(k prefix.Key) uint32 {
	return uint32((k.Hi^bits.RotateLeft64(k.Lo, 32))*0x9e3779b97f4a7c15>>32) & t.mask
}

func (t *table) find(k prefix.Key) (Slot, bool) {
	for i := t.spread(k); ; i = (i + 1) & t.mask {
		c := t.cells[i]
		if c == 0 {
			return 0, false
		}
		if t.keyOf(Slot(c-1)) == k {
			return Slot(c - 1), true
		}
	}
}

// insert adds a slot whose key is in no other.
func (t *table) insert(k prefix.Key, s Slot) {
	i := t.spread(k)
	for t.cells[i] != 0 {
		i = (i + 1) & t.mask
	}
	t.cells[i] = uint32(s) + 1
	t.n++
}

// remove takes out a slot, whose key keyOf still knows, and closes the gap.
func (t *table) remove(k prefix.Key, s Slot) {
	i := t.spread(k)
	for t.cells[i] != uint32(s)+1 {
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
		home := t.spread(t.keyOf(Slot(c - 1)))
		if (j-home)&t.mask >= (j-i)&t.mask {
			t.cells[i] = c
			i = j
		}
	}
	t.cells[i] = 0
}
