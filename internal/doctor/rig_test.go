package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/nvlink/nvml"
	"github.com/kvlend/kvlend/nvlink/topology"
	"github.com/kvlend/kvlend/overflow/ring"
	"github.com/kvlend/kvlend/planner"
)

// files are the contents of files by path.
type files map[string]string

func (f files) with(more files) files {
	out := maps.Clone(f)
	maps.Copy(out, more)
	return out
}

func (f files) fs() fs.FS {
	m := fstest.MapFS{}
	for name, text := range f {
		one := &fstest.MapFile{Data: []byte(text)}
		if target, link := strings.CutPrefix(text, "-> "); link {
			one = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink}
		}
		m[name] = one
	}
	return m
}

// plain is a healthy server without GPUs.
var plain = files{
	"proc/cpuinfo":     "processor : 0\nmodel name\t: Test CPU\nflags : avx2 avx512f avx512_bf16\n",
	"proc/meminfo":     "MemTotal:       33554432 kB\nMemAvailable:   16777216 kB\nHugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n",
	"proc/self/cgroup": "0::/system.slice/kvlend.service\n",
	"proc/self/status": "Name: kvlend\nCapEff:\t0000000000000000\nSeccomp:\t0\n",
	"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
	"sys/devices/system/node/node0/cpulist":      "0-7\n",
}

// withGPUs has two GPUs and their driver.
var withGPUs = plain.with(files{
	"sys/module/nvidia/version":                           "550.54.15\n",
	"sys/bus/pci/devices/0000:3b:00.0/vendor":             "0x10de\n",
	"sys/bus/pci/devices/0000:3b:00.0/class":              "0x030200\n",
	"sys/bus/pci/devices/0000:3b:00.0/numa_node":          "0\n",
	"sys/bus/pci/devices/0000:3b:00.0/current_link_speed": "2.5 GT/s PCIe\n",
	"sys/bus/pci/devices/0000:3b:00.0/max_link_speed":     "32.0 GT/s PCIe\n",
	"sys/bus/pci/devices/0000:3b:00.0/current_link_width": "16\n",
	"sys/bus/pci/devices/0000:3b:00.0/max_link_width":     "16\n",
	"sys/bus/pci/devices/0000:3b:00.0/local_cpulist":      "0-7\n",
	"sys/bus/pci/devices/0000:5e:00.0/vendor":             "0x10de\n",
	"sys/bus/pci/devices/0000:5e:00.0/class":              "0x030000\n",
	"sys/bus/pci/devices/0000:00:1f.0/vendor":             "0x8086\n",
	"sys/bus/pci/devices/0000:00:1f.0/class":              "0x030000\n",
	"proc/driver/nvidia/gpus/0000:3b:00.0/information":    "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-11111111\n",
	"dev/nvidia0":                             "",
	"dev/nvidia1":                             "",
	"dev/nvidiactl":                           "",
	"dev/nvidia-uvm":                          "",
	"usr/lib/x86_64-linux-gnu/libcuda.so.1":   "",
	"etc/ld.so.cache":                         "glibc\x00libnvidia-ml.so.1\x00/opt/nv/libnvidia-ml.so.1\x00libz.so\x00",
	"sys/bus/pci/devices/0000:3b:00.0/driver": "-> ../../../../bus/pci/drivers/nvidia",
})

// machine is a host on which everything works.
func machine(f files) *Host {
	return &Host{
		Root: f.fs(), Getenv: func(string) string { return "" }, UID: 1000, CPUs: 8, TempDir: "/tmp",
		Kernels: func() []string { return []string{"avx512", "avx2", "go"} },
		Rlimit:  func(int) (uint64, error) { return ^uint64(0), nil },
		Release: func() (string, error) { return "6.8.0-31-generic", nil },
		Ring:    func(pass bool) (ring.Features, error) { return ring.Features{Deferred: true, Passthrough: pass}, nil },
		Memfd:   func() error { return nil }, Pidfd: func() error { return nil },
		Access: func(string, bool) error { return nil },
		Space:  func(string) (Filesystem, error) { return Filesystem{Type: "ext4", Free: 1 << 40}, nil },
		Direct: func(string) error { return nil },
		Listen: func(string) error { return nil },
		Stat:   func(string) (fs.FileInfo, error) { return nil, fs.ErrNotExist },
		GPUs:   func(context.Context) (*topology.Inventory, error) { return nil, nvml.ErrNotBuilt },
		CUDA:   func(string) (*topology.Inventory, error) { return inventory(), nil },
		Model:  func(*configs.Model) error { return nil },
	}
}

