package elastic

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// Errors of BlockSpace.
var (
	ErrNoBlocks    = errors.New("not enough free blocks")
	ErrUnitInUse   = errors.New("unit holds blocks")
	ErrUnitUnknown = errors.New("unit is not part of this block space")
	ErrUnitPresent = errors.New("unit is part of this block space already")
	ErrBadBlock    = errors.New("block is not allocated")
)

// SpaceOptions describe a BlockSpace.
type SpaceOptions struct {
	Geometry Geometry // of the model whose blocks are kept; its name is in Spec.PerUnit
	Spec     UnitSpec // of the arena's owner
	Arena    int64    // bytes of the arena that the units divide
	// Remainder also uses what is left of the arena after whole units. Only
	// the arena's owner may: it is never lent.
	Remainder bool
}

// BlockSpace allocates the full blocks of one model inside a set of units of
// one arena that grows and shrinks: a worker has one over its LOCAL units, a
// master one over the units that each worker lent it. It starts without units.
//
// A block goes to the fullest unit that still has room, so that others stay
// empty and can change hands. Under lcm and padded a full block is contiguous
// (block-major); under layer-lcm each of its layer blocks takes a slot of its
// own, wherever there is one. All operations on single blocks and units take
// constant time (O(layers) for a block under layer-lcm), plus a scan of one bit
// per fill level. A BlockSpace is not safe for concurrent use.
type BlockSpace struct {
	geometry Geometry
	spec     UnitSpec
	slotSize int64 // bytes of a slot: a full block, or a layer block
	perUnit  int   // slots of a unit
	perBlock int   // slots of a block: 1, or Layers under layer-lcm
	units    int   // whole units of the arena; the remainder has this index

	fill  fillLists
	info  []unitInfo // by unit, the remainder last
	slots []slot     // by unit*perUnit + index in the unit

	present   int // units added, the remainder not counted
	freeSlots int // in units that are present, and the remainder
	allSlots  int
	used      int // allocated blocks

	blocks blockTable // layer-lcm only
}

type unitInfo struct {
	present bool
	closed  bool  // on its way out: keeps its blocks, takes no more
	cap     int32 // slots
	used    int32 // slots
	free    int32 // head of the unit's list of free slots, -1 at the end
}

// slot is a place for a full block or a layer block. While it is free, next
// links it to the next free slot of its unit; while it is used, block is the
// block's ID and layer the layer that lies here.
type slot struct {
	next  int32
	block BlockID // noBlock while free
	layer int32
}

const (
	noBlock BlockID = -1
	noSlot  int32   = -1
)

// NewBlockSpace returns a space without units (with the remainder, if asked for).
func NewBlockSpace(o SpaceOptions) (*BlockSpace, error) {
	if err := o.Geometry.Validate(); err != nil {
		return nil, err
	}
	per := o.Spec.PerUnit[o.Geometry.Name]
	s := &BlockSpace{geometry: o.Geometry, spec: o.Spec, slotSize: o.Spec.piece(o.Geometry), perUnit: per, perBlock: 1}
	if per < 1 || o.Spec.Bytes <= 0 || o.Spec.Bytes/s.slotSize < int64(per) {
		return nil, fmt.Errorf("units of %d bytes do not hold %d blocks of %q of %d bytes", o.Spec.Bytes, per, o.Geometry.Name, s.slotSize)
	}
	units, rest := o.Spec.Divide(o.Arena)
	s.units = units
	if o.Spec.Policy == PolicyLayerLCM {
		s.perBlock = o.Geometry.Layers
	}
	restSlots := 0
	if o.Remainder {
		restSlots = int(min(rest/s.slotSize, int64(math.MaxInt32)))
	}
	total := int64(units)*int64(per) + int64(restSlots)
	if total > math.MaxInt32 {
		return nil, fmt.Errorf("arena of %d bytes has %d blocks of %q, want at most %d", o.Arena, total, o.Geometry.Name, math.MaxInt32)
	}
	s.info = make([]unitInfo, units+1)
	s.slots = make([]slot, total)
	s.fill.init(units+1, per)
	for i := range s.slots {
		s.slots[i] = slot{next: noSlot, block: noBlock}
	}
	for u := range s.info {
		s.info[u] = unitInfo{cap: int32(per), free: noSlot}
	}
	s.info[units].cap = int32(restSlots)
	if s.perBlock > 1 {
		s.blocks.init(int(total)/s.perBlock, s.perBlock)
	}
	if restSlots > 0 {
		s.enter(units)
	}
	return s, nil
}

