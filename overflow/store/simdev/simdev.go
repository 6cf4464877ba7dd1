// Package simdev is a device in memory for tests. It has a volatile cache: what
// was written and not synced may be lost, torn or kept in any order when the
// power fails, as on a real disk. Everything is decided by the caller's seed
// and script, so that a run can be repeated.
package simdev

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kvlend/kvlend/overflow/device"
)

// sector is what a device writes whole or not at all, in bytes.
const sector = 512

// Options describe a device.
type Options struct {
	Name  string
	Size  int64 // bytes
	MaxIO int64 // Info.MaxIO; 0: 1 MiB
	// Async calls Done on a goroutine of its own; otherwise Submit calls it.
	Async bool
}

// Op is one operation, counted from 0: a write, a read or a sync.
type Op struct {
	N    int    // of this kind
	Kind string // "read", "write", "sync"
	Off  int64
	Len  int
}

// Device is a device in memory.
type Device struct {
	opt Options

	mu     sync.Mutex
	pages  map[int64]*[device.Align]byte // what reads see
	stable map[int64]*[device.Align]byte // what is durable; a page may be shared
	cache  []write                       // written and not synced, in order
	off    bool                          // power
	closed bool
	count  map[string]int
	steps  int // writes and syncs
	fuse   int // power fails before this step; negative: never
	fault  func(Op) error
	flying sync.WaitGroup
}

// write is one that is in the cache.
type write struct {
	off    int64
	data   []byte
	failed bool
}

// New is a device full of zeros.
func New(o Options) *Device {
	if o.MaxIO == 0 {
		o.MaxIO = 1 << 20
	}
	return &Device{
		opt: o, fuse: -1, count: map[string]int{},
		pages:  map[int64]*[device.Align]byte{},
		stable: map[int64]*[device.Align]byte{},
	}
}

// Info describes the device.
func (d *Device) Info() device.Info {
	return device.Info{Name: d.opt.Name, Kind: device.File, Size: d.opt.Size, MaxIO: d.opt.MaxIO}
}

// Fault sets what decides whether an operation fails: nil, or a function that
// answers the error, nil for none. It is called with the device's lock held.
func (d *Device) Fault(f func(Op) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = f
}

// CrashAt makes the power fail right before the n-th write or sync from now,
// counted from 0.
func (d *Device) CrashAt(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fuse = d.steps + n
}

// Steps is how many writes and syncs there have been.
func (d *Device) Steps() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.steps
}

// Off says whether the power has failed.
func (d *Device) Off() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.off
}

// Submit does the I/O.
func (d *Device) Submit(ios []*device.IO) error {
	for _, io := range ios {
		if io.Off < 0 || io.Off%device.Align != 0 || len(io.Buf) == 0 || len(io.Buf)%device.Align != 0 ||
			io.Off+int64(len(io.Buf)) > d.opt.Size || !aligned(io.Buf) {
			return d.failure(kindOf(io), io.Off, len(io.Buf), device.ErrUnaligned)
		}
	}
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return device.ErrClosed
	}
	d.flying.Add(1)
	d.mu.Unlock()
	serve := func() {
		defer d.flying.Done()
		for _, io := range ios {
			d.do(io)
			io.Done(io)
		}
	}
	if d.opt.Async {
		ios = slices.Clone(ios) // the list is the caller's
		go serve()
	} else {
		serve()
	}
	return nil
}

func kindOf(io *device.IO) string {
	if io.Write {
		return "write"
	}
	return "read"
}

func (d *Device) failure(op string, off int64, n int, err error) error {
	return &device.Error{Device: d.opt.Name, Op: op, Off: off, Len: n, Err: err}
}

// begin counts an operation and says whether it fails. The caller holds mu.
func (d *Device) begin(kind string, off int64, n int) error {
	op := Op{d.count[kind], kind, off, n}
	d.count[kind]++
	if kind != "read" {
		if d.steps == d.fuse {
			d.off = true
		}
		d.steps++
	}
	if d.off {
		return d.failure(kind, off, n, device.ErrGone)
	}
	if d.fault != nil {
		if err := d.fault(op); err != nil {
			return d.failure(kind, off, n, err)
		}
	}
	return nil
}

func (d *Device) do(io *device.IO) {
	d.mu.Lock()
	defer d.mu.Unlock()
	io.Began = time.Now()
	io.Err = d.begin(kindOf(io), io.Off, len(io.Buf))
	switch {
	case io.Err != nil && io.Write && (!d.off || d.steps == d.fuse+1):
		// A write that failed may have reached the medium all the same, and so
		// may the one during which the power failed.
		d.cache = append(d.cache, write{io.Off, bytes.Clone(io.Buf), true})
	case io.Err != nil:
	case io.Write:
		d.cache = append(d.cache, write{io.Off, bytes.Clone(io.Buf), false})
		put(d.pages, io.Off, io.Buf)
	default:
		get(d.pages, io.Off, io.Buf)
	}
	io.Ended = time.Now()
}

