package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/kvlend/kvlend/nvlink/nvml"
	"github.com/kvlend/kvlend/nvlink/topology"
)

// vendorNVIDIA is NVIDIA's number among the vendors of PCI devices.
const vendorNVIDIA = "0x10de"

// inventory asks the driver's library, and where that cannot be had takes what
// the kernel shows.
func (d *doctor) inventory(ctx context.Context) {
	defer close(d.gpus)
	inv, err := d.ask(ctx)
	if err != nil {
		d.gpuErr = err
		if inv = d.shown(); len(inv.GPUs) == 0 {
			return
		}
	}
	for i := range inv.GPUs {
		if g := &inv.GPUs[i]; g.NUMANode < 0 {
			g.NUMANode = d.numaNode(g.PCI)
		}
	}
	d.inv = inv
}

// ask asks the driver's library, for as long as that may take.
func (d *doctor) ask(ctx context.Context) (inv *topology.Inventory, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.GPULimit)
	defer cancel()
	done := make(chan struct{})
	var found *topology.Inventory
	var failed error
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil {
				failed = fmt.Errorf("asking for the GPUs panicked: %v", r)
			}
		}()
		found, failed = d.GPUs(ctx)
	}()
	select {
	case <-done:
		return found, failed
	case <-ctx.Done():
		return nil, fmt.Errorf("the driver does not answer: %w", ctx.Err())
	}
}

// shown is what the kernel shows of the GPUs without its driver's library.
func (h *Host) shown() *topology.Inventory {
	inv := &topology.Inventory{Pairs: []topology.Pair{}, Gaps: []string{"what /sys and /proc show, without the driver's library: no NVLinks, no memory use"}}
	inv.Driver, _ = h.driverVersion()
	for i, address := range h.pciGPUs() {
		g := topology.GPU{Index: i, PCI: address, NUMANode: h.numaNode(address)}
		info := "/proc/driver/nvidia/gpus/" + address + "/information"
		g.Name, _ = h.field(info, "Model")
		g.UUID, _ = h.field(info, "GPU UUID")
		dir := "/sys/bus/pci/devices/" + address
		g.PCIe = topology.PCIe{
			Gen: h.generation(dir + "/current_link_speed"), MaxGen: h.generation(dir + "/max_link_speed"),
			Width: h.number(dir + "/current_link_width"), MaxWidth: h.number(dir + "/max_link_width"),
		}
		g.CPUs, _ = h.read(dir + "/local_cpulist")
		inv.GPUs = append(inv.GPUs, g)
	}
	return inv
}

func (h *Host) number(name string) int {
	text, err := h.read(name)
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 1<<20 {
		return 0
	}
	return n
}

// generation is PCIe's, by the speed of a lane: "16.0 GT/s PCIe".
func (h *Host) generation(name string) int {
	text, err := h.read(name)
	if err != nil {
		return 0
	}
	for i, speed := range []string{"2.5 ", "5.0 ", "8.0 ", "16.0 ", "32.0 ", "64.0 "} {
		if strings.HasPrefix(text, speed) || strings.HasPrefix(text, strings.Replace(speed, ".0", "", 1)) {
			return i + 1
		}
	}
	return 0
}

func (h *Host) numaNode(address string) int {
	text, err := h.read("/sys/bus/pci/devices/" + address + "/numa_node")
	if n, e := strconv.Atoi(text); err == nil && e == nil {
		return n
	}
	return -1
}

// pciGPUs are the addresses of NVIDIA's display and 3D controllers.
func (h *Host) pciGPUs() []string {
	entries, err := fs.ReadDir(h.Root, "sys/bus/pci/devices")
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		dir := "/sys/bus/pci/devices/" + e.Name()
		vendor, _ := h.read(dir + "/vendor")
		class, _ := h.read(dir + "/class")
		if vendor == vendorNVIDIA && strings.HasPrefix(class, "0x03") {
			out = append(out, e.Name())
		}
	}
	slices.Sort(out)
	return out
}

// hasGPU reports whether anything of an NVIDIA GPU is to be seen.
func (h *Host) hasGPU() bool {
	_, loaded := h.driverVersion()
	return loaded || len(h.pciGPUs()) > 0 || len(h.nodes()) > 0
}

