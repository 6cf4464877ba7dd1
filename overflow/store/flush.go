package store

import (
	"context"
	"time"
)

// batchBytes is about how much of the log is written between two syncs. What a
// crash can tear lies within one batch.
const batchBytes = 2 << 20

// batchPages is how many pages a batch has at most.
func (l *layout) batchPages() int { return max(batchBytes/l.page, 4) }

// kick says whether the flusher has to look. The caller holds mu.
func (s *Store) kick() bool {
	n := len(s.dirty)
	return n == 1 && s.opt.FlushEvery > 0 || s.opt.FlushEntries > 0 && n >= s.opt.FlushEntries
}

func (s *Store) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run is the flusher.
func (s *Store) run(ctx context.Context) {
	defer close(s.done)
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	armed := false
	for {
		fired := false
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
			armed, fired = false, true
		}
		for s.due(fired) {
			fired = false
			s.flush(ctx)
		}
		s.mu.Lock()
		waiting := len(s.dirty) > 0 && s.failed == nil
		s.mu.Unlock()
		if waiting && !armed && s.opt.FlushEvery > 0 {
			timer.Reset(s.opt.FlushEvery)
			armed = true
		}
	}
}

// due says whether to flush now.
func (s *Store) due(fired bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil || s.closed {
		return false
	}
	return fired && len(s.dirty) > 0 || s.wanted > s.durable ||
		s.opt.FlushEntries > 0 && len(s.dirty) >= s.opt.FlushEntries
}

// Durable is the number of the last change up to which all are durable.
func (s *Store) Durable() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.durable
}

// Flush makes durable all that was committed and freed before it. Those who
// flush at the same time share the work. When ctx ends it returns ctx's error,
// and the work goes on.
func (s *Store) Flush(ctx context.Context) error {
	s.mu.Lock()
	target := s.number
	for {
		progress := s.progress
		switch {
		case s.durable >= target:
			s.mu.Unlock()
			return nil
		case s.failed != nil:
			defer s.mu.Unlock()
			return s.failed
		case s.closed:
			s.mu.Unlock()
			return ErrClosed
		}
		s.wanted = max(s.wanted, target)
		s.mu.Unlock()
		s.wakeUp()
		select {
		case <-progress:
		case <-ctx.Done():
			return ctx.Err()
		}
		s.mu.Lock()
	}
}

// Close flushes and ends the store; the device stays open. When ctx ends
// before, what is not durable is given up, and the error says so. Afterwards
// the store still answers questions about what it holds.
func (s *Store) Close(ctx context.Context) error {
	err := s.Flush(ctx)
	s.mu.Lock()
	if s.closed {
		err = nil
	}
	s.closed = true
	s.announce()
	s.mu.Unlock()
	s.cancel()
	<-s.done
	return err
}

// announce wakes all who wait for progress. The caller holds mu.
func (s *Store) announce() {
	close(s.progress)
	s.progress = make(chan struct{})
}

// flush writes all changes. Only the flusher calls it.
func (s *Store) flush(ctx context.Context) {
	s.logMu.Lock()
	target, err := s.writeChanges(ctx)
	s.logMu.Unlock()
	s.mu.Lock()
	if err != nil {
		s.failed = &FailedError{s.disk.dev.Info().Name, err}
	} else {
		if len(s.dirty) == 0 {
			// What changed meanwhile was written as well.
			target = s.number
		}
		s.durable = target
		s.stats.Flushes++
	}
	s.announce()
	failed, closed := s.failed, s.closed
	s.mu.Unlock()
	if failed != nil && !closed && s.opt.OnFail != nil {
		s.opt.OnFail(failed)
	}
}

// writeChanges makes durable what has changed and says up to which change. The
// caller holds logMu.
func (s *Store) writeChanges(ctx context.Context) (uint64, error) {
	s.mu.Lock()
	target := s.number
	todo := s.dirty
	s.dirty = s.spare[:0]
	s.mu.Unlock()
	defer func() { s.spare = todo[:0] }()
	if len(todo) == 0 {
		return target, nil
	}
	if err := s.raise(ctx); err != nil {
		return 0, err
	}
	if s.pages == nil {
		s.pages = s.disk.memory(min(s.layout.batchPages(), s.layout.areaPages) * s.layout.page)
	}
	for rest := todo; len(rest) > 0; {
		room := s.layout.areaPages - s.next
		if s.rewrite || room == 0 {
			return s.checkpoint(ctx, rest)
		}
		n, err := s.writeBatch(ctx, rest, room)
		if err != nil {
			return 0, err
		}
		rest = rest[n:]
	}
	return target, nil
}

// writeBatch makes durable the first of the changed slots, in up to room pages,
// and says how many it took.
func (s *Store) writeBatch(ctx context.Context, slots []Slot, room int) (int, error) {
	var b builder
	b.reset(&s.layout, s.pages[:min(len(s.pages), room*s.layout.page)])
	n := 0
	s.mu.Lock()
	for n < len(slots) && s.describe(&b, slots[n]) {
		n++
	}
	s.mu.Unlock()
	if len(b.pages) == 0 {
		return n, nil
	}
	out := b.seal(pageID{s.uuid, s.super.generation, uint64(s.next)})
	// The data of these blocks first.
	if err := s.disk.sync(ctx); err != nil {
		return 0, err
	}
	off := s.layout.area[s.super.active] + int64(s.next)*int64(s.layout.page)
	if err := s.disk.write(ctx, off, out); err != nil {
		return 0, err
	}
	if err := s.disk.sync(ctx); err != nil {
		return 0, err
	}
	s.next += len(b.pages)
	s.logged(len(out))
	return n, nil
}

