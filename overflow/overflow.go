// Package overflow puts the overflow pool of one model together: what fits on no
// GPU is kept on its devices, and outlives the process (Unified KV Pooling).
//
// Its parts are packages of their own: ring (io_uring), device (files, block
// devices, NVMe namespaces and DRAM behind one interface), store (blocks on one
// device that survive a crash), stream (devices as far arenas of nvlink streams),
// placement (which device gets what) and admission (what is worth a write). The
// master decides what goes where and when.
//
// # Entries smaller than blocks
//
// Co-activation (SWARM) selects entries: the KV of some tokens of one layer. What is
// here leaves room for them. A store's superblock has a table of regions: a region of
// entries, with a log of its own records, is a kind that stores of today refuse as
// another version rather than overlook. A stream takes lists of pieces of any length at
// offsets that are multiples of 4096,
// joins neighbours, divides thousands of them among devices and submits each device's
// in one call (stream.Options.Gap reads over small gaps); device.Submit takes any
// number of I/Os of 4 KiB and more. An entry on several devices is several
// pieces to choose from before the list is made: placement knows devices by their index
// and load, and the index of such replicas belongs to who clusters them. Checksums are
// per piece of the caller's choosing; a store's records have one per layer block.
package overflow

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/overflow/admission"
	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/store"
	"github.com/kvlend/kvlend/overflow/stream"
)

// DeviceOptions describe a device of a pool.
type DeviceOptions struct {
	Name string
	// Path is a file, a block device, or the character device of an NVMe
	// namespace (/dev/ngXnY), which is driven by passthrough. MemoryPath means
	// memory of this process, which ends with it.
	Path string
	// NUMANode is where such memory lies; negative: anywhere.
	NUMANode int
	// Block is the block device of an NVMe namespace, for when passthrough fails.
	Block string
	// Size is how much is used, in bytes, rounded down to 4096; 0: all there is.
	Size int64
	// Budget is for its endurance.
	Budget admission.BudgetOptions
}

// MemoryPath is the path of a device that is DRAM.
const MemoryPath = "dram"

// Options describe a pool.
type Options struct {
	// Model is whose pool it is, for people.
	Model   string
	Devices []DeviceOptions
	// Store is the shape of the blocks, and the identity of what they hold.
	Store store.Options
	// Engine is how I/O is done.
	Engine device.EngineOptions
	// Create makes files that are missing, and formats blank devices. Nothing
	// else is ever overwritten.
	Create bool
	// Timeout is how long a device may take for one operation.
	Timeout time.Duration
	// Measure says at which sizes and depths, and for how long, Format and Bench
	// measure; zero values mean the defaults.
	Measure device.MeasureOptions
	// Progress is told of the making of files, in bytes; nil: nobody is.
	Progress func(name string, done, total int64)
}

// Device is a device of a pool and its store.
type Device struct {
	device.Device
	Store    *store.Store
	Recovery store.Recovery
	Profile  device.Profile // what it was measured to do
	Arena    *stream.Arena
	Budget   *admission.Budget
	// Doubt is until when, in Unix seconds, what was stored may have lost its place
	// to another block without a trace: a crash followed. 0: never.
	Doubt int64
	opt   DeviceOptions
	ended bool // in good order

	unsaved  atomic.Int64 // bytes that Budget has granted and that are not remembered
	saveEach int64
	spent    chan<- *Device
}

// Pool is the open devices of a model.
type Pool struct {
	Devices []*Device
	// Out are devices that could not be opened, by name, and why. The pool works
	// without them.
	Out map[string]error
	// Odd says of devices, by name, what an operator should know although they work.
	Odd    map[string]string
	opt    Options
	engine *device.Engine

	spent chan *Device // whose budgets are to be saved
	stop  context.CancelFunc
	ended chan struct{} // keepBudgets has
}

// Open opens the devices. Those that cannot be are in Out; the error is one of
// all of them.
func Open(ctx context.Context, o Options) (*Pool, error) {
	e, err := device.NewEngine(o.Engine)
	if err != nil {
		return nil, fmt.Errorf("overflow: %w", err)
	}
	p := &Pool{opt: o, engine: e, Out: map[string]error{}, Odd: map[string]string{}, spent: make(chan *Device, 1), ended: make(chan struct{})}
	var life context.Context
	life, p.stop = context.WithCancel(context.WithoutCancel(ctx))
	go p.keepBudgets(life)
	for _, do := range o.Devices {
		d, err := p.open(ctx, do)
		if ctx.Err() != nil {
			return nil, errors.Join(ctx.Err(), p.Close(context.WithoutCancel(ctx)))
		}
		if err != nil {
			p.Out[do.Name] = err
			continue
		}
		p.Devices = append(p.Devices, d)
	}
	return p, nil
}

