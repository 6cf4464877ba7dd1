package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/fabrics"
	"github.com/kvlend/kvlend/internal/hostkv"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/internal/wiring"
	"github.com/kvlend/kvlend/nvlink/topology"
	"github.com/kvlend/kvlend/overflow"
)

// configProbes look at what the configuration needs.
func (d *doctor) configProbes(limit, late time.Duration) []probe {
	return []probe{
		{sectionConfig, "fabric", limit, d.fabric},
		{sectionConfig, "arenas", late, d.arenas},
		{sectionConfig, "devices", late, d.devices},
		{sectionConfig, "links", late, d.wiring},
		{sectionConfig, "gateway", limit, d.gateway},
		{sectionConfig, "run directory", limit, d.runDirectory},
		{sectionConfig, "audit", limit, d.audit},
		{sectionConfig, "models", limit, d.models},
		{sectionConfig, "overflow pool", limit, d.overflowPool},
		{sectionConfig, "settings", limit, d.settings},
	}
}

func (d *doctor) cuda() bool { return d.System.Config.Fabric.Kind == "cuda" }

func (d *doctor) fabric(context.Context) []Finding {
	f := d.System.Config.Fabric
	switch {
	case fabrics.Unsupported(d.System.Config) != nil:
		return one(Problem, "fabric", "another configuration: kvlend up refuses this one", "%v", fabrics.Unsupported(d.System.Config))
	case d.cuda() && !d.Build.CUDA:
		return one(Problem, "fabric", "the binary for GPUs (CGO_ENABLED=1 go build -tags cuda ./cmd/kvlend), or fabric.kind: shm", "cuda, and this binary was built without the tag cuda")
	case f.Pace:
		return one(OK, "fabric", "", "%s, with emulated links", f.Kind)
	}
	return one(OK, "fabric", "", "%s", f.Kind)
}

// arenas compares what the models allocate with what there is.
func (d *doctor) arenas(ctx context.Context) []Finding {
	var host uint64
	onGPU := map[string]uint64{}
	for _, m := range d.System.Models {
		if d.cuda() {
			onGPU[m.Config.Device] += uint64(m.AllocBytes())
			// The layer that is being computed lies in the host's memory, pinned.
			tokens, _ := m.MaxTokens()
			host += uint64(hostkv.Staging(m.Geometry.LayerBlockBytes(), m.Geometry.Blocks(tokens)))
		} else {
			host += uint64(m.AllocBytes())
		}
		host += uint64(m.Config.Host.Bytes)
		if len(m.Config.Overflow.Devices) > 0 {
			host += uint64(m.Config.Overflow.Buffers)
		}
		for _, disk := range m.Config.Overflow.Devices {
			if disk.Path == overflow.MemoryPath {
				host += uint64(disk.Size)
			}
		}
	}
	f := d.hostArenas(host)
	if d.cuda() {
		f = append(f, d.gpuArenas(ctx, onGPU)...)
	}
	return f
}

const hostMemory = "host memory" // the row

func (d *doctor) hostArenas(need uint64) []Finding {
	if d.Running {
		return one(OK, hostMemory, "", "%s; a running system holds it already", size(need))
	}
	free, err := d.meminfo("MemAvailable")
	if err != nil {
		return unknown(hostMemory, err)
	}
	where := "are available"
	if _, room, ok := d.groupRoom(); ok && room < free {
		free, where = room, "are left to the control group"
	}
	weights := d.weights()
	text := fmt.Sprintf("arenas, host memory and buffers take %s", size(need))
	if d.cuda() {
		text = fmt.Sprintf("layers that are computed, host memory and buffers take up to %s", size(need))
	}
	if weights > 0 {
		text += fmt.Sprintf(", weights %s", size(weights))
	}
	switch {
	case need > free:
		return one(Problem, hostMemory, "smaller models[].arena, more memory, or a higher limit", "%s; %s %s", text, size(free), where)
	case need+weights > free:
		return one(Warning, hostMemory, "smaller models[].arena, fewer models, or more memory", "%s; %s %s, so that weights are read from disk again and again", text, size(free), where)
	}
	return one(OK, hostMemory, "", "%s; %s %s", text, size(free), where)
}

// weights is the size of the files of weights that models name.
func (d *doctor) weights() (sum uint64) {
	seen := map[string]bool{}
	for _, m := range d.System.Config.Models {
		if !filepath.IsAbs(m.Source) || seen[m.Source] {
			continue
		}
		seen[m.Source] = true
		files, err := fs.Glob(d.Root, strings.TrimPrefix(m.Source, "/")+"/*.safetensors")
		if err != nil {
			continue
		}
		for _, name := range files {
			if info, err := fs.Stat(d.Root, name); err == nil {
				sum += uint64(info.Size())
			}
		}
	}
	return sum
}

