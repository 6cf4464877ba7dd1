package elastic

import (
	"sync/atomic"
	"unsafe"
)

// words views shared bytes as 64-bit words that are accessed atomically.
//
// Preconditions, which newWords checks: the memory starts at an 8-byte
// boundary and its length is a multiple of 8. The caller keeps the mapping
// alive for as long as the words are used, and every process that writes the
// same bytes does so through 64-bit atomics. A word's value is untrusted: load
// it once, bound it, then use it.
type words struct {
	mem []byte // keeps Go memory reachable; mapped memory is the caller's
	n   int
}

// newWords returns false when the memory is not aligned.
func newWords(mem []byte) (words, bool) {
	if len(mem) == 0 || len(mem)%8 != 0 || uintptr(unsafe.Pointer(&mem[0]))%8 != 0 {
		return words{}, false
	}
	return words{mem: mem, n: len(mem) / 8}, true
}

// at bounds-checks through the slice before the pointer is formed.
func (w words) at(i int) *uint64 { return (*uint64)(unsafe.Pointer(&w.mem[i*8 : i*8+8][0])) }

func (w words) load(i int) uint64     { return atomic.LoadUint64(w.at(i)) }
func (w words) store(i int, v uint64) { atomic.StoreUint64(w.at(i), v) }