func (p *Pool) open(ctx context.Context, o DeviceOptions) (d *Device, err error) {
	if p.opt.Create {
		in, err := refuseFile(ctx, p.engine, o, isForeign)
		if err != nil {
			return nil, err
		}
		if in.Found == store.Ours {
			o.Size = p.sizeOf(o)
		}
	}
	raw, err := p.openFree(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			raw.Close()
		}
	}()
	so := p.opt.Store
	so.Label = p.opt.label(o)
	d = &Device{Device: raw, opt: o, Arena: stream.NewArena(raw), spent: p.spent}
	if d.Budget, err = admission.NewBudget(o.Budget); err != nil {
		return nil, err
	}
	d.saveEach = min(max(d.Budget.Usage().Burst/budgetShare, budgetLeast), budgetMost)
	if o.Budget.PerDay == 0 {
		d.saveEach = budgetMost
	}
	d.Store, d.Recovery, err = store.Open(ctx, raw, so)
	var refused *store.RefusedError
	if errors.As(err, &refused) && refused.Found == store.Blank && (p.opt.Create || o.Path == MemoryPath) {
		if err = store.Format(ctx, raw, so); err == nil {
			d.Store, d.Recovery, err = store.Open(ctx, raw, so)
		}
	}
	if err != nil {
		return nil, err
	}
	d.loadNote() // before it is saved
	if !d.Volatile() {
		if err := d.saveNote(); err != nil { // it is in use from now on
			return nil, errors.Join(err, d.Store.Close(ctx))
		}
	}
	if err := d.measure(ctx); err != nil {
		return nil, errors.Join(err, d.Store.Close(ctx))
	}
	return d, nil
}

// sizeOf is the size of a file that holds a store: it keeps the one that it was made
// with. A configuration that says otherwise is odd.
func (p *Pool) sizeOf(o DeviceOptions) int64 {
	info, err := os.Stat(o.Path)
	if err != nil {
		return o.Size
	}
	if size := o.Size / device.Align * device.Align; size > info.Size() {
		p.Odd[o.Name] = fmt.Sprintf("the store was made with %d bytes, and the configuration says %d: it stays as it is until it is made anew (kvlend pool format --force)", info.Size(), size)
		return info.Size()
	}
	return o.Size
}

// isNVMe reports that a path is an NVMe namespace's character device.
func isNVMe(path string) bool {
	return strings.HasPrefix(filepath.Base(path), "ng") && strings.HasPrefix(path, "/dev/")
}

// inUseFor is how long a device may be in use by a process that has just been
// killed: the kernel ends its I/O before it lets go of files.
const inUseFor = 3 * time.Second

