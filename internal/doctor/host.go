package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/internal/fabrics"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/nvlink/nvml"
	"github.com/kvlend/kvlend/nvlink/topology"
	"github.com/kvlend/kvlend/overflow/ring"
)

// Host is what probes ask of a machine. Nothing of it changes the machine.
type Host struct {
	// Root is the file system from / on: proc/meminfo, sys, dev, etc.
	Root   fs.FS
	Getenv func(string) string
	UID    int
	// CPUs is how many cores this process may run on.
	CPUs    int
	TempDir string
	// Kernels are the engine's instruction sets that work here, best first.
	Kernels func() []string
	// Rlimit is a resource limit of this process (unix.RLIMIT_...).
	Rlimit func(resource int) (uint64, error)
	// Release is the kernel's, "6.1.0-18-amd64".
	Release func() (string, error)
	// Ring opens an io_uring as the overflow pool does, and says what it came to
	// use.
	Ring func(passthrough bool) (ring.Features, error)
	// Memfd and Pidfd try what arenas and the supervisor need.
	Memfd, Pidfd func() error
	// Access tries whether this user may read and, perhaps, write a path.
	Access func(path string, write bool) error
	// Space is the file system that holds a path.
	Space func(path string) (Filesystem, error)
	// Direct tries O_DIRECT in a directory, without leaving anything there.
	Direct func(dir string) error
	// Listen tries to listen on a TCP address.
	Listen func(addr string) error
	// Stat follows links (os.Stat).
	Stat func(path string) (fs.FileInfo, error)
	// GPUs asks the driver's library.
	GPUs func(context.Context) (*topology.Inventory, error)
	// CUDA lists the GPUs that the CUDA driver shows; driver is its library.
	CUDA func(driver string) (*topology.Inventory, error)
	// Model says what keeps a model from being served.
	Model func(*configs.Model) error
}

// Filesystem is what statfs says.
type Filesystem struct {
	Type     string
	Free     uint64 // bytes, for this user
	ReadOnly bool
}

// NewHost is the machine that this process runs on.
func NewHost() *Host {
	return &Host{
		Root: os.DirFS("/"), Getenv: os.Getenv, UID: os.Getuid(), CPUs: runtime.NumCPU(), TempDir: os.TempDir(),
		Kernels: kernels.Available, Rlimit: rlimit, Release: release, Ring: openRing, Memfd: tryMemfd, Pidfd: tryPidfd,
		Access: access, Space: space, Direct: direct, Listen: listen, Stat: os.Stat, GPUs: nvml.Read, CUDA: fabrics.GPUs, Model: source.Check,
	}
}

func rlimit(resource int) (uint64, error) {
	var l unix.Rlimit
	err := unix.Getrlimit(resource, &l)
	return l.Cur, err
}

func release() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", err
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}

// openRing opens and closes a ring on a thread of its own, which ends with it.
func openRing(passthrough bool) (f ring.Features, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends here
		r, e := ring.New(ring.Options{Entries: 8, Completions: 16, Files: 1, Passthrough: passthrough})
		if e != nil {
			err = e
			return
		}
		f = r.Features()
		r.Close()
	}()
	<-done
	return f, err
}

func tryMemfd() error {
	fd, err := unix.MemfdCreate("kvlend:doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	defer unix.Close(fd)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return fmt.Errorf("seals: %w", err)
	}
	return nil
}

func tryPidfd() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fmt.Errorf("pidfd_open: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, 0, nil, 0); err != nil {
		return fmt.Errorf("pidfd_send_signal: %w", err)
	}
	return nil
}

func access(path string, write bool) error {
	mode := uint32(unix.R_OK)
	if write {
		mode |= unix.W_OK
	}
	return unix.Access(path, mode)
}

// magics are file systems by the number that statfs gives.
var magics = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", unix.F2FS_SUPER_MAGIC: "f2fs", 0x2fc12fc1: "zfs",
	unix.FUSE_SUPER_MAGIC: "fuse", 0x01021997: "9p", 0xff534d42: "cifs", unix.RAMFS_MAGIC: "ramfs",
}

func space(path string) (Filesystem, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Filesystem{}, err
	}
	name, ok := magics[int64(st.Type)]
	if !ok {
		name = fmt.Sprintf("type %#x", st.Type)
	}
	return Filesystem{Type: name, Free: st.Bavail * uint64(st.Bsize), ReadOnly: st.Flags&unix.ST_RDONLY != 0}, nil
}

// direct uses a file without a name where the file system knows such, and else
// one that it removes.
func direct(dir string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC|unix.O_DIRECT, 0o600)
	if err == nil {
		return unix.Close(fd)
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	f, err := os.CreateTemp(dir, ".kvlend-doctor-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	fd, err = unix.Open(filepath.Clean(f.Name()), unix.O_RDWR|unix.O_CLOEXEC|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func listen(addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	return ln.Close()
}
