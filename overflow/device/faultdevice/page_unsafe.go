package faultdevice

import (
	"unsafe"

	"github.com/kvlend/kvlend/overflow/device"
)

// page is device.Align bytes that begin at a multiple of it.
//
// unsafe: the address is only looked at.
func page() []byte {
	b := make([]byte, 2*device.Align)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (device.Align - 1))
	return b[skip : skip+device.Align : skip+device.Align]
}
