package store

import (
	"context"
	"errors"
	"time"

	"github.com/kvlend/kvlend/overflow/device"
)

// Open opens the store on a device. It syncs the device, so that what it finds
// stays: a process that was killed may have left it in the device's cache. It
// reads the log, never the data, and writes nothing: the first flush does. A device that holds no store, or
// another one than the options ask for, is a *RefusedError.
//
// What the log names may not be what lies in the slots: data can rot, and slots
// are used again. Whoever reads a block verifies its checksums.
func Open(ctx context.Context, dev device.Device, o Options) (*Store, Recovery, error) {
	began := time.Now()
	d := newDisk(dev, &o)
	f, err := d.find(ctx)
	if err != nil {
		return nil, Recovery{}, err
	}
	if f.found == Ours {
		f.found, f.detail = f.super.matches(&o)
	}
	if f.found != Ours {
		return nil, Recovery{}, &RefusedError{dev.Info().Name, f.found, f.detail}
	}
	if err := d.sync(ctx); err != nil && !errors.Is(err, device.ErrReadOnly) {
		return nil, Recovery{}, err
	}
	s := newStore(d, &o, &f)
	r, err := s.recover(ctx)
	if err != nil {
		return nil, r, err
	}
	r.Took = time.Since(began)
	var life context.Context
	life, s.cancel = context.WithCancel(context.Background())
	go s.run(life)
	return s, r, nil
}

// recover fills the memory from the log. Nobody else knows the store yet.
func (s *Store) recover(ctx context.Context) (Recovery, error) {
	var r Recovery
	found, err := s.disk.scan(ctx, &s.super, func(rec []byte) { s.replay(rec, &r) })
	if err != nil {
		return r, err
	}
	r.Torn, r.Holes, r.Pages = found.torn, found.holes, found.pages
	s.next = found.next
	s.stats.LogUsed = found.next
	// Where pages are missing, later ones could come to be read in the wrong
	// order one day. The log is written anew.
	s.rewrite = found.torn > 0 || found.holes > 0
	for slot := range Slot(s.layout.Slots) {
		if s.mem.has(slot, flagLive) {
			s.adopt(slot, &r)
		}
	}
	r.Entries = s.table.n
	s.durable = s.number
	for _, slot := range s.dirty {
		s.change(slot)
	}
	return r, nil
}

// replay applies one record of the log.
func (s *Store) replay(rec []byte, r *Recovery) {
	slot := recordSlot(rec)
	if int(slot) >= s.layout.Slots {
		r.Dropped++
		return
	}
	s.number = max(s.number, recordNumber(rec))
	if s.mem.has(slot, flagLive) {
		r.Superseded++
	}
	if len(rec) == tombstoneBytes {
		r.Tombstones++
		s.mem.flags[slot] = 0
		return
	}
	s.mem.decode(rec)
	s.mem.flags[slot] = flagLive | flagLogged
}

// adopt makes a slot that the log names live. Of two with one key the later
// one stays: the other was freed, which its tombstone was too late to say.
func (s *Store) adopt(slot Slot, r *Recovery) {
	key := s.mem.key(slot)
	if other, ok := s.table.find(key); ok {
		r.Superseded++
		old := slot
		if s.mem.head(slot).number > s.mem.head(other).number {
			old = other
			s.table.remove(key, other)
			s.alloc.release(other)
		}
		s.mem.flags[old] = flagLogged | flagDirty
		s.dirty = append(s.dirty, old)
		if old == slot {
			return
		}
	}
	s.table.insert(key, slot)
	s.alloc.take(slot)
}