// describe puts what a changed slot holds now and takes it off the changes. It
// says no if the builder is full. The caller holds mu.
func (s *Store) describe(b *builder, slot Slot) bool {
	live, logged := s.mem.has(slot, flagLive), s.mem.has(slot, flagLogged)
	if live {
		rec := b.record(kindEntries)
		if rec == nil {
			return false
		}
		s.mem.encode(rec, slot)
		s.mem.flags[slot] |= flagLogged
	} else if logged {
		rec := b.record(kindTombstones)
		if rec == nil {
			return false
		}
		putTombstone(rec, slot, s.number)
		s.mem.flags[slot] &^= flagLogged
	}
	s.mem.flags[slot] &^= flagDirty
	return true
}

// logged counts bytes written to the log.
func (s *Store) logged(n int) {
	s.mu.Lock()
	s.stats.LogBytes += int64(n)
	s.stats.LogUsed = s.next
	s.mu.Unlock()
}

// raise begins an epoch before the first page of this life is written. The
// caller holds logMu.
func (s *Store) raise(ctx context.Context) error {
	if s.raised {
		return nil
	}
	super := s.super
	super.generation++
	super.head = s.next
	if err := s.install(ctx, super); err != nil {
		return err
	}
	s.raised = true
	return nil
}

// install makes a superblock the store's. The caller holds logMu.
func (s *Store) install(ctx context.Context, super superblock) error {
	// The copy that is older goes first: a crash in between leaves the other.
	if err := s.disk.writeSuper(ctx, &super, 1-s.copy); err != nil {
		return err
	}
	s.copy = 1 - s.copy
	s.super = super
	s.logged(2 * superBytes)
	return nil
}

// checkpoint writes what is live to the other area and makes it the active one.
// The changed slots in rest need nothing more. It says up to which change all
// is durable then. The caller holds logMu.
//
// Others go on meanwhile. A slot that changes before the checkpoint comes to it
// is written as it is then, one that changes later is among the next changes;
// either way it is a change again.
func (s *Store) checkpoint(ctx context.Context, rest []Slot) (uint64, error) {
	s.mu.Lock()
	target := s.number
	for _, slots := range [][]Slot{rest, s.dirty} {
		for _, slot := range slots {
			s.mem.flags[slot] &^= flagDirty
		}
	}
	s.dirty = s.dirty[:0]
	s.mu.Unlock()
	super := s.super
	super.generation++
	super.active = 1 - super.active
	super.base = super.generation
	var err error
	if super.head, err = s.writeLive(ctx, &super); err != nil {
		return 0, err
	}
	// This makes the checkpoint durable, and the data of what it names.
	if err := s.disk.sync(ctx); err != nil {
		return 0, err
	}
	if err := s.install(ctx, super); err != nil {
		return 0, err
	}
	s.next, s.rewrite = super.head, false
	s.logged(super.head * s.layout.page)
	s.mu.Lock()
	s.stats.Checkpoints++
	s.mu.Unlock()
	return target, nil
}

// writeLive writes the live entries to the area of super and says in how many
// pages. While one half of the memory is on its way, the other is filled.
func (s *Store) writeLive(ctx context.Context, super *superblock) (int, error) {
	half := len(s.pages) / s.layout.page / 2 * s.layout.page
	halves := [2][]byte{s.pages[:half], s.pages[half : 2*half]}
	var b builder
	var flying *batch
	pages := 0
	for slot, turn := Slot(0), 0; int(slot) < s.layout.Slots; turn++ {
		b.reset(&s.layout, halves[turn%2])
		slot = s.describeLive(&b, slot)
		out := b.seal(pageID{s.uuid, super.generation, uint64(pages)})
		if flying != nil {
			if err := s.disk.wait(ctx, flying); err != nil {
				return 0, err
			}
			flying = nil
		}
		if len(out) == 0 {
			break
		}
		var err error
		off := s.layout.area[super.active] + int64(pages)*int64(s.layout.page)
		if flying, err = s.disk.start(true, off, out); err != nil {
			return 0, err
		}
		pages += len(b.pages)
	}
	if flying == nil {
		return pages, nil
	}
	return pages, s.disk.wait(ctx, flying)
}

// describeLive puts live entries from slot on until the builder is full, and
// says where to go on.
func (s *Store) describeLive(b *builder, slot Slot) Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; int(slot) < s.layout.Slots; slot++ {
		if !s.mem.has(slot, flagLive) {
			s.mem.flags[slot] &^= flagLogged
			continue
		}
		rec := b.record(kindEntries)
		if rec == nil {
			break
		}
		s.mem.encode(rec, slot)
		s.mem.flags[slot] |= flagLogged
	}
	return slot
}
