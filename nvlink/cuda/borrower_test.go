//go:build cuda && cgo

package cuda

func borrowerMain() bool { return false }