func (d *doctor) gpuArenas(ctx context.Context, need map[string]uint64) []Finding {
	inv, err := d.waitGPUs(ctx)
	if err != nil || inv == nil {
		return nil // said elsewhere
	}
	byGPU := map[int]uint64{} // several devices may be one GPU
	var f []Finding
	for _, dev := range d.System.Config.Devices {
		if g, err := inv.Find(dev.Selector()); err == nil {
			byGPU[g.Index] += need[dev.Name]
		}
	}
	for i := range inv.GPUs {
		g := &inv.GPUs[i]
		n := byGPU[g.Index]
		what := fmt.Sprintf("memory of GPU %d", g.Index)
		switch {
		case n == 0 || g.MemoryTotal == 0:
		case n > g.MemoryTotal || !d.Running && n > g.MemoryFree:
			f = append(f, one(Problem, what, "smaller models[].arena, or end what uses the GPU", "arenas take %s; %s of %s are free", size(n), size(g.MemoryFree), size(g.MemoryTotal))...)
		default:
			f = append(f, one(OK, what, "", "arenas take %s; %s of %s are free", size(n), size(g.MemoryFree), size(g.MemoryTotal))...)
		}
	}
	return f
}

// devices looks for the GPUs that the configuration names.
func (d *doctor) devices(ctx context.Context) []Finding {
	if !d.cuda() {
		return one(OK, "devices", "", "%d parts of the host's memory, whatever their names", len(d.System.Config.Devices))
	}
	var f []Finding
	inv, err := d.waitGPUs(ctx)
	if d.Build.CUDA {
		shown, failed := d.askCUDA(ctx)
		if failed != nil {
			return one(Problem, "CUDA driver", "install the driver, or fabric.driver with the library's path", "%v", failed)
		}
		f = one(OK, "CUDA driver", "", "shows %d GPUs: %s", len(shown.GPUs), uuids(shown))
		if inv == nil {
			inv, err = shown, nil
		}
	}
	if inv == nil {
		return append(f, one(Problem, "devices", "the NVML row says why", "whether this machine has the configuration's GPUs is not known: %v", err)...)
	}
	used := map[string]bool{}
	for _, m := range d.System.Config.Models {
		used[m.Device] = true
	}
	for _, dev := range d.System.Config.Devices {
		if !used[dev.Name] {
			continue // such as the host
		}
		f = append(f, d.device(inv, dev)...)
	}
	return f
}

// askCUDA asks the CUDA driver, for as long as that may take.
func (d *doctor) askCUDA(ctx context.Context) (*topology.Inventory, error) {
	ctx, cancel := context.WithTimeout(ctx, d.GPULimit)
	defer cancel()
	type answer struct {
		inv *topology.Inventory
		err error
	}
	done := make(chan answer, 1)
	go func() {
		inv, err := d.CUDA(d.System.Config.Fabric.Driver)
		done <- answer{inv, err}
	}()
	select {
	case a := <-done:
		return a.inv, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("the CUDA driver does not answer: %w", ctx.Err())
	}
}

func uuids(inv *topology.Inventory) string {
	names := make([]string, len(inv.GPUs))
	for i, g := range inv.GPUs {
		names[i] = g.UUID
	}
	return strings.Join(names, ", ")
}

func (d *doctor) device(inv *topology.Inventory, dev configs.Device) []Finding {
	what := "device " + dev.Name
	selector := dev.Selector()
	if selector == "" {
		return one(Problem, what, "devices[].gpu: a UUID, PCI address or index", "nothing says which GPU it is")
	}
	g, err := inv.Find(selector)
	switch {
	case err != nil:
		return one(Problem, what, "devices[].gpu: a UUID, PCI address or index", "%v", err)
	case g.Fault != "":
		return one(Problem, what, "another GPU", "is GPU %d, which is not usable: %s", g.Index, g.Fault)
	case g.MIG == topology.On:
		return one(Warning, what, "nvidia-smi -i N -mig 0", "is GPU %d, in MIG mode: its copies to other GPUs go through the host", g.Index)
	case g.MemoryTotal > 0 && uint64(dev.Memory) > g.MemoryTotal+g.MemoryTotal/20:
		return one(Warning, what, "devices[].memory as the GPU has it", "is GPU %d, which has %s; the configuration says %s", g.Index, size(g.MemoryTotal), dev.Memory)
	}
	return one(OK, what, "", "is GPU %d, %s", g.Index, label(g))
}

