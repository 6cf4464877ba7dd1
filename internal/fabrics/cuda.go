//go:build cuda && cgo

package fabrics

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/hashicorp/go-hclog"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/cuda"
	"github.com/kvlend/kvlend/nvlink/topology"
)

const haveCUDA = true

// gpus are the devices of a configuration on GPUs. Several of them may be on one.
type gpus struct {
	*cuda.Fabric
	names map[string]string // of the driver's devices, by the configuration's
	log   hclog.Logger
}

func openCUDA(o Options) (Fabric, error) {
	names, err := gpuNames(o.Config)
	if err != nil {
		return nil, err
	}
	f, err := cuda.New(cuda.Config{
		Library: o.Config.Fabric.Driver, Home: names[o.Device], Lost: o.Lost,
		Notice: func(text string) { o.Log.Warn("fabric", "problem", text) },
	})
	if err != nil {
		return nil, err
	}
	return &gpus{f, names, o.Log}, nil
}

// GPUs lists the GPUs that the CUDA driver shows, with their UUIDs and its own
// indices, and nothing else. driver is the library; empty: the usual one.
func GPUs(driver string) (*topology.Inventory, error) {
	inv, _, err := driverGPUs(driver)
	return inv, err
}

// driverGPUs also gives the names of the fabric, by index.
func driverGPUs(driver string) (*topology.Inventory, []string, error) {
	f, err := cuda.New(cuda.Config{Library: driver})
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	inv := &topology.Inventory{}
	var names []string
	for i, d := range f.Info().Devices {
		inv.GPUs = append(inv.GPUs, topology.GPU{Index: i, Name: d.Model, MemoryTotal: uint64(d.Memory), UUID: d.UUIDText()})
		names = append(names, d.Name)
	}
	return inv, names, nil
}

// gpuNames finds the GPUs of the devices that hold arenas, among those that the
// driver shows.
func gpuNames(c *configs.Config) (map[string]string, error) {
	inv, all, err := driverGPUs(c.Fabric.Driver)
	if err != nil {
		return nil, err
	}
	arenas := map[string]bool{}
	for _, m := range c.Models {
		arenas[m.Device] = true
	}
	names := map[string]string{}
	var errs []error
	for i, d := range c.Devices {
		if !arenas[d.Name] {
			continue
		}
		g, err := inv.Find(d.Selector())
		if err != nil {
			errs = append(errs, fmt.Errorf("devices[%d] (%s).gpu: %w", i, d.Name, err))
			continue
		}
		names[d.Name] = all[g.Index]
	}
	return names, errors.Join(errs...)
}

// Detours is of the devices that hold arenas.
func (g *gpus) Detours(device string, others []string) []string {
	back := map[string]string{}
	for name, gpu := range g.names {
		if name == device || slices.Contains(others, name) {
			back[gpu] = name
		}
	}
	var out []string
	for _, p := range g.Paths() {
		from, to := back[p.From], back[p.To]
		if p.Kind == cuda.Staged && from != "" && to != "" && (from == device || to == device) {
			out = append(out, fmt.Sprintf("copies from %s to %s go through host memory, which is slow: %s", from, to, p.Why))
		}
	}
	return out
}

func (g *gpus) NewStream(device, name string) (nvlink.Stream, error) {
	dev, err := g.gpu(device)
	if err != nil {
		return nil, fmt.Errorf("stream %q: %w", name, err)
	}
	return g.Stream(dev, name)
}

func (g *gpus) gpu(device string) (string, error) {
	if name := g.names[device]; name != "" {
		return name, nil
	}
	return "", fmt.Errorf("device %q is no GPU of the configuration that holds arenas", device)
}

func (g *gpus) Create(name, device string, size int64) (*Owned, error) {
	dev, err := g.gpu(device)
	if err != nil {
		return nil, fmt.Errorf("arena %q: %w", name, err)
	}
	a, err := g.NewArena(name, dev, size)
	if err != nil {
		return nil, err
	}
	h, file, err := a.Export()
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	if a.Kind() == cuda.IPC {
		g.log.Warn("fabric: an arena is shared by CUDA IPC, since the driver cannot export a descriptor: it lives as long as this process", "arena", name, "device", device)
	}
	return &Owned{Arena: a, Handle: h.String(), File: file, own: file != nil}, nil
}

func (g *gpus) Open(handle string, fd int, name, device string, size int64) (nvlink.Arena, error) {
	var file *os.File
	if fd >= 0 {
		file = os.NewFile(uintptr(fd), name)
		defer file.Close()
	}
	h, err := cuda.ParseHandle(handle)
	if err != nil {
		return nil, fmt.Errorf("arena %q: %w", name, err)
	}
	if h.Size != size {
		return nil, fmt.Errorf("arena %q has %d bytes, want %d", name, h.Size, size)
	}
	a, err := g.Fabric.Open(h, file, name)
	if err != nil {
		return nil, err
	}
	if want := g.names[device]; a.Device() != want {
		return nil, errors.Join(fmt.Errorf("arena %q is on %s, and device %s of the configuration is %s", name, a.Device(), device, want), a.Close())
	}
	return a, nil
}

func (g *gpus) Host(name, _ string, size int64) (nvlink.Arena, error) {
	return g.NewHostArena(name, hostDevice, size)
}
