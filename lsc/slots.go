package lsc

import (
	"fmt"
	"math/bits"
	"slices"
)

// Slots divides a master's arena between the regular cache and the layer
// stream cache. The arena is K_master slots of one layer block each. Chunks
// of L neighbouring slots are either one full block of the regular cache or L
// slots of the layer stream cache; the K_master mod L slots behind the last
// chunk can only be the latter.
//
// LSC slots are taken where they leave most chunks whole, and after Compact
// the regular cache can hold floor((K_master - slots in use)/L) blocks in
// all: SwiftCache Eq. 4 and 5 hold at any number of slots.
//
// Slots is not safe for concurrent use.
type Slots struct {
	layers     int   // L
	total      int   // K_master
	chunks     int   // K_master / L
	blockBytes int64 // M_block
	base       int64 // offset of slot 0 in the arena

	used   []uint64 // bitmap of LSC slots in use
	inUse  int      // LSC slots in use
	rc     []bool   // per chunk: a full block of the regular cache
	rcUsed int
	// count is the number of LSC slots in use per chunk; the remainder
	// counts as one more, last chunk.
	count []int
	// byCount[n] lists the chunks (never the remainder, never regular cache)
	// with n LSC slots in use; at[c] is chunk c's place in its list.
	byCount [][]int32
	at      []int32
}

// NewSlots divides kMaster slots of blockBytes each that start at offset base
// of the arena, for a model of layers layers.
func NewSlots(kMaster, layers int, blockBytes, base int64) (*Slots, error) {
	switch {
	case layers < 1:
		return nil, fmt.Errorf("slots: layers is %d; want at least 1", layers)
	case kMaster < 0 || kMaster > 1<<31-1:
		return nil, fmt.Errorf("slots: K_master is %d; want 0 to %d", kMaster, 1<<31-1)
	case blockBytes < 1 || base < 0:
		return nil, fmt.Errorf("slots: block of %d bytes at %d; want at least 1 byte at 0 or above", blockBytes, base)
	}
	chunks := kMaster / layers
	s := &Slots{
		layers: layers, total: kMaster, chunks: chunks, blockBytes: blockBytes, base: base,
		used:    make([]uint64, (kMaster+63)/64),
		rc:      make([]bool, chunks),
		count:   make([]int, chunks+1),
		byCount: make([][]int32, layers+1),
		at:      make([]int32, chunks),
	}
	// The lowest chunk ends up on top of the list, so low chunks go first.
	for c := chunks - 1; c >= 0; c-- {
		s.link(c)
	}
	return s, nil
}

// KMaster is the number of slots.
func (s *Slots) KMaster() int { return s.total }

// SlotsUsed is the number of LSC slots in use.
func (s *Slots) SlotsUsed() int { return s.inUse }

// SlotsFree is the number of slots that AllocSlots can give at once.
func (s *Slots) SlotsFree() int { return s.total - s.inUse - s.rcUsed*s.layers }

// SlotsFreeAfterEvicting is SlotsFree once n more full blocks have left the
// regular cache (all of them, if there are fewer).
func (s *Slots) SlotsFreeAfterEvicting(n int) int {
	return s.SlotsFree() + min(max(n, 0), s.rcUsed)*s.layers
}

// RCUsed is the number of full blocks in the regular cache.
func (s *Slots) RCUsed() int { return s.rcUsed }

// RCFree is the number of full blocks that AllocRC can give at once.
func (s *Slots) RCFree() int { return len(s.byCount[0]) }

// RCFreeCompacted is what RCFree will be after Compact.
func (s *Slots) RCFreeCompacted() int { return s.MaxRC(s.inUse) - s.rcUsed }

// MaxRC is N_RC of Eq. 5: the number of full blocks that fit beside slots LSC
// slots.
func (s *Slots) MaxRC(slots int) int { return max(s.total-slots, 0) / s.layers }

// AllocRC takes a chunk for a full block. It fails when no chunk is whole;
// Compact may help then, if RCFreeCompacted is above zero.
func (s *Slots) AllocRC() (chunk int, ok bool) {
	free := s.byCount[0]
	if len(free) == 0 {
		return 0, false
	}
	chunk = int(free[len(free)-1])
	s.unlink(chunk)
	s.rc[chunk] = true
	s.rcUsed++
	return chunk, true
}

// FreeRC gives a chunk back.
func (s *Slots) FreeRC(chunk int) {
	if chunk < 0 || chunk >= s.chunks || !s.rc[chunk] {
		panic(fmt.Sprintf("BUG: lsc: FreeRC(%d) of a chunk that is not in use", chunk))
	}
	s.rc[chunk] = false
	s.rcUsed--
	s.link(chunk)
}

// AllocSlots appends n slots to dst, or fails and takes none. It prefers the
// remainder, then the fullest chunks, so that chunks stay whole.
func (s *Slots) AllocSlots(dst []int32, n int) (slots []int32, ok bool) {
	if n < 0 || n > s.SlotsFree() {
		return dst, false
	}
	dst, n = s.takeFrom(dst, s.chunks, n)
	for n > 0 {
		c := s.fullestOpen()
		s.unlink(c)
		dst, n = s.takeFrom(dst, c, n)
		s.link(c)
	}
	return dst, true
}

