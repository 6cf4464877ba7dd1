package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/nvlink/nvml"
	"github.com/kvlend/kvlend/nvlink/topology"
)

// TestWithoutNVML: a binary that cannot ask shows what the kernel does.
func TestWithoutNVML(t *testing.T) {
	r := examine(t, machine(withGPUs), Options{})
	if !r.OK {
		t.Errorf("%+v", r)
	}
	expect(t, "pure Go", r, "CUDA", Warning, "without the tag cuda", "-tags cuda")
	expect(t, "pure Go", r, "NVML", Note)
	expect(t, "pure Go", r, "driver", OK, "550.54.15")
	expect(t, "pure Go", r, "GPU 0", OK, "NVIDIA H100", "0000:3b:00.0", "PCIe gen 5 x16", "NUMA node 0")
	expect(t, "pure Go", r, "GPU 1", OK, "0000:5e:00.0")
	expect(t, "pure Go", r, "libcuda.so.1", OK, "/usr/lib/x86_64-linux-gnu/libcuda.so.1")
	expect(t, "pure Go", r, "libnvidia-ml.so.1", OK, "/opt/nv/libnvidia-ml.so.1")
	if r.Inventory == nil || len(r.Inventory.GPUs) != 2 || r.Inventory.GPUs[0].UUID != "GPU-11111111" {
		t.Errorf("inventory %+v", r.Inventory)
	}
}

func without(f files, prefixes ...string) files {
	out := files{}
	for name, text := range f {
		keep := true
		for _, p := range prefixes {
			keep = keep && !strings.HasPrefix(name, p)
		}
		if keep {
			out[name] = text
		}
	}
	return out
}

func TestDriver(t *testing.T) {
	noDriver := without(withGPUs, "sys/module/nvidia", "dev/nvidia", "proc/driver", "sys/bus/pci/devices/0000:3b:00.0/driver")
	link := "sys/bus/pci/devices/0000:3b:00.0/driver"
	for _, c := range []struct {
		name  string
		files files
		edit  func(*Host)
		what  string
		level Level
		words []string
	}{
		{"no driver", noDriver, nil, "driver", Problem, []string{"modprobe nvidia", "bus: 2"}},
		{"nouveau", noDriver.with(files{link: "-> ../drivers/nouveau"}), nil, "driver", Problem, []string{"nouveau"}},
		{"vfio", noDriver.with(files{link: "-> ../drivers/vfio-pci"}), nil, "driver", Note, []string{"virtual machines"}},
		{"version in /proc", noDriver.with(files{"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: x\n"}), nil, "driver", OK, []string{"535.104.05"}},
		{"no device files", without(withGPUs, "dev/"), nil, "device files", Problem, []string{"nvidia-modprobe"}},
		{"no device files in a container", without(withGPUs, "dev/").with(files{".dockerenv": ""}), nil, "device files", Problem, []string{"--gpus all"}},
		{"no uvm", without(withGPUs, "dev/nvidia-uvm"), nil, "device files", Problem, []string{"missing: /dev/nvidia-uvm"}},
		{"not permitted", withGPUs, func(h *Host) {
			h.Access = func(p string, _ bool) error {
				if p == "/dev/nvidia1" {
					return unix.EACCES
				}
				return nil
			}
		}, "device files", Problem, []string{"user 1000", "/dev/nvidia1", "video"}},
		{"no libcuda", without(withGPUs, "usr/lib/x86_64-linux-gnu/libcuda"), nil, "libcuda.so.1", Problem, []string{"compute,utility"}},
		{"libraries by the environment", without(withGPUs, "usr/lib/", "etc/").with(files{"opt/x/libcuda.so.1": ""}), func(h *Host) { h.Getenv = env("LD_LIBRARY_PATH", "rel:/opt/x") }, "libcuda.so.1", OK, []string{"/opt/x/libcuda.so.1"}},
	} {
		h := machine(c.files)
		if c.edit != nil {
			c.edit(h)
		}
		expect(t, c.name, examine(t, h, Options{}), c.what, c.level, c.words...)
	}
}

