//go:build !cuda || !cgo

package nvml

import (
	"context"

	"github.com/kvlend/kvlend/nvlink/topology"
)

// Built reports whether this binary can ask.
const Built = false

// Read answers ErrNotBuilt.
func Read(context.Context) (*topology.Inventory, error) { return nil, ErrNotBuilt }
