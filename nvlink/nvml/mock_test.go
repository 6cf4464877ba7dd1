//go:build cuda && cgo

package nvml

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
)

// machine is go-nvml's mock of a server, with what it leaves out filled in:
// slots, NVLinks, peer access, processes.
type machine struct {
	*dgxa100.Server
	gpus []*gpu
	// lacks are functions that this driver's library does not have. Calling one
	// kills a real process, here the test fails.
	lacks map[string]bool
	down  int // calls of Shutdown
}

// gpu is one of its GPUs, and what a test may change.
type gpu struct {
	*dgxa100.Device
	m       *machine
	version uint32   // of NVLink
	peers   []string // by link: "switch", "cpu", the PCI address of a GPU, or "down"
	speed   uint32   // MB/s of a link; 0: not said
	fabric  lib.GpuFabricInfo
	p2p     lib.GpuP2PStatus
	lost    bool // it falls off the bus while it is asked about its memory
	used    []lib.ProcessInfo
}

// newMachine has n GPUs without links.
func newMachine(n int) *machine {
	m := &machine{Server: dgxa100.New(), lacks: map[string]bool{}}
	for i := range n {
		g := &gpu{Device: dgxa100.NewDevice(i), m: m}
		g.PciBusID = fmt.Sprintf("00000000:%02X:00.0", 0x10+i)
		g.MemoryInfo = lib.Memory{Total: 80 << 30, Used: 1 << 30, Free: 79 << 30}
		g.fill()
		m.gpus = append(m.gpus, g)
	}
	m.DeviceGetCountFunc = func() (int, lib.Return) { return n, lib.SUCCESS }
	m.DeviceGetHandleByIndexFunc = func(i int) (lib.Device, lib.Return) { return m.gpus[i], lib.SUCCESS }
	m.SystemGetProcessNameFunc = func(pid int) (string, lib.Return) {
		if pid == 4 {
			return "/usr/bin/other", lib.SUCCESS
		}
		return "", lib.ERROR_NOT_FOUND
	}
	m.LookupSymbolFunc = func(symbol string) error {
		if m.lacks[symbol] {
			return errors.New("undefined symbol: " + symbol)
		}
		return nil
	}
	m.ShutdownFunc = func() lib.Return {
		m.down++
		return lib.SUCCESS
	}
	return m
}

// switched joins all GPUs through switches with so many links each.
func (m *machine) switched(links int, version, speed uint32) *machine {
	for _, g := range m.gpus {
		g.version, g.speed = version, speed
		g.fabric.State = lib.GPU_FABRIC_STATE_COMPLETED
		for range links {
			g.peers = append(g.peers, "switch")
		}
	}
	return m
}

// answer is the usual return code, or that the GPU is gone.
func (g *gpu) answer() lib.Return {
	if g.lost {
		return lib.ERROR_GPU_IS_LOST
	}
	return lib.SUCCESS
}

// need fails where a test's library has no such function.
func (g *gpu) need(symbol string) {
	if g.m.lacks[symbol] {
		panic("call of " + symbol + ", which the library does not have")
	}
}

