package simdev

import (
	"unsafe"

	"github.com/kvlend/kvlend/overflow/device"
)

// aligned says whether b, which is not empty, begins where I/O may. Only the
// address is looked at.
func aligned(b []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%device.Align == 0
}
