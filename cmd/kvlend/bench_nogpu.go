//go:build !cuda || !cgo

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// benchGPUs adds nothing to builds without the cuda fabric.
func benchGPUs(*cobra.Command) func(*cobra.Command, int, bool) error {
	return func(*cobra.Command, int, bool) error {
		return errors.New("the cuda fabric is not part of this build: tools/cuda/setup, then go build -tags cuda ./cmd/kvlend")
	}
}