// wiring works out the links, and which of them lending depends on.
func (d *doctor) wiring(ctx context.Context) []Finding {
	cfg := d.System.Config
	var inv *topology.Inventory
	w, err := wiring.Load(ctx, cfg, func(ctx context.Context) (*topology.Inventory, error) {
		found, err := d.waitGPUs(ctx)
		inv = found
		return found, err
	}, func(ctx context.Context) (*topology.Inventory, error) { return d.askCUDA(ctx) })
	if err != nil {
		return one(Problem, "links", "fabric.topology and fabric.measured of the configuration", "%v", err)
	}
	var f []Finding
	for _, n := range w.Notes {
		f = append(f, one(Note, "links", "", "%s", n)...)
	}
	d.mu.Lock()
	for _, l := range w.Links {
		d.links = append(d.links, Link{l.From, l.To, l.BytesPerSec, l.Source})
	}
	d.mu.Unlock()
	for _, m := range d.System.Models {
		var from []string
		for _, l := range m.Lenders {
			if dev := l.Worker.Config.Device; !slices.Contains(from, dev) {
				from = append(from, dev)
			}
		}
		for _, dev := range from {
			f = append(f, d.way(w, inv, dev, m.Config.Device)...)
		}
		if len(from) > 1 && len(w.Links) > 0 {
			f = append(f, one(OK, "lenders of "+m.Config.Name, "", "asked first to last: those on %s", strings.Join(w.Topology.Rank(m.Config.Device, from), ", "))...)
		}
	}
	if len(f) == 0 {
		f = one(OK, "links", "", "none is described: lenders are asked in their order until their links were used")
	}
	return f
}

// way is what is known of the link from a lender's device to a master's.
func (d *doctor) way(w *wiring.Wiring, inv *topology.Inventory, from, to string) []Finding {
	if from == to {
		return nil
	}
	var f []Finding
	what := from + " to " + to
	if link, known := w.Topology.Link(from, to); known {
		f = one(OK, what, "", "%.3g GB/s (%s)", link.BytesPerSec/1e9, link.Source)
	} else if d.cuda() {
		f = one(Note, what, "links of the configuration, or fabric.measured", "no bandwidth is known: lenders there are asked last until the link was used")
	}
	return append(f, d.access(inv, w.GPUs, from, to)...)
}

// access reports lending between GPUs that cannot reach each other.
func (d *doctor) access(inv *topology.Inventory, gpus map[string]int, from, to string) []Finding {
	a, okA := gpus[from]
	b, okB := gpus[to]
	if inv == nil || !okA || !okB || a == b {
		return nil
	}
	p, ok := inv.Pair(a, b)
	if !ok || p.Via != topology.ViaHost {
		return nil
	}
	why := p.P2P.Refused()
	if why == "" {
		why = "MIG"
	}
	return one(Warning, from+" to "+to, "GPUs with peer access", "no peer access (%s): what is borrowed is staged in the host's memory, at the speed of PCIe", why)
}

func (d *doctor) gateway(context.Context) []Finding {
	g := d.System.Config.Gateway
	var f []Finding
	if _, err := g.Keys(); err != nil {
		f = one(Problem, "API keys", "a file of one line that the user who runs kvlend may read", "%v", err)
	}
	if d.Running {
		return append(f, one(OK, "gateway", "", "a running system listens already")...)
	}
	err := d.Listen(g.Listen)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return append(f, one(Problem, "gateway", "another gateway.listen, port 0, or end what listens there: ss -ltnp", "%s is in use", g.Listen)...)
	case errors.Is(err, unix.EACCES):
		return append(f, one(Problem, "gateway", "a port above 1023, or CAP_NET_BIND_SERVICE", "%s: this user may not listen there", g.Listen)...)
	case err != nil:
		return append(f, one(Problem, "gateway", "gateway.listen: an address of this machine", "%v", err)...)
	}
	return append(f, one(OK, "gateway", "", "%s is free", g.Listen)...)
}

func (d *doctor) runDirectory(context.Context) []Finding {
	const what = "run directory"
	info, err := d.Stat(d.RunDir)
	switch {
	case err == nil && !info.IsDir():
		return one(Problem, what, "another run_dir", "%s is no directory", d.RunDir)
	case err == nil && info.Mode().Perm()&0o077 != 0:
		return one(Problem, what, "chmod 700, or another run_dir", "%s has mode %s: others could reach the sockets", d.RunDir, info.Mode().Perm())
	case err == nil && d.Running:
		return one(OK, what, "", "%s: a system runs there", d.RunDir)
	case err == nil:
		return d.writable(what, d.RunDir, d.RunDir)
	}
	return d.writable(what, filepath.Dir(d.RunDir), d.RunDir)
}

// writable reports whether dir can take a file or directory of that name.
func (d *doctor) writable(what, dir, name string) []Finding {
	if err := d.Access(dir, true); err != nil {
		return one(Problem, what, "make it for the user who runs kvlend, or choose another", "%s cannot be written: %v", dir, err)
	}
	if s, err := d.Space(dir); err == nil && s.ReadOnly {
		return one(Problem, what, "another path", "%s lies in a file system that is read-only", dir)
	}
	return one(OK, what, "", "%s", name)
}

