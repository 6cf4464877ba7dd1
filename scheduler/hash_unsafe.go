package scheduler

import (
	"encoding/binary"
	"unsafe"
)

// float32Bytes is row in little-endian bytes: on little-endian hosts the same
// memory, so it must not be written and lives as long as row; elsewhere a copy.
//
// The view needs len(row)*4 readable bytes at &row[0], which a slice
// guarantees; bytes have no alignment.
func float32Bytes(row []float32) []byte {
	if len(row) == 0 {
		return nil
	}
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return encodeFloat32(row)
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(row))), 4*len(row))
}