// driverVersion is that of the kernel's module.
func (h *Host) driverVersion() (v string, loaded bool) {
	if text, err := h.read("/sys/module/nvidia/version"); err == nil {
		return text, true
	}
	text, err := h.field("/proc/driver/nvidia/version", "NVRM version")
	if err != nil {
		return "", false
	}
	for _, word := range strings.Fields(text) {
		if strings.Count(word, ".") >= 1 && strings.Trim(word, "0123456789.") == "" {
			return word, true
		}
	}
	return text, true
}

// nodes are the device files of single GPUs.
func (h *Host) nodes() []string {
	list, err := fs.Glob(h.Root, "dev/nvidia[0-9]*")
	if err != nil {
		return nil
	}
	return list
}

func (d *doctor) driver(context.Context) []Finding {
	v, loaded := d.driverVersion()
	bus := d.pciGPUs()
	switch {
	case loaded:
		return one(OK, "driver", "", "NVIDIA's kernel driver %s", v)
	case len(bus) > 0 && d.boundTo(bus[0]) == "nouveau":
		return one(Problem, "driver", "NVIDIA's own driver: CUDA does not run on nouveau", "NVIDIA GPUs on the bus: %d, driven by nouveau", len(bus))
	case len(bus) > 0 && d.boundTo(bus[0]) == "vfio-pci":
		return one(Note, "driver", "", "NVIDIA GPUs on the bus: %d, handed to virtual machines (vfio-pci)", len(bus))
	case len(bus) > 0:
		return one(Problem, "driver", "install NVIDIA's driver, or load it: modprobe nvidia; its log is in dmesg", "NVIDIA GPUs on the bus: %d, and no driver for them is loaded", len(bus))
	}
	return one(OK, "driver", "", "no NVIDIA GPU is to be seen")
}

// boundTo is the driver of a PCI device.
func (h *Host) boundTo(address string) string {
	target, err := fs.ReadLink(h.Root, "sys/bus/pci/devices/"+address+"/driver")
	if err != nil {
		return ""
	}
	return path.Base(target)
}

func (d *doctor) deviceFiles(context.Context) []Finding {
	v, loaded := d.driverVersion()
	nodes := d.nodes()
	if !loaded && len(nodes) == 0 {
		return nil // the driver's finding says it all
	}
	if len(nodes) == 0 {
		hint := "nvidia-modprobe -c 0 -u, or nvidia-smi, as root makes them"
		if d.containerKind() != "" {
			hint = "start the container with --gpus all (NVIDIA's container toolkit), or nvidia.com/gpu in the pod's limits"
		}
		return one(Problem, "device files", hint, "the driver %s is loaded, and there is no /dev/nvidia0", v)
	}
	var missing, refused []string
	for _, name := range append(nodes, "dev/nvidiactl", "dev/nvidia-uvm") {
		if _, err := fs.Stat(d.Root, name); err != nil {
			missing = append(missing, "/"+name)
		} else if err := d.Access("/"+name, true); err != nil {
			refused = append(refused, "/"+name)
		}
	}
	var f []Finding
	if len(missing) > 0 {
		f = one(Problem, "device files", "nvidia-modprobe -c 0 -u as root; in a container, NVIDIA's container toolkit with the capability compute", "missing: %s", strings.Join(missing, ", "))
	}
	if len(refused) > 0 {
		f = append(f, one(Problem, "device files", "the group of these files (often video or render), or their mode: NVreg_DeviceFileMode of the driver",
			"user %d may not read and write %s", d.UID, strings.Join(refused, ", "))...)
	}
	if f == nil {
		f = one(OK, "device files", "", "GPUs: %d, readable and writable", len(nodes))
	}
	return f
}

// library directories, beside what ld.so.cache names.
var libraryDirs = []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64",
	"/usr/local/lib", "/run/opengl-driver/lib", "/usr/lib/wsl/lib"}

// library finds a shared library, as the loader would or nearly so.
func (h *Host) library(name string) (string, bool) {
	var dirs []string
	if p := h.Getenv("LD_LIBRARY_PATH"); p != "" {
		dirs = strings.Split(p, ":")
	}
	for _, dir := range append(dirs, libraryDirs...) {
		if !path.IsAbs(dir) {
			continue
		}
		full := path.Join(dir, name)
		if _, err := fs.Stat(h.Root, strings.TrimPrefix(full, "/")); err == nil {
			return full, true
		}
	}
	// The cache holds paths as strings that end with a zero byte.
	cache, err := h.read("/etc/ld.so.cache")
	if err != nil {
		return "", false
	}
	end := strings.Index(cache, "/"+name+"\x00")
	if end < 0 {
		return "", false
	}
	start := strings.LastIndexByte(cache[:end], 0) + 1
	return cache[start:end] + "/" + name, true
}

