package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"
)

// read returns a file below Root without the white space around it.
func (h *Host) read(name string) (string, error) {
	b, err := fs.ReadFile(h.Root, strings.TrimPrefix(name, "/"))
	return strings.TrimSpace(string(b)), err
}

// field returns what follows "key:" or "key" in a line of a file.
func (h *Host) field(name, key string) (string, error) {
	text, err := h.read(name)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		k, v, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("%s has no %s", name, key)
}

// meminfo returns a line of /proc/meminfo in bytes, or as a plain number.
func (h *Host) meminfo(key string) (uint64, error) {
	v, err := h.field("/proc/meminfo", key)
	if err != nil {
		return 0, err
	}
	text, kib := strings.CutSuffix(v, " kB")
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/meminfo: %s is %q", key, v)
	}
	if kib {
		n <<= 10
	}
	return n, nil
}

func (d *doctor) build(context.Context) []Finding {
	f := one(OK, "kvlend", "", "%s, %s, %s", d.Build.Version, d.Build.Go, d.Build.Platform)
	if d.Build.CUDA {
		return append(f, one(OK, "CUDA", "", "built with the tag cuda: GPUs can be asked and used")...)
	}
	if d.hasGPU() {
		return append(f, one(Warning, "CUDA", "use the binary for GPUs: CGO_ENABLED=1 go build -tags cuda ./cmd/kvlend",
			"built without the tag cuda: arenas lie in the host's memory, and the GPUs of this machine stay unused")...)
	}
	return append(f, one(OK, "CUDA", "", "built without the tag cuda: pure Go, arenas in the host's memory")...)
}

func (d *doctor) cores(context.Context) []Finding {
	model, err := d.field("/proc/cpuinfo", "model name")
	if err != nil {
		model = "model not known"
	}
	nodes := 0
	if list, err := fs.Glob(d.Root, "sys/devices/system/node/node[0-9]*"); err == nil {
		nodes = len(list)
	}
	f := one(OK, "cores", "", "%d for this process, %s, NUMA nodes: %d", d.CPUs, model, max(1, nodes))
	if quota, ok := d.cpuQuota(); ok && quota < float64(d.CPUs) {
		f = append(f, one(Warning, "CPU quota", "raise the quota (--cpus of a container, CPUQuota= of a systemd unit), or set models[].threads so that they add up to it",
			"the control group allows %.3g cores of %d: threads beyond that are stopped in the middle of a step", quota, d.CPUs)...)
	}
	return f
}

// cpuQuota is how many cores the control group allows.
func (d *doctor) cpuQuota() (float64, bool) {
	least := math.Inf(1)
	for _, dir := range d.groups("cpu") {
		text, err := d.read(path.Join(dir, "cpu.max"))
		if err != nil {
			q, errQ := d.read(path.Join(dir, "cpu.cfs_quota_us"))
			p, errP := d.read(path.Join(dir, "cpu.cfs_period_us"))
			if errQ != nil || errP != nil {
				continue
			}
			text = q + " " + p
		}
		parts := strings.Fields(text)
		if len(parts) != 2 {
			continue
		}
		quota, errQ := strconv.ParseFloat(parts[0], 64)
		period, errP := strconv.ParseFloat(parts[1], 64)
		if errQ == nil && errP == nil && quota > 0 && period > 0 {
			least = min(least, quota/period)
		}
	}
	return least, !math.IsInf(least, 1)
}

func (d *doctor) kernels(context.Context) []Finding {
	sets := d.Kernels()
	if len(sets) == 0 {
		return one(Problem, "engine", "report this as a defect", "no instruction set gives the right bits on this CPU")
	}
	all := strings.Join(sets, ", ")
	flags, _ := d.field("/proc/cpuinfo", "flags")
	has := func(flag string) bool { return strings.Contains(" "+flags+" ", " "+flag+" ") }
	switch {
	case sets[0] == "go":
		return one(Warning, "engine", "models compute 10 to 50 times slower than with AVX2: another machine, or another CPU type of the virtual machine",
			"plain Go: this CPU has neither AVX2 nor AVX-512, or it gave wrong bits")
	case sets[0] == "avx2" && has("avx512f") && !has("avx512_bf16"):
		return one(OK, "engine", "", "uses avx2 (of %s): this CPU's AVX-512 has no BF16", all)
	}
	return one(OK, "engine", "", "uses %s (of %s)", sets[0], all)
}

// scarce is how little memory is too little for anything but the built-in models.
const scarce = 1 << 30

