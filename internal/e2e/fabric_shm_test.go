//go:build !cuda

package e2e

import (
	"os"
	"os/exec"

	"github.com/kvlend/kvlend/configs"
)

// buildCommand builds the program as it is released.
func buildCommand(string) (*exec.Cmd, error) {
	c := exec.Command("go", "build", "-o", kvlend, "github.com/kvlend/kvlend/cmd/kvlend")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	return c, nil
}

// onFabric chooses the fabric that systems run on.
func onFabric(*configs.Config) {}
