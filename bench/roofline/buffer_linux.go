package roofline

import "golang.org/x/sys/unix"

// buffer allocates n bytes, in huge pages if the system grants them, as the
// kernels' weights are.
func buffer(n int) []byte {
	b := make([]byte, n)
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	return b
}
