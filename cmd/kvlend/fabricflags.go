package main

import (
	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/fabrics"
)

// fabricFlags adds the choice of a fabric to a benchmark. The function that comes
// back says what was chosen, or what is wrong with it.
func fabricFlags(c *cobra.Command) func() (configs.Fabric, error) {
	f := configs.Fabric{}
	c.Flags().StringVar(&f.Kind, "fabric", "shm", "what the arenas are on: shm or cuda")
	c.Flags().StringVar(&f.Driver, "driver", "", "cuda: the driver's library; empty: libcuda.so.1")
	return func() (configs.Fabric, error) {
		if f.Kind != "shm" && f.Kind != "cuda" {
			return f, usage("--fabric is %q: want shm or cuda", f.Kind)
		}
		if f.Driver != "" && f.Kind != "cuda" {
			return f, usage("--driver is %q: want it with --fabric cuda only", f.Driver)
		}
		return f, fabrics.Check(&configs.Config{Fabric: f})
	}
}
