package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/nvlink/topology"
	"github.com/kvlend/kvlend/overflow/ring"
)

func TestHealthy(t *testing.T) {
	for name, h := range map[string]*Host{"no GPUs": machine(plain), "GPUs": machine(withGPUs)} {
		o := Options{}
		if name == "GPUs" {
			h.GPUs = says(inventory(), nil)
			o.Build.CUDA = true
		}
		r := examine(t, h, o)
		if !r.OK || r.Problems+r.Warnings != 0 {
			t.Errorf("%s: %+v", name, r)
		}
		for _, s := range r.Sections {
			for _, f := range s.Findings {
				if f.Level != OK {
					t.Errorf("%s: %s: %+v", name, s.Name, f)
				}
			}
		}
		if (r.Inventory != nil) != o.Build.CUDA {
			t.Errorf("%s: inventory %+v", name, r.Inventory)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNothingAnswers: a machine on which every question fails.
func TestNothingAnswers(t *testing.T) {
	h := machine(nil)
	h.Root = fstest.MapFS{}
	h.Kernels = func() []string { return nil }
	h.Rlimit = func(int) (uint64, error) { return 0, errOdd }
	h.Release = func() (string, error) { return "", errOdd }
	h.Ring = func(bool) (ring.Features, error) { return ring.Features{}, errOdd }
	h.Memfd, h.Pidfd = func() error { return errOdd }, func() error { return errOdd }
	h.Access = func(string, bool) error { return errOdd }
	h.Space = func(string) (Filesystem, error) { return Filesystem{}, errOdd }
	h.Direct = func(string) error { return errOdd }
	h.Listen = func(string) error { return errOdd }
	h.Stat = func(string) (fs.FileInfo, error) { return nil, errOdd }
	h.GPUs = says(nil, errOdd)
	r := examine(t, h, Options{System: system(t, "", nil), RunDir: "/run/kvlend"})
	if r.OK || r.Inventory != nil {
		t.Errorf("%+v", r)
	}
	for _, what := range []string{"shared memory", "pidfd", "engine", "gateway", "run directory", "NVML"} {
		expect(t, "nothing", r, what, Problem)
	}
}

// TestProbesThatHangOrPanic become findings; the others are there.
func TestProbesThatHangOrPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := machine(withGPUs)
		release := make(chan struct{})
		defer close(release)
		h.Kernels = func() []string { <-release; return nil }
		h.GPUs = func(context.Context) (*topology.Inventory, error) { <-release; return nil, nil }
		h.Memfd = func() error { panic("odd") }
		began := time.Now()
		r := Run(t.Context(), h, Options{Limit: 5 * time.Second, GPULimit: 20 * time.Second})
		if d := time.Since(began); d > 25*time.Second {
			t.Errorf("it took %s", d)
		}
		expect(t, "hangs", r, "kernels", Warning, "did not answer", "5s")
		expect(t, "hangs", r, "NVML", Problem, "a GPU hangs")
		expect(t, "panics", r, "shared memory", Warning, "could not be looked at: odd")
		expect(t, "others", r, "memory", OK, "32 GiB")
	})
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	release := make(chan struct{})
	defer close(release)
	h := machine(plain)
	h.Kernels = func() []string { <-release; return nil }
	expect(t, "interrupted", Run(ctx, h, Options{Limit: time.Hour}), "kernels", Warning, "canceled")
}