func (d *doctor) libraries(context.Context) []Finding {
	if !d.hasGPU() {
		return nil
	}
	var f []Finding
	for _, l := range []struct{ name, use, hint string }{
		{"libcuda.so.1", "runs CUDA", "libcuda1 or nvidia-driver-cuda of the driver's version; in a container, the capability compute (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"},
		{"libnvidia-ml.so.1", "describes the GPUs", "libnvidia-ml1 of the driver's version; in a container, the capability utility (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"},
	} {
		if where, ok := d.library(l.name); ok {
			f = append(f, one(OK, l.name, "", "%s", where)...)
		} else {
			f = append(f, one(Problem, l.name, l.hint, "not found: it %s", l.use)...)
		}
	}
	return f
}

// waitGPUs waits for the inventory.
func (d *doctor) waitGPUs(ctx context.Context) (*topology.Inventory, error) {
	ctx, cancel := context.WithTimeout(ctx, d.GPULimit+d.Limit/2) // less than the probe has
	defer cancel()
	select {
	case <-d.gpus:
		return d.inv, d.gpuErr
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (d *doctor) gpuFindings(ctx context.Context) []Finding {
	inv, err := d.waitGPUs(ctx)
	var f []Finding
	if err != nil {
		f = d.whyNot(err)
	}
	if inv == nil {
		return f
	}
	if inv.CUDA != "" {
		f = append(f, one(OK, "versions", "", "driver %s, runs CUDA up to %s, NVML %s", inv.Driver, inv.CUDA, inv.NVML)...)
	}
	for i := range inv.GPUs {
		f = append(f, d.gpu(&inv.GPUs[i])...)
	}
	if v := d.Getenv("CUDA_VISIBLE_DEVICES"); v != "" {
		f = append(f, one(Note, "CUDA_VISIBLE_DEVICES", "devices[].gpu as UUIDs", "%q: CUDA counts only these, NVML and this table count all", v)...)
	}
	return f
}

// whyNot says why the driver's library gave no answer.
func (d *doctor) whyNot(err error) []Finding {
	switch {
	case errors.Is(err, nvml.ErrNotBuilt) && d.hasGPU():
		return one(Note, "NVML", "kvlend doctor of a binary with the tag cuda", "not asked, since this binary was built without the tag cuda: what follows is what the kernel shows")
	case errors.Is(err, nvml.ErrNotBuilt):
		return one(OK, "NVML", "", "not asked: this binary was built without the tag cuda")
	case !d.hasGPU() && (errors.Is(err, nvml.ErrNoLibrary) || errors.Is(err, nvml.ErrNoDriver)):
		return one(Warning, "NVML", "libnvidia-ml1 of the driver's version (in a container, the capability utility); or the binary without the tag cuda, if there is to be no GPU", "%v", err)
	case errors.Is(err, nvml.ErrMismatch):
		return one(Problem, "NVML", "restart the machine, or unload and load the kernel's modules", "%v", err)
	case errors.Is(err, context.DeadlineExceeded):
		return one(Problem, "NVML", "a GPU hangs: dmesg | grep -i xid; often only a restart helps", "%v", err)
	}
	return one(Problem, "NVML", "nvidia-smi says more", "%v", err)
}

// gpu are the findings about one GPU.
func (d *doctor) gpu(g *topology.GPU) []Finding {
	what := "GPU " + strconv.Itoa(g.Index)
	if g.Fault != "" {
		return one(Problem, what, "dmesg | grep -i xid; reset it (nvidia-smi -r -i N) or restart the machine; take it out of the configuration meanwhile",
			"%s is not usable: %s", label(g), g.Fault)
	}
	f := one(OK, what, "", "%s", describe(g))
	add := func(l Level, hint, format string, args ...any) {
		f = append(f, one(l, what, hint, format, args...)...)
	}
	if g.MIG == topology.On {
		add(Warning, "nvidia-smi -i N -mig 0", "MIG is on: no peer access and no NVLink, copies to other GPUs go through the host")
	}
	switch g.ComputeMode {
	case topology.ComputeExclusive:
		add(Problem, "nvidia-smi -i N -c DEFAULT", "compute mode exclusive: only one process may use it, and the supervisor and masters open it beside its own model")
	case topology.ComputeProhibited:
		add(Problem, "nvidia-smi -i N -c DEFAULT", "compute mode prohibited: nobody may use it")
	}
	if g.Persistence == topology.Off {
		add(Note, "nvidia-smi -pm 1, or nvidia-persistenced", "persistence mode is off: the first start takes seconds longer")
	}
	if p := g.PCIe; p.Width > 0 && p.Width < p.MaxWidth {
		add(Warning, "reseat the card; look at the slot and the BIOS settings", "its slot gives it %d of %d lanes: copies to and from the host are slower", p.Width, p.MaxWidth)
	}
	if g.Fabric != topology.FabricNone && g.Fabric != topology.FabricCompleted {
		add(Problem, "systemctl start nvidia-fabricmanager, of the driver's version; its log says more", "it has not joined the fabric of NVSwitches (%s): CUDA does not start", g.Fabric)
	}
	if down := inactive(g); down > 0 && down < len(g.NVLinks) {
		add(Warning, "nvidia-smi nvlink -s; dmesg | grep -i xid", "%d of its %d NVLinks are down", down, len(g.NVLinks))
	}
	if len(g.Processes) > 0 {
		add(Note, "", "in use by %s", users(g))
	}
	return f
}

func inactive(g *topology.GPU) (n int) {
	for _, l := range g.NVLinks {
		if !l.Active {
			n++
		}
	}
	return n
}

func label(g *topology.GPU) string {
	for _, s := range []string{g.Name, g.UUID, g.PCI} {
		if s != "" {
			return s
		}
	}
	return "it"
}

// describe says in a line what a GPU is.
func describe(g *topology.GPU) string {
	parts := []string{label(g)}
	if g.PCI != "" {
		parts = append(parts, g.PCI)
	}
	if g.Compute != "" {
		parts = append(parts, "compute "+g.Compute)
	}
	if g.MemoryTotal > 0 {
		parts = append(parts, fmt.Sprintf("%s of %s free", size(g.MemoryFree), size(g.MemoryTotal)))
	}
	if p := g.PCIe; p.Width > 0 {
		parts = append(parts, fmt.Sprintf("PCIe gen %d x%d", max(p.Gen, p.MaxGen), p.Width))
	}
	if n := len(g.NVLinks) - inactive(g); n > 0 {
		parts = append(parts, fmt.Sprintf("NVLinks: %d", n))
	}
	if g.NUMANode >= 0 {
		parts = append(parts, fmt.Sprintf("NUMA node %d", g.NUMANode))
	}
	if g.ECC == topology.Off {
		parts = append(parts, "ECC off")
	}
	return strings.Join(parts, ", ")
}

// mostUsers bounds how many processes a finding names.
const mostUsers = 5

func users(g *topology.GPU) string {
	var out []string
	for i, p := range g.Processes {
		if i == mostUsers {
			out = append(out, fmt.Sprintf("and %d more", len(g.Processes)-mostUsers))
			break
		}
		text := fmt.Sprintf("pid %d", p.PID)
		if p.Name != "" {
			text += " " + path.Base(p.Name)
		}
		if p.Bytes > 0 {
			text += " (" + size(p.Bytes) + ")"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// pairFindings sums up how the GPUs reach each other.
func (d *doctor) pairFindings(ctx context.Context) []Finding {
	inv, err := d.waitGPUs(ctx)
	if err != nil || inv == nil || len(inv.GPUs) < 2 {
		return nil
	}
	ways := map[topology.Via]int{}
	reasons := map[string][]string{}
	for _, p := range inv.Pairs {
		ways[p.Via]++
		if why := p.P2P.Refused(); why != "" {
			reasons[why] = append(reasons[why], fmt.Sprintf("%d→%d", p.From, p.To))
		}
	}
	var parts []string
	for _, v := range []topology.Via{topology.ViaNVLink, topology.ViaNVSwitch, topology.ViaPCIe, topology.ViaHost} {
		if n := ways[v]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, v))
		}
	}
	f := one(OK, "pairs", "", "%d: %s", len(inv.Pairs), strings.Join(parts, ", "))
	if len(parts) == 0 {
		f = one(Warning, "pairs", "", "no two GPUs answer")
	}
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		list := reasons[why]
		shown := strings.Join(list[:min(len(list), 4)], ", ")
		if len(list) > 4 {
			shown += fmt.Sprintf(" and %d more", len(list)-4)
		}
		f = append(f, one(Warning, "peer access", "without it copies are staged in the host's memory: ACS and IOMMU settings of the BIOS (iommu=pt), or GPUs that have NVLink", "none for %s: %s", shown, why)...)
	}
	return f
}
