package elastic

import (
	"cmp"
	"fmt"
	"slices"
)

// findings collects what a checker finds.
type findings struct{ errs []error }

func (f *findings) expect(ok bool, format string, args ...any) {
	if !ok {
		f.errs = append(f.errs, fmt.Errorf(format, args...))
	}
}

// Check verifies every invariant of the book, of its blocks and of the shared
// table, from scratch: each unit has one owner, the sums are constant, the
// counters match, the table shows what the book says, and nothing lent lies
// below the floor. It takes time proportional to units and blocks.
func (u *Units) Check() []error {
	f := &findings{errs: u.space.Check()}
	var counts [numStates]int
	perOwner := map[uint32]*[numStates]int{}
	for i := range u.rows {
		r := &u.rows[i]
		counts[r.state]++
		if perOwner[r.owner] == nil {
			perOwner[r.owner] = new([numStates]int)
		}
		perOwner[r.owner][r.state]++
		u.checkUnit(f, i)
	}
	f.expect(counts == u.counts, "units by state are %v, counted as %v", counts, u.counts)
	f.expect(u.Away() <= u.maxAway || u.counts[Fenced] > 0, "%d units are away, the floor allows %d", u.Away(), u.maxAway)
	f.expect(u.space.Units() == counts[Local], "%d units are LOCAL, but the worker has blocks in %d", counts[Local], u.space.Units())
	for owner := range u.owners {
		want := perOwner[uint32(owner)]
		if want == nil {
			want = new([numStates]int)
		}
		for s := Lent; s < numStates; s++ {
			f.expect(want[s] == u.CountOf(uint32(owner), s), "owner %d has %d units %s, counted as %d", owner, want[s], s, u.CountOf(uint32(owner), s))
			u.checkList(f, uint32(owner), s)
		}
	}
	return f.errs
}

func (u *Units) checkUnit(f *findings, unit int) {
	r := &u.rows[unit]
	row := u.table.Row(unit)
	row.Expiry = 0
	want := UnitRow{State: r.state, Owner: r.owner, Epoch: r.epoch}
	f.expect(row == want, "unit %d: the table shows %+v, the book says %+v", unit, row, want)
	f.expect(u.space.Has(unit) == (r.state == Local), "unit %d is %s, but the worker's use of it is %t", unit, r.state, u.space.Has(unit))
	if r.state != Fenced {
		f.expect((r.state == Local) == (r.owner == u.table.Worker()), "unit %d is %s and owned by %d", unit, r.state, r.owner)
	}
}

// checkList walks one list with a bound, so that a cycle ends.
func (u *Units) checkList(f *findings, owner uint32, s State) {
	n, prev := 0, noSlot
	for i := u.owners[owner].heads[s]; i >= 0 && n <= len(u.rows); i = u.rows[i].next {
		r := &u.rows[i]
		f.expect(r.owner == owner && r.state == s, "unit %d of owner %d, %s, is listed under owner %d, %s", i, r.owner, r.state, owner, s)
		f.expect(r.prev == prev, "unit %d: the list leads back to %d, want %d", i, r.prev, prev)
		prev = i
		n++
	}
	f.expect(n == u.CountOf(owner, s), "owner %d lists %d units %s, counts %d", owner, n, s, u.CountOf(owner, s))
}

// Check verifies the books of a block space: counters, lists, and that no two
// layer blocks overlap or leave their unit.
func (s *BlockSpace) Check() []error {
	f := &findings{}
	present, used, all, free := 0, 0, 0, 0
	for u := range s.info {
		info := &s.info[u]
		usedHere, freeHere := s.checkUnit(f, u)
		if !info.present {
			f.expect(usedHere == 0 && info.used == 0, "unit %d is gone and holds %d blocks", u, usedHere)
			continue
		}
		if u != s.units {
			present++
		}
		used += usedHere
		all += int(info.cap)
		if !info.closed {
			free += int(info.cap) - usedHere
		}
		f.expect(usedHere == int(info.used), "unit %d holds %d, counted as %d", u, usedHere, info.used)
		f.expect(usedHere+freeHere == int(info.cap), "unit %d holds %d and lists %d as free, of %d", u, usedHere, freeHere, info.cap)
	}
	f.expect(present == s.present, "%d units, counted as %d", present, s.present)
	f.expect(all == s.allSlots, "%d slots, counted as %d", all, s.allSlots)
	f.expect(free == s.freeSlots, "%d free slots, counted as %d", free, s.freeSlots)
	f.expect(used == s.used*s.perBlock, "%d used slots for %d blocks of %d", used, s.used, s.perBlock)
	s.checkFill(f)
	s.checkExtents(f)
	return f.errs
}