// FreeSlots gives slots back.
func (s *Slots) FreeSlots(slots []int32) {
	for _, slot := range slots {
		i := int(slot)
		if i < 0 || i >= s.total || s.used[i/64]&(1<<(i%64)) == 0 {
			panic(fmt.Sprintf("BUG: lsc: FreeSlots of slot %d, which is not in use", slot))
		}
		s.used[i/64] &^= 1 << (i % 64)
		s.inUse--
		c := i / s.layers
		if c < s.chunks {
			s.unlink(c)
		}
		s.count[c]--
		if c < s.chunks {
			s.link(c)
		}
	}
}

// Compact moves LSC slots out of the emptiest chunks until no more chunks can
// be made whole, and calls moved for each slot that now has another number
// (one after another: a slot may move more than once). Slots hold nothing
// between passes, so no bytes move; Compact must not be called during a pass.
func (s *Slots) Compact(moved func(from, to int32)) {
	for s.RCFree() < s.RCFreeCompacted() {
		victim := s.emptiestUsed()
		lo, hi := s.bounds(victim)
		var slots []int32
		for i := lo; i < hi; i++ {
			if s.used[i/64]&(1<<(i%64)) != 0 {
				slots = append(slots, int32(i))
			}
		}
		s.FreeSlots(slots)
		// The emptied chunk hides while its slots find another home.
		s.unlink(victim)
		to, ok := s.AllocSlots(nil, len(slots))
		if !ok {
			panic("BUG: lsc: Compact found no room for slots that it had freed")
		}
		s.link(victim)
		for i := range slots {
			moved(slots[i], to[i])
		}
	}
}

// SlotOffset is the offset of an LSC slot in the arena.
func (s *Slots) SlotOffset(slot int32) int64 { return s.base + int64(slot)*s.blockBytes }

// RCOffset is the offset of layer l of a full block in the arena.
func (s *Slots) RCOffset(chunk, l int) int64 {
	return s.base + (int64(chunk)*int64(s.layers)+int64(l))*s.blockBytes
}

// bounds are the slots [lo, hi) of chunk c, which may be the remainder.
func (s *Slots) bounds(c int) (lo, hi int) {
	return c * s.layers, min((c+1)*s.layers, s.total)
}

// takeFrom takes up to n free slots of chunk c.
func (s *Slots) takeFrom(dst []int32, c, n int) ([]int32, int) {
	lo, hi := s.bounds(c)
	for i := lo; i < hi && n > 0; i++ {
		if s.used[i/64]&(1<<(i%64)) == 0 {
			s.used[i/64] |= 1 << (i % 64)
			s.count[c]++
			s.inUse++
			n--
			dst = append(dst, int32(i))
		}
	}
	return dst, n
}

// fullestOpen is a chunk with the most slots in use that has one left.
func (s *Slots) fullestOpen() int {
	for n := s.layers - 1; n >= 0; n-- {
		if l := s.byCount[n]; len(l) > 0 {
			return int(l[len(l)-1])
		}
	}
	panic("BUG: lsc: no open chunk although slots are free")
}

func (s *Slots) emptiestUsed() int {
	for n := 1; n < s.layers; n++ {
		if l := s.byCount[n]; len(l) > 0 {
			return int(l[len(l)-1])
		}
	}
	panic("BUG: lsc: no partly used chunk although chunks are missing")
}

func (s *Slots) link(c int) {
	n := s.count[c]
	s.at[c] = int32(len(s.byCount[n]))
	s.byCount[n] = append(s.byCount[n], int32(c))
}

func (s *Slots) unlink(c int) {
	l := s.byCount[s.count[c]]
	last := l[len(l)-1]
	l[s.at[c]] = last
	s.at[last] = s.at[c]
	s.byCount[s.count[c]] = l[:len(l)-1]
}

// Check verifies the books: bitmap, counters and lists agree, and no chunk is
// regular cache and LSC at once.
func (s *Slots) Check() error {
	inUse, rcUsed := 0, 0
	for _, w := range s.used {
		inUse += bits.OnesCount64(w)
	}
	for c := 0; c <= s.chunks; c++ {
		lo, hi := s.bounds(c)
		n := 0
		for i := lo; i < hi; i++ {
			n += int(s.used[i/64] >> (i % 64) & 1)
		}
		if n != s.count[c] {
			return fmt.Errorf("slots: chunk %d counts %d slots in use, bitmap says %d", c, s.count[c], n)
		}
		if c == s.chunks {
			continue
		}
		listed := int(s.at[c]) < len(s.byCount[n]) && s.byCount[n][s.at[c]] == int32(c)
		if s.rc[c] {
			rcUsed++
		}
		if s.rc[c] && (n > 0 || slices.Contains(s.byCount[0], int32(c))) {
			return fmt.Errorf("slots: chunk %d is regular cache and free or LSC", c)
		}
		if !s.rc[c] && !listed {
			return fmt.Errorf("slots: chunk %d with %d slots in use is in no list", c, n)
		}
	}
	if inUse != s.inUse || rcUsed != s.rcUsed {
		return fmt.Errorf("slots: %d slots and %d full blocks in use, counted %d and %d", s.inUse, s.rcUsed, inUse, rcUsed)
	}
	listed := 0
	for _, l := range s.byCount {
		listed += len(l)
	}
	if listed+rcUsed != s.chunks {
		return fmt.Errorf("slots: %d chunks listed and %d regular cache of %d", listed, rcUsed, s.chunks)
	}
	return nil
}
