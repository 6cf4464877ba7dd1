package device

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/overflow/ring"
)

// Options of Open.
type Options struct {
	Name string // of the device; default: Path
	Path string // a file or a block device
	// Size is how much of it is used, in bytes, a multiple of Align. 0: all
	// there is.
	Size int64
	// Create makes a file that is missing or shorter than Size, and writes to
	// every byte that was never written: reads of such bytes would not touch the
	// disk, and writes would be slow. What the file held stays as it is. It has
	// no effect on a block device: Prewrite fills one.
	Create bool
	// Progress is told of Create's writing, in bytes.
	Progress func(done, total int64)
	ReadOnly bool
	// Buffered goes through the page cache. Without it that is done only where
	// the filesystem refuses O_DIRECT, and Info says so.
	Buffered bool
	// Depth is the most operations under way on the device (128).
	Depth int
	// MaxIO is above how many bytes an I/O is split, a multiple of Align (1 MiB).
	MaxIO int64
}

func (o Options) withDefaults() (Options, error) {
	if o.Name == "" {
		o.Name = o.Path
	}
	if o.Depth == 0 {
		o.Depth = 128
	}
	if o.MaxIO == 0 {
		o.MaxIO = 1 << 20
	}
	switch {
	case o.Path == "":
		return o, errors.New("no Path is given")
	case o.Size < 0 || o.Size%Align != 0:
		return o, fmt.Errorf("option Size %d is not a multiple of %d", o.Size, Align)
	case o.Create && o.ReadOnly:
		return o, errors.New("options Create and ReadOnly contradict each other")
	case o.Depth < 1 || o.Depth > maxOps:
		return o, fmt.Errorf("option Depth %d is not in 1..%d", o.Depth, maxOps)
	case o.MaxIO < Align || o.MaxIO%Align != 0 || o.MaxIO > 1<<30:
		return o, fmt.Errorf("option MaxIO %d is not a multiple of %d up to %d", o.MaxIO, Align, 1<<30)
	}
	return o, nil
}

// Open opens a file or a block device, which nobody else may have open for
// writing (ErrInUse). ctx ends the writing that Create asks for; it goes on
// where it stopped when the file is opened with Create again.
func Open(ctx context.Context, e *Engine, o Options) (Device, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, openError(o.Name, err)
	}
	m, info, err := openFile(ctx, e, o)
	if err != nil {
		return nil, openError(o.Name, err)
	}
	s, err := e.join(&store{e: e, medium: m, info: info, write: !o.ReadOnly, depth: o.Depth, meter: NewMeter()})
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return s, nil
}

// fileMedium is an open file or block device.
type fileMedium struct {
	fd   int
	slot int
	pool *pool // nil: the ring
}

func openFile(ctx context.Context, e *Engine, o Options) (*fileMedium, Info, error) {
	info := Info{Name: o.Name, Path: o.Path, MaxIO: o.MaxIO}
	fd, kind, err := openExclusive(o)
	if err != nil {
		return nil, info, err
	}
	m := &fileMedium{fd: fd}
	info.Kind = kind
	if kind == File && o.Create {
		if err = fill(ctx, fd, o.Size, o.Progress); err == nil {
			err = syncDir(o.Path)
		}
	}
	if err == nil {
		info.Size, err = usableSize(fd, o.Size)
	}
	if err == nil {
		info.Degraded, err = m.direct(info, o.Buffered)
	}
	if err != nil {
		return nil, info, errors.Join(err, m.close())
	}
	if kind == File {
		if n, err := unwritten(fd, 0, info.Size); err == nil && n > 0 {
			info.Degraded = note(info.Degraded, fmt.Sprintf("%d bytes were never written: reads of them do not touch the disk", n))
		}
	}
	if e.loop.ring == nil {
		m.pool = newPool(e, e.opts.Threads)
		info.Degraded = note(info.Degraded, fmt.Sprintf("%s: pread in %d threads", e.degraded, e.opts.Threads))
	} else {
		info.Degraded = note(info.Degraded, e.degraded)
	}
	return m, info, nil
}

