package devicetest

import (
	"unsafe"

	"github.com/kvlend/kvlend/overflow/device"
)

// aligned is n bytes of Go memory that begin at a multiple of device.Align.
//
// unsafe: the address is only looked at.
func aligned(n int) []byte {
	b := make([]byte, n+device.Align)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (device.Align - 1))
	return b[skip : skip+n : skip+n]
}
