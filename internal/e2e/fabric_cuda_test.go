//go:build cuda

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/nvlink/cuda/fakedriver"
)

// With the tag cuda systems keep their KV on GPUs: on those of the library that
// KVLEND_TEST_LIBCUDA names, or on the fake driver's, of which models share two.
var library = os.Getenv("KVLEND_TEST_LIBCUDA")

const gpus = 2

// buildCommand builds the program with the tag cuda, and the fake driver.
func buildCommand(dir string) (*exec.Cmd, error) {
	if library == "" {
		var err error
		if library, err = fakedriver.Build(dir); err != nil {
			return nil, fmt.Errorf("systems on the cuda fabric cannot be tested: %w", err)
		}
	}
	c := exec.Command("go", "build", "-tags", "cuda", "-o", kvlend, "github.com/kvlend/kvlend/cmd/kvlend")
	c.Env = append(os.Environ(), "CGO_ENABLED=1")
	return c, nil
}

// onFabric puts a system on the cuda fabric, if it asks for nothing that only
// memory of the host can do.
func onFabric(c *configs.Config) {
	for _, m := range c.Models {
		if len(m.Overflow.Devices) > 0 {
			return
		}
	}
	if c.Fabric.Pace || c.Fabric.Measured != "" || c.Lending.LinkBudget > 0 {
		return
	}
	c.Fabric.Kind, c.Fabric.Driver, c.Fabric.Topology = "cuda", library, configs.TopologyConfig
	for i := range c.Devices {
		c.Devices[i].GPU = strconv.Itoa(i % gpus)
	}
}
