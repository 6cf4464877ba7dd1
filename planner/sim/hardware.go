package sim

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/overflow"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/planner/facts"
	"github.com/kvlend/kvlend/planner/perf"
)

// Machine is what was measured, or is assumed, of the machine that a
// configuration is simulated on. It encodes as JSON.
type Machine struct {
	// Models are calibrations by the model's source, such as builtin:atlas or
	// catalog:Qwen3-8B, or by its name.
	Models map[string]Calibrated `json:"models,omitempty"`
	// Copies is the bandwidth of copies that no link paces, in bytes per second.
	Copies float64 `json:"copies,omitempty"`
	// Disks are figures of devices of the overflow pool, by their name in the
	// configuration; "" is for all that are not named.
	Disks map[string]perf.DiskSpec `json:"disks,omitempty"`
	Front Front                    `json:"front,omitzero"`
	// Name says which machine it is, and how it was measured; free text.
	Name string `json:"name,omitempty"`
}

// Calibrated is one model's engine on one device.
type Calibrated struct {
	// FLOPS and Bandwidth are the device's peaks; 0: those of the kind of the
	// model's device in the configuration.
	FLOPS     float64 `json:"flops,omitempty"`
	Bandwidth float64 `json:"bandwidth,omitempty"`
	perf.Calibration
}

// configured is the Hardware of a configuration: devices of known kinds, links of
// the configuration or else of the devices' kinds, and what a Machine says.
type configured struct {
	cfg *configs.Config
	m   Machine
}

// NewHardware is the hardware that a configuration describes: the kind of a device
// names a GPU (package facts). What is measured of a machine comes first.
func NewHardware(c *configs.Config, m Machine) Hardware { return &configured{c, m} }

// weightBytes of a weight in memory.
const weightBytes = 2

// Engine implements Hardware.
func (h *configured) Engine(m *planner.Model) (*perf.Engine, error) {
	shape, err := ShapeOf(m)
	if err != nil {
		return nil, err
	}
	cal, ok := h.m.Models[m.Config.Name]
	if !ok {
		if cal, ok = h.m.Models[m.Config.Source]; !ok {
			cal.Calibration = perf.DefaultCalibration()
		}
	}
	gpu := facts.GPU{Name: "as measured", FLOPS: cal.FLOPS, MemoryBandwidth: cal.Bandwidth}
	if cal.FLOPS == 0 || cal.Bandwidth == 0 {
		kind, err := h.gpu(m.Config.Device)
		if err != nil {
			return nil, err
		}
		gpu = kind
	}
	return perf.NewEngine(shape, gpu, cal.Calibration)
}

// ShapeOf finds what a model computes. Calibrations are fitted to it.
func ShapeOf(m *planner.Model) (perf.Shape, error) {
	s, err := shapeOf(m.Config)
	s.KVBytes = float64(m.Geometry.ElemBytes)
	return s, err
}

func shapeOf(m *configs.Model) (perf.Shape, error) {
	if name, ok := strings.CutPrefix(m.Source, configs.SourceCatalog); ok {
		f, err := facts.LookupModel(name)
		return perf.FromModel(f, weightBytes, weightBytes), err
	}
	var c *engine.Config
	var err error
	if name, ok := strings.CutPrefix(m.Source, configs.SourceBuiltin); ok {
		c, err = engine.BuiltinConfig(name)
	} else {
		c, _, err = engine.LoadConfig(m.Source)
	}
	if err != nil {
		return perf.Shape{}, err
	}
	return perf.FromConfig(c, weightBytes, weightBytes), nil
}

// Context implements Hardware.
func (h *configured) Context(m *planner.Model) int {
	if name, ok := strings.CutPrefix(m.Config.Source, configs.SourceCatalog); ok {
		if f, err := facts.LookupModel(name); err == nil {
			return f.MaxContext
		}
	}
	return 0
}

// guessedDisk stands for a disk that nobody has measured: a data centre's NVMe
// drive with four lanes of PCIe 4.
var guessedDisk = perf.DiskSpec{
	ReadBandwidth: 6.8e9, WriteBandwidth: 4e9, ReadIOPS: 1e6, WriteIOPS: 2e5,
	ReadLatency: 80 * time.Microsecond, WriteLatency: 20 * time.Microsecond,
}

// memoryBandwidth of host memory that serves as a device of the pool.
const memoryBandwidth = 100e9

