package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvlend/kvlend/prefix"
	"github.com/zeebo/xxh3"
)

// maxProblems bounds Report.Problems.
const maxProblems = 100

// Report is what Check found.
type Report struct {
	Slots, Free, Reserved, Live int
	LogPages                    int // read and valid
	Verified                    int // blocks whose data was read and is right
	Bad                         []Bad
	// Problems are broken invariants, in words: empty in a sound store. Blocks
	// whose data is bad are none.
	Problems []string
}

// Bad is a layer block that is not what its entry says.
type Bad struct {
	Slot  Slot
	Key   prefix.Key
	Layer int
	Err   error // of the read; nil: the checksum differs
}

func (r *Report) problem(format string, args ...any) {
	if len(r.Problems) < maxProblems {
		r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
	}
}

// Check verifies the store's invariants: each slot is free, reserved or live,
// each key is found where it lies, and the log on the device says what memory
// says. Deep, and if Options.Sum is set, it also reads the data of all blocks.
// Others may use the store meanwhile; commits wait for the part in memory (some
// 100 ms per million blocks), flushes for the log to be read.
//
// The error is one that ended the check.
func (s *Store) Check(ctx context.Context, deep bool) (Report, error) {
	var r Report
	s.checkMemory(&r)
	if err := s.checkLog(ctx, &r); err != nil {
		return r, err
	}
	if deep && s.opt.Sum != nil {
		return r, s.checkData(ctx, &r)
	}
	return r, nil
}

// checkMemory checks what needs no device.
func (s *Store) checkMemory(r *Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Slots = s.layout.Slots
	for slot := range Slot(s.layout.Slots) {
		free, live := s.alloc.isFree(slot), s.mem.has(slot, flagLive)
		switch {
		case free && live:
			r.problem("slot %d is free and live", slot)
		case free:
			r.Free++
		case live:
			r.Live++
		default:
			r.Reserved++
		}
		if !live {
			continue
		}
		if at, ok := s.table.find(s.mem.key(slot)); !ok || at != slot {
			r.problem("key %v of slot %d is found in slot %d (%v)", s.mem.key(slot), slot, at, ok)
		}
	}
	if r.Live != s.table.n {
		r.problem("%d slots are live, the table has %d keys", r.Live, s.table.n)
	}
	if r.Free != s.alloc.n {
		r.problem("%d slots are free, the allocator counts %d", r.Free, s.alloc.n)
	}
	s.alloc.check(r)
	for _, slot := range s.dirty {
		if !s.mem.has(slot, flagDirty) {
			r.problem("slot %d is listed as changed and not marked", slot)
		}
	}
}

// check verifies the lists.
func (a *allocator) check(r *Report) {
	listed := 0
	for l := 1; l <= MaxRun; l++ {
		prev := none
		for seg := a.head[l]; seg != none; seg = a.next[seg] {
			if a.prev[seg] != prev || int(a.longest[seg]) != l {
				r.problem("segment %d stands wrong in the list of runs of %d", seg, l)
				return
			}
			prev = seg
			listed++
		}
		if (a.head[l] != none) != (a.filled[l>>6]>>(l&63)&1 != 0) {
			r.problem("the mark of the list of runs of %d is wrong", l)
		}
	}
	for seg, free := range a.free {
		if longestRun(free) != int(a.longest[seg]) {
			r.problem("segment %d has a run of %d, not %d", seg, longestRun(free), a.longest[seg])
		}
		if free != 0 {
			listed--
		}
	}
	if listed != 0 {
		r.problem("the lists hold %d segments too many", listed)
	}
}

// checkLog compares what the log says with what memory says.
func (s *Store) checkLog(ctx context.Context, r *Report) error {
	s.logMu.Lock()
	defer s.logMu.Unlock()
	s.mu.Lock()
	failed := s.failed
	s.mu.Unlock()
	if failed != nil {
		r.problem("the log was not read: %v", failed)
		return nil
	}
	says := make([]uint64, s.layout.Slots) // hash of the record; 0: nothing
	found, err := s.disk.scan(ctx, &s.super, func(rec []byte) {
		if slot := recordSlot(rec); int(slot) >= len(says) {
			r.problem("the log names slot %d of %d", slot, len(says))
		} else if len(rec) == tombstoneBytes {
			says[slot] = 0
		} else {
			says[slot] = xxh3.Hash(rec[8:])
		}
	})
	if err != nil {
		return err
	}
	r.LogPages = found.pages
	if found.next != s.next && !s.rewrite {
		r.problem("the log ends at page %d, not %d", found.next, s.next)
	}
	if !s.rewrite && (found.holes > 0 || found.torn > 0) {
		r.problem("the log has %d holes and %d torn records", found.holes, found.torn)
	}
	s.compareLog(says, r)
	return nil
}

