package doctor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/overflow/ring"
)

// Defaults of the configuration, for a machine that is examined without one.
const (
	defaultBuffers     = 32 << 20
	defaultConnections = 2048
	// filesBeside connections: sockets of links, arenas, logs, devices.
	filesBeside = 256
	// fewProcesses is how many processes and threads may be too few: the Go
	// runtime starts threads as system calls block.
	fewProcesses = 512
	unlimited    = 1 << 62
	capIPCLock   = 14
)

// capable reports whether this process has a capability, by number.
func (h *Host) capable(n uint) bool {
	text, err := h.field("/proc/self/status", "CapEff")
	if err != nil {
		return h.UID == 0
	}
	mask, err := strconv.ParseUint(text, 16, 64)
	return err == nil && mask>>n&1 != 0
}

func (d *doctor) memlock(context.Context) []Finding {
	most, err := d.Rlimit(unix.RLIMIT_MEMLOCK)
	if err != nil {
		return unknown("locked memory", err)
	}
	need, whose := uint64(defaultBuffers), "models[].overflow.buffers is 32 MiB unless set"
	if d.System != nil {
		need, whose = 0, "models[].overflow.buffers of the configuration"
		for _, m := range d.System.Config.Models {
			if len(m.Overflow.Devices) > 0 && !m.Overflow.Portable {
				need += uint64(m.Overflow.Buffers)
			}
		}
	}
	switch {
	case most >= unlimited:
		return one(OK, "locked memory", "", "unlimited")
	case d.capable(capIPCLock):
		return one(OK, "locked memory", "", "RLIMIT_MEMLOCK is %s, which does not bind this process (CAP_IPC_LOCK)", size(most))
	case most < need:
		return one(Warning, "locked memory", "ulimit -l; LimitMEMLOCK=infinity of a systemd unit; --ulimit memlock=-1 of a container; or smaller buffers",
			"RLIMIT_MEMLOCK is %s for all processes of the user; the overflow pool locks %s (%s), and else maps memory for each operation, at more CPU time", size(most), size(need), whose)
	}
	return one(OK, "locked memory", "", "RLIMIT_MEMLOCK is %s, the overflow pool locks %s", size(most), size(need))
}

func (d *doctor) openFiles(context.Context) []Finding {
	most, err := d.Rlimit(unix.RLIMIT_NOFILE)
	if err != nil {
		return unknown("open files", err)
	}
	connections := uint64(defaultConnections)
	if d.System != nil {
		connections = uint64(d.System.Config.Gateway.MaxConnections)
	}
	if most < connections+filesBeside {
		return one(Warning, "open files", "ulimit -n, LimitNOFILE= of a systemd unit, --ulimit nofile= of a container; or a lower gateway.max_connections",
			"RLIMIT_NOFILE is %d; gateway.max_connections is %d, and other files need about %d", most, connections, filesBeside)
	}
	return one(OK, "open files", "", "%d, for %d connections", most, connections)
}

func (d *doctor) processes(context.Context) []Finding {
	most, err := d.Rlimit(unix.RLIMIT_NPROC)
	if err != nil {
		return unknown("processes", err)
	}
	which := "RLIMIT_NPROC"
	if d.UID == 0 || most >= unlimited {
		most, which = unlimited, ""
	}
	if n, _, ok := d.groupNumber("pids", "pids.max", "pids.max"); ok && n < most {
		most, which = n, "pids.max of the control group"
	}
	switch {
	case which == "":
		return one(OK, "processes", "", "no limit below the kernel's")
	case most < fewProcesses:
		return one(Warning, "processes", "ulimit -u, TasksMax= of a systemd unit, --pids-limit of a container",
			"%s allows %d processes and threads: Go's runtime dies when it cannot start a thread", which, most)
	}
	return one(OK, "processes", "", "%d processes and threads (%s)", most, which)
}

func (d *doctor) addressSpace(context.Context) []Finding {
	most, err := d.Rlimit(unix.RLIMIT_AS)
	switch {
	case err != nil:
		return unknown("address space", err)
	case most < unlimited:
		return one(Warning, "address space", "ulimit -v unlimited",
			"RLIMIT_AS is %s: a master maps its lenders' arenas beside its own, and CUDA reserves far more than it uses", size(most))
	}
	return one(OK, "address space", "", "unlimited")
}

// version returns the first two numbers of a kernel's release.
func version(release string) (major, minor int, ok bool) {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	digits := func(s string) (int, error) {
		end := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
		if end >= 0 {
			s = s[:end]
		}
		return strconv.Atoi(s)
	}
	major, err := digits(parts[0])
	if err != nil {
		return 0, 0, false
	}
	minor, err = digits(parts[1])
	return major, minor, err == nil
}

