//go:build !cuda || !cgo

package fabrics

import (
	"errors"

	"github.com/kvlend/kvlend/nvlink/topology"
)

const haveCUDA = false

// GPUs lists the GPUs that the CUDA driver shows, which takes a build with the
// tag cuda.
func GPUs(string) (*topology.Inventory, error) {
	return nil, errors.New("this binary was built without the tag cuda")
}

func openCUDA(Options) (Fabric, error) { return nil, errors.New("BUG: a build without cuda") }
