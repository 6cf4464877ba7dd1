//go:build cuda && cgo

package nvml

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"strconv"
	"strings"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/kvlend/kvlend/nvlink/topology"
)

// gpu asks one GPU about itself.
func (s *session) gpu(i int) topology.GPU {
	g := topology.GPU{Index: i, NUMANode: -1}
	d, r := s.lib.DeviceGetHandleByIndex(i)
	if r != lib.SUCCESS {
		g.Fault = codeName(r)
		return g
	}
	s.devices[i] = d
	q := &query{session: s, dev: d, gpu: &g}
	q.identity()
	q.memory()
	q.modes()
	q.slot()
	q.links()
	q.processes()
	return g
}

// query asks one GPU. The first answer that says that the GPU is gone stays as
// its fault; other refusals leave fields as they are.
type query struct {
	*session
	dev lib.Device
	gpu *topology.GPU
}

// ok reports success, and takes note of a GPU that is gone.
func (q *query) ok(r lib.Return) bool {
	switch r {
	case lib.SUCCESS:
		return true
	case lib.ERROR_GPU_IS_LOST, lib.ERROR_RESET_REQUIRED, lib.ERROR_IRQ_ISSUE:
		if q.gpu.Fault == "" {
			q.gpu.Fault = codeName(r)
		}
	}
	return false
}

func (q *query) identity() {
	if v, r := q.dev.GetName(); q.ok(r) {
		q.gpu.Name = v
	}
	if v, r := q.dev.GetUUID(); q.ok(r) {
		q.gpu.UUID = v
	}
	if v, r := q.dev.GetPciInfo(); q.ok(r) {
		q.gpu.PCI = busID(v)
	}
	if major, minor, r := q.dev.GetCudaComputeCapability(); q.ok(r) {
		q.gpu.Compute = fmt.Sprintf("%d.%d", major, minor)
	}
}

func busID(p lib.PciInfo) string {
	text, _, _ := bytes.Cut(p.BusId[:], []byte{0})
	if len(text) == 0 {
		return ""
	}
	return topology.CanonicalPCI(string(text))
}

func (q *query) memory() {
	if m, r := q.dev.GetMemoryInfo(); q.ok(r) {
		q.gpu.MemoryTotal, q.gpu.MemoryUsed, q.gpu.MemoryFree = m.Total, m.Used, m.Free
	}
	if !q.has("nvmlDeviceGetMemoryBusWidth") {
		return
	}
	width, r := q.dev.GetMemoryBusWidth()
	if !q.ok(r) {
		return
	}
	if mhz, r := q.dev.GetMaxClockInfo(lib.CLOCK_MEM); q.ok(r) {
		q.gpu.MemoryBandwidth = 2 * float64(mhz) * 1e6 * float64(width) / 8 // two transfers in a cycle
	}
}

func (q *query) modes() {
	if q.has("nvmlDeviceGetMigMode") {
		if mode, _, r := q.dev.GetMigMode(); q.ok(r) {
			q.gpu.MIG = state(mode == lib.DEVICE_MIG_ENABLE)
		}
	}
	if mode, _, r := q.dev.GetEccMode(); q.ok(r) {
		q.gpu.ECC = state(mode == lib.FEATURE_ENABLED)
	}
	if mode, r := q.dev.GetPersistenceMode(); q.ok(r) {
		q.gpu.Persistence = state(mode == lib.FEATURE_ENABLED)
	}
	mode, r := q.dev.GetComputeMode()
	if !q.ok(r) {
		return
	}
	switch mode {
	case lib.COMPUTEMODE_DEFAULT:
		q.gpu.ComputeMode = topology.ComputeDefault
	case lib.COMPUTEMODE_PROHIBITED:
		q.gpu.ComputeMode = topology.ComputeProhibited
	default:
		q.gpu.ComputeMode = topology.ComputeExclusive
	}
}

func state(on bool) topology.State {
	if on {
		return topology.On
	}
	return topology.Off
}

// slot asks for the way to the host.
func (q *query) slot() {
	p := &q.gpu.PCIe
	for _, f := range []struct {
		get func() (int, lib.Return)
		out *int
	}{
		{q.dev.GetCurrPcieLinkGeneration, &p.Gen}, {q.dev.GetMaxPcieLinkGeneration, &p.MaxGen},
		{q.dev.GetCurrPcieLinkWidth, &p.Width}, {q.dev.GetMaxPcieLinkWidth, &p.MaxWidth},
	} {
		if v, r := f.get(); q.ok(r) {
			*f.out = v
		}
	}
	if mask, r := q.dev.GetCpuAffinity(max(runtime.NumCPU(), maxCPUs)); q.ok(r) {
		q.gpu.CPUs = ranges(mask)
	}
	if !q.has("nvmlDeviceGetMemoryAffinity") {
		return
	}
	if mask, r := q.dev.GetMemoryAffinity(maxNodes, lib.AFFINITY_SCOPE_NODE); q.ok(r) {
		for i, word := range mask {
			if word != 0 {
				q.gpu.NUMANode = i*bits.UintSize + bits.TrailingZeros(word)
				break
			}
		}
	}
}

// How much of affinity masks is asked for.
const (
	maxCPUs  = 1024
	maxNodes = 64
)

