package master

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/scheduler"
)

type span = nvlink.Span

// move is a block that changes its place between two steps, and the
// guards of borrowed memory that its bytes come from or go to.
type move struct {
	b        *block
	from, to spot
	layers   int // whose bytes travel; 0: there are none
	guards   []guard
	// old is what the bytes must verify against, new receives the checksums
	// of the new place. Nil: there is nothing to verify, or to keep.
	old, new *seal
	badLayer int // the first that did not verify, else -1
	// orphan: the block was dropped while its bytes travelled. Both places are
	// the move's to free.
	orphan bool
	// copy: the block stays where it is, too. leave: until the copy is there.
	copy, leave bool
	// spill: the block is in use, and stays where it is while it is.
	spill bool
	late  bool // its disk takes several times as long as it should
	// stage is where its bytes are meanwhile, -1: nowhere. A copy that goes on
	// from there is not its block's busy any more.
	stage int32
	hint  bool // for a request that waits
}

// corruptMoves says which moves read bytes that did not verify.
type corruptMoves []*move

func (e corruptMoves) Error() string {
	return fmt.Sprintf("%d blocks are not what was stored: checksums differ", len(e))
}

// plan prepares the move of a block to a spot that was taken for it.
func (c *Cache) plan(b *block, to spot) *move {
	m := &move{b: b, from: b.spot, to: to, badLayer: -1, stage: -1}
	if b.written == 0 || m.keepsTail() {
		return m
	}
	m.layers = c.cfg.Geometry.Layers
	if b.spot.far() {
		m.guards = append(m.guards, b.pool.guard(b.id))
		m.old = c.sealOf(b)
	}
	if to.far() {
		m.guards = append(m.guards, to.pool.guard(to.id))
		m.new = c.newSeal(b, lentBlock{to.pool, to.id})
	}
	return m
}

// piece is what carries the bytes of layer l.
func (c *Cache) piece(m *move, l int) nvlink.Copy {
	switch {
	case m.stage < 0:
		return nvlink.Copy{Dst: c.spanAt(m.to, l), Src: c.spanAt(m.from, l)}
	case m.to.pool == nil: // it comes into staging memory
		return nvlink.Copy{Dst: c.staging.span(m.stage, l), Src: c.spanAt(m.from, l)}
	}
	return nvlink.Copy{Dst: c.spanAt(m.to, l), Src: c.staging.span(m.stage, l)}
}

// keepsTail reports that the block's bytes are in a tail and stay there: only
// the place that waits for them changes.
func (m *move) keepsTail() bool { return m.to.tail >= 0 && m.to.tail == m.from.tail }

// far reports whether bytes at the spot are outside the own arena.
func (s spot) far() bool { return s.place != local && s.tail < 0 }

// count books a planned move of a block in use before its bytes travel, so that
// the next plan sees it; uncount takes that back.
func (c *Cache) count(m *move, n int) {
	if m.b.users > 0 {
		c.tally(m.from.place, -n)
		c.tally(m.to.place, n)
	}
}

// commit books a move whose bytes have arrived and that was counted.
func (c *Cache) commit(m *move) {
	b := m.b
	if m.keepsTail() {
		m.from.tail = -1
	}
	if m.to.place == stored {
		c.dropCopy(b) // which landed meanwhile
	}
	if m.from.place == stored && b.node != nil && b.copy == nil && m.from.pool.shelf.open() {
		b.copy = &copied{m.from.pool, m.from.id, b.sums} // it keeps that place
	} else {
		c.freeSpot(m.from)
	}
	b.spot, b.way = m.to, way{}
	b.doubtful = false // it was verified, or is another place
	if b.came = local; m.hint {
		b.came = m.from.place
	}
	if m.to.place != local {
		m.to.pool.blocks[m.to.id] = b
	}
	b.sums = m.new.take()
	if b.node != nil {
		c.index.SetClass(b.node, int(m.to.place))
		if m.to.place == stored {
			c.enter(b, b.spot, b.sums)
		}
	}
	c.stats.MovedBlocks[m.to.place.String()]++
}

// undo gives up a move that was counted.
func (c *Cache) undo(m *move) {
	c.count(m, -1)
	if m.keepsTail() {
		m.to.tail = -1
	}
	c.free(m.to)
}

// String names a place as a destination.
func (p place) String() string { return [...]string{"rc", "moving", "borrowed", "host", "pool"}[p] }

// run carries out counted moves as one batched copy and waits for it. All or
// nothing: if a copy fails, memory changed hands meanwhile or bytes do not
// verify, every move is undone.
func (c *Cache) run(moves []*move) error {
	err := c.transfer(moves)
	if err == nil {
		err = checkGuards(moves)
	}
	if err == nil {
		err = checkSeals(moves)
	}
	for _, m := range moves {
		if err == nil {
			c.commit(m)
		} else {
			c.undo(m)
		}
	}
	return err
}

func checkSeals(moves []*move) error {
	var bad corruptMoves
	for _, m := range moves {
		if m.corrupt() {
			bad = append(bad, m)
		}
	}
	if bad == nil {
		return nil
	}
	return bad
}

func (m *move) corrupt() bool { return m.old != nil && m.badLayer >= 0 }

func checkGuards(moves []*move) error {
	for _, m := range moves {
		if err := m.fenced(); err != nil {
			return err
		}
	}
	return nil
}

