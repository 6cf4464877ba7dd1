//go:build cuda && cgo

package nvml

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/kvlend/kvlend/nvlink/topology"
)

func inventory(t *testing.T, m *machine) *topology.Inventory {
	t.Helper()
	inv, err := readFrom(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	if m.down != 1 {
		t.Errorf("Shutdown was called %d times", m.down)
	}
	return inv
}

func TestSwitchedServer(t *testing.T) {
	m := newMachine(8).switched(18, 4, 26562)
	m.gpus[2].used = []lib.ProcessInfo{{Pid: 4, UsedGpuMemory: 7 << 20}, {Pid: 5, UsedGpuMemory: unknownUse}}
	inv := inventory(t, m)
	if inv.Driver != "550.54.15" || inv.CUDA != "12.4" || len(inv.GPUs) != 8 || len(inv.Gaps) != 0 {
		t.Fatalf("%+v", inv)
	}
	g := inv.GPUs[2]
	if g.PCI != "0000:12:00.0" || g.Compute != "8.0" || g.MemoryFree != 79<<30 || g.MemoryBandwidth != 2*2619e6*640 {
		t.Errorf("%+v", g)
	}
	if g.MIG != topology.Off || g.ECC != topology.On || g.Persistence != topology.Off || g.ComputeMode != topology.ComputeDefault || g.Fabric != topology.FabricCompleted {
		t.Errorf("modes of %+v", g)
	}
	if g.PCIe != (topology.PCIe{Gen: 1, MaxGen: 5, Width: 16, MaxWidth: 16}) || g.NUMANode != 1 || g.CPUs != "0-15,132-135" {
		t.Errorf("slot of %+v", g)
	}
	want := []topology.Process{{PID: 4, Name: "/usr/bin/other", Bytes: 7 << 20}, {PID: 5}}
	if !slices.Equal(g.Processes, want) {
		t.Errorf("processes %+v, want %+v", g.Processes, want)
	}
	if len(inv.Pairs) != 56 {
		t.Errorf("%d pairs", len(inv.Pairs))
	}
	for _, p := range inv.Pairs {
		if p.Via != topology.ViaNVSwitch || p.Links != 18 || p.BytesPerSec != 450e9 || p.P2P.Read != topology.P2PYes || p.Path != "SYS" {
			t.Fatalf("pair %+v", p)
		}
	}
}

func TestDirectLinks(t *testing.T) {
	m := newMachine(3)
	for _, g := range m.gpus {
		g.version = 3
	}
	addr := func(i int) string { return m.gpus[i].PciBusID }
	// 0 and 1 have three links, of which 1's last is down; 0 and 2 have one.
	m.gpus[0].peers = []string{addr(1), addr(1), addr(2), "cpu"}
	m.gpus[1].peers = []string{addr(0), addr(0), "down"}
	m.gpus[2].peers = []string{addr(0)}
	inv := inventory(t, m)
	for _, c := range []struct {
		from, to int
		via      topology.Via
		links    int
		rate     float64
	}{{0, 1, topology.ViaNVLink, 2, 50e9}, {1, 0, topology.ViaNVLink, 2, 50e9}, {0, 2, topology.ViaNVLink, 1, 25e9},
		{1, 2, topology.ViaPCIe, 0, 16 * 3.938e9}} {
		p, ok := inv.Pair(c.from, c.to)
		if !ok || p.Via != c.via || p.Links != c.links || p.BytesPerSec != c.rate {
			t.Errorf("%d to %d: %+v, want %+v", c.from, c.to, p, c)
		}
	}
	if l := inv.GPUs[0].NVLinks[3]; l.Peer != topology.PeerCPU {
		t.Errorf("link to the CPU: %+v", l)
	}
	if l := inv.GPUs[1].NVLinks[2]; l.Active || l.BytesPerSec != 0 {
		t.Errorf("link that is down: %+v", l)
	}
}

// TestSlowLinks: a link that runs at less than its version says counts as that.
func TestSlowLinks(t *testing.T) {
	m := newMachine(2).switched(2, 4, 12000)
	if p, _ := inventory(t, m).Pair(0, 1); p.BytesPerSec != 24e9 {
		t.Errorf("%+v", p)
	}
	m = newMachine(2).switched(2, 9, 60000) // a version of the future
	if p, _ := inventory(t, m).Pair(0, 1); p.BytesPerSec != 120e9 {
		t.Errorf("%+v", p)
	}
}

func TestRefusedPeers(t *testing.T) {
	for _, c := range []struct {
		status lib.GpuP2PStatus
		want   string
	}{
		{lib.P2P_STATUS_DISABLED_BY_REGKEY, "disabled in the driver's settings"},
		{lib.P2P_STATUS_CHIPSET_NOT_SUPPORTED, "the chipset does not support it"},
		{lib.P2P_STATUS_GPU_NOT_SUPPORTED, "the GPU does not support it"},
		{lib.P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED, "the way over the host bridge does not support it"},
		{lib.P2P_STATUS_NOT_SUPPORTED, "not supported"},
	} {
		m := newMachine(2).switched(4, 4, 0)
		m.gpus[0].p2p = c.status
		inv := inventory(t, m)
		if p, _ := inv.Pair(0, 1); p.Via != topology.ViaHost || p.P2P.Refused() != c.want {
			t.Errorf("%d: %+v, want %q", c.status, p, c.want)
		}
		if p, _ := inv.Pair(1, 0); p.Via != topology.ViaNVSwitch {
			t.Errorf("%d: the other direction %+v", c.status, p)
		}
	}
	m := newMachine(2).switched(4, 4, 0)
	m.gpus[0].p2p = lib.P2P_STATUS_UNKNOWN
	if p, _ := inventory(t, m).Pair(0, 1); p.Via != topology.ViaNVSwitch || p.P2P.Read != "" {
		t.Errorf("unknown: %+v", p)
	}
}

func TestMIG(t *testing.T) {
	m := newMachine(2).switched(4, 4, 0)
	m.gpus[1].MigMode = lib.DEVICE_MIG_ENABLE
	inv := inventory(t, m)
	if inv.GPUs[1].MIG != topology.On || inv.GPUs[0].MIG != topology.Off {
		t.Errorf("%+v", inv.GPUs)
	}
	for _, p := range inv.Pairs {
		if p.Via != topology.ViaHost {
			t.Errorf("%+v", p)
		}
	}
}

// TestFallenOff: the GPU that is gone stays in the list with its reason, and
// the others are described in full.
func TestFallenOff(t *testing.T) {
	m := newMachine(3).switched(4, 4, 0)
	m.gpus[1].lost = true
	inv := inventory(t, m)
	if g := inv.GPUs[1]; !strings.Contains(g.Fault, "fallen off") || g.UUID == "" || g.MemoryTotal != 0 {
		t.Errorf("the lost one: %+v", g)
	}
	if len(inv.Pairs) != 2 || inv.Pairs[0].To != 2 || inv.Pairs[1].To != 0 {
		t.Errorf("pairs: %+v", inv.Pairs)
	}

	// One that was gone before has not even a handle.
	m = newMachine(2)
	handle := m.DeviceGetHandleByIndexFunc
	m.DeviceGetHandleByIndexFunc = func(i int) (lib.Device, lib.Return) {
		if i == 0 {
			return nil, lib.ERROR_INSUFFICIENT_POWER
		}
		return handle(i)
	}
	inv = inventory(t, m)
	if g := inv.GPUs[0]; g.Fault != "its power cables are not attached" || inv.GPUs[1].Fault != "" || len(inv.Pairs) != 0 {
		t.Errorf("%+v", inv)
	}
}

func TestFabricOfSwitches(t *testing.T) {
	for state, want := range map[uint8]string{
		lib.GPU_FABRIC_STATE_NOT_STARTED: topology.FabricNotStarted, lib.GPU_FABRIC_STATE_IN_PROGRESS: topology.FabricInProgress,
		lib.GPU_FABRIC_STATE_COMPLETED: "failed: unknown error",
	} {
		m := newMachine(2).switched(4, 4, 0)
		m.gpus[0].fabric = lib.GpuFabricInfo{State: state, Status: uint32(lib.ERROR_UNKNOWN)}
		inv := inventory(t, m)
		if inv.GPUs[0].Fabric != want {
			t.Errorf("state %d: %q, want %q", state, inv.GPUs[0].Fabric, want)
		}
		if p, _ := inv.Pair(0, 1); p.Via != topology.ViaPCIe {
			t.Errorf("state %d: %+v", state, p)
		}
	}
}

// TestOldDriver: what a library lacks is not called, and named.
func TestOldDriver(t *testing.T) {
	m := newMachine(2).switched(4, 2, 0)
	for _, s := range []string{"nvmlDeviceGetMemoryBusWidth", "nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetNvLinkRemoteDeviceType",
		"nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetP2PStatus"} {
		m.lacks[s] = true
	}
	for _, g := range m.gpus {
		g.peers = []string{m.gpus[1-g.Index].PciBusID}
	}
	inv := inventory(t, m)
	if len(inv.Gaps) != 4 { // no switch, so nobody asks for the fabric
		t.Errorf("gaps: %q", inv.Gaps)
	}
	if p, _ := inv.Pair(0, 1); p.Via != topology.ViaNVLink || p.BytesPerSec != 25e9 || p.P2P.Refused() != "" {
		t.Errorf("%+v", p)
	}
	if g := inv.GPUs[0]; g.NUMANode != -1 || g.MemoryBandwidth != 0 {
		t.Errorf("%+v", g)
	}
}

// TestFailedInit: after a failed Init nothing else is called, since that would
// kill the process.
func TestFailedInit(t *testing.T) {
	for r, want := range map[lib.Return]error{
		lib.ERROR_LIBRARY_NOT_FOUND: ErrNoLibrary, lib.ERROR_DRIVER_NOT_LOADED: ErrNoDriver,
		lib.ERROR_LIB_RM_VERSION_MISMATCH: ErrMismatch, lib.ERROR_NO_PERMISSION: ErrPermission, lib.ERROR_UNKNOWN: nil,
	} {
		m := newMachine(1)
		m.InitFunc = func() lib.Return { return r }
		fatal := func() { t.Errorf("%d: something was called after a failed Init", r) }
		m.ShutdownFunc = func() lib.Return { fatal(); return lib.SUCCESS }
		m.DeviceGetCountFunc = func() (int, lib.Return) { fatal(); return 0, lib.SUCCESS }
		m.SystemGetDriverVersionFunc = func() (string, lib.Return) { fatal(); return "", lib.SUCCESS }
		m.LookupSymbolFunc = func(string) error { fatal(); return nil }
		inv, err := readFrom(t.Context(), m)
		if err == nil || inv != nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%d: %v, %v, want %v", r, inv, err, want)
		}
	}
}

