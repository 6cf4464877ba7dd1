package kernels

import "golang.org/x/sys/unix"

// hugePage is the size from which huge pages pay off.
const hugePage = 2 << 20

// alignedBytes allocates n zero bytes. Large ones lie at page boundaries in
// Go's heap; they are advised to be huge pages before they are first touched,
// which spares a product a page walk every 4 KiB. The advice may be refused.
func alignedBytes(n int) []byte {
	b := make([]byte, n)
	if n >= hugePage {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	}
	return b
}
