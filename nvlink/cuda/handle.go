//go:build cuda && cgo

package cuda

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// MemoryKind is how an arena's memory was made and is shared.
type MemoryKind string

// The kinds of memory.
const (
	VMM        MemoryKind = "vmm"        // device memory, exported as a file descriptor
	IPC        MemoryKind = "ipc"        // device memory, exported by CUDA IPC
	Pinned     MemoryKind = "pinned"     // host memory of this process
	Registered MemoryKind = "registered" // host memory that others made, pinned
)

// Handle is what another process needs to open an arena, beside the file that
// Export gives for VMM memory. As text it has no spaces. It is no secret, but
// who has it and the file, or for IPC is of the same user, can use the memory.
type Handle struct {
	Kind   MemoryKind // VMM or IPC
	Size   int64
	Device [16]byte // UUID: processes may number devices differently
	ID     [16]byte // of the memory, the same in all processes
	IPC    [64]byte // of an IPC handle
}

// String is the handle as ParseHandle reads it.
func (h Handle) String() string {
	s := fmt.Sprintf("%s:%d:%x:%x", h.Kind, h.Size, h.Device, h.ID)
	if h.Kind == IPC {
		s += fmt.Sprintf(":%x", h.IPC)
	}
	return s
}

// ParseHandle reads a handle's text.
func ParseHandle(s string) (Handle, error) {
	var h Handle
	fields := strings.Split(s, ":")
	h.Kind = MemoryKind(fields[0])
	want := map[MemoryKind]int{VMM: 4, IPC: 5}[h.Kind]
	if want == 0 || len(fields) != want {
		return Handle{}, fmt.Errorf("arena handle of kind %q has %d fields; want %s with 4 or %s with 5", fields[0], len(fields), VMM, IPC)
	}
	var err error
	if h.Size, err = strconv.ParseInt(fields[1], 10, 64); err != nil || h.Size <= 0 || h.Size > maxSize {
		return Handle{}, fmt.Errorf("arena handle: size is %q; want 1 to %d", fields[1], int64(maxSize))
	}
	into := [][]byte{h.Device[:], h.ID[:], h.IPC[:]}
	for i, f := range fields[2:] {
		b, err := hex.DecodeString(f)
		if err != nil || len(b) != len(into[i]) {
			return Handle{}, fmt.Errorf("arena handle: field %d is not %d bytes in hexadecimal", i+3, len(into[i]))
		}
		copy(into[i], b)
	}
	return h, nil
}
