//go:build !amd64

package roofline

func detect() peaks { return generic() }