// enter makes a unit's slots available.
func (s *BlockSpace) enter(u int) {
	info := &s.info[u]
	info.present, info.closed = true, false
	info.free = noSlot
	first := u * s.perUnit
	for i := first + int(info.cap) - 1; i >= first; i-- {
		s.slots[i].next = info.free
		info.free = int32(i)
	}
	s.freeSlots += int(info.cap)
	s.allSlots += int(info.cap)
	if u != s.units {
		s.fill.push(u, 0)
	}
}

// AddUnit makes a unit's memory available.
func (s *BlockSpace) AddUnit(u int) error {
	if u < 0 || u >= s.units {
		return fmt.Errorf("unit %d, want 0 to %d: %w", u, s.units-1, ErrUnitUnknown)
	}
	if s.info[u].present {
		return fmt.Errorf("unit %d: %w", u, ErrUnitPresent)
	}
	s.present++
	s.enter(u)
	return nil
}

// RemoveUnit takes away a unit that holds no blocks.
func (s *BlockSpace) RemoveUnit(u int) error {
	if !s.Has(u) {
		return fmt.Errorf("unit %d: %w", u, ErrUnitUnknown)
	}
	info := &s.info[u]
	if info.used > 0 {
		return fmt.Errorf("unit %d has %d: %w", u, info.used, ErrUnitInUse)
	}
	if !info.closed {
		s.CloseUnit(u)
	}
	info.present = false
	s.present--
	s.allSlots -= int(info.cap)
	return nil
}

// CloseUnit stops a unit from taking more blocks. It keeps those it has until
// they are freed; then RemoveUnit takes it away. Closing it twice, or a unit
// that is not part of the space, changes nothing.
func (s *BlockSpace) CloseUnit(u int) {
	if !s.Has(u) || s.info[u].closed {
		return
	}
	info := &s.info[u]
	s.fill.remove(u, int(info.used))
	info.closed = true
	s.freeSlots -= int(info.cap - info.used)
}

// OpenUnit lets a closed unit take blocks again. A unit that is open, or not
// part of the space, is left as it is.
func (s *BlockSpace) OpenUnit(u int) {
	if !s.Has(u) || !s.info[u].closed {
		return
	}
	info := &s.info[u]
	s.fill.push(u, int(info.used))
	info.closed = false
	s.freeSlots += int(info.cap - info.used)
}

// Has reports whether a unit is part of the space, open or closed.
func (s *BlockSpace) Has(u int) bool { return u >= 0 && u < s.units && s.info[u].present }

// Units is the number of units in the space, closed ones too, the remainder
// not counted.
func (s *BlockSpace) Units() int { return s.present }

// EmptyUnits is the number of open units without blocks.
func (s *BlockSpace) EmptyUnits() int { return s.fill.count(0) }

// EmptyUnit returns an open unit without blocks, or false when there is none.
func (s *BlockSpace) EmptyUnit() (int, bool) {
	u := s.fill.head(0)
	return u, u >= 0
}

// UsedBlocks is the number of allocated blocks.
func (s *BlockSpace) UsedBlocks() int { return s.used }

// FreeBlocks is the number of blocks that Alloc can still give.
func (s *BlockSpace) FreeBlocks() int { return s.freeSlots / s.perBlock }

// TotalBlocks is the number of blocks that all units in the space hold, closed
// ones too.
func (s *BlockSpace) TotalBlocks() int { return s.allSlots / s.perBlock }

// Geometry is the model's, as given to NewBlockSpace.
func (s *BlockSpace) Geometry() Geometry { return s.geometry }

// Alloc allocates n blocks, or none and ErrNoBlocks. A caller that allocates
// often avoids garbage with AppendAlloc.
func (s *BlockSpace) Alloc(n int) ([]BlockID, error) {
	if n <= 0 {
		return nil, nil
	}
	if n > s.FreeBlocks() { // before the slice, whose size a caller may have from a request
		return nil, s.noBlocks(n)
	}
	return s.AppendAlloc(make([]BlockID, 0, n), n)
}

func (s *BlockSpace) noBlocks(n int) error {
	return fmt.Errorf("%d blocks of %q, %d are free: %w", n, s.geometry.Name, s.FreeBlocks(), ErrNoBlocks)
}

// AppendAlloc is Alloc into dst. On an error dst is returned as it was.
func (s *BlockSpace) AppendAlloc(dst []BlockID, n int) ([]BlockID, error) {
	if n > s.FreeBlocks() {
		return dst, s.noBlocks(n)
	}
	for range n {
		if s.perBlock == 1 {
			i := s.takeSlot()
			s.slots[i].block = BlockID(i)
			dst = append(dst, BlockID(i))
			continue
		}
		id, places := s.blocks.take()
		for l := range places {
			i := s.takeSlot()
			places[l] = i
			s.slots[i].block, s.slots[i].layer = id, int32(l)
		}
		dst = append(dst, id)
	}
	s.used += max(n, 0)
	return dst, nil
}