func TestNoLibraryHere(t *testing.T) {
	inv, err := Read(t.Context())
	if err == nil {
		t.Skipf("skipped: this machine has NVIDIA's driver and %d GPUs", len(inv.GPUs))
	}
	if !errors.Is(err, ErrNoLibrary) && !errors.Is(err, ErrNoDriver) {
		t.Errorf("%v", err)
	}
}

// TestDriverHangs: Read comes back when its time is over.
func TestDriverHangs(t *testing.T) {
	m := newMachine(1)
	release, left := make(chan struct{}), make(chan struct{})
	m.DeviceGetCountFunc = func() (int, lib.Return) { <-release; return 0, lib.ERROR_UNKNOWN }
	m.ShutdownFunc = func() lib.Return { close(left); return lib.SUCCESS }
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := readFrom(ctx, m); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	close(release)
	<-left
}

func TestDriverPanics(t *testing.T) {
	m := newMachine(1)
	m.DeviceGetCountFunc = func() (int, lib.Return) { panic("odd") }
	if _, err := readFrom(t.Context(), m); err == nil || !strings.Contains(err.Error(), "odd") {
		t.Errorf("%v", err)
	}
}

func TestRanges(t *testing.T) {
	for _, c := range []struct {
		mask []uint
		want string
	}{{nil, ""}, {[]uint{0}, ""}, {[]uint{1}, "0"}, {[]uint{0b101101}, "0,2-3,5"}, {[]uint{1 << 63, 1}, "63-64"}} {
		if got := ranges(c.mask); got != c.want {
			t.Errorf("%b: %q, want %q", c.mask, got, c.want)
		}
	}
}