// inventory is what a driver says of two GPUs with NVLink.
func inventory() *topology.Inventory {
	inv := &topology.Inventory{Driver: "550.54.15", CUDA: "12.4", NVML: "12.550"}
	for i, peer := range []string{"0000:5e:00.0", "0000:3b:00.0"} {
		own := []string{"0000:3b:00.0", "0000:5e:00.0"}[i]
		inv.GPUs = append(inv.GPUs, topology.GPU{
			Index: i, Name: "H100", UUID: fmt.Sprintf("GPU-%d%d%d%d%d%d%d%d", i, i, i, i, i, i, i, i), PCI: own, Compute: "9.0",
			MemoryTotal: 80 << 30, MemoryFree: 70 << 30, MIG: topology.Off, ECC: topology.On, Persistence: topology.On,
			ComputeMode: topology.ComputeDefault, PCIe: topology.PCIe{Gen: 5, MaxGen: 5, Width: 16, MaxWidth: 16}, NUMANode: -1,
			NVLinks: []topology.NVLink{{Active: true, Version: 4, Peer: peer, BytesPerSec: 25e9}, {Index: 1, Active: true, Version: 4, Peer: peer, BytesPerSec: 25e9}},
		})
	}
	connect(inv, topology.P2P{Read: topology.P2PYes, Write: topology.P2PYes})
	return inv
}

func connect(inv *topology.Inventory, p topology.P2P) {
	inv.Pairs = topology.Connect(inv.GPUs, func(int, int) (topology.P2P, string) { return p, "NODE" })
}

func says(inv *topology.Inventory, err error) func(context.Context) (*topology.Inventory, error) {
	return func(context.Context) (*topology.Inventory, error) { return inv, err }
}

func examine(t *testing.T, h *Host, o Options) *Report {
	t.Helper()
	if o.Limit == 0 {
		o.Limit = time.Minute // tests wait for no clock
	}
	o.Build.Version = "test"
	r := Run(t.Context(), h, o)
	for _, s := range r.Sections {
		for _, f := range s.Findings {
			if f.What == "" || f.Found == "" || strings.Contains(f.Found+f.Hint, "%!") {
				t.Errorf("a finding of section %s says %+v", s.Name, f)
			}
			if f.Level == OK && f.Hint != "" {
				t.Errorf("all is well, and something is to be done: %+v", f)
			}
		}
	}
	return r
}

// worst is the worst finding about something.
func worst(r *Report, what string) Finding {
	rank := []Level{OK, Note, Warning, Problem}
	out := Finding{}
	for _, s := range r.Sections {
		for _, f := range s.Findings {
			if f.What == what && slices.Index(rank, f.Level) >= max(0, slices.Index(rank, out.Level)) {
				out = f
			}
		}
	}
	return out
}

// expect checks the worst finding about something: its level, and words of it.
func expect(t *testing.T, name string, r *Report, what string, level Level, words ...string) {
	t.Helper()
	f := worst(r, what)
	if f.Level != level {
		t.Errorf("%s: %s is %+v, want %q", name, what, f, level)
	}
	for _, w := range words {
		if !strings.Contains(f.Found+" → "+f.Hint, w) {
			t.Errorf("%s: %s is %+v, want %q in it", name, what, f, w)
		}
	}
}

// system resolves a configuration of a master and a worker.
func system(t *testing.T, more string, edit func(*configs.Config)) *planner.System {
	t.Helper()
	cfg, err := configs.Parse([]byte(`version: 1
`+more+`
devices: [{name: gpu0}, {name: gpu1}]
models:
  - {name: m, source: builtin:atlas, role: master, device: gpu0, arena: 4MiB}
  - {name: w, source: builtin:birch, role: worker, device: gpu1, arena: 6528KiB}
`), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(cfg)
	}
	sys, err := planner.Resolve(cfg, configs.CatalogGeometry)
	if err != nil {
		t.Fatal(err)
	}
	return sys
}

// info is a file's.
type info struct {
	mode fs.FileMode
	size int64
}

func (i info) Name() string       { return "" }
func (i info) Size() int64        { return i.size }
func (i info) Mode() fs.FileMode  { return i.mode }
func (i info) ModTime() time.Time { return time.Time{} }
func (i info) IsDir() bool        { return i.mode.IsDir() }
func (i info) Sys() any           { return nil }

var errOdd = errors.New("odd")

// limitOf answers one limit, and unlimited for others.
func limitOf(resource int, n uint64) func(int) (uint64, error) {
	return func(r int) (uint64, error) {
		if r == resource {
			return n, nil
		}
		return ^uint64(0), nil
	}
}