func TestMachine(t *testing.T) {
	v1 := files{"proc/self/cgroup": "5:cpu,cpuacct:/a/b\n4:memory:/a\n3:pids:/a\n"}
	for _, c := range []struct {
		name  string
		more  files
		edit  func(*Host)
		what  string
		level Level
		words []string
	}{
		{"little memory", files{"proc/meminfo": "MemTotal: 2000000 kB\nMemAvailable: 500000 kB\n"}, nil, "memory", Warning, []string{"488 MiB"}},
		{"no huge pages", files{"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"}, nil, "transparent huge pages", Note, []string{"echo madvise"}},
		{"reserved pages", files{"proc/meminfo": "MemTotal: 4 kB\nMemAvailable: 4 kB\nHugePages_Total: 8\nHugePages_Free: 3\nHugepagesize: 2048 kB\n"}, nil, "reserved huge pages", OK, []string{"8 of 2 MiB each, 3 free"}},
		{"overcommit", files{"proc/sys/vm/overcommit_memory": "2\n"}, nil, "overcommit", Note, nil},
		{"odd meminfo", files{"proc/meminfo": "MemTotal: many kB\n"}, nil, "memory", Note, []string{`"many kB"`}},
		{"group", files{"sys/fs/cgroup/system.slice/memory.max": "2147483648\n", "sys/fs/cgroup/system.slice/memory.current": "1073741824\n",
			"sys/fs/cgroup/system.slice/kvlend.service/memory.max": "max\n"}, nil, "control group", Note, []string{"2 GiB", "1 GiB are left"}},
		{"group of version 1", v1.with(files{"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1048576", "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "2097152",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}), nil, "control group", Note, []string{"1 MiB", "0 B are left"}},
		{"no limit in version 1", v1.with(files{"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712"}), nil, "control group", OK, nil},
		{"quota", files{"sys/fs/cgroup/system.slice/cpu.max": "150000 100000\n", "sys/fs/cgroup/system.slice/kvlend.service/cpu.max": "max 100000\n"}, nil, "CPU quota", Warning, []string{"1.5 cores of 8"}},
		{"quota of version 1", v1.with(files{"sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us": "50000", "sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us": "100000",
			"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}), nil, "CPU quota", Warning, []string{"0.5 cores"}},
		{"plain Go", nil, func(h *Host) { h.Kernels = func() []string { return []string{"go"} } }, "engine", Warning, []string{"slower"}},
		{"AVX-512 without BF16", files{"proc/cpuinfo": "flags : avx512f"}, func(h *Host) { h.Kernels = func() []string { return []string{"avx2", "go"} } }, "engine", OK, []string{"no BF16"}},
		{"locked memory", nil, func(h *Host) { h.Rlimit = limitOf(unix.RLIMIT_MEMLOCK, 8<<20) }, "locked memory", Warning, []string{"8 MiB", "32 MiB", "LimitMEMLOCK"}},
		{"locked memory, capable", files{"proc/self/status": "CapEff:\t0000000000004000\n"}, func(h *Host) { h.Rlimit = limitOf(unix.RLIMIT_MEMLOCK, 8<<20) }, "locked memory", OK, []string{"CAP_IPC_LOCK"}},
		{"locked memory, enough", nil, func(h *Host) { h.Rlimit = limitOf(unix.RLIMIT_MEMLOCK, 64<<20) }, "locked memory", OK, []string{"64 MiB"}},
		{"open files", nil, func(h *Host) { h.Rlimit = limitOf(unix.RLIMIT_NOFILE, 1024) }, "open files", Warning, []string{"1024", "2048"}},
		{"processes", nil, func(h *Host) { h.Rlimit = limitOf(unix.RLIMIT_NPROC, 100) }, "processes", Warning, []string{"RLIMIT_NPROC allows 100"}},
		{"processes of root", nil, func(h *Host) { h.Rlimit, h.UID = limitOf(unix.RLIMIT_NPROC, 100), 0 }, "processes", OK, nil},
		{"pids of the group", files{"sys/fs/cgroup/system.slice/pids.max": "64"}, nil, "processes", Warning, []string{"pids.max", "64"}},
		{"address space", nil, func(h *Host) { h.Rlimit = limitOf(unix.RLIMIT_AS, 1<<30) }, "address space", Warning, []string{"1 GiB"}},
		{"old kernel", nil, func(h *Host) { h.Release = func() (string, error) { return "5.3.18-lp", nil } }, "version", Problem, nil},
		{"older kernel", nil, func(h *Host) { h.Release = func() (string, error) { return "5.15.0", nil } }, "version", Note, []string{"6.1"}},
		{"odd kernel", nil, func(h *Host) { h.Release = func() (string, error) { return "odd", nil } }, "version", Note, nil},
		{"no passthrough", nil, func(h *Host) {
			h.Ring = func(pass bool) (f ring.Features, err error) {
				if f.Deferred = true; pass {
					err = errOdd
				}
				return f, err
			}
		}, "NVMe passthrough", Note, nil},
		{"slow ring", nil, func(h *Host) { h.Ring = func(bool) (ring.Features, error) { return ring.Features{}, nil } }, "io_uring", Note, []string{"6.1"}},
		{"no memfd", nil, func(h *Host) { h.Memfd = func() error { return unix.EACCES } }, "shared memory", Problem, []string{"memfd_noexec"}},
		{"no pidfd", nil, func(h *Host) { h.Pidfd = func() error { return unix.ENOSYS } }, "pidfd", Problem, []string{"5.4"}},
		{"no O_DIRECT", nil, func(h *Host) { h.Direct = func(string) error { return unix.EINVAL } }, "temporary directory", Note, []string{"page cache"}},
		{"full", nil, func(h *Host) { h.Direct = func(string) error { return unix.ENOSPC } }, "temporary directory", Note, []string{"no space left"}},
		{"pod", nil, func(h *Host) { h.Getenv = env("KUBERNETES_SERVICE_HOST", "10.0.0.1") }, "container", Note, []string{"Kubernetes"}},
		{"docker", files{".dockerenv": ""}, nil, "container", Note, []string{"Docker"}},
		{"podman", files{"run/.containerenv": ""}, nil, "container", Note, []string{"Podman"}},
		{"nspawn", nil, func(h *Host) { h.Getenv = env("container", "systemd-nspawn") }, "container", Note, []string{"systemd-nspawn"}},
		{"by its group", files{"proc/1/cgroup": "1:name=systemd:/docker/abc\n", "proc/self/status": "Seccomp:\t2\n"}, nil, "container", Note, []string{"docker (by"}},
		{"seccomp", files{".dockerenv": "", "proc/self/status": "Seccomp:\t2\n"}, nil, "seccomp", Note, nil},
	} {
		h := machine(plain.with(c.more))
		if c.edit != nil {
			c.edit(h)
		}
		expect(t, c.name, examine(t, h, Options{}), c.what, c.level, c.words...)
	}
}

func env(name, value string) func(string) string {
	return func(n string) string {
		if n == name {
			return value
		}
		return ""
	}
}

// TestWhyNoRing: the hint is about what refuses.
func TestWhyNoRing(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("%w: io_uring_setup: %w", ring.ErrUnsupported, err) }
	for _, c := range []struct {
		more files
		err  error
		want string
	}{
		{files{"proc/sys/kernel/io_uring_disabled": "2\n"}, wrap(unix.EPERM), "io_uring_disabled is 2"},
		{files{"proc/sys/kernel/io_uring_disabled": "1\n", "proc/sys/kernel/io_uring_group": "44\n"}, wrap(unix.EPERM), "join group 44"},
		{files{"proc/sys/kernel/io_uring_disabled": "0\n"}, wrap(unix.EPERM), "seccomp"},
		{nil, wrap(unix.EACCES), "seccomp"},
		{nil, wrap(unix.ENOSYS), "Linux 5.11"},
		{nil, wrap(unix.ENOMEM), "RLIMIT_MEMLOCK"},
		{nil, fmt.Errorf("%w: operation 4 is unknown", ring.ErrUnsupported), "Linux 5.11"},
	} {
		h := machine(plain.with(c.more))
		h.Ring = func(bool) (ring.Features, error) { return ring.Features{}, c.err }
		expect(t, c.want, examine(t, h, Options{}), "io_uring", Warning, c.want, "not available")
	}
}

func TestVersion(t *testing.T) {
	for in, want := range map[string][2]int{"6.1.0-18-amd64": {6, 1}, "5.10": {5, 10}, "6.18.44-fc-v657": {6, 18}, "4.19rc1.x": {4, 19}, "6": {-1, -1}, "": {-1, -1}, "a.b": {-1, -1}, "6.": {-1, -1}} {
		major, minor, ok := version(in)
		if ok != (want[0] >= 0) || ok && (major != want[0] || minor != want[1]) {
			t.Errorf("%q: %d.%d, %v", in, major, minor, ok)
		}
	}
}

// FuzzOddFiles: whatever the files of a machine hold, the examination ends with
// a report.
func FuzzOddFiles(f *testing.F) {
	for _, text := range plain {
		f.Add(text)
	}
	f.Add("5:cpu,memory,pids:/../../x\n")
	f.Add("max 0\n")
	f.Add("18446744073709551615")
	f.Fuzz(func(t *testing.T, text string) {
		odd := files{}
		for name := range withGPUs {
			odd[name] = text
		}
		for _, name := range []string{"proc/sys/kernel/io_uring_disabled", "sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current", "sys/fs/cgroup/cpu.max",
			"sys/fs/cgroup/pids.max", "proc/1/cgroup", "proc/driver/nvidia/version", "proc/sys/vm/overcommit_memory"} {
			odd[name] = text
		}
		h := machine(odd)
		h.Ring = func(bool) (ring.Features, error) { return ring.Features{}, unix.EPERM }
		r := Run(t.Context(), h, Options{Limit: time.Minute})
		if len(r.Sections) < 6 {
			t.Fatalf("%+v", r)
		}
		for _, s := range r.Sections {
			for _, f := range s.Findings {
				if strings.Contains(f.Found, "could not be looked at") {
					t.Fatalf("%+v", f)
				}
			}
		}
	})
}

// TestThisMachine runs every probe for real.
func TestThisMachine(t *testing.T) {
	h := NewHost()
	h.TempDir = t.TempDir()
	r := Run(t.Context(), h, Options{System: system(t, "gateway: {listen: 127.0.0.1:0}", nil), RunDir: t.TempDir() + "/run"})
	for _, what := range []string{"memory", "engine", "shared memory", "pidfd", "version"} {
		if f := worst(r, what); f.Level == "" || f.Level == Problem {
			t.Errorf("%s: %+v", what, f)
		}
	}
	if err := h.Direct(h.TempDir + "/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("O_DIRECT in a directory that is not there: %v", err)
	}
	left, err := fs.Glob(h.Root, strings.TrimPrefix(h.TempDir, "/")+"/*")
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}
