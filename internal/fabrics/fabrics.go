// Package fabrics opens the fabric that a configuration names, for the processes
// of a system: the supervisor creates arenas on it, the others open them.
package fabrics

import (
	"errors"
	"fmt"
	"os"

	"github.com/hashicorp/go-hclog"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/nvlink"
)

// Fabric is an nvlink.Fabric with its arenas. Devices are those of the
// configuration.
type Fabric interface {
	nvlink.Fabric
	// Create allocates size bytes of zeroed memory on a device for everybody.
	Create(name, device string, size int64) (*Owned, error)
	// Open opens an arena that the supervisor created. It owns the descriptor fd
	// from then on, whatever it returns; -1: there is none.
	Open(handle string, fd int, name, device string, size int64) (nvlink.Arena, error)
	// Host allocates memory of the host for this process alone. device is what
	// stands for the host in the configuration; empty: nothing does.
	Host(name, device string, size int64) (nvlink.Arena, error)
	// Detours says which copies between a device and others do not go directly,
	// and why.
	Detours(device string, others []string) []string
}

// Owned is an arena as its creator has it, and what others need to open it.
type Owned struct {
	nvlink.Arena
	Handle string   // in the fabric's own words; empty: the file is enough
	File   *os.File // belongs to the arena; nil: the handle is enough

	own bool // File is to be closed beside the arena
}

// Close frees the memory, as far as nobody else has it.
func (o *Owned) Close() error {
	var err error
	if o.own {
		err = o.File.Close()
	}
	return errors.Join(err, o.Arena.Close())
}

// Options of Open.
type Options struct {
	Config *configs.Config
	// Device is that of the process's own model; empty for the supervisor.
	Device string
	// Budgets limits what the process moves from and to arenas, by name, in bytes
	// per second.
	Budgets map[string]int64
	// Lost is told, once, that a device answers nothing any more: the process
	// should end. It must not call the fabric. Nil: nobody is told.
	Lost func(error)
	Log  hclog.Logger
}

// Open opens the fabric of a process.
func Open(o Options) (Fabric, error) {
	if err := Check(o.Config); err != nil {
		return nil, err
	}
	if o.Config.Fabric.Kind == "cuda" {
		return openCUDA(o)
	}
	return openSHM(o)
}

// Check says what a configuration asks for that this build cannot serve.
func Check(c *configs.Config) error {
	if c.Fabric.Kind != "cuda" {
		return nil
	}
	if !haveCUDA {
		return fmt.Errorf("fabric.kind: %q is not part of this build, only shm: tools/cuda/setup, then go build -tags cuda ./cmd/kvlend", c.Fabric.Kind)
	}
	return Unsupported(c)
}

// Unsupported says what a configuration asks for that no build serves yet: what
// GPUs cannot have.
func Unsupported(c *configs.Config) error {
	if c.Fabric.Kind != "cuda" {
		return nil
	}
	var errs []error
	if c.Lending.LinkBudget > 0 {
		errs = append(errs, fmt.Errorf("lending.link_budget: %s, must be 0 with fabric.kind cuda, which limits nothing", configs.Rate(c.Lending.LinkBudget)))
	}
	arenas := map[string]bool{}
	for i, m := range c.Models {
		arenas[m.Device] = true
		if len(m.Overflow.Devices) > 0 {
			errs = append(errs, fmt.Errorf("models[%d] (%s).overflow.devices: %d of them, must be none with fabric.kind cuda: disks read and write memory of the host only", i, m.Name, len(m.Overflow.Devices)))
		}
	}
	for i, d := range c.Devices {
		if arenas[d.Name] && d.Selector() == "" {
			errs = append(errs, fmt.Errorf("devices[%d] (%s).gpu: empty, want which GPU it is: a UUID, a PCI address or an index, since a model's arena is there", i, d.Name))
		}
	}
	return errors.Join(errs...)
}