func (g *gpu) fill() {
	d := g.Device
	d.GetPciInfoFunc = func() (p lib.PciInfo, r lib.Return) {
		copy(p.BusId[:], g.PciBusID)
		return p, lib.SUCCESS
	}
	d.GetMemoryInfoFunc = func() (lib.Memory, lib.Return) { return g.MemoryInfo, g.answer() }
	d.GetMemoryBusWidthFunc = func() (uint32, lib.Return) {
		g.need("nvmlDeviceGetMemoryBusWidth")
		return 5120, g.answer()
	}
	d.GetMaxClockInfoFunc = func(lib.ClockType) (uint32, lib.Return) { return 2619, g.answer() }
	d.GetEccModeFunc = func() (c, p lib.EnableState, r lib.Return) {
		return lib.FEATURE_ENABLED, lib.FEATURE_ENABLED, g.answer()
	}
	d.GetPersistenceModeFunc = func() (lib.EnableState, lib.Return) { return lib.FEATURE_DISABLED, g.answer() }
	d.GetComputeModeFunc = func() (lib.ComputeMode, lib.Return) { return lib.COMPUTEMODE_DEFAULT, g.answer() }
	d.GetCurrPcieLinkGenerationFunc = func() (int, lib.Return) { return 1, g.answer() } // it idles
	d.GetMaxPcieLinkGenerationFunc = func() (int, lib.Return) { return 5, g.answer() }
	d.GetCurrPcieLinkWidthFunc = func() (int, lib.Return) { return 16, g.answer() }
	d.GetMaxPcieLinkWidthFunc = func() (int, lib.Return) { return 16, g.answer() }
	d.GetCpuAffinityFunc = func(int) ([]uint, lib.Return) { return []uint{0xffff, 0, 0xf0}, g.answer() }
	d.GetMemoryAffinityFunc = func(int, lib.AffinityScope) ([]uint, lib.Return) {
		g.need("nvmlDeviceGetMemoryAffinity")
		return []uint{1 << 1}, g.answer()
	}
	d.GetComputeRunningProcessesFunc = func() ([]lib.ProcessInfo, lib.Return) { return g.used, g.answer() }
	g.fillLinks()
	d.GetP2PStatusFunc = func(_ lib.Device, i lib.GpuP2PCapsIndex) (lib.GpuP2PStatus, lib.Return) {
		g.need("nvmlDeviceGetP2PStatus")
		return g.p2p, g.answer()
	}
	d.GetTopologyCommonAncestorFunc = func(lib.Device) (lib.GpuTopologyLevel, lib.Return) {
		return lib.TOPOLOGY_SYSTEM, g.answer()
	}
}

func (g *gpu) fillLinks() {
	d := g.Device
	d.GetNvLinkStateFunc = func(i int) (lib.EnableState, lib.Return) {
		switch {
		case i >= len(g.peers):
			return 0, lib.ERROR_NOT_SUPPORTED
		case g.peers[i] == "down":
			return lib.FEATURE_DISABLED, g.answer()
		}
		return lib.FEATURE_ENABLED, g.answer()
	}
	d.GetNvLinkVersionFunc = func(int) (uint32, lib.Return) { return g.version, g.answer() }
	d.GetNvLinkRemoteDeviceTypeFunc = func(i int) (lib.IntNvLinkDeviceType, lib.Return) {
		g.need("nvmlDeviceGetNvLinkRemoteDeviceType")
		switch g.peers[i] {
		case "switch":
			return lib.NVLINK_DEVICE_TYPE_SWITCH, g.answer()
		case "cpu":
			return lib.NVLINK_DEVICE_TYPE_IBMNPU, g.answer()
		}
		return lib.NVLINK_DEVICE_TYPE_GPU, g.answer()
	}
	d.GetNvLinkRemotePciInfoFunc = func(i int) (p lib.PciInfo, r lib.Return) {
		copy(p.BusId[:], g.peers[i])
		return p, g.answer()
	}
	d.GetGpuFabricInfoFunc = func() (lib.GpuFabricInfo, lib.Return) {
		g.need("nvmlDeviceGetGpuFabricInfo")
		return g.fabric, g.answer()
	}
	d.GetFieldValuesFunc = func(v []lib.FieldValue) lib.Return {
		for i := range v {
			if g.speed == 0 || v[i].FieldId != lib.FI_DEV_NVLINK_GET_SPEED {
				v[i].NvmlReturn = uint32(lib.ERROR_NOT_SUPPORTED)
				continue
			}
			v[i].ValueType = valueUint
			binary.NativeEndian.PutUint32(v[i].Value[:], g.speed)
			v[i].Value[7] = 0xff // beyond the value
		}
		return g.answer()
	}
}

// unknownUse is what the driver answers where it does not know.
const unknownUse = math.MaxUint64