func (s *BlockSpace) checkUnit(f *findings, u int) (used, free int) {
	info := &s.info[u]
	first := u * s.perUnit
	for i := first; i < first+int(info.cap); i++ {
		if s.slots[i].block != noBlock {
			used++
		}
	}
	if !info.present {
		return used, 0
	}
	for i := info.free; i != noSlot && free <= int(info.cap); i = s.slots[i].next {
		f.expect(s.unitOf(i) == u, "unit %d lists slot %d of unit %d as free", u, i, s.unitOf(i))
		f.expect(s.slots[i].block == noBlock, "unit %d lists slot %d as free, which holds block %d", u, i, s.slots[i].block)
		free++
	}
	return used, free
}

// checkFill verifies that every open unit is in the list of its fill level.
func (s *BlockSpace) checkFill(f *findings) {
	listed, open := 0, 0
	for u := range s.units {
		if s.info[u].present && !s.info[u].closed {
			open++
		}
	}
	for level := range s.fill.heads {
		n, prev := 0, -1
		for u := s.fill.head(level); u >= 0 && n <= s.units; u = s.fill.next(u) {
			f.expect(s.info[u].present && !s.info[u].closed && int(s.info[u].used) == level, "unit %d holds %d and is listed under %d", u, s.info[u].used, level)
			f.expect(int(s.fill.links[u].prev) == prev, "unit %d: the fill list leads back to %d, want %d", u, s.fill.links[u].prev, prev)
			prev = u
			n++
		}
		bit := s.fill.bits[level/64]>>(level%64)&1 == 1
		f.expect(n == s.fill.count(level) && bit == (n > 0), "fill level %d lists %d units, counts %d, bit %t", level, n, s.fill.count(level), bit)
		listed += n
	}
	f.expect(listed == open, "%d units are in fill lists, want %d", listed, open)
}

func (s *BlockSpace) checkExtents(f *findings) {
	type place struct {
		Extent
		id    BlockID
		layer int
	}
	var all []place
	total := len(s.slots)
	if s.perBlock > 1 {
		total /= s.perBlock
	}
	blocks := 0
	for id := range BlockID(total) {
		if !s.Allocated(id) {
			continue
		}
		blocks++
		for l := range s.geometry.Layers {
			e := s.Extent(id, l)
			all = append(all, place{e, id, l})
			if u := s.LayerUnit(id, l); u >= 0 {
				inside := e.Off >= int64(u)*s.spec.Bytes && e.Off+e.Len <= int64(u+1)*s.spec.Bytes
				f.expect(inside && s.Has(u), "block %d, layer %d at %d lies outside unit %d", id, l, e.Off, u)
			}
		}
	}
	f.expect(blocks == s.used, "%d blocks are allocated, counted as %d", blocks, s.used)
	slices.SortFunc(all, func(a, b place) int { return cmp.Compare(a.Off, b.Off) })
	for i := 1; i < len(all); i++ {
		a, b := all[i-1], all[i]
		f.expect(a.Off+a.Len <= b.Off, "block %d, layer %d overlaps block %d, layer %d at byte %d", a.id, a.layer, b.id, b.layer, b.Off)
	}
}

// CheckReplica verifies what a borrower believes to hold against the lender's
// table: a replica may be older than its owner, never newer, and no unit is
// held twice.
func CheckReplica(t *UnitTable, owner uint32, held []UnitEpoch) []error {
	f := &findings{}
	seen := make(map[uint32]bool, len(held))
	for _, e := range held {
		f.expect(!seen[e.Unit], "owner %d holds unit %d twice", owner, e.Unit)
		seen[e.Unit] = true
		if int64(e.Unit) >= int64(t.Units()) {
			f.errs = append(f.errs, fmt.Errorf("owner %d holds unit %d of %d: %w", owner, e.Unit, t.Units(), ErrUnitUnknown))
			continue
		}
		row := t.Row(int(e.Unit))
		f.expect(e.Epoch <= row.Epoch, "owner %d holds unit %d at epoch %d, newer than its owner's %d", owner, e.Unit, e.Epoch, row.Epoch)
		f.expect(e.Epoch != row.Epoch || row.Owner == owner, "owner %d holds unit %d, which at epoch %d is owner %d's", owner, e.Unit, e.Epoch, row.Owner)
	}
	return f.errs
}

// CheckTable verifies what can be told of a table by itself: states fit
// owners, and the worker keeps its floor (bytes).
func CheckTable(t *UnitTable, floor int64) []error {
	f := &findings{}
	away, fenced := 0, 0
	for i := range t.Units() {
		row := t.Row(i)
		if row.State != Local {
			away++
		}
		if row.State == Fenced {
			fenced++
			continue
		}
		f.expect(row.Epoch > 0, "unit %d has never had an owner", i)
		f.expect((row.State == Local) == (row.Owner == t.Worker()), "unit %d is %s and owned by %d", i, row.State, row.Owner)
	}
	most := UnitSpec{Bytes: t.UnitBytes()}.Lendable(t.Arena(), floor)
	f.expect(away <= most || fenced > 0, "%d units are away, the floor allows %d", away, most)
	return f.errs
}