func (d *doctor) audit(context.Context) []Finding {
	dir := d.System.Config.Audit.Dir
	if dir == "" {
		return nil
	}
	if _, err := d.Stat(dir); err != nil {
		return d.writable("audit", filepath.Dir(dir), dir)
	}
	return d.writable("audit", dir, dir)
}

func (d *doctor) models(context.Context) []Finding {
	var f []Finding
	threads := 0
	for i := range d.System.Config.Models {
		m := &d.System.Config.Models[i]
		threads += m.Threads
		if !m.Servable() {
			f = append(f, one(Problem, "model "+m.Name, "a directory of the model, or builtin:NAME", "%s is for planning only: it has no weights to serve", m.Source)...)
		} else if err := d.Model(m); err != nil {
			f = append(f, one(Problem, "model "+m.Name, "kvlend model verify "+m.Source, "%v", err)...)
		}
	}
	if threads > d.CPUs {
		f = append(f, one(Warning, "threads", "models[].threads that add up to the cores", "the models' threads add up to %d, this process has %d cores", threads, d.CPUs)...)
	}
	if len(f) == 0 {
		f = one(OK, "models", "", "%d, all complete (kvlend model verify also reads the weights)", len(d.System.Config.Models))
	}
	return f
}

// settings repeats what config validate warns of.
func (d *doctor) settings(context.Context) []Finding {
	var f []Finding
	for _, w := range d.System.Config.Warnings(source.Geometry) {
		f = append(f, one(Warning, w.Path, w.Accepted, "%s: %s", w.Value, w.Problem)...)
	}
	return f
}

func (d *doctor) overflowPool(context.Context) []Finding {
	var f []Finding
	taken := map[string]uint64{} // what earlier files take of a directory
	for _, m := range d.System.Config.Models {
		for _, disk := range m.Overflow.Devices {
			f = append(f, d.disk(m.Name+"/"+disk.Name, disk, taken)...)
		}
	}
	return f
}

func (d *doctor) disk(what string, disk configs.Disk, taken map[string]uint64) []Finding {
	if disk.Path == overflow.MemoryPath {
		if disk.NUMANode >= 0 {
			if _, err := fs.Stat(d.Root, fmt.Sprintf("sys/devices/system/node/node%d", disk.NUMANode)); err != nil {
				return one(Problem, what, "numa_node: -1, or a node of this machine", "there is no NUMA node %d", disk.NUMANode)
			}
		}
		return nil // counted with the arenas
	}
	info, err := d.Stat(disk.Path)
	switch {
	case err == nil && info.IsDir():
		return one(Problem, what, "the path of a file", "%s is a directory", disk.Path)
	case err == nil && !info.Mode().IsRegular():
		if err := d.Access(disk.Path, true); err != nil {
			return one(Problem, what, "the group of the device (often disk), or its mode", "%s cannot be written: %v", disk.Path, err)
		}
		return one(OK, what, "", "%s, a device; kvlend pool check says what is on it", disk.Path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return one(Problem, what, "a path that the user who runs kvlend can reach", "%v", err)
	case err != nil && strings.HasPrefix(disk.Path, "/dev/"):
		return one(Problem, what, "the path of a device of this machine: lsblk", "%s does not exist", disk.Path)
	}
	if err == nil {
		if err := d.Access(disk.Path, true); err != nil {
			return one(Problem, what, "the owner and mode of the file", "%s cannot be written: %v", disk.Path, err)
		}
		if uint64(info.Size()) >= uint64(disk.Size) {
			return one(OK, what, "", "%s is there; kvlend pool check says what is in it", disk.Path)
		}
		return d.room(what, disk, uint64(disk.Size)-uint64(info.Size()), taken)
	}
	return d.room(what, disk, uint64(disk.Size), taken)
}

// room looks whether a file can grow by need bytes.
func (d *doctor) room(what string, disk configs.Disk, need uint64, taken map[string]uint64) []Finding {
	dir := filepath.Dir(disk.Path)
	if err := d.Access(dir, true); err != nil {
		return one(Problem, what, "make the directory for the user who runs kvlend", "%s cannot be written: %v", dir, err)
	}
	s, err := d.Space(dir)
	if err != nil {
		return unknown(what, err)
	}
	taken[dir] += need
	if taken[dir] > s.Free {
		return one(Problem, what, "a smaller size, another disk, or space there", "%s would grow by %s (with the files before it %s); %s are free", disk.Path, size(need), size(taken[dir]), size(s.Free))
	}
	return d.directory(what, dir, Warning)
}
