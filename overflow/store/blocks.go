package store

import (
	"context"
	"fmt"
	"iter"
	"sync"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/prefix"
)

// Store is an open store. Its methods are safe for concurrent use. Nobody else
// may write to its device, but to the slots that Alloc gave him.
type Store struct {
	opt    Options
	disk   disk
	layout layout // never changes
	uuid   [16]byte

	// logMu is held by who writes the log or reads it back. It comes before mu.
	logMu   sync.Mutex
	super   superblock // as on the device
	copy    int        // of the superblock that was written first the last time
	next    int        // page of the active area
	raised  bool       // the superblock's generation is this life's
	rewrite bool       // the area is damaged: nothing is appended to it
	pages   []byte     // to write from

	mu     sync.Mutex
	alloc  *allocator
	mem    memory
	table  *table
	dirty  []Slot // flagDirty, in the order of their first change
	spare  []Slot // what dirty was before
	number uint64 // of the last change
	// Changes up to durable are; somebody waits for those up to wanted.
	durable, wanted uint64
	progress        chan struct{} // closed when durable, failed or closed change
	failed          error
	closed          bool
	stats           Stats

	wake   chan struct{}
	done   chan struct{} // closed by the flusher
	cancel context.CancelFunc
}

func newStore(d disk, o *Options, f *finding) *Store {
	s := &Store{
		opt: *o, disk: d, layout: f.super.layout, uuid: f.super.uuid,
		super: f.super, copy: f.copy,
		progress: make(chan struct{}), wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	s.alloc = newAllocator(s.layout.Slots/s.layout.Run, s.layout.Run)
	s.mem = newMemory(&s.layout.Geometry)
	s.table = newTable(s.layout.Slots, s.mem.key)
	return s
}

// Geometry is the shape of the store.
func (s *Store) Geometry() Geometry { return s.layout.Geometry }

// Device is where the store lies.
func (s *Store) Device() device.Device { return s.disk.dev }

// Off is where a layer of a slot begins on the device.
func (s *Store) Off(slot Slot, layer int) int64 { return s.layout.Off(slot, layer) }

// Info describes the store.
func (s *Store) Info() Info {
	s.logMu.Lock()
	defer s.logMu.Unlock()
	return s.super.info()
}

// Alloc appends up to n free slots to dst, in as few runs of adjacent ones as
// it finds, each in ascending order. It gives fewer when no more are free, and
// none when the store has failed or is closed. They are the caller's until
// Free, committed or not; those not committed are free after a restart.
func (s *Store) Alloc(dst []Slot, n int) []Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil || s.closed {
		return dst
	}
	return s.alloc.alloc(dst, n)
}

// AllocNear is Alloc for blocks that continue another: they come right behind its
// slot, after, if there is room, so that a layer of all of them is one read. Those that
// continue nothing (known is false), or find no room there, begin a segment of their
// own while there is one.
func (s *Store) AllocNear(dst []Slot, n int, after Slot, known bool) []Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil || s.closed {
		return dst
	}
	return s.alloc.allocNear(dst, n, after, known && int(after) < s.layout.Slots)
}

// Free gives slots back. Nobody may read or write their blocks any more. A
// slot that is free already is a BUG panic.
//
// A freed slot may be given out again at once, before it is durable that it
// holds nothing: see the package's comment.
func (s *Store) Free(slots []Slot) {
	s.mu.Lock()
	for _, slot := range slots {
		if int(slot) >= s.layout.Slots || s.alloc.isFree(slot) {
			s.mu.Unlock()
			panic(fmt.Sprintf("BUG: store: slot %d is freed, but is not taken", slot))
		}
		if s.mem.has(slot, flagLive) {
			s.table.remove(s.mem.key(slot), slot)
			s.mem.flags[slot] &^= flagLive
			s.change(slot)
			s.stats.Frees++
		}
		s.alloc.release(slot)
	}
	kick := s.kick()
	s.mu.Unlock()
	if kick {
		s.wakeUp()
	}
}

