package topology

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Inventory is what was found out about the GPUs of a machine. It is plain
// data: whoever reads it from a driver fills it in, tables and JSON show it.
type Inventory struct {
	Driver string `json:"driver,omitempty"` // version of the kernel driver
	NVML   string `json:"nvml,omitempty"`   // version of the library that was asked
	CUDA   string `json:"cuda,omitempty"`   // newest CUDA that the driver runs, "12.4"
	GPUs   []GPU  `json:"gpus"`
	// Pairs are the ordered pairs of the GPUs that answered, by From, then To.
	Pairs []Pair `json:"pairs"`
	// Gaps says what could not be asked, and why; it is missing above.
	Gaps []string `json:"gaps,omitempty"`
}

// State is whether a mode is on. The zero value means that the GPU does not
// say, which often means that it has no such mode.
type State string

// The states that are known.
const (
	On  State = "on"
	Off State = "off"
)

// GPU is one GPU. Zero values mean that it does not say.
type GPU struct {
	Index   int    `json:"index"` // in the driver's order, by PCI address
	Name    string `json:"name,omitempty"`
	UUID    string `json:"uuid,omitempty"`
	PCI     string `json:"pci,omitempty"`     // as CanonicalPCI writes it
	Compute string `json:"compute,omitempty"` // compute capability, "9.0"
	// Fault says why the GPU is not usable; the rest is then what it still said.
	Fault string `json:"fault,omitempty"`
	// Memory in bytes.
	MemoryTotal uint64 `json:"memory_total,omitempty"`
	MemoryUsed  uint64 `json:"memory_used,omitempty"`
	MemoryFree  uint64 `json:"memory_free,omitempty"`
	// MemoryBandwidth is nominal, in bytes per second.
	MemoryBandwidth float64 `json:"memory_bandwidth,omitempty"`

	MIG         State  `json:"mig,omitempty"`
	ECC         State  `json:"ecc,omitempty"`
	Persistence State  `json:"persistence,omitempty"`
	ComputeMode string `json:"compute_mode,omitempty"` // one of the Compute constants

	PCIe     PCIe     `json:"pcie"`
	NUMANode int      `json:"numa_node"`      // -1: unknown
	CPUs     string   `json:"cpus,omitempty"` // near ones, "0-31,64-95"
	NVLinks  []NVLink `json:"nvlinks,omitempty"`
	// Fabric is how far the GPU has got with the fabric of NVSwitches: one of
	// the Fabric constants, or a failure in words.
	Fabric    string    `json:"fabric,omitempty"`
	Processes []Process `json:"processes,omitempty"`
}

// Who may use a GPU.
const (
	ComputeDefault    = "default"
	ComputeExclusive  = "one process"
	ComputeProhibited = "nobody"
)

// The states of a GPU in a fabric of NVSwitches. Only a completed one can reach
// its peers.
const (
	FabricNone       = ""
	FabricNotStarted = "not started"
	FabricInProgress = "in progress"
	FabricCompleted  = "completed"
)

// PCIe is a GPU's slot. Gen falls while a GPU idles; MaxGen is what GPU and
// slot agree on under load.
type PCIe struct {
	Gen      int `json:"gen,omitempty"`
	MaxGen   int `json:"max_gen,omitempty"`
	Width    int `json:"width,omitempty"`
	MaxWidth int `json:"max_width,omitempty"`
}

// laneRates are the bytes per second of a PCIe lane in each direction, by
// generation, after line coding.
var laneRates = [...]float64{0, 0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9}

// BytesPerSec is the slot's nominal bandwidth in each direction; 0: not known.
func (p PCIe) BytesPerSec() float64 {
	gen := max(p.Gen, p.MaxGen)
	if gen < 1 {
		return 0
	}
	return laneRates[min(gen, len(laneRates)-1)] * float64(max(0, p.Width))
}

// The far ends of an NVLink that are no GPU.
const (
	PeerSwitch  = "switch"
	PeerCPU     = "cpu"
	PeerUnknown = "unknown"
)

