//go:build !cuda || !cgo

package fabrics

import "errors"

const haveCUDA = false

func openCUDA(Options) (Fabric, error) { return nil, errors.New("BUG: a build without cuda") }
