package overflow

import (
	"context"
	"errors"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/store"
)

// Benched is what Bench measured.
type Benched struct {
	Device  device.Info
	Blocks  int // that lie there
	Profile device.Profile
	// Other says whose data lies there if not this model's; empty: it is, or
	// Options.Store has no Identity.
	Other string
}

// Bench measures a device that nobody serves from, and remembers it. Writes are
// measured only if writes says so and the device has no blocks.
func Bench(ctx context.Context, o Options, d DeviceOptions, writes bool) (b *Benched, err error) {
	e, err := device.NewEngine(o.Engine)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	raw, err := OpenDevice(ctx, e, d, false, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, raw.Close()) }()
	if d.Path == MemoryPath {
		m := o.measure(writes)
		m.Written = true
		p, err := device.Measure(ctx, raw, m)
		return &Benched{Device: raw.Info(), Profile: p}, err
	}
	so := o.Store
	so.Identity = nil // whatever it is that lies there
	s, _, err := store.Open(ctx, raw, so)
	if err != nil {
		return nil, err
	}
	b = &Benched{Device: raw.Info(), Blocks: s.Stats().Live}
	info := s.Info()
	if o.Store.Identity != nil {
		b.Other = belongs(info, o.Store.Identity, o.label(d))
	}
	if err := s.Close(ctx); err != nil {
		return nil, err
	}
	b.Profile, err = measure(ctx, raw, info.Geometry, b.Blocks == 0, o.measure(writes))
	if err != nil {
		return nil, err
	}
	old, _ := d.load(uuidText(info.UUID))
	keep := state{UUID: uuidText(info.UUID), Profile: b.Profile, Budget: old.Budget}
	if keep.Profile.Write == nil {
		keep.Profile.Write = old.Profile.Write
	}
	return b, d.save(keep)
}
