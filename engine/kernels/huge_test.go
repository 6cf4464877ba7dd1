package kernels

import (
	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"
	"os"
)

var _ = cpu.X86

func hugeMem(n int64) []byte {
	if os.Getenv("HUGE") == "" {
		return make([]byte, n)
	}
	b, err := unix.Mmap(-1, 0, int(n+(2<<20)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic(err)
	}
	if err := unix.Madvise(b, unix.MADV_HUGEPAGE); err != nil {
		panic(err)
	}
	return b[:n]
}