// Commit says that the data of a block lies in its slot: every write of it has
// completed without an error. It copies what it needs. Once Durable has reached
// the number that it answers, the block survives a crash.
//
// It fails with a *DuplicateError if the key is live in another slot, with a
// *FailedError, with ErrClosed, and if the entry is not one of this store. The
// slot then stays the caller's.
func (s *Store) Commit(e *Entry) (uint64, error) {
	s.mu.Lock()
	if err := s.commitable(e); err != nil {
		s.mu.Unlock()
		return 0, err
	}
	s.change(e.Slot)
	s.mem.put(e, s.number)
	s.mem.flags[e.Slot] |= flagLive
	s.table.insert(e.Key, e.Slot)
	s.stats.Commits++
	n, kick := s.number, s.kick()
	s.mu.Unlock()
	if kick {
		s.wakeUp()
	}
	return n, nil
}

// commitable checks an entry. The caller holds mu.
func (s *Store) commitable(e *Entry) error {
	switch {
	case s.closed:
		return ErrClosed
	case s.failed != nil:
		return s.failed
	case len(e.Tokens) != s.layout.BlockTokens:
		return fmt.Errorf("store: Tokens has %d elements, must have %d", len(e.Tokens), s.layout.BlockTokens)
	case len(e.Sums) != s.layout.Layers:
		return fmt.Errorf("store: Sums has %d elements, must have %d", len(e.Sums), s.layout.Layers)
	case e.Key == prefix.Key{}:
		return fmt.Errorf("store: Key is zero, which is nobody's")
	case int(e.Slot) >= s.layout.Slots:
		return fmt.Errorf("store: Slot is %d, must be below %d", e.Slot, s.layout.Slots)
	case s.alloc.isFree(e.Slot) || s.mem.has(e.Slot, flagLive):
		return fmt.Errorf("store: Slot %d was not allocated, or has been committed", e.Slot)
	}
	if at, ok := s.table.find(e.Key); ok {
		return &DuplicateError{e.Key, at}
	}
	return nil
}

// change counts a change of a slot and lists it. The caller holds mu.
func (s *Store) change(slot Slot) {
	s.number++
	if !s.mem.has(slot, flagDirty) {
		s.mem.flags[slot] |= flagDirty
		s.dirty = append(s.dirty, slot)
	}
}

// Lookup finds the block of a key. It does not allocate.
func (s *Store) Lookup(k prefix.Key) (Entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot, ok := s.table.find(k)
	if !ok {
		return Entry{}, false
	}
	return s.mem.entry(slot), true
}

// Entries are all live blocks, each after its parent where that is live. Blocks
// whose parent is not live are among them. Others may use the store meanwhile;
// whether their changes are seen is open, and the slices of an entry that they
// free are no longer good.
func (s *Store) Entries() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		seen := make([]uint64, (s.layout.Slots+63)/64)
		var chain []Entry
		for slot := range Slot(s.layout.Slots) {
			chain = s.ancestry(chain[:0], slot, seen)
			for i := len(chain) - 1; i >= 0; i-- {
				if !yield(chain[i]) {
					return
				}
			}
		}
	}
}

// ancestry appends a slot's entry and those before it, up to one that was seen,
// and marks them as seen.
func (s *Store) ancestry(chain []Entry, slot Slot, seen []uint64) []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.mem.has(slot, flagLive) && seen[slot/64]>>(slot%64)&1 == 0 {
		seen[slot/64] |= 1 << (slot % 64)
		e := s.mem.entry(slot)
		chain = append(chain, e)
		parent, ok := s.table.find(e.Parent)
		if e.Root || !ok {
			break
		}
		slot = parent
	}
	return chain
}

// Stats are the store's counters now.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Slots, st.Free, st.Live = s.layout.Slots, s.alloc.n, s.table.n
	st.Reserved = st.Slots - st.Free - st.Live
	st.Lag = int(s.number - s.durable)
	st.LogPages = s.layout.areaPages
	st.Failed = s.failed
	return st
}
