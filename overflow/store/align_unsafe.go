package store

import (
	"unsafe"

	"github.com/kvlend/kvlend/overflow/device"
)

// heapMemory is n bytes of the Go heap that begin at a multiple of
// device.Align. Only the address is looked at: objects of the heap do not move,
// and the slice keeps the whole allocation alive.
func heapMemory(n int) []byte {
	b := make([]byte, n+device.Align)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (device.Align - 1)
	return b[skip : skip+n : skip+n]
}
