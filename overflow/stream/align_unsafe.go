package stream

import (
	"unsafe"

	"github.com/kvlend/kvlend/overflow/device"
)

// aligned returns n bytes of the heap at an address that is a multiple of
// device.Align. Precondition of the arithmetic: heap objects do not move, which
// holds for Go's collector; only the address is computed, nothing is read
// through a pointer made of it.
func aligned(n int) []byte {
	b := make([]byte, n+device.Align)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % device.Align
	return b[skip:][:n:n]
}