func (s *Store) compareLog(says []uint64, r *Report) {
	rec := make([]byte, s.layout.entryBytes())
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot := range Slot(s.layout.Slots) {
		if s.mem.has(slot, flagDirty) {
			continue // the log does not know yet
		}
		want := uint64(0)
		if s.mem.has(slot, flagLive) {
			s.mem.encode(rec, slot)
			want = xxh3.Hash(rec[8:])
		}
		if says[slot] != want {
			r.problem("the log and the memory differ on slot %d", slot)
		}
	}
}

// dataLanes is how many reads of data are in flight during a check.
const dataLanes = 4

// checkData reads one layer of a segment at a time.
func (s *Store) checkData(ctx context.Context, r *Report) error {
	span := s.layout.Run * int(s.layout.Stride)
	var bufs [dataLanes][]byte
	for i := range bufs {
		bufs[i] = s.disk.memory(span)
	}
	for seg := range s.layout.Slots / s.layout.Run {
		entries := s.live(seg)
		if len(entries) == 0 {
			continue
		}
		bad := make(map[Slot]bool)
		for l := 0; l < s.layout.Layers; l += dataLanes {
			n := min(dataLanes, s.layout.Layers-l)
			if err := s.checkLayers(ctx, seg, l, bufs[:n], entries, bad, r); err != nil {
				return err
			}
		}
		r.Verified += len(entries) - len(bad)
	}
	return nil
}

// live are copies of the live entries of a segment: they may be freed while
// their data is read.
func (s *Store) live(seg int) []liveEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []liveEntry
	for i := range s.layout.Run {
		slot := Slot(seg*s.layout.Run + i)
		if s.mem.has(slot, flagLive) {
			e := s.mem.entry(slot)
			e.Tokens, e.Sums = slices.Clone(e.Tokens), slices.Clone(e.Sums)
			out = append(out, liveEntry{e, s.mem.head(slot).number})
		}
	}
	return out
}

type liveEntry struct {
	Entry
	number uint64
}

// checkLayers verifies layers l and following of a segment, one per buffer.
func (s *Store) checkLayers(ctx context.Context, seg, l int, bufs [][]byte, entries []liveEntry, bad map[Slot]bool, r *Report) error {
	var flying [dataLanes]*batch
	for i, buf := range bufs {
		var err error
		if flying[i], err = s.disk.start(false, s.layout.Off(Slot(seg*s.layout.Run), l+i), buf); err != nil {
			return err
		}
	}
	for i, buf := range bufs {
		err := s.disk.wait(ctx, flying[i])
		for j := range entries {
			e := &entries[j]
			at := int64(int(e.Slot)%s.layout.Run) * s.layout.Stride
			data := buf[at : at+s.layout.Stride]
			if err := s.checkBlock(ctx, e, l+i, data, err, r, bad); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkBlock verifies one layer block, data, whose read ended with failed.
func (s *Store) checkBlock(ctx context.Context, e *liveEntry, l int, data []byte, failed error, r *Report, bad map[Slot]bool) error {
	if failed != nil {
		if !unreadable(failed) {
			return failed
		}
		data = s.disk.memory(int(s.layout.Stride))
		failed = s.disk.read(ctx, s.layout.Off(e.Slot, l), data)
	}
	if failed == nil && s.opt.Sum(&e.Entry, l, data[:s.layout.LayerBytes]) == e.Sums[l] {
		return nil
	}
	s.mu.Lock()
	same := s.mem.has(e.Slot, flagLive) && s.mem.head(e.Slot).number == e.number
	s.mu.Unlock()
	if same { // not freed meanwhile
		bad[e.Slot] = true
		r.Bad = append(r.Bad, Bad{e.Slot, e.Key, l, failed})
	}
	return nil
}
