package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Uint64 is the word at byte offset off, for atomic access by all processes
// that map the Region. It panics when off is outside the Region or not a
// multiple of 8. The word must not be used after Close.
//
// unsafe: a mapping starts on a page boundary, so a multiple of 8 inside it
// is an aligned address; the bounds check keeps the word inside the mapping;
// the memory is not Go heap, so the garbage collector ignores it.
func (r *Region) Uint64(off int64) *atomic.Uint64 {
	if off < 0 || off > r.size-8 || off%8 != 0 {
		panic(fmt.Sprintf("BUG: word at %d of shared memory %q with %d bytes", off, r.name, r.size))
	}
	return (*atomic.Uint64)(unsafe.Pointer(&r.mem[off]))
}