// openExclusive opens o.Path against all others.
func openExclusive(o Options) (fd int, kind Kind, err error) {
	flags := unix.O_RDWR | unix.O_CLOEXEC
	if o.ReadOnly {
		flags = unix.O_RDONLY | unix.O_CLOEXEC
	}
	kind = File
	var st unix.Stat_t
	err = unix.Stat(o.Path, &st)
	switch {
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK:
		kind = Block
		flags |= unix.O_EXCL // of a block device: nobody else has it, no filesystem either
	case err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG:
		return -1, kind, fmt.Errorf("%s is neither a file nor a block device", o.Path)
	case errors.Is(err, unix.ENOENT) && o.Create:
		if o.Size == 0 {
			return -1, kind, fmt.Errorf("%s is to be created: Size must say how large", o.Path)
		}
		flags |= unix.O_CREAT
	case err != nil:
		return -1, kind, fmt.Errorf("%s: %w", o.Path, err)
	}
	fd, err = unix.Open(o.Path, flags, 0o600)
	if errors.Is(err, unix.EBUSY) {
		return -1, kind, fmt.Errorf("%s: %w", o.Path, wrap(ErrInUse, err))
	}
	if err != nil {
		return -1, kind, fmt.Errorf("%s: %w", o.Path, err)
	}
	how := unix.LOCK_EX
	if o.ReadOnly {
		how = unix.LOCK_SH
	}
	if err := unix.Flock(fd, how|unix.LOCK_NB); err != nil {
		// Nothing was done with the file: its closing cannot matter.
		_ = unix.Close(fd)
		return -1, kind, fmt.Errorf("%s: %w", o.Path, wrap(ErrInUse, err))
	}
	return fd, kind, nil
}

// usableSize is want, or all there is, in whole multiples of Align.
func usableSize(fd int, want int64) (int64, error) {
	n, err := unix.Seek(fd, 0, io.SeekEnd) // a block device has no size in its stat
	if err != nil {
		return 0, fmt.Errorf("size: %w", err)
	}
	n -= n % Align
	if n < max(want, Align) {
		return 0, fmt.Errorf("it holds %d bytes, %d are wanted", n, max(want, Align))
	}
	if want > 0 {
		n = want
	}
	return n, nil
}

// direct turns the page cache off, or says why it stays on.
func (m *fileMedium) direct(info Info, buffered bool) (degraded string, err error) {
	if buffered {
		return "configured to go through the page cache", nil
	}
	var st unix.Statx_t
	if err := unix.Statx(m.fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st); err == nil && st.Mask&unix.STATX_DIOALIGN != 0 &&
		max(st.Dio_mem_align, st.Dio_offset_align) > Align {
		return fmt.Sprintf("O_DIRECT needs alignment to %d: reads and writes go through the page cache",
			max(st.Dio_mem_align, st.Dio_offset_align)), nil
	}
	flags, err := unix.FcntlInt(uintptr(m.fd), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(m.fd), unix.F_SETFL, flags|unix.O_DIRECT)
	}
	if errors.Is(err, unix.EINVAL) {
		return "the filesystem refuses O_DIRECT: reads and writes go through the page cache", nil
	}
	if err != nil {
		return "", fmt.Errorf("O_DIRECT on %s: %w", info.Path, err)
	}
	return "", nil
}

func (m *fileMedium) attach(r *ring.Ring) (err error) {
	if r != nil {
		m.slot, err = r.AddFile(m.fd)
	}
	return err
}

func (m *fileMedium) detach(r *ring.Ring) error {
	if r == nil {
		return nil
	}
	return r.RemoveFile(m.slot)
}

func (m *fileMedium) threads() *pool { return m.pool }

func (m *fileMedium) prepare(r *ring.Ring, user uint64, o *op) {
	switch {
	case o.sync != nil:
		r.Sync(user, m.slot)
	case o.write:
		r.Write(user, m.slot, o.off, o.buf, o.region)
	default:
		r.Read(user, m.slot, o.off, o.buf, o.region)
	}
}

func (m *fileMedium) perform(o *op) int32 {
	var n int
	var err error
	switch {
	case o.sync != nil:
		err = unix.Fdatasync(m.fd)
	case o.write:
		n, err = unix.Pwrite(m.fd, o.buf, o.off)
	default:
		n, err = unix.Pread(m.fd, o.buf, o.off)
	}
	if err == nil {
		return int32(n)
	}
	errno := unix.EIO
	errors.As(err, &errno)
	return -int32(errno)
}

func (m *fileMedium) judge(o *op, res int32) verdict { return judgeErrno(o, res) }

func (m *fileMedium) close() error {
	if m.pool != nil {
		m.pool.close()
	}
	return unix.Close(m.fd) // which also unlocks it
}
