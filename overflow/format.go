package overflow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/store"
)

// ErrMemory says that a device is memory: there is nothing on it to format or to
// check while no process serves from it.
var ErrMemory = errors.New("it is memory, which begins empty with each process")

// Formatted says what Format did to a device.
type Formatted struct {
	Device device.Info
	// Before is what was on it, with Detail in words.
	Before store.Found
	Detail string
	Store  store.Info
	// Profile is what reads and writes achieved, before there was data.
	Profile device.Profile
}

// Format makes an empty store of a device that nobody serves from, and measures
// it. A file that is missing or too short is made, and written everywhere. With
// force whatever the device holds is lost; without, Format answers a
// *store.RefusedError unless it is blank, and has changed nothing then.
//
// When ctx ends while a file is made, the next Format goes on where it stopped.
func Format(ctx context.Context, o Options, d DeviceOptions, force bool) (f *Formatted, err error) {
	if d.Path == MemoryPath {
		return nil, fmt.Errorf("device %s: %w", d.Name, ErrMemory)
	}
	e, err := device.NewEngine(o.Engine)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if !force {
		if _, err := refuseFile(ctx, e, d, func(f store.Found) bool { return f != store.Blank }); err != nil {
			return nil, err
		}
	}
	raw, err := OpenDevice(ctx, e, d, true, o.Progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, raw.Close()) }()
	before, err := store.Inspect(ctx, raw)
	if err != nil {
		return nil, err
	}
	f = &Formatted{Device: raw.Info(), Before: before.Found, Detail: before.Detail}
	so := o.Store
	so.Label, so.Force = o.label(d), force
	if err := store.Format(ctx, raw, so); err != nil {
		return nil, err
	}
	now, err := store.Inspect(ctx, raw)
	if err != nil {
		return nil, err
	}
	f.Store = now.Info
	if f.Profile, err = measure(ctx, raw, now.Info.Geometry, true, o.measure(true)); err != nil {
		return nil, err
	}
	return f, d.save(state{UUID: uuidText(now.Info.UUID), Profile: f.Profile})
}

func (o *Options) measure(writes bool) device.MeasureOptions {
	m := o.Measure
	m.Writes = writes
	return m
}

// isForeign says what must not even be made longer: files of others, and stores of
// which a part is gone.
func isForeign(f store.Found) bool { return f == store.Foreign || f == store.Damaged }

// refuseFile answers a *store.RefusedError if a file that is there holds what
// refuse says, before anything is done to it: to make a foreign file longer would
// damage it already. What it holds is the zero Inspection where there is no such file.
func refuseFile(ctx context.Context, e *device.Engine, d DeviceOptions, refuse func(store.Found) bool) (in store.Inspection, err error) {
	info, err := os.Stat(d.Path)
	if err != nil || !info.Mode().IsRegular() {
		return in, nil // to be made; or what is not made longer
	}
	if info.Size() < device.Blank {
		return in, refuseShort(d)
	}
	raw, err := openToRead(ctx, e, d)
	if err != nil {
		return in, err
	}
	in, err = store.Inspect(ctx, raw)
	if err == nil && in.Found == store.Blank {
		if in.Detail, err = usedFile(d.Path, info.Size()); in.Detail != "" {
			in.Found = store.Foreign
		}
	}
	if err == nil && refuse(in.Found) {
		err = &store.RefusedError{Device: d.Name, Found: in.Found, Detail: in.Detail}
	}
	return in, errors.Join(err, raw.Close())
}

// usedFile looks for data behind the first MiB of a file that begins with zeros, where
// the file has any: holes cost nothing. Empty: it has found none.
func usedFile(path string, size int64) (detail string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() // nothing was written
	parts, total, err := dataOf(f, size)
	if err != nil {
		return "", fmt.Errorf("%s: where it has data: %w", path, err)
	}
	fresh, err := device.NewUntouched()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, fresh.Close()) }()
	places := store.Places(0, total)
	page := make([]byte, device.Align)
	for _, at := range places {
		for _, p := range parts {
			if at >= p.n {
				at -= p.n
				continue
			}
			n, err := f.ReadAt(page, p.off+at)
			if err != nil && !errors.Is(err, io.EOF) {
				return "", err
			}
			if !fresh.Is(p.off+at, page[:n]) {
				return store.Used(p.off+at, len(places)), nil
			}
			break
		}
	}
	return "", nil
}

// part is a piece of a file, in whole pages.
type part struct{ off, n int64 }

// dataOf lists the parts of a file behind its first MiB that were written, and how
// many bytes they have together.
func dataOf(f *os.File, size int64) (parts []part, total int64, err error) {
	for off := int64(device.Blank); off < size; {
		from, err := f.Seek(off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return parts, total, nil // a hole to the end
		}
		if err != nil {
			return nil, 0, err
		}
		to, err := f.Seek(from, unix.SEEK_HOLE)
		if err != nil {
			return nil, 0, err
		}
		from = from / device.Align * device.Align
		n := (min(to, size) - from + device.Align - 1) / device.Align * device.Align
		if n > 0 {
			parts = append(parts, part{from, n})
			total += n
		}
		off = max(to, from+1)
	}
	return parts, total, nil
}

// refuseShort is refuseFile for a file that is too short for a store: all of
// it must be what the making of a file begins with.
func refuseShort(d DeviceOptions) error {
	f, err := os.Open(d.Path)
	if err != nil {
		return fmt.Errorf("device %s: %w", d.Name, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, device.Blank))
	if err != nil {
		return fmt.Errorf("device %s: %w", d.Name, err)
	}
	if len(bytes.TrimLeft(data, "\x00")) > 0 {
		return &store.RefusedError{Device: d.Name, Found: store.Foreign, Detail: fmt.Sprintf("a file of %d bytes", len(data))}
	}
	return nil
}

// openToRead opens all of a device beside others who read it; device.ErrInUse
// while anybody may write to it.
func openToRead(ctx context.Context, e *device.Engine, d DeviceOptions) (device.Device, error) {
	if isNVMe(d.Path) {
		return device.OpenNVMe(ctx, e, device.NVMeOptions{Name: d.Name, Path: d.Path, Block: d.Block, ReadOnly: true})
	}
	return device.Open(ctx, e, device.Options{Name: d.Name, Path: d.Path, ReadOnly: true})
}

// measureSpan is how much of a block device or a namespace measurements use.
const measureSpan = 256 << 20

// measure measures a device in the place of its blocks. What was never written
// must not be read, or it would tell nothing: files are written when they are
// made; of other devices the same part is always measured, which is written here
// while the store is empty. Only then may o ask for writes.
func measure(ctx context.Context, d device.Device, g store.Geometry, empty bool, o device.MeasureOptions) (device.Profile, error) {
	info := d.Info()
	o.Written = true
	o.Off, o.Len = g.Base, int64(g.Slots)*int64(g.Layers)*g.Stride
	o.Writes = o.Writes && empty
	if info.Kind == device.Block || info.Kind == device.NVMe {
		if o.Len = min(o.Len, measureSpan); empty {
			if err := device.Prewrite(ctx, d, o.Off, o.Len, nil); err != nil {
				return device.Profile{}, err
			}
		}
	}
	p, err := device.Measure(ctx, d, o)
	if err != nil {
		return device.Profile{}, fmt.Errorf("measuring %s: %w", info.Name, err)
	}
	return p, nil
}
