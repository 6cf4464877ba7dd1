//go:build cuda && cgo

package cuda

import "fmt"

// PathKind is how bytes get from one device to another.
type PathKind string

// The ways of bytes.
const (
	Local  PathKind = "local"  // within a device
	Peer   PathKind = "peer"   // directly, over NVLink or PCIe
	Staged PathKind = "staged" // through pinned host memory: slow
)

// Path is how copies between two devices travel.
type Path struct {
	From, To string
	Kind     PathKind
	Why      string // of a staged one
}

// Paths says for each ordered pair of devices which way copies take. A device
// reads and writes its peers' memory, so that a copy is direct when either of
// the two reaches the other and the stream is of that one. What the driver
// promised and then refused is known after the first copy only.
func (f *Fabric) Paths() []Path {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	var out []Path
	for _, a := range f.m.devs {
		for _, b := range f.m.devs {
			p := Path{From: a.name, To: b.name, Kind: Peer}
			ab, ba := f.m.pairs[[2]int{a.index, b.index}], f.m.pairs[[2]int{b.index, a.index}]
			switch {
			case a == b:
				p.Kind = Local
			case !ab.peer && !ba.peer:
				p.Kind, p.Why = Staged, fmt.Sprintf("%s does not reach %s: %s", a.name, b.name, ab.why)
			}
			out = append(out, p)
		}
	}
	return out
}

// notice tells of the first staged copy between two devices.
func (f *Fabric) notice(w way) {
	f.m.mu.Lock()
	p := f.m.pairs[[2]int{w.to.index, w.from.index}]
	first := !p.noted
	p.noted = true
	why := p.why
	f.m.mu.Unlock()
	if first {
		f.cfg.Notice(fmt.Sprintf("copies from %s to %s go through host memory: %s does not reach %s: %s", w.from.name, w.to.name, w.to.name, w.from.name, why))
	}
}

// DeviceInfo describes a device of the fabric.
type DeviceInfo struct {
	Name   string // as configured
	Model  string
	UUID   [16]byte
	Memory int64 // bytes
	VMM    bool  // memory can be exported as a file descriptor
	// Crossover is the size in bytes of runs from which the copy engine takes
	// them, and How it came to be known; both are empty before the first stream.
	Crossover int64
	How       string
}

// UUIDText is the device's UUID as nvidia-smi writes it.
func (d *DeviceInfo) UUIDText() string {
	u := d.UUID
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// Info describes the driver and the devices.
type Info struct {
	Library   string
	Version   int    // 12080 is CUDA 12.8
	Fake      bool   // it is the fake driver of the tests
	Batchless string // why cuMemcpyBatchAsync is not used; empty: it is
	Devices   []DeviceInfo
}

// Info tells what the fabric works with.
func (f *Fabric) Info() Info {
	drv := f.m.drv
	out := Info{Library: drv.path, Version: drv.version, Fake: drv.fake()}
	f.m.mu.Lock()
	out.Batchless = f.m.batchless
	f.m.mu.Unlock()
	for _, d := range f.m.devs {
		d.measure.Lock()
		out.Devices = append(out.Devices, DeviceInfo{
			Name: d.name, Model: d.model, UUID: d.uuid, Memory: d.memory, VMM: d.vmm,
			Crossover: d.crossover.bytes, How: d.crossover.how,
		})
		d.measure.Unlock()
	}
	return out
}