// fenced says which borrowed memory of the move changed hands.
func (m *move) fenced() error {
	for _, g := range m.guards {
		if !g.MayStore() {
			return fmt.Errorf("unit of %s changed hands: %w", g.pool.cfg.Name, errNoRoom)
		}
	}
	return nil
}

// spill moves n blocks in use out of the regular cache into borrowed memory
// (which has room for them), to free chunks for slots. Blocks without bytes go
// first, then those of the longest sequences. An error is scheduler.ErrWait; it is
// ErrComing while disks are writing what had to go there.
func (c *Cache) spill(n int) error {
	c.settleNear()
	picked, busy := c.spillable(n)
	if len(picked) < n && busy {
		return scheduler.ErrComing
	}
	if len(picked) < n {
		return c.refusal("%d of %d blocks in use can leave the regular cache", len(picked), n)
	}
	moves := make([]*move, 0, n)
	var slow []*move
	giveUp := func(err error) error {
		for _, m := range moves {
			c.undo(m)
		}
		for _, m := range slow {
			c.free(m.to)
		}
		return fmt.Errorf("%w: %v", scheduler.ErrWait, err)
	}
	for _, b := range picked {
		if b.copy != nil && c.lentFree() == 0 {
			c.recede(b)
			continue
		}
		at, ok := c.takeSpot(true)
		if !ok {
			return giveUp(errNoRoom)
		}
		if b.written > 0 && b.written < c.BlockTokens() {
			if at.tail, ok = c.space.takeTail(); !ok {
				at.tail = -1
				c.free(at)
				return giveUp(errNoRoom)
			}
		}
		m := c.plan(b, at)
		if m.onDisk() {
			m.spill = true
			slow = append(slow, m)
			continue
		}
		c.count(m, 1)
		moves = append(moves, m)
	}
	if err := c.run(moves); err != nil {
		for _, m := range slow {
			c.free(m.to)
		}
		return fmt.Errorf("%w: %v", scheduler.ErrWait, err)
	}
	for _, s := range c.seqs {
		c.notePeak(s)
	}
	if len(slow) == 0 {
		return nil
	}
	c.spillFar(slow)
	return scheduler.ErrComing
}

// spillFar sends blocks in use to stores. Nobody waits for a disk with the cache
// locked: they are there when they have landed.
func (c *Cache) spillFar(moves []*move) {
	for _, m := range moves {
		m.b.busy = m
		if m.b.node != nil {
			c.index.SetClass(m.b.node, int(moving))
		}
	}
	c.takeOff(moves)
}

// landSpill books a block in use whose bytes have arrived in a store, if the steps
// still have the slots to stream it. No step runs.
func (c *Cache) landSpill(m *move, ok bool) {
	b := m.b
	if m.orphan {
		c.freeSpot(m.from)
		c.free(m.to)
		return
	}
	b.busy = nil
	inUse := min(b.users, 1)
	fits := c.held+inUse <= c.cfg.MaxLent && c.space.fits(c.space.used()-1, c.held+inUse)
	if !ok || m.fenced() != nil || !fits {
		c.free(m.to)
		if b.node != nil {
			c.index.SetClass(b.node, int(b.place))
		}
		return
	}
	c.count(m, 1)
	c.commit(m)
	for _, s := range c.seqs {
		c.notePeak(s)
	}
	c.signal()
}

// onDisk reports that bytes of the move come from a store or go there.
func (m *move) onDisk() bool {
	return m.layers > 0 && (m.from.place == stored || m.to.place == stored && m.to.tail < 0)
}

// spillable lists the n blocks in use that leave the regular cache first, and
// whether a disk is still writing others. Sequences fill their blocks from the
// first on, so nothing but what is picked needs to be looked at.
func (c *Cache) spillable(n int) (out []*block, busy bool) {
	ids := slices.SortedFunc(maps.Keys(c.seqs), func(a, b uint64) int {
		return cmp.Or(cmp.Compare(len(c.seqs[b].blocks), len(c.seqs[a].blocks)), cmp.Compare(a, b))
	})
	c.spills++
	pick := func(b *block) {
		switch {
		case b.place != local || b.spilled == c.spills:
		case b.busy != nil:
			busy = true
		default:
			b.spilled = c.spills
			out = append(out, b)
		}
	}
	var partly []*block
	for _, id := range ids {
		blocks := c.seqs[id].blocks
		i := len(blocks)
		for ; i > 0 && blocks[i-1].written == 0 && len(out) < n; i-- {
			pick(blocks[i-1])
		}
		if i > 0 && blocks[i-1].written < c.BlockTokens() {
			partly = append(partly, blocks[i-1]) // it needs a tail
		}
	}
	for _, id := range ids {
		for _, b := range c.seqs[id].blocks {
			if len(out) >= n || b.written < c.BlockTokens() {
				break
			}
			pick(b)
		}
	}
	for _, b := range partly {
		if len(out) < n && b.written > 0 {
			pick(b)
		}
	}
	return out, busy
}

func (c *Cache) localSpan(base int64, l int) span {
	n := c.cfg.Geometry.LayerBlockBytes()
	return span{Arena: c.cfg.Local, Off: base + int64(l)*n, Len: n}
}

// betweenSteps runs f now or, if a step is running, when it ends. mu is held.
func (c *Cache) betweenSteps(f func()) {
	if c.step != nil {
		c.deferred = append(c.deferred, f)
		return
	}
	f()
}

// asCorrupt returns the corrupt moves of an error of run.
func asCorrupt(err error) (corruptMoves, bool) {
	var bad corruptMoves
	return bad, errors.As(err, &bad)
}