func (d *doctor) kernelVersion(context.Context) []Finding {
	r, err := d.Release()
	if err != nil {
		return unknown("version", err)
	}
	major, minor, ok := version(r)
	switch {
	case !ok:
		return one(Note, "version", "", "Linux %s", r)
	case major < 5 || major == 5 && minor < 4:
		return one(Problem, "version", "Linux 5.4 or later, better 6.1", "Linux %s: the supervisor needs pidfds", r)
	case major < 6 || major == 6 && minor < 1:
		return one(Note, "version", "Linux 6.1 or later", "Linux %s: works; the overflow pool takes more CPU time for each operation", r)
	}
	return one(OK, "version", "", "Linux %s", r)
}

func (d *doctor) ioUring(context.Context) []Finding {
	f, err := d.Ring(false)
	if err != nil {
		return one(Warning, "io_uring", d.ringHint(err), "not available: %v. The overflow pool goes without, at more CPU time", err)
	}
	out := one(OK, "io_uring", "", "%s", f)
	if !f.Deferred {
		out = one(Note, "io_uring", "Linux 6.1 or later", "%s; without deferred completions each operation costs an interrupt more", f)
	}
	if _, err := d.Ring(true); err != nil {
		return append(out, one(Note, "NVMe passthrough", "Linux 5.19 or later, if a device of the overflow pool is a namespace such as /dev/ng0n1", "not available: %v", err)...)
	}
	return append(out, one(OK, "NVMe passthrough", "", "the kernel knows it")...)
}

// ringHint says why the kernel refuses a ring.
func (d *doctor) ringHint(err error) string {
	mode, readErr := d.read("/proc/sys/kernel/io_uring_disabled")
	switch {
	case readErr == nil && mode == "2":
		return "sysctl kernel.io_uring_disabled is 2: set it to 0"
	case readErr == nil && mode == "1":
		group, _ := d.read("/proc/sys/kernel/io_uring_group")
		return fmt.Sprintf("sysctl kernel.io_uring_disabled is 1: set it to 0, or join group %s (kernel.io_uring_group)", group)
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		return "a seccomp profile forbids it, as those of containers do: allow io_uring_setup, io_uring_enter and io_uring_register"
	case errors.Is(err, unix.ENOSYS):
		return "Linux 5.11 or later; some sandboxes (gVisor) have none"
	case errors.Is(err, unix.ENOMEM):
		return "RLIMIT_MEMLOCK is too low for a ring: ulimit -l"
	case errors.Is(err, ring.ErrUnsupported):
		return "Linux 5.11 or later"
	}
	return ""
}

func (d *doctor) pidfd(context.Context) []Finding {
	if err := d.Pidfd(); err != nil {
		return one(Problem, "pidfd", "Linux 5.4 or later, and a seccomp profile that allows pidfd_open and pidfd_send_signal",
			"the supervisor cannot watch processes: %v", err)
	}
	return one(OK, "pidfd", "", "processes can be watched")
}

func (d *doctor) directIO(context.Context) []Finding {
	return d.directory("temporary directory", d.TempDir, Note)
}

// directory looks at the file system of a directory in which files of the
// overflow pool may lie. worse is the level of what is not as it could be.
func (d *doctor) directory(what, dir string, worse Level) []Finding {
	s, err := d.Space(dir)
	if err != nil {
		return one(worse, what, "", "%s: %v", dir, err)
	}
	err = d.Direct(dir)
	switch {
	case err == nil:
		return one(OK, what, "", "%s: %s, %s free, with O_DIRECT", dir, s.Type, size(s.Free))
	case errors.Is(err, unix.EINVAL):
		return one(worse, what, "a file system such as ext4 or xfs for files of the overflow pool",
			"%s: %s, %s free, without O_DIRECT: files of the overflow pool would go through the page cache", dir, s.Type, size(s.Free))
	}
	return one(worse, what, "", "%s: %s, %s free, no file can be made: %v", dir, s.Type, size(s.Free), err)
}

func (d *doctor) container(context.Context) []Finding {
	kind := d.containerKind()
	if kind == "" {
		return one(OK, "container", "", "none is noticed")
	}
	f := one(Note, "container", "what it confines shows above; --ulimit memlock=-1 --security-opt seccomp=PROFILE for a fast overflow pool", "%s", kind)
	if mode, err := d.field("/proc/self/status", "Seccomp"); err == nil && mode == "2" {
		f = append(f, one(Note, "seccomp", "", "a profile filters system calls")...)
	}
	return f
}

// containerKind names the container that this process is in; "": none.
func (d *doctor) containerKind() string {
	exists := func(name string) bool {
		_, err := d.read(name)
		return err == nil
	}
	switch c := d.Getenv("container"); {
	case d.Getenv("KUBERNETES_SERVICE_HOST") != "":
		return "a pod of Kubernetes"
	case exists("/.dockerenv"):
		return "Docker"
	case exists("/run/.containerenv"):
		return "Podman"
	case c != "":
		return c
	}
	text, err := d.read("/proc/1/cgroup")
	if err != nil {
		return ""
	}
	for _, word := range []string{"kubepods", "docker", "containerd", "lxc", "libpod"} {
		if strings.Contains(text, word) {
			return word + " (by its control group)"
		}
	}
	return ""
}