// openFree opens a device, for which it waits a while if another process has it.
func (p *Pool) openFree(ctx context.Context, o DeviceOptions) (device.Device, error) {
	limit := time.NewTimer(inUseFor)
	defer limit.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		d, err := OpenDevice(ctx, p.engine, o, p.opt.Create, p.opt.Progress)
		if !errors.Is(err, device.ErrInUse) {
			return d, err
		}
		select {
		case <-again.C:
		case <-limit.C:
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// OpenDevice opens what o describes as a device of e.
func OpenDevice(ctx context.Context, e *device.Engine, o DeviceOptions, create bool, progress func(name string, done, total int64)) (device.Device, error) {
	size := o.Size / device.Align * device.Align
	if o.Path == MemoryPath {
		return device.OpenDRAM(e, device.DRAMOptions{Name: o.Name, Size: size, NUMANode: max(0, o.NUMANode+1), HugePages: true})
	}
	if isNVMe(o.Path) {
		return device.OpenNVMe(ctx, e, device.NVMeOptions{Name: o.Name, Path: o.Path, Block: o.Block, Size: size})
	}
	do := device.Options{Name: o.Name, Path: o.Path, Size: size, Create: create && size > 0}
	if info, err := os.Stat(o.Path); err == nil && !info.Mode().IsRegular() {
		do.Create = false
	}

	if progress != nil {
		do.Progress = func(done, total int64) { progress(o.Name, done, total) }
	}
	return device.Open(ctx, e, do)
}

func (d *Device) uuid() string { return uuidText(d.Store.Info().UUID) }

// SaveState remembers a device's measurements, and on the device its note.
func (d *Device) SaveState() error {
	if d.Volatile() {
		return nil
	}
	return errors.Join(d.opt.save(state{UUID: d.uuid(), Profile: d.Profile}), d.saveNote())
}

// Take asks the budget for n bytes. What was granted is remembered on the device now
// and then, so that a crash forgets little of it. It does not wait for the device.
func (d *Device) Take(n int64) bool {
	if !d.Budget.Take(n) {
		return false
	}
	if d.unsaved.Add(n) >= d.saveEach {
		select {
		case d.spent <- d:
		default: // it is asked again with the next
		}
	}
	return true
}

// The state of a budget is kept when a share of its burst was granted, within bounds:
// it costs two small writes and syncs.
const (
	budgetShare = 16
	budgetLeast = 4 << 20
	budgetMost  = 64 << 30
)

// keepBudgets saves the budgets of devices that ask for it.
func (p *Pool) keepBudgets(ctx context.Context) {
	defer close(p.ended)
	for {
		select {
		case <-ctx.Done():
			return
		case d := <-p.spent:
			if d.unsaved.Load() >= d.saveEach {
				// A device that fails says so by its log.
				_ = d.saveNote()
			}
		}
	}
}

// measure finds out what reads of the device achieve, unless that is known.
func (d *Device) measure(ctx context.Context) error {
	if s, ok := d.opt.load(d.uuid()); ok && s.Profile.Device == d.opt.Name && s.Profile.Degraded == d.Info().Degraded {
		d.Profile = s.Profile
		return nil
	}
	return d.Measure(ctx, device.MeasureOptions{Sizes: []int{64 << 10, 256 << 10}, Depths: []int{1, 16}, PerPoint: 20 * time.Millisecond})
}

// Measure measures reads, and remembers them. Nobody else may use the device
// meanwhile.
func (d *Device) Measure(ctx context.Context, o device.MeasureOptions) (err error) {
	o.Writes = false
	if d.Profile, err = measure(ctx, d.Device, d.Store.Geometry(), d.Store.Stats().Live == 0, o); err != nil {
		return err
	}
	return d.SaveState()
}

// Rate is the bandwidth of large reads in bytes per second; 0: not known.
func (d *Device) Rate() float64 {
	rate, _ := d.Profile.Read.Best(256 << 10)
	return rate
}

// Volatile reports that what the device holds ends with the process.
func (d *Device) Volatile() bool { return d.opt.Path == MemoryPath }

// Meter is what the device achieves; nil: that is not known.
func (d *Device) Meter() *device.Meter {
	if m, ok := d.Device.(device.Metered); ok {
		return m.Meter()
	}
	return nil
}

// Stream opens a stream to and from the devices. A device may take no longer than
// limit, or the pool's Timeout if that is less. OnError hears of their errors, on
// the stream's goroutine.
func (p *Pool) Stream(name string, limit time.Duration, onError func(*device.Error)) (*stream.Stream, error) {
	return stream.New(stream.Options{
		Name: name, Memory: p.engine.Memory().For(name), Timeout: min(limit, p.opt.Timeout), OnError: onError,
	})
}

// Engine says how I/O is done.
func (p *Pool) Engine() device.EngineStats { return p.engine.Stats() }

// Close makes durable what was committed and closes everything. Streams must be
// closed before. A device whose reads are no longer as they were measured is
// measured anew when it is opened next.
func (p *Pool) Close(ctx context.Context) error {
	p.stop()
	<-p.ended
	var errs []error
	for _, d := range p.Devices {
		if _, drifted := d.Drifted(); drifted {
			d.Profile = device.Profile{}
		}
		err := d.Store.Flush(ctx)
		d.ended = err == nil
		errs = append(errs, err, d.SaveState(), d.Store.Close(ctx), d.Device.Close())
	}
	errs = append(errs, p.engine.Close())
	return errors.Join(errs...)
}
