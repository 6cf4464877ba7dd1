//go:build cuda && cgo

package cuda

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvlend/kvlend/nvlink"
)

// Config configures a Fabric. The zero value uses all devices of the installed
// driver.
type Config struct {
	// Library is the driver, a path or a name for the loader; libcuda.so.1.
	Library string
	// Devices names the devices in the driver's order; an empty name leaves one
	// out. Nil: all, as gpu0, gpu1, ...
	Devices []string
	// Home is the device whose context serves where any would; the first one.
	Home string
	// Memory is the kind of new arenas, VMM or IPC; empty: VMM where the driver makes
	// such, which is tried once for each device, else IPC.
	Memory MemoryKind
	// Crossover is the size in bytes of runs from which the copy engine takes
	// them; 0: it is measured when a device's first stream opens, which takes
	// some milliseconds and 32 MiB of its memory for a moment.
	Crossover int64
	// Spin is how long the host asks in a loop whether work has ended before it
	// sleeps until then: asking is faster by some ten microseconds, and takes a
	// core. 0: 20 us; negative: not at all.
	Spin time.Duration
	// Staging is the size of each of the two pinned buffers that a stream has
	// for copies between devices without peer access, in bytes; 4 MiB.
	Staging int64
	// Lost is told, once, of the first error after which a context is lost: what
	// uses the device fails from then on, and the process should end. It is called
	// on whichever goroutine met it, and must not call the fabric.
	Lost func(error)
	// Notice is told, once for each pair of devices, that copies take a detour
	// through host memory, and once that the driver refuses batched calls, and
	// why. It is called on a stream's goroutine.
	Notice func(string)
}

func (c Config) withDefaults() (Config, error) {
	if c.Library == "" {
		c.Library = "libcuda.so.1"
	}
	if c.Spin == 0 {
		c.Spin = 20 * time.Microsecond
	}
	if c.Staging == 0 {
		c.Staging = 4 << 20
	}
	if c.Notice == nil {
		c.Notice = func(string) {}
	}
	switch {
	case c.Memory != "" && c.Memory != VMM && c.Memory != IPC:
		return c, fmt.Errorf("cuda fabric: Memory is %q; want %q or %q", c.Memory, VMM, IPC)
	case c.Crossover < 0:
		return c, fmt.Errorf("cuda fabric: Crossover is %d bytes; want 0 or more", c.Crossover)
	case c.Staging < 4<<10 || c.Staging > 1<<30:
		return c, fmt.Errorf("cuda fabric: Staging is %d bytes; want %d to %d", c.Staging, 4<<10, 1<<30)
	case c.Spin > time.Second:
		return c, fmt.Errorf("cuda fabric: Spin is %v; want at most 1s", c.Spin)
	}
	return c, nil
}

// Fabric is the cuda fabric of one process. It is safe for concurrent use.
type Fabric struct {
	cfg Config
	m   *machine

	mu      sync.Mutex
	closed  bool
	streams map[*Stream]struct{}
}

var _ nvlink.Fabric = (*Fabric)(nil)

// New opens the driver. Devices get a context, which takes some hundred MiB of
// their memory, when they are first used. Without a driver the error is a
// *LoadError, without a GPU an *Error.
func New(cfg Config) (*Fabric, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	m, err := newMachine(cfg.Library, cfg.Devices)
	if err != nil {
		return nil, err
	}
	m.home, m.notice, m.drv.lost = m.devs[0], cfg.Notice, cfg.Lost
	if cfg.Home != "" {
		if m.home = m.device(cfg.Home); m.home == nil {
			return nil, errors.Join(fmt.Errorf("cuda fabric: Home is %q; known are %q", cfg.Home, m.names()), m.release())
		}
	}
	return &Fabric{cfg: cfg, m: m, streams: map[*Stream]struct{}{}}, nil
}

// Kind is "cuda".
func (f *Fabric) Kind() string { return "cuda" }

// Emulated reports whether the driver is the fake one of the tests.
func (f *Fabric) Emulated() bool { return f.m.drv.fake() }

// NewStream starts a stream of device dev.
func (f *Fabric) NewStream(dev, name string) (nvlink.Stream, error) { return f.Stream(dev, name) }

// Stream is NewStream with the stream's own type.
func (f *Fabric) Stream(dev, name string) (*Stream, error) { return f.StreamAt(dev, name, 0) }

// StreamAt is Stream with a crossover of its own, in bytes, 0: the device's. It
// is for measurements: 1 gives all to the copy engine, 1<<40 all to the kernel.
func (f *Fabric) StreamAt(dev, name string, crossover int64) (*Stream, error) {
	if crossover < 0 {
		return nil, fmt.Errorf("stream %q: a crossover of %d bytes; want 0 or more", name, crossover)
	}
	d := f.m.device(dev)
	if d == nil {
		return nil, fmt.Errorf("stream %q: unknown device %q; known are %q", name, dev, f.m.names())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, fmt.Errorf("stream %q: cuda fabric: %w", name, nvlink.ErrClosed)
	}
	ln, err := f.lane(d)
	if err != nil {
		return nil, fmt.Errorf("stream %q: %w", name, err)
	}
	if crossover > 0 {
		ln.from = uint64(crossover)
	}
	s := newStream(f, name, ln)
	f.streams[s] = struct{}{}
	return s, nil
}

// lane opens a CUDA stream on a device whose crossover is known.
func (f *Fabric) lane(d *device) (*lane, error) {
	if err := d.start(); err != nil {
		return nil, err
	}
	if err := d.settle(f.cfg.Crossover); err != nil {
		return nil, err
	}
	return newLane(d)
}

// Close closes the streams that are still open, waiting for what they have in
// their queues. Arenas stay open.
func (f *Fabric) Close() error {
	f.mu.Lock()
	first := !f.closed
	f.closed = true
	open := make([]*Stream, 0, len(f.streams))
	for s := range f.streams {
		open = append(open, s)
	}
	f.mu.Unlock()
	var errs []error
	for _, s := range open {
		errs = append(errs, s.Close())
	}
	if first {
		errs = append(errs, f.m.release())
	}
	return errors.Join(errs...)
}

func (f *Fabric) forget(s *Stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.streams, s)
}
