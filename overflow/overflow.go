// Package overflow puts the overflow pool of one model together: what fits on no
// GPU is kept on its devices, and outlives the process (Unified KV Pooling).
//
// Its parts are packages of their own: ring (io_uring), device (files, block
// devices, NVMe namespaces and DRAM behind one interface), store (blocks on one
// device that survive a crash), stream (devices as far arenas of nvlink streams),
// placement (which device gets what) and admission (what is worth a write). The
// master decides what goes where and when.
package overflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
	// namespace (/dev/ngXnY), which is driven by passthrough.
	Path string
	// Block is the block device of an NVMe namespace, for when passthrough fails.
	Block string
	// Size is how much is used, in bytes, rounded down to 4096; 0: all there is.
	Size int64
	// Budget is for its endurance.
	Budget admission.BudgetOptions
}

// Options describe a pool.
type Options struct {
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
	opt      DeviceOptions
}

// Pool is the open devices of a model.
type Pool struct {
	Devices []*Device
	// Out are devices that could not be opened, by name, and why. The pool works
	// without them.
	Out    map[string]error
	opt    Options
	engine *device.Engine
}

// Open opens the devices. Those that cannot be are in Out; the error is one of
// all of them.
func Open(ctx context.Context, o Options) (*Pool, error) {
	e, err := device.NewEngine(o.Engine)
	if err != nil {
		return nil, fmt.Errorf("overflow: %w", err)
	}
	p := &Pool{opt: o, engine: e, Out: map[string]error{}}
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
	raw, err := OpenDevice(ctx, p.engine, o, p.opt.Create, p.opt.Progress)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			raw.Close()
		}
	}()
	so := p.opt.Store
	so.Label = o.Name
	d = &Device{Device: raw, opt: o, Arena: stream.NewArena(raw)}
	if d.Budget, err = admission.NewBudget(o.Budget); err != nil {
		return nil, err
	}
	d.Store, d.Recovery, err = store.Open(ctx, raw, so)
	var refused *store.RefusedError
	if errors.As(err, &refused) && refused.Found == store.Blank && p.opt.Create {
		if err = store.Format(ctx, raw, so); err == nil {
			d.Store, d.Recovery, err = store.Open(ctx, raw, so)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := d.measure(ctx, p.engine); err != nil {
		return nil, errors.Join(err, d.Store.Close(ctx))
	}
	d.loadBudget()
	return d, nil
}

// OpenDevice opens what o describes as a device of e.
func OpenDevice(ctx context.Context, e *device.Engine, o DeviceOptions, create bool, progress func(name string, done, total int64)) (device.Device, error) {
	size := o.Size / device.Align * device.Align
	if strings.HasPrefix(filepath.Base(o.Path), "ng") && strings.HasPrefix(o.Path, "/dev/") {
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

// state is what is remembered of a device beside its data.
type state struct {
	UUID    string         `json:"store"`
	Profile device.Profile `json:"profile"`
	Budget  []byte         `json:"budget,omitempty"`
}

// statePath is the file beside a device's file where its state is kept. What is
// not a file has none: it is measured at each start, and its budget begins anew.
func (o *DeviceOptions) statePath() string {
	if info, err := os.Stat(o.Path); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return o.Path + ".state"
}

func (d *Device) uuid() string { return fmt.Sprintf("%x", d.Store.Info().UUID) }

func (d *Device) state() (s state, ok bool) {
	raw, err := os.ReadFile(d.opt.statePath())
	if err != nil || json.Unmarshal(raw, &s) != nil || s.UUID != d.uuid() {
		return state{}, false
	}
	return s, true
}

func (d *Device) loadBudget() {
	if s, ok := d.state(); ok && s.Budget != nil {
		// A state that does not fit is none.
		_ = d.Budget.UnmarshalBinary(s.Budget)
	}
}

// SaveState remembers a device's measurements and budget.
func (d *Device) SaveState() error {
	path := d.opt.statePath()
	if path == "" {
		return nil
	}
	b, err := d.Budget.MarshalBinary()
	if err != nil {
		return err
	}
	raw, err := json.MarshalIndent(state{d.uuid(), d.Profile, b}, "", "  ")
	if err != nil {
		return err
	}
	next := path + ".new"
	if err := os.WriteFile(next, raw, 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// measure finds out what reads of the device achieve, unless that is known.
func (d *Device) measure(ctx context.Context, e *device.Engine) error {
	if s, ok := d.state(); ok && s.Profile.Device == d.opt.Name && s.Profile.Degraded == d.Info().Degraded {
		d.Profile = s.Profile
		return nil
	}
	return d.Measure(ctx, e, device.MeasureOptions{Sizes: []int{64 << 10, 256 << 10}, Depths: []int{1, 16}, PerPoint: 20 * time.Millisecond})
}

// Measure measures reads of what the store holds, over all of the device, and
// remembers it. The device must have been written once.
func (d *Device) Measure(ctx context.Context, e *device.Engine, o device.MeasureOptions) error {
	o.Written, o.Writes = true, false
	p, err := device.Measure(ctx, d.Device, o)
	if err != nil {
		return fmt.Errorf("measuring %s: %w", d.opt.Name, err)
	}
	d.Profile = p
	return d.SaveState()
}

// Rate is the bandwidth of large reads in bytes per second; 0: not known.
func (d *Device) Rate() float64 {
	rate, _ := d.Profile.Read.Best(256 << 10)
	return rate
}

// Meter is what the device achieves; nil: that is not known.
func (d *Device) Meter() *device.Meter {
	if m, ok := d.Device.(device.Metered); ok {
		return m.Meter()
	}
	return nil
}

// Stream opens a stream to and from the devices. OnError hears of their errors,
// on the stream's goroutine.
func (p *Pool) Stream(name string, onError func(*device.Error)) (*stream.Stream, error) {
	return stream.New(stream.Options{
		Name: name, Memory: p.engine.Memory().For(name), Timeout: p.opt.Timeout, OnError: onError,
	})
}

// Engine says how I/O is done.
func (p *Pool) Engine() device.EngineStats { return p.engine.Stats() }

// Close makes durable what was committed and closes everything. Streams must be
// closed before.
func (p *Pool) Close(ctx context.Context) error {
	var errs []error
	for _, d := range p.Devices {
		errs = append(errs, d.Store.Flush(ctx), d.SaveState(), d.Store.Close(ctx), d.Device.Close())
	}
	errs = append(errs, p.engine.Close())
	return errors.Join(errs...)
}
