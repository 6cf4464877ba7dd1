package store

import (
	"context"
	"crypto/rand"

	"github.com/kvlend/kvlend/overflow/device"
)

// Format makes an empty store of a device. Without Options.Force it refuses
// every device that is not blank: it answers a *RefusedError that says what is
// there, another store, even an equal one, included. Blank means zeros in the first
// MiB, and zeros or what prewriting leaves (device.Untouched) in the last 128 KiB
// and in some hundred places between (Places).
//
// A crash while formatting leaves a device that is blank, damaged, or an empty
// store; never the old contents in a new store.
func Format(ctx context.Context, dev device.Device, o Options) error {
	l, err := newLayout(&o, dev.Info().Size)
	if err != nil {
		return err
	}
	d := newDisk(dev, &o)
	if !o.Force {
		if err := d.refuse(ctx, &o); err != nil {
			return err
		}
	}
	s := superblock{layout: l, uuid: o.UUID, identity: Digest(o.Identity), label: o.Label, generation: 1, base: 1}
	if s.uuid == [16]byte{} {
		rand.Read(s.uuid[:]) // never fails
	}
	// The copies go first, so that nothing old counts any more, and with them
	// all that others could recognise.
	header := d.memory(headerBytes)
	clear(header)
	if err := d.write(ctx, 0, header); err != nil {
		return err
	}
	if o.Force {
		if err := d.write(ctx, roundDown(dev.Info().Size)-tailBytes, header[:tailBytes]); err != nil {
			return err
		}
	}
	if err := d.sync(ctx); err != nil {
		return err
	}
	return d.writeSuper(ctx, &s, 0)
}

func roundDown(n int64) int64 { return n / device.Align * device.Align }

// refuse answers a *RefusedError if the device is not blank.
func (d *disk) refuse(ctx context.Context, o *Options) error {
	f, err := d.find(ctx)
	if err != nil {
		return err
	}
	if f.found == Ours {
		f.found, f.detail = f.super.matches(o)
	}
	if f.found == Blank {
		tail := d.memory(tailBytes)
		if err := d.read(ctx, roundDown(d.dev.Info().Size)-tailBytes, tail); err != nil {
			return err
		}
		if f.detail = tailSignature(tail); f.detail == "" {
			if f.detail, err = d.used(ctx); err != nil || f.detail == "" {
				return err
			}
		}
		f.found = Foreign
	}
	return &RefusedError{Device: d.dev.Info().Name, Found: f.found, Detail: f.detail}
}

// writeSuper writes both copies of a superblock, each durable before the next,
// beginning with copy first.
func (d *disk) writeSuper(ctx context.Context, s *superblock, first int) error {
	b := d.memory(superBytes)
	s.encode(b)
	for i := range 2 {
		off := int64(0)
		if (first+i)%2 == 1 {
			off = secondCopy
		}
		if err := d.write(ctx, off, b); err != nil {
			return err
		}
		if err := d.sync(ctx); err != nil {
			return err
		}
	}
	return nil
}
