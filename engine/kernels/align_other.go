//go:build !linux

package kernels

// alignedBytes allocates n zero bytes.
func alignedBytes(n int) []byte { return make([]byte, n) }