// Disk implements Hardware.
func (h *configured) Disk(d configs.Disk) (*perf.Disk, error) {
	spec, ok := h.m.Disks[d.Name]
	if !ok {
		spec, ok = h.m.Disks[""]
	}
	switch {
	case ok:
	case d.Path == overflow.MemoryPath:
		spec = perf.DRAM(memoryBandwidth, int64(d.Size))
	default:
		spec = guessedDisk
	}
	spec.Name = d.Name
	if d.Size > 0 {
		spec.Capacity = int64(d.Size)
	}
	if spec.Capacity == 0 {
		return nil, errors.New("size is 0, and nothing says how large the device is: want a size")
	}
	if d.RatedWrites > 0 {
		spec.Endurance = perf.Endurance(d.RatedWrites)
	}
	return perf.NewDisk(spec)
}

// kindOf a device, as the configuration names it.
func (h *configured) kindOf(device string) string {
	for i := range h.cfg.Devices {
		if d := &h.cfg.Devices[i]; d.Name == device {
			return d.Kind
		}
	}
	return ""
}

// gpu is the kind of a device.
func (h *configured) gpu(device string) (facts.GPU, error) {
	kind := h.kindOf(device)
	g, err := facts.LookupGPU(kind)
	var unknown *facts.UnknownError
	if errors.As(err, &unknown) {
		return g, fmt.Errorf("devices: %s has kind %q, and nothing was measured there: want one of %s, or a calibration", device, kind, strings.Join(unknown.Known, ", "))
	}
	return g, err
}

// Memory implements Hardware.
func (h *configured) Memory(device string) float64 {
	if g, err := facts.LookupGPU(h.kindOf(device)); err == nil {
		return g.MemoryBandwidth
	}
	return 0
}

// unpaced: the configured links have no say, since memory of this machine stands
// for devices, and it is known how fast it is copied.
func (h *configured) unpaced() bool {
	return h.cfg.Fabric.Kind == "shm" && !h.cfg.Fabric.Pace && h.m.Copies > 0
}

// Link implements Hardware: the configuration's link where it has one, else what
// the devices' kinds have in common: NVLink between GPUs, PCIe to anything else.
func (h *configured) Link(from, to string, limit configs.Rate) (Mover, error) {
	m, err := h.way(from, to)
	if err != nil || limit == 0 {
		return m, err
	}
	return budgeted{m, float64(limit)}, nil
}

func (h *configured) way(from, to string) (Mover, error) {
	if l, ok := h.cfg.Link(from, to); ok && !h.unpaced() {
		return perf.ConfigLink(l)
	}
	a, errA := facts.LookupGPU(h.kindOf(from))
	b, errB := facts.LookupGPU(h.kindOf(to))
	switch {
	case errA == nil && errB == nil && from == to:
		return flat{a.MemoryBandwidth / 2, localLatency}, nil // a copy reads and writes
	case errA == nil && errB == nil && min(a.NVLink, b.NVLink) > 0:
		return perf.NVLink(slower(a, b, a.NVLink <= b.NVLink))
	case errA == nil && errB == nil:
		return perf.PCIe(slower(a, b, a.PCIeBandwidth <= b.PCIeBandwidth))
	case errA == nil:
		return perf.PCIe(a)
	case errB == nil:
		return perf.PCIe(b)
	case h.m.Copies > 0:
		return flat{h.m.Copies, 0}, nil
	}
	return nil, fmt.Errorf("links: none leads from %q to %q, and the kinds of both devices are unknown: want a link, or kinds of known GPUs", from, to)
}

func slower(a, b facts.GPU, first bool) facts.GPU {
	if first {
		return a
	}
	return b
}

// localLatency is what a copy within a device waits for.
const localLatency = 5 * time.Microsecond

// budgeted is a link of whose bandwidth only a part may be used.
type budgeted struct {
	Mover
	rate float64
}

// Time implements Mover.
func (b budgeted) Time(bytes, piece int64) time.Duration {
	return max(b.Mover.Time(bytes, piece), time.Duration(float64(bytes)/b.rate*float64(time.Second)))
}

// flat is a link whose bandwidth does not depend on the pieces.
type flat struct {
	rate    float64 // bytes per second
	latency time.Duration
}

// Time implements Mover.
func (f flat) Time(bytes, _ int64) time.Duration {
	return f.latency + time.Duration(float64(bytes)/f.rate*float64(time.Second))
}
