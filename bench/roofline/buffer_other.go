//go:build !linux

package roofline

func buffer(n int) []byte { return make([]byte, n) }
