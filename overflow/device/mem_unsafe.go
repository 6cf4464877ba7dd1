package device

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugePage = 2 << 20

// address is where b begins.
//
// unsafe: used for comparison and alignment only; never turned back into a pointer.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// mapMemory maps n bytes (a multiple of Align) outside the Go heap, beginning
// on a huge page: of such as the administrator has reserved, where huge asks
// for it and there are any, else of transparent ones. An I/O on small pages is a
// list of them all the way down to the disk, which can halve its bandwidth.
// whole is what must be unmapped.
func mapMemory(n int64, huge bool) (mem, whole []byte, err error) {
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	if huge && n%hugePage == 0 {
		if whole, err = unix.Mmap(-1, 0, int(n), prot, flags|unix.MAP_HUGETLB); err == nil {
			return whole, whole, nil
		}
	}
	// Whole huge pages, also for less than one.
	size := (int(n) + hugePage - 1) &^ (hugePage - 1)
	whole, err = unix.Mmap(-1, 0, size+hugePage, prot, flags)
	if err != nil {
		return nil, nil, fmt.Errorf("map %d bytes of memory: %w", n, err)
	}
	skip := int(-address(whole) & (hugePage - 1))
	mem = whole[skip : skip+int(n) : skip+int(n)]
	// Advice: where it is not taken the pages are small, which is slower and right.
	_ = unix.Madvise(whole[skip:skip+size], unix.MADV_HUGEPAGE)
	return mem, whole, nil
}

// bindMemory places mem, not yet touched, on a NUMA node.
//
// unsafe: the mask outlives the call, and mem is a mapping of our own.
func bindMemory(mem []byte, node int) error {
	const preferStrictly = 2 // MPOL_BIND
	mask := make([]uint64, node/64+1)
	mask[node/64] = 1 << (node % 64)
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, address(mem), uintptr(len(mem)), preferStrictly,
		uintptr(unsafe.Pointer(&mask[0])), uintptr(len(mask)*64+1), 0)
	if errno != 0 {
		return fmt.Errorf("bind %d bytes of memory to NUMA node %d: %w", len(mem), node, errno)
	}
	return nil
}