func (d *doctor) memory(context.Context) []Finding {
	total, err := d.meminfo("MemTotal")
	if err != nil {
		return unknown("memory", err)
	}
	free, err := d.meminfo("MemAvailable")
	if err != nil {
		return unknown("memory", err)
	}
	level, hint := OK, ""
	if free < scarce {
		level, hint = Warning, "end what uses the memory, or keep arenas small"
	}
	f := one(level, "memory", hint, "%s, of which %s are available", size(total), size(free))
	if mode, err := d.read("/proc/sys/vm/overcommit_memory"); err == nil && mode == "2" {
		f = append(f, one(Note, "overcommit", "vm.overcommit_memory = 0, if arenas are refused although there is memory",
			"the kernel promises no more memory than it has (vm.overcommit_memory is 2): arenas count in full from the start")...)
	}
	return f
}

// groups are the directories of this process's control group and of those above
// it, for a controller.
func (h *Host) groups(controller string) []string {
	text, err := h.read("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		base := "/sys/fs/cgroup"
		if parts[1] != "" {
			if !strings.Contains(","+parts[1]+",", ","+controller+",") {
				continue
			}
			base = path.Join(base, controller)
		}
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			out = append(out, path.Join(base, dir))
			if dir == "/" {
				break
			}
		}
	}
	return out
}

// groupNumber is the smallest number in a file of this process's control groups,
// under either version of control groups.
func (h *Host) groupNumber(controller, file, old string) (n uint64, dir string, ok bool) {
	for _, g := range h.groups(controller) {
		text, err := h.read(path.Join(g, file))
		if err != nil {
			text, err = h.read(path.Join(g, old))
		}
		if err != nil {
			continue
		}
		v, err := strconv.ParseUint(text, 10, 64)
		if err == nil && v < 1<<62 && (!ok || v < n) { // "max" is no number; version 1 writes a huge one
			n, dir, ok = v, g, true
		}
	}
	return n, dir, ok
}

// groupRoom is what this process's control group may still take.
func (h *Host) groupRoom() (limit, room uint64, ok bool) {
	limit, dir, ok := h.groupNumber("memory", "memory.max", "memory.limit_in_bytes")
	if !ok {
		return 0, 0, false
	}
	used := uint64(0)
	for _, name := range []string{"memory.current", "memory.usage_in_bytes"} {
		if text, err := h.read(path.Join(dir, name)); err == nil {
			used, _ = strconv.ParseUint(text, 10, 64)
			break
		}
	}
	return limit, limit - min(limit, used), true
}

func (d *doctor) groupMemory(context.Context) []Finding {
	limit, room, ok := d.groupRoom()
	total, err := d.meminfo("MemTotal")
	if !ok || err == nil && limit >= total {
		return one(OK, "control group", "", "no limit on memory")
	}
	return one(Note, "control group", "arenas and weights count against it: --memory of a container, MemoryMax= of a systemd unit",
		"this process's group may use %s, %s are left (page cache counts as used, and gives way)", size(limit), size(room))
}

func (d *doctor) hugePages(context.Context) []Finding {
	var f []Finding
	mode, err := d.read("/sys/kernel/mm/transparent_hugepage/enabled")
	switch _, chosen, _ := strings.Cut(mode, "["); {
	case err != nil:
		f = unknown("transparent huge pages", err)
	case strings.HasPrefix(chosen, "never]"):
		f = one(Note, "transparent huge pages", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
			"never: weights and memory of the overflow pool use small pages, which costs some speed")
	default:
		f = one(OK, "transparent huge pages", "", "%s", strings.TrimSuffix(strings.SplitN(chosen, "]", 2)[0], "]"))
	}
	total, err := d.meminfo("HugePages_Total")
	if err != nil {
		return append(f, unknown("reserved huge pages", err)...)
	}
	free, _ := d.meminfo("HugePages_Free")
	each, _ := d.meminfo("Hugepagesize")
	if total == 0 {
		return append(f, one(OK, "reserved huge pages", "", "none; nothing needs them (memory as a device of the overflow pool would use them)")...)
	}
	return append(f, one(OK, "reserved huge pages", "", "%d of %s each, %d free; only memory as a device of the overflow pool uses them", total, size(each), free)...)
}

func (d *doctor) sharedMemory(context.Context) []Finding {
	if err := d.Memfd(); err != nil {
		return one(Problem, "shared memory", "Linux 3.17 or later, and a seccomp profile that allows memfd_create; vm.memfd_noexec below 2",
			"no arena can be made: %v", err)
	}
	return one(OK, "shared memory", "", "arenas are anonymous (memfd): the size of /dev/shm does not matter")
}