func TestNVMLFails(t *testing.T) {
	for _, c := range []struct {
		err   error
		files files
		level Level
		words string
	}{
		{nvml.ErrNoLibrary, plain, Warning, "without the tag cuda"},
		{nvml.ErrNoDriver, withGPUs, Problem, "nvidia-smi"},
		{nvml.ErrMismatch, withGPUs, Problem, "restart the machine"},
		{nvml.ErrPermission, withGPUs, Problem, "nvidia-smi"},
		{context.DeadlineExceeded, withGPUs, Problem, "xid"},
		{errors.New("odd"), withGPUs, Problem, "odd"},
	} {
		h := machine(c.files)
		h.GPUs = says(nil, fmt.Errorf("NVML: %w", c.err))
		r := examine(t, h, Options{Build: Build{CUDA: true}})
		expect(t, c.err.Error(), r, "NVML", c.level, c.words)
	}
}

func TestGPUs(t *testing.T) {
	for _, c := range []struct {
		name  string
		edit  func(*topology.GPU)
		level Level
		words string
	}{
		{"lost", func(g *topology.GPU) { g.Fault = "the GPU has fallen off the bus" }, Problem, "fallen off"},
		{"nothing known but lost", func(g *topology.GPU) { *g = topology.GPU{Index: 1, Fault: "gone"} }, Problem, "it is not usable: gone"},
		{"MIG", func(g *topology.GPU) { g.MIG = topology.On }, Warning, "-mig 0"},
		{"exclusive", func(g *topology.GPU) { g.ComputeMode = topology.ComputeExclusive }, Problem, "-c DEFAULT"},
		{"prohibited", func(g *topology.GPU) { g.ComputeMode = topology.ComputeProhibited }, Problem, "-c DEFAULT"},
		{"persistence", func(g *topology.GPU) { g.Persistence = topology.Off }, Note, "-pm 1"},
		{"narrow slot", func(g *topology.GPU) { g.PCIe.Width = 8 }, Warning, "8 of 16 lanes"},
		{"fabric", func(g *topology.GPU) { g.Fabric = topology.FabricInProgress }, Problem, "fabricmanager"},
		{"a link down", func(g *topology.GPU) { g.NVLinks[1].Active = false }, Warning, "1 of its 2 NVLinks"},
		{"all links down", func(g *topology.GPU) { g.NVLinks[0].Active, g.NVLinks[1].Active = false, false }, OK, "H100"},
		{"used", func(g *topology.GPU) {
			for i := range 7 {
				g.Processes = append(g.Processes, topology.Process{PID: 100 + i, Name: "/usr/bin/python3", Bytes: 1 << 30})
			}
		}, Note, "pid 104 python3 (1 GiB), and 2 more"},
	} {
		inv := inventory()
		c.edit(&inv.GPUs[1])
		h := machine(withGPUs)
		h.GPUs = says(inv, nil)
		r := examine(t, h, Options{Build: Build{CUDA: true}})
		expect(t, c.name, r, "GPU 1", c.level, c.words)
		expect(t, c.name, r, "GPU 0", OK, "70 GiB of 80 GiB free, PCIe gen 5 x16, NVLinks: 2")
	}
}

func TestPairs(t *testing.T) {
	h := machine(withGPUs)
	h.GPUs = says(inventory(), nil)
	h.Getenv = env("CUDA_VISIBLE_DEVICES", "1")
	r := examine(t, h, Options{Build: Build{CUDA: true}})
	expect(t, "NVLink", r, "pairs", OK, "2: 2 nvlink")
	expect(t, "NVLink", r, "CUDA_VISIBLE_DEVICES", Note, `"1"`)
	if n := r.Inventory.GPUs[0].NUMANode; n != 0 {
		t.Errorf("the NUMA node that /sys knows is %d", n)
	}

	inv := inventory()
	for i := 2; i < 5; i++ {
		g := inv.GPUs[0]
		g.Index, g.PCI, g.NVLinks = i, fmt.Sprint(i), nil
		inv.GPUs = append(inv.GPUs, g)
	}
	connect(inv, topology.P2P{Read: "disabled in the driver's settings"})
	h.GPUs = says(inv, nil)
	r = examine(t, h, Options{Build: Build{CUDA: true}})
	expect(t, "refused", r, "pairs", OK, "20: 20 host")
	expect(t, "refused", r, "peer access", Warning, "0→1, 0→2, 0→3, 0→4 and 16 more: disabled")

	inv = inventory()
	inv.GPUs[0].Fault = "gone"
	connect(inv, topology.P2P{})
	h.GPUs = says(inv, nil)
	expect(t, "one left", examine(t, h, Options{Build: Build{CUDA: true}}), "pairs", Warning)
}
