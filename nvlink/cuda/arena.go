//go:build cuda && cgo

package cuda

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/kvlend/kvlend/nvlink"
)

const (
	maxSize     = 1 << 46
	arenaClosed = -1 << 62
)

// Arena is an nvlink.Arena in device memory, or in pinned host memory. It is
// used with the fabric that made or opened it, and may outlive that.
type Arena struct {
	m      *machine
	name   string
	device string
	dev    *device // that holds it, nil: the host
	with   *device // whose goroutine allocates and frees
	size   int64
	kind   MemoryKind
	id     [16]byte // the same for all mappings of the memory
	at     uint64   // address for devices
	mem    []byte   // host memory

	own    bool     // made here
	mapped int64    // VMM: size in whole granules
	handle uint64   // VMM
	ipc    [64]byte // IPC: its handle, once exported or opened
	mapper []bool   // VMM: which devices have access, by index

	// refs counts batches that are queued or running on this arena.
	// Close sets it to arenaClosed, which it may do only from zero.
	refs atomic.Int64

	close    sync.Once
	closeErr error
}

var _ nvlink.Arena = (*Arena)(nil)

// NewArena allocates size bytes of zeroed device memory on a device of the
// fabric, as the fabric's Config.Memory says. It takes whole granules, usually
// of 2 MiB.
func (f *Fabric) NewArena(name, dev string, size int64) (*Arena, error) {
	d, err := f.arenaDevice(name, dev, size)
	if err != nil {
		return nil, err
	}
	a := &Arena{m: f.m, name: name, device: dev, dev: d, size: size, with: d, own: true, kind: f.cfg.Memory}
	rand.Read(a.id[:])
	if a.kind == "" {
		a.kind = d.sharing()
	}
	if a.kind == VMM && !d.vmm {
		return nil, fmt.Errorf("arena %q: %s cannot export VMM memory as a file descriptor", name, dev)
	}
	if err := d.do(a.allocate); err != nil {
		return nil, fmt.Errorf("arena %q of %d bytes: %w", name, size, err)
	}
	f.m.retain()
	if err := a.wipe(); err != nil {
		return nil, errors.Join(fmt.Errorf("arena %q of %d bytes: %w", name, size, err), a.Close())
	}
	return a, nil
}

func (f *Fabric) arenaDevice(name, dev string, size int64) (*device, error) {
	if name == "" || len(name) > 200 {
		return nil, fmt.Errorf("arena name %q has %d bytes; want 1 to 200", name, len(name))
	}
	if size <= 0 || size > maxSize {
		return nil, fmt.Errorf("arena %q: size %d; want 1 to %d", name, size, int64(maxSize))
	}
	d := f.m.device(dev)
	if d == nil {
		return nil, fmt.Errorf("arena %q: unknown device %q; known are %q", name, dev, f.m.names())
	}
	return d, nil
}

// Open opens an arena that another process has exported, which its Device names
// as this fabric does. file is what Export gave for VMM memory, nil for IPC; it
// stays the caller's, who may close it.
func (f *Fabric) Open(h Handle, file *os.File, name string) (*Arena, error) {
	a := &Arena{m: f.m, name: name, with: f.m.home, size: h.Size, kind: h.Kind, id: h.ID, ipc: h.IPC}
	for _, d := range f.m.devs {
		if d.uuid == h.Device {
			a.dev, a.device = d, d.name
		}
	}
	if a.dev == nil {
		return nil, fmt.Errorf("arena %q is on the device with UUID %x; this fabric has %q", name, h.Device, f.m.names())
	}
	if _, err := f.arenaDevice(name, a.device, h.Size); err != nil {
		return nil, err
	}
	var err error
	switch {
	case h.Kind == IPC:
		a.with = a.dev // whose context must be that of the memory
		err = a.with.do(a.openIPC)
	case h.Kind != VMM:
		err = fmt.Errorf("handle of kind %q; want %q or %q", h.Kind, VMM, IPC)
	case file == nil:
		err = errors.New("VMM memory comes with a file")
	default:
		err = a.with.do(func() error { return a.openVMM(file) })
	}
	if err != nil {
		return nil, fmt.Errorf("open arena %q of %d bytes: %w", name, h.Size, err)
	}
	f.m.retain()
	return a, nil
}

// NewHostArena allocates pinned host memory, which is zero. device is the name
// that Device answers, any but that of a GPU.
func (f *Fabric) NewHostArena(name, device string, size int64) (*Arena, error) {
	return f.hostArena(name, device, size, nil)
}

// RegisterHost pins memory that is there, say a shm arena's Bytes, until Close.
// The memory must outlive the arena; it begins and ends on page boundaries.
func (f *Fabric) RegisterHost(name, device string, mem []byte) (*Arena, error) {
	return f.hostArena(name, device, int64(len(mem)), mem)
}