// put writes whole or partial pages; a page that may be shared is replaced. A
// page that is missing is zeros.
func put(pages map[int64]*[device.Align]byte, off int64, b []byte) {
	var zeros [device.Align]byte
	for len(b) > 0 {
		n, at := off/device.Align, int(off%device.Align)
		if at == 0 && len(b) >= device.Align && bytes.Equal(b[:device.Align], zeros[:]) {
			delete(pages, n)
			b, off = b[device.Align:], off+device.Align
			continue
		}
		var p [device.Align]byte
		if at != 0 || len(b) < device.Align {
			if old := pages[n]; old != nil {
				p = *old
			}
		}
		k := copy(p[at:], b)
		pages[n] = &p
		b, off = b[k:], off+int64(k)
	}
}

func get(pages map[int64]*[device.Align]byte, off int64, b []byte) {
	for ; len(b) > 0; b, off = b[device.Align:], off+device.Align {
		if p := pages[off/device.Align]; p != nil {
			copy(b, p[:])
		} else {
			clear(b[:device.Align])
		}
	}
}

// Cancel does nothing: I/O ends at once.
func (d *Device) Cancel(*device.IO) {}

// Sync makes durable what was written.
func (d *Device) Sync(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return device.ErrClosed
	}
	if err := d.begin("sync", 0, 0); err != nil {
		return err
	}
	for _, w := range d.cache {
		put(d.stable, w.off, w.data)
	}
	d.cache = nil
	return nil
}

// Close waits for what is in flight.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.flying.Wait()
	return nil
}

// Fate is what becomes of unsynced writes when the power fails.
type Fate int

// Fates.
const (
	Random  Fate = iota // each write by itself: kept, dropped or torn; any order
	DropAll             // none was kept
	KeepAll             // all were
	KeepNew             // only the newest: the others are dropped
	DropNew             // all but the newest
	Fates               // how many there are
)

// Crash is the device after a power failure and a restart: what was synced, and
// of the rest what fate and rng leave. The old device stays off.
func (d *Device) Crash(fate Fate, rng *rand.Rand) *Device {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.off = true
	n := New(d.opt)
	for i, p := range d.stable {
		n.stable[i] = p // put replaces, never changes
	}
	order := make([]int, len(d.cache))
	for i := range order {
		order[i] = i
	}
	if fate == Random {
		rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	for _, i := range order {
		newest := i == len(d.cache)-1
		switch {
		case fate == Random:
			tear(n.stable, d.cache[i], rng)
		case fate == KeepAll, fate == KeepNew && newest, fate == DropNew && !newest:
			put(n.stable, d.cache[i].off, d.cache[i].data)
		}
	}
	for i, p := range n.stable {
		n.pages[i] = p
	}
	return n
}

// tear keeps some of a write.
func tear(pages map[int64]*[device.Align]byte, w write, rng *rand.Rand) {
	unit := sector
	switch rng.IntN(4) {
	case 0: // dropped
	case 1:
		put(pages, w.off, w.data)
	case 2: // a part up to some sector, or from one on
		at := rng.IntN(len(w.data)/sector+1) * sector
		if rng.IntN(2) == 0 {
			put(pages, w.off, w.data[:at])
		} else {
			put(pages, w.off+int64(at), w.data[at:])
		}
	case 3: // any sectors, or pages
		if rng.IntN(2) == 0 {
			unit = device.Align
		}
		for at := 0; at < len(w.data); at += unit {
			if rng.IntN(2) == 0 {
				put(pages, w.off+int64(at), w.data[at:at+unit])
			}
		}
	}
}

// Restart makes of a power failure the death of the process alone: what was
// written is there, and what was not synced is still volatile. Writes that
// failed never happened.
func (d *Device) Restart() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cache = slices.DeleteFunc(d.cache, func(w write) bool { return w.failed })
	d.off, d.closed, d.fuse = false, false, -1
}

// Poke changes what is durable, as rot does.
func (d *Device) Poke(off int64, b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	put(d.stable, off, b)
	put(d.pages, off, b)
}

// Peek reads what reads see.
func (d *Device) Peek(off int64, b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var p [device.Align]byte
	for len(b) > 0 {
		get(d.pages, off/device.Align*device.Align, p[:])
		k := copy(b, p[off%device.Align:])
		b, off = b[k:], off+int64(k)
	}
}