// NVLink is one link of a GPU.
type NVLink struct {
	Index   int  `json:"index"`
	Active  bool `json:"active"`
	Version int  `json:"version,omitempty"`
	// BytesPerSec is in each direction.
	BytesPerSec float64 `json:"bytes_per_sec,omitempty"`
	// Peer is PeerSwitch, PeerCPU, PeerUnknown or the PCI address of a GPU.
	Peer string `json:"peer,omitempty"`
}

// nvlinkRates are the nominal bytes per second of one link in each direction,
// by version of NVLink.
var nvlinkRates = [...]float64{0, 20e9, 25e9, 25e9, 25e9, 50e9}

// NVLinkRate is the nominal bandwidth of one link of a version of NVLink, in
// bytes per second and each direction; 0: the version is not known.
func NVLinkRate(version int) float64 {
	if version < 0 || version >= len(nvlinkRates) {
		return 0
	}
	return nvlinkRates[version]
}

// Process is a process that has memory on a GPU.
type Process struct {
	PID   int    `json:"pid"`
	Name  string `json:"name,omitempty"`
	Bytes uint64 `json:"bytes,omitempty"` // 0: the driver does not say, as with MIG
}

// GPU returns the GPU of that index, or nil.
func (inv *Inventory) GPU(index int) *GPU {
	for i := range inv.GPUs {
		if inv.GPUs[i].Index == index {
			return &inv.GPUs[i]
		}
	}
	return nil
}

// Pair returns the pair that leads from one GPU to another.
func (inv *Inventory) Pair(from, to int) (Pair, bool) {
	for _, p := range inv.Pairs {
		if p.From == from && p.To == to {
			return p, true
		}
	}
	return Pair{}, false
}

// shortestUUID is the shortest beginning of a UUID that names a GPU.
const shortestUUID = len("GPU-") + 8

// Find returns the GPU that a selector names: an index, a UUID or the beginning
// of one, or a PCI address.
func (inv *Inventory) Find(selector string) (*GPU, error) {
	if n, err := strconv.Atoi(selector); err == nil {
		if g := inv.GPU(n); g != nil {
			return g, nil
		}
		return nil, fmt.Errorf("no GPU %d; there is %s", n, inv.listed())
	}
	var found *GPU
	for i := range inv.GPUs {
		g := &inv.GPUs[i]
		uuid := len(selector) >= shortestUUID && len(selector) <= len(g.UUID) && strings.EqualFold(g.UUID[:len(selector)], selector)
		if !uuid && (g.PCI == "" || CanonicalPCI(selector) != g.PCI) {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("%q names GPU %d as well as GPU %d", selector, found.Index, g.Index)
		}
		found = g
	}
	if found == nil && len(selector) < shortestUUID && strings.HasPrefix(strings.ToUpper(selector), "GPU-") {
		return nil, fmt.Errorf("%q is too short for a UUID, want at least %d characters of one; there is %s", selector, shortestUUID, inv.listed())
	}
	if found == nil {
		return nil, fmt.Errorf("no GPU %q; there is %s", selector, inv.listed())
	}
	return found, nil
}

func (inv *Inventory) listed() string {
	if len(inv.GPUs) == 0 {
		return "none"
	}
	names := make([]string, len(inv.GPUs))
	for i, g := range inv.GPUs {
		names[i] = strings.TrimSpace(fmt.Sprintf("GPU %d %s", g.Index, g.UUID))
	}
	return strings.Join(names, ", ")
}

var pciRE = regexp.MustCompile(`^(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])$`)

// CanonicalPCI writes a PCI address as sysfs does, "0000:3b:00.0": NVML gives
// the domain eight digits. What is no address comes back in lower case.
func CanonicalPCI(s string) string {
	s = strings.ToLower(strings.TrimSpace(s))
	m := pciRE.FindStringSubmatch(s)
	if m == nil {
		return s
	}
	domain, err := strconv.ParseUint("0"+m[1], 16, 64)
	if err != nil {
		return s
	}
	return fmt.Sprintf("%04x:%s:%s.%s", domain, m[2], m[3], m[4])
}