// takeSlot takes a slot of the remainder, which can never be lent, or of the
// fullest unit with room. The caller knows that there is one.
func (s *BlockSpace) takeSlot() int32 {
	u := s.units
	if s.info[u].free == noSlot {
		if u = s.fill.fullest(); u < 0 {
			panic("BUG: free slots are counted but not found")
		}
	}
	info := &s.info[u]
	i := info.free
	info.free = s.slots[i].next
	s.refill(u, info.used+1)
	s.freeSlots--
	return i
}

// refill moves a unit to the list of its new fill level.
func (s *BlockSpace) refill(u int, used int32) {
	info := &s.info[u]
	if u != s.units && !info.closed {
		s.fill.remove(u, int(info.used))
		s.fill.push(u, int(used))
	}
	info.used = used
}

// giveSlot frees a slot.
func (s *BlockSpace) giveSlot(i int32) {
	u := s.unitOf(i)
	s.slots[i] = slot{next: s.info[u].free, block: noBlock}
	s.info[u].free = i
	s.refill(u, s.info[u].used-1)
	if !s.info[u].closed {
		s.freeSlots++
	}
}

func (s *BlockSpace) unitOf(slot int32) int { return min(int(slot)/s.perUnit, s.units) }

// Allocated reports whether id is an allocated block.
func (s *BlockSpace) Allocated(id BlockID) bool {
	if s.perBlock > 1 {
		return s.blocks.allocated(id)
	}
	return id >= 0 && int(id) < len(s.slots) && s.slots[id].block == id
}

// Free frees blocks. A block that is not allocated, or named twice, is
// reported with ErrBadBlock; the others are freed all the same.
func (s *BlockSpace) Free(ids []BlockID) error {
	var err error
	for _, id := range ids {
		if !s.Allocated(id) {
			err = errors.Join(err, fmt.Errorf("free block %d of %q: %w", id, s.geometry.Name, ErrBadBlock))
			continue
		}
		if s.perBlock == 1 {
			s.giveSlot(int32(id))
		} else {
			for _, i := range s.blocks.slots(id) {
				s.giveSlot(i)
			}
			s.blocks.give(id)
		}
		s.used--
	}
	return err
}

// place is the slot of a layer and the layer's byte offset in the slot.
func (s *BlockSpace) place(id BlockID, layer int) (slot int32, off int64) {
	if s.perBlock > 1 {
		return s.blocks.slots(id)[layer], 0
	}
	return int32(id), int64(layer) * s.geometry.LayerBlockBytes()
}

// Extent is the byte range in the arena of one layer of an allocated block.
// It panics when there is no such block or layer.
func (s *BlockSpace) Extent(id BlockID, layer int) Extent {
	if !s.Allocated(id) || layer < 0 || layer >= s.geometry.Layers {
		panic(fmt.Sprintf("BUG: extent of block %d, layer %d of %q", id, layer, s.geometry.Name))
	}
	i, off := s.place(id, layer)
	return Extent{Off: s.slotOffset(i) + off, Len: s.geometry.LayerBlockBytes()}
}

func (s *BlockSpace) slotOffset(i int32) int64 {
	u := s.unitOf(i)
	return int64(u)*s.spec.Bytes + int64(int(i)-u*s.perUnit)*s.slotSize
}

// LayerUnit is the unit that holds one layer of an allocated block, -1 for
// the remainder. It panics when there is no such block or layer.
func (s *BlockSpace) LayerUnit(id BlockID, layer int) int {
	if !s.Allocated(id) || layer < 0 || layer >= s.geometry.Layers {
		panic(fmt.Sprintf("BUG: unit of block %d, layer %d of %q", id, layer, s.geometry.Name))
	}
	i, _ := s.place(id, layer)
	if u := s.unitOf(i); u != s.units {
		return u
	}
	return -1
}

// AppendUnitsOf appends the units that hold an allocated block, each once and
// without the remainder.
func (s *BlockSpace) AppendUnitsOf(dst []int, id BlockID) []int {
	if !s.Allocated(id) {
		return dst
	}
	first := len(dst)
	for l := range s.perBlock {
		i, _ := s.place(id, l)
		if u := s.unitOf(i); u != s.units && !containsInt(dst[first:], u) {
			dst = append(dst, u)
		}
	}
	return dst
}

// UnitsOf is AppendUnitsOf into a new slice.
func (s *BlockSpace) UnitsOf(id BlockID) []int { return s.AppendUnitsOf(nil, id) }

// containsInt searches backwards: neighbouring layers mostly share a unit.
func containsInt(list []int, v int) bool {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i] == v {
			return true
		}
	}
	return false
}

// UsedSlots is the number of used slots in a unit: blocks, or layer blocks
// under layer-lcm. 0 for a unit that is not part of the space.
func (s *BlockSpace) UsedSlots(u int) int {
	if !s.Has(u) {
		return 0
	}
	return int(s.info[u].used)
}