// ranges writes a mask of CPUs as the kernel does, "0-31,64-95".
func ranges(mask []uint) string {
	var out []string
	set := func(i int) bool { return mask[i/bits.UintSize]>>(i%bits.UintSize)&1 != 0 }
	n := len(mask) * bits.UintSize
	for i := 0; i < n; i++ {
		if !set(i) {
			continue
		}
		first := i
		for i+1 < n && set(i+1) {
			i++
		}
		text := strconv.Itoa(first)
		if i > first {
			text += "-" + strconv.Itoa(i)
		}
		out = append(out, text)
	}
	return strings.Join(out, ",")
}

// links asks for the NVLinks and the fabric behind them.
func (q *query) links() {
	if !q.has("nvmlDeviceGetNvLinkState") {
		return
	}
	switched := false
	for i := range lib.NVLINK_MAX_LINKS {
		state, r := q.dev.GetNvLinkState(i)
		if r != lib.SUCCESS {
			q.ok(r)
			break // the GPU has no more links
		}
		l := topology.NVLink{Index: i, Active: state == lib.FEATURE_ENABLED}
		if l.Active {
			q.link(&l)
		}
		switched = switched || l.Peer == topology.PeerSwitch
		q.gpu.NVLinks = append(q.gpu.NVLinks, l)
	}
	if !switched || !q.has("nvmlDeviceGetGpuFabricInfo") {
		return
	}
	if f, r := q.dev.GetGpuFabricInfo(); q.ok(r) {
		q.gpu.Fabric = fabricState(f)
	}
}

func (q *query) link(l *topology.NVLink) {
	if v, r := q.dev.GetNvLinkVersion(l.Index); q.ok(r) {
		l.Version = int(v)
	}
	l.BytesPerSec = topology.NVLinkRate(l.Version)
	if rate := q.lineRate(l.Index); rate > 0 && (l.BytesPerSec == 0 || rate < l.BytesPerSec) {
		// The line rate includes coding, so that it lies above the nominal one
		// unless the link runs at less.
		l.BytesPerSec = rate
	}
	l.Peer = q.peer(l.Index)
}

// peer is what a link leads to.
func (q *query) peer(link int) string {
	if q.has("nvmlDeviceGetNvLinkRemoteDeviceType") {
		if t, r := q.dev.GetNvLinkRemoteDeviceType(link); q.ok(r) {
			switch t {
			case lib.NVLINK_DEVICE_TYPE_SWITCH:
				return topology.PeerSwitch
			case lib.NVLINK_DEVICE_TYPE_IBMNPU:
				return topology.PeerCPU
			}
		}
	}
	p, r := q.dev.GetNvLinkRemotePciInfo(link)
	if !q.ok(r) || busID(p) == "" {
		return topology.PeerUnknown
	}
	return busID(p)
}

// The types of field values.
const (
	valueDouble = iota
	valueUint
	valueUlong
	valueUlongLong
)

// lineRate is the speed of a link in bytes per second; 0: it does not say.
func (q *query) lineRate(link int) float64 {
	if !q.has("nvmlDeviceGetFieldValues") {
		return 0
	}
	for _, f := range []lib.FieldValue{
		{FieldId: lib.FI_DEV_NVLINK_GET_SPEED, ScopeId: uint32(link)},
		{FieldId: lib.FI_DEV_NVLINK_SPEED_MBPS_COMMON},
	} {
		one := []lib.FieldValue{f}
		if r := q.dev.GetFieldValues(one); !q.ok(r) || lib.Return(one[0].NvmlReturn) != lib.SUCCESS {
			continue
		}
		if mbps := number(one[0]); mbps > 0 {
			return mbps * 1e6
		}
	}
	return 0
}

// number is the value of a field, 0 for types that no speed has.
func number(f lib.FieldValue) float64 {
	v := binary.NativeEndian.Uint64(f.Value[:])
	switch f.ValueType {
	case valueDouble:
		return math.Float64frombits(v)
	case valueUint:
		return float64(binary.NativeEndian.Uint32(f.Value[:4]))
	case valueUlong, valueUlongLong:
		return float64(v)
	}
	return 0
}

func fabricState(f lib.GpuFabricInfo) string {
	switch f.State {
	case lib.GPU_FABRIC_STATE_NOT_STARTED:
		return topology.FabricNotStarted
	case lib.GPU_FABRIC_STATE_IN_PROGRESS:
		return topology.FabricInProgress
	case lib.GPU_FABRIC_STATE_COMPLETED:
		if r := lib.Return(f.Status); r != lib.SUCCESS {
			return "failed: " + codeName(r)
		}
		return topology.FabricCompleted
	}
	return topology.FabricNone
}

// processes asks who has memory on the GPU.
func (q *query) processes() {
	list, r := q.dev.GetComputeRunningProcesses()
	if !q.ok(r) {
		return
	}
	for _, p := range list {
		one := topology.Process{PID: int(p.Pid)}
		if p.UsedGpuMemory != math.MaxUint64 { // NVML_VALUE_NOT_AVAILABLE
			one.Bytes = p.UsedGpuMemory
		}
		// In a container the driver's numbers may be the host's.
		if name, r := q.lib.SystemGetProcessName(one.PID); r == lib.SUCCESS {
			one.Name = name
		}
		q.gpu.Processes = append(q.gpu.Processes, one)
	}
}