func (f *Fabric) hostArena(name, device string, size int64, mem []byte) (*Arena, error) {
	if _, err := f.arenaDevice(name, f.m.devs[0].name, size); err != nil {
		return nil, err
	}
	if device == "" || f.m.device(device) != nil {
		return nil, fmt.Errorf("host arena %q: device is %q; want a name that is not a GPU's", name, device)
	}
	d := f.m.home
	a := &Arena{m: f.m, name: name, device: device, with: d, size: size, own: true, kind: Pinned, mem: mem}
	rand.Read(a.id[:])
	err := d.do(func() (err error) {
		if mem != nil {
			a.kind = Registered
			a.at, err = f.m.drv.hostRegister(d, mem)
			return err
		}
		a.mem, a.at, err = f.m.drv.hostAlloc(d, size)
		clear(a.mem)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("host arena %q of %d bytes: %w", name, size, err)
	}
	f.m.retain()
	return a, nil
}

// Name is the name given when it was made or opened.
func (a *Arena) Name() string { return a.name }

// Device names the device that holds the arena.
func (a *Arena) Device() string { return a.device }

// Size is the size in bytes.
func (a *Arena) Size() int64 { return a.size }

// Kind says what memory it is.
func (a *Arena) Kind() MemoryKind { return a.kind }

// Bytes is the memory of a host arena, nil for device memory.
func (a *Arena) Bytes() []byte { return a.mem }

// Export gives what another process needs to open the arena. The file, nil for
// IPC memory, is the caller's to pass on and to close.
func (a *Arena) Export() (h Handle, file *os.File, err error) {
	if err := a.Hold(); err != nil {
		return Handle{}, nil, err
	}
	defer a.Release()
	if a.dev == nil || !a.own {
		return Handle{}, nil, fmt.Errorf("export arena %q: only the owner of device memory can", a.name)
	}
	h = Handle{Kind: a.kind, Size: a.size, Device: a.dev.uuid, ID: a.id}
	err = a.dev.do(func() (err error) {
		if a.kind == VMM {
			file, err = a.m.drv.vmmExport(a.dev, a.handle, a.name)
			return err
		}
		h.IPC, err = a.m.drv.ipcGet(a.dev, a.at)
		return err
	})
	if err != nil {
		return Handle{}, nil, fmt.Errorf("export arena %q: %w", a.name, err)
	}
	return h, file, nil
}

// Close frees the memory, or for an arena that was opened forgets it. It answers
// nvlink.ErrBusy while a stream has copies from or to it in its queue. Memory
// that other processes have opened as VMM stays until they close it; that of
// IPC must not be closed before they have.
func (a *Arena) Close() error {
	if !a.refs.CompareAndSwap(0, arenaClosed) && a.refs.Load() >= 0 {
		return fmt.Errorf("close arena %q: %w", a.name, nvlink.ErrBusy)
	}
	a.close.Do(func() {
		if err := a.with.do(a.free); err != nil {
			a.closeErr = fmt.Errorf("close arena %q: %w", a.name, err)
		}
		a.closeErr = errors.Join(a.closeErr, a.m.release())
	})
	return a.closeErr
}

// Hold makes Close answer nvlink.ErrBusy until Release. On a closed arena it
// answers nvlink.ErrClosed.
func (a *Arena) Hold() error {
	if a.refs.Add(1) > 0 {
		return nil
	}
	a.refs.Add(-1)
	return fmt.Errorf("arena %q: %w", a.name, nvlink.ErrClosed)
}

// Release undoes one Hold.
func (a *Arena) Release() { a.refs.Add(-1) }

// ReadAt copies len(p) bytes at off to the host, on no stream: what streams
// copy at the same time may be torn. It implements io.ReaderAt.
func (a *Arena) ReadAt(p []byte, off int64) (int, error) {
	return a.access(p, off, "read", func(d *device) error { return a.m.drv.read(d, p, a.at+uint64(off)) })
}

// WriteAt copies p to the arena at off; see ReadAt. It implements io.WriterAt.
func (a *Arena) WriteAt(p []byte, off int64) (int, error) {
	return a.access(p, off, "write", func(d *device) error { return a.m.drv.write(d, a.at+uint64(off), p) })
}

func (a *Arena) access(p []byte, off int64, what string, f func(*device) error) (int, error) {
	if err := a.Hold(); err != nil {
		return 0, err
	}
	defer a.Release()
	if off < 0 || int64(len(p)) > a.size-off {
		return 0, fmt.Errorf("%s [%d, +%d) of arena %q with %d bytes: %w", what, off, len(p), a.name, a.size, nvlink.ErrBadSpan)
	}
	if len(p) == 0 {
		return 0, nil
	}
	d := a.near()
	if err := d.do(func() error { return f(d) }); err != nil {
		return 0, fmt.Errorf("%s arena %q: %w", what, a.name, err)
	}
	return len(p), nil
}

// near is a device that reaches the arena, one in use if there is any.
func (a *Arena) near() *device {
	if a.dev == nil {
		return a.with
	}
	if a.dev.started() {
		return a.dev
	}
	for _, d := range a.m.devs {
		if d.started() && a.reachedFrom(d) {
			return d
		}
	}
	return a.dev
}

// reachedFrom reports whether d reads and writes the arena itself.
func (a *Arena) reachedFrom(d *device) bool {
	switch {
	case a.dev == nil || a.dev == d && a.kind != VMM:
		return true
	case a.kind == VMM:
		return a.mapper[d.index]
	}
	return a.m.reaches(d, a.dev)
}
