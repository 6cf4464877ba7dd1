package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// namePrefix starts the name of each memfd, as seen in /proc/PID/maps.
const namePrefix = "kvlend:"

const (
	wantSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	maxSize   = 1 << 46
)

// Region is a shared range of bytes: a memfd and this process's mapping of
// it. Its size never changes.
type Region struct {
	name     string
	size     int64
	readOnly bool
	file     *os.File
	mem      []byte
	inode    uint64 // identifies the memory across mappings

	close    sync.Once
	closeErr error
}

// CreateRegion makes zeroed shared memory of size bytes, rounded up to whole
// pages in the kernel but not in Bytes.
func CreateRegion(name string, size int64) (*Region, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if size <= 0 || size > maxSize {
		return nil, fmt.Errorf("shared memory %q: size %d; want 1 to %d", name, size, int64(maxSize))
	}
	fd, err := unix.MemfdCreate(namePrefix+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("shared memory %q: memfd_create: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), namePrefix+name)
	r, err := sealAndMap(f, name, size)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return r, nil
}

func sealAndMap(f *os.File, name string, size int64) (*Region, error) {
	if err := f.Truncate(size); err != nil {
		return nil, fmt.Errorf("shared memory %q: set size %d: %w", name, size, err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, wantSeals|unix.F_SEAL_SEAL); err != nil {
		return nil, fmt.Errorf("shared memory %q: seal: %w", name, err)
	}
	return mapFile(f, name, size, false)
}

// OpenRegion maps shared memory that another process created and handed down
// as file descriptor fd. Its seals must rule out a change of size and its
// size must be size (0: whatever it is), because a page that vanishes under a
// mapping kills the process that touches it. On success the Region owns fd.
// A descriptor that was opened read-only gives a read-only Region.
func OpenRegion(fd int, name string, size int64) (*Region, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("shared memory %q: fd %d is not a memfd: %w", name, fd, err)
	}
	if seals&wantSeals != wantSeals {
		return nil, fmt.Errorf("shared memory %q: fd %d has seals %#x; want at least %#x (shrink, grow)", name, fd, seals, wantSeals)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, fmt.Errorf("shared memory %q: fd %d: %w", name, fd, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("shared memory %q: fd %d: %w", name, fd, err)
	}
	if st.Size <= 0 || st.Size > maxSize || (size != 0 && st.Size != size) {
		return nil, fmt.Errorf("shared memory %q: fd %d has %d bytes; want %d", name, fd, st.Size, size)
	}
	unix.CloseOnExec(fd)
	return mapFile(os.NewFile(uintptr(fd), namePrefix+name), name, st.Size, flags&unix.O_ACCMODE == unix.O_RDONLY)
}

func mapFile(f *os.File, name string, size int64, readOnly bool) (*Region, error) {
	prot := unix.PROT_READ | unix.PROT_WRITE
	if readOnly {
		prot = unix.PROT_READ
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("shared memory %q: %w", name, err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(size), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shared memory %q: map %d bytes: %w", name, size, err)
	}
	return &Region{name: name, size: size, readOnly: readOnly, file: f, mem: mem, inode: st.Ino}, nil
}

func checkName(name string) error {
	if name == "" || len(name) > 200 {
		return fmt.Errorf("shared memory name %q has %d bytes; want 1 to 200", name, len(name))
	}
	return nil
}

// Name is the name given at creation, without prefix.
func (r *Region) Name() string { return r.name }

// Size is the size in bytes.
func (r *Region) Size() int64 { return r.size }

// ReadOnly reports whether writing to Bytes faults.
func (r *Region) ReadOnly() bool { return r.readOnly }

// Bytes is the memory. It must not be used after Close.
func (r *Region) Bytes() []byte { return r.mem }

// File is the memfd, for handing down to a child (exec.Cmd.ExtraFiles). It
// belongs to the Region and is closed with it.
func (r *Region) File() *os.File { return r.file }

// ReadOnlyFile opens the memory once more, for reading only: who receives it
// can map but not change it. The caller closes it.
func (r *Region) ReadOnlyFile() (*os.File, error) {
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", r.file.Fd()))
	if err != nil {
		return nil, fmt.Errorf("shared memory %q: open read-only: %w", r.name, err)
	}
	return f, nil
}

// Forget tells the kernel that this mapping will not touch n bytes at off for
// a while: whole pages inside the range leave this process's resident set.
// The bytes themselves stay, and the next access maps them again, which costs
// about a microsecond per page; so forget what was given back, not what rests.
func (r *Region) Forget(off, n int64) error {
	return r.advise("forget", unix.MADV_DONTNEED, off, n)
}

// Prefault maps the whole pages inside n bytes at off for reading and writing
// (a read-only Region: for reading), so that later copies do not stop at each
// page. Call it for what was just borrowed, away from the critical path. The
// range enters this process's resident set. Linux before 5.14 answers EINVAL.
func (r *Region) Prefault(off, n int64) error {
	if r.readOnly {
		return r.advise("prefault", unix.MADV_POPULATE_READ, off, n)
	}
	return r.advise("prefault", unix.MADV_POPULATE_WRITE, off, n)
}

func (r *Region) advise(what string, advice int, off, n int64) error {
	if off < 0 || n < 0 || n > r.size-off {
		return fmt.Errorf("shared memory %q: %s [%d, +%d); size is %d", r.name, what, off, n, r.size)
	}
	page := int64(os.Getpagesize())
	lo, hi := (off+page-1)/page*page, (off+n)/page*page
	if off+n == r.size {
		hi = r.size
	}
	if lo >= hi {
		return nil
	}
	if err := unix.Madvise(r.mem[lo:hi], advice); err != nil {
		return fmt.Errorf("shared memory %q: %s [%d, +%d): %w", r.name, what, off, n, err)
	}
	return nil
}

// Close unmaps the memory and closes the file. Other mappings, here and in
// other processes, stay. Close may be called more than once.
func (r *Region) Close() error {
	r.close.Do(func() {
		r.closeErr = errors.Join(unix.Munmap(r.mem), r.file.Close())
	})
	return r.closeErr
}