// AppendBlocksIn appends the blocks that lie in a unit, wholly or in part,
// each once.
func (s *BlockSpace) AppendBlocksIn(dst []BlockID, u int) []BlockID {
	if !s.Has(u) {
		return dst
	}
	for i := u * s.perUnit; i < u*s.perUnit+int(s.info[u].cap); i++ {
		if at := s.slots[i]; at.block != noBlock && s.firstIn(u, at) {
			dst = append(dst, at.block)
		}
	}
	return dst
}

// firstIn reports whether a used slot holds the lowest layer of its block in
// unit u, which picks each block once.
func (s *BlockSpace) firstIn(u int, at slot) bool {
	if s.perBlock == 1 {
		return true
	}
	for _, i := range s.blocks.slots(at.block)[:at.layer] {
		if s.unitOf(i) == u {
			return false
		}
	}
	return true
}

// BlocksIn is AppendBlocksIn into a new slice.
func (s *BlockSpace) BlocksIn(u int) []BlockID { return s.AppendBlocksIn(nil, u) }

// AppendVictims appends n open units to give up, or all when there are fewer:
// those with the fewest used slots first, so that the least data has to move.
func (s *BlockSpace) AppendVictims(dst []int, n int) []int {
	for level := range s.perUnit + 1 {
		for u := s.fill.head(level); u >= 0 && n > 0; u = s.fill.next(u) {
			dst = append(dst, u)
			n--
		}
	}
	return dst
}

// Victims is AppendVictims into a new slice.
func (s *BlockSpace) Victims(n int) []int { return s.AppendVictims(nil, n) }

// fillLists keeps units in one doubly linked list per number of used slots,
// and a bit per list that is not empty.
type fillLists struct {
	heads  []int32
	counts []int32
	bits   []uint64
	links  []link // by unit
}

type link struct{ prev, next int32 }

func (f *fillLists) init(units, levels int) {
	f.heads = make([]int32, levels+1)
	f.counts = make([]int32, levels+1)
	f.bits = make([]uint64, levels/64+1)
	f.links = make([]link, units)
	for i := range f.heads {
		f.heads[i] = noSlot
	}
}

func (f *fillLists) head(level int) int  { return int(f.heads[level]) }
func (f *fillLists) next(u int) int      { return int(f.links[u].next) }
func (f *fillLists) count(level int) int { return int(f.counts[level]) }

func (f *fillLists) push(u, level int) {
	h := f.heads[level]
	f.links[u] = link{prev: noSlot, next: h}
	if h >= 0 {
		f.links[h].prev = int32(u)
	}
	f.heads[level] = int32(u)
	f.counts[level]++
	f.bits[level/64] |= 1 << (level % 64)
}

func (f *fillLists) remove(u, level int) {
	l := f.links[u]
	if l.prev >= 0 {
		f.links[l.prev].next = l.next
	} else {
		f.heads[level] = l.next
	}
	if l.next >= 0 {
		f.links[l.next].prev = l.prev
	}
	f.counts[level]--
	if f.heads[level] < 0 {
		f.bits[level/64] &^= 1 << (level % 64)
	}
}

// fullest returns a unit of the highest level that is not full, or -1.
func (f *fillLists) fullest() int {
	full := len(f.heads) - 1
	for w := (full - 1) / 64; w >= 0; w-- {
		word := f.bits[w]
		if w == full/64 {
			word &^= 1 << (full % 64)
		}
		if word != 0 {
			return f.head(w*64 + 63 - bits.LeadingZeros64(word))
		}
	}
	return -1
}

// blockTable says where the layers of each block lie (layer-lcm).
type blockTable struct {
	layers int
	places []int32   // by id*layers + layer; the first is noSlot while id is free
	free   []BlockID // stack
}

func (t *blockTable) init(blocks, layers int) {
	t.layers = layers
	t.places = make([]int32, blocks*layers)
	t.free = make([]BlockID, blocks)
	for i := range t.places {
		t.places[i] = noSlot
	}
	for i := range t.free {
		t.free[i] = BlockID(blocks - 1 - i)
	}
}

func (t *blockTable) slots(id BlockID) []int32 {
	return t.places[int(id)*t.layers : (int(id)+1)*t.layers]
}

func (t *blockTable) allocated(id BlockID) bool {
	return id >= 0 && int(id)*t.layers < len(t.places) && t.places[int(id)*t.layers] != noSlot
}

func (t *blockTable) take() (BlockID, []int32) {
	id := t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	return id, t.slots(id)
}

func (t *blockTable) give(id BlockID) {
	t.slots(id)[0] = noSlot
	t.free = append(t.free, id)
}
