package master

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/nvlink"
)

// move is a block that changes its place between two steps: the copies that
// carry its bytes, the guards of borrowed memory among them, and what to write
// into the books when the bytes have arrived.
type move struct {
	seq    uint64
	copies []nvlink.Copy // one per layer where borrowed memory is involved
	guards []guard
	// old is what the bytes must verify against, new receives the checksums
	// of the new place. Nil: there is nothing to verify, or to keep.
	old, new *seal
	from     lentBlock // with old: where the bytes come from
	badLayer int       // the first that did not verify, else -1
	commit   func()
	undo     func()
}

// corruptMoves says which moves read bytes that did not verify.
type corruptMoves []*move

func (e corruptMoves) Error() string {
	return fmt.Sprintf("%d blocks are not what was stored: checksums differ", len(e))
}

// run carries out moves as one batched copy and waits for it. All or nothing:
// if a copy fails, memory changed hands meanwhile or bytes do not verify, every
// move is undone.
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
			m.commit()
		} else {
			m.undo()
		}
	}
	return err
}

func checkSeals(moves []*move) error {
	var bad corruptMoves
	for _, m := range moves {
		if m.old != nil && m.badLayer >= 0 {
			bad = append(bad, m)
		}
	}
	if bad == nil {
		return nil
	}
	return bad
}

func checkGuards(moves []*move) error {
	for _, m := range moves {
		for _, g := range m.guards {
			if !g.MayStore() {
				return fmt.Errorf("unit of %s changed hands: %w", g.pool.cfg.Name, errNoRoom)
			}
		}
	}
	return nil
}

// spill moves n blocks out of the regular cache into borrowed memory (which
// has room for them), to free chunks for slots. Blocks without bytes go first,
// then those of the longest sequences.
func (c *Cache) spill(n int) error {
	picked := c.spillable(n)
	if len(picked) < n {
		return errNoRoom
	}
	moves := make([]*move, 0, n)
	for i, at := range c.takeLent(n, nil) {
		m, err := c.spillOne(picked[i], at)
		if err != nil {
			c.unmove(moves, c.lentMove(at))
			return err
		}
		moves = append(moves, m)
	}
	if err := c.run(moves); err != nil {
		return err
	}
	c.stats.MovedBlocks["borrowed"] += uint64(n)
	for _, p := range picked {
		c.notePeak(p.seq)
	}
	return nil
}

func (c *Cache) unmove(moves []*move, last *move) {
	for _, m := range append(moves, last) {
		m.undo()
	}
}

// lentMove undoes the taking of a borrowed block.
func (c *Cache) lentMove(at lentBlock) *move {
	return &move{undo: func() {
		at.pool.space.Free([]elastic.BlockID{at.id})
		c.lent--
	}}
}

// owned is a block and whose it is.
type owned struct {
	id    uint64
	seq   *sequence
	index int
	block *block
}

func (c *Cache) spillable(n int) []owned {
	var all []owned
	for id, s := range c.seqs {
		for i, b := range s.blocks {
			if b.place == local {
				all = append(all, owned{id, s, i, b})
			}
		}
	}
	full := c.BlockTokens()
	rank := func(o owned) int {
		switch {
		case o.block.written == 0:
			return 0
		case o.block.written == full:
			return 1
		default:
			return 2 // partly filled: needs a tail
		}
	}
	slices.SortFunc(all, func(a, b owned) int {
		return cmp.Or(
			cmp.Compare(rank(a), rank(b)),
			cmp.Compare(len(b.seq.blocks), len(a.seq.blocks)),
			cmp.Compare(a.block.chunk, b.block.chunk),
		)
	})
	return all[:min(n, len(all))]
}

// spillOne plans the move of a regular-cache block to borrowed memory.
func (c *Cache) spillOne(o owned, at lentBlock) (*move, error) {
	b := o.block
	m := &move{seq: o.id}
	tail := int32(-1)
	src := c.space.chunkOff(b.chunk)
	switch {
	case b.written == 0:
	case b.written < c.BlockTokens():
		t, ok := c.space.takeTail()
		if !ok {
			return nil, errNoRoom
		}
		tail = t
		n := c.cfg.Geometry.FullBlockBytes()
		m.copies = []nvlink.Copy{{
			Dst: nvlink.Span{Arena: c.cfg.Local, Off: c.space.tailOff(t), Len: n},
			Src: nvlink.Span{Arena: c.cfg.Local, Off: src, Len: n},
		}}
	default:
		m.guards = []guard{at.pool.guard(at.id)}
		m.new = c.newSeal(o.id, o.index, at)
		for l := range c.cfg.Geometry.Layers {
			m.copies = append(m.copies, nvlink.Copy{Dst: at.pool.span(at.id, l), Src: c.localSpan(src, l)})
		}
	}
	m.commit = func() {
		c.space.putChunk(b.chunk)
		b.place, b.pool, b.id, b.tail = borrowed, at.pool, at.id, tail
		at.pool.blocks[at.id] = o
		b.sums = m.new.take()
	}
	undo := c.lentMove(at).undo
	m.undo = func() {
		if tail >= 0 {
			c.space.putTail(tail)
		}
		undo()
	}
	return m, nil
}

func (c *Cache) localSpan(base int64, l int) nvlink.Span {
	n := c.cfg.Geometry.LayerBlockBytes()
	return nvlink.Span{Arena: c.cfg.Local, Off: base + int64(l)*n, Len: n}
}

// Reclaim is a lender's wish to have units back. It empties the units that
// cost least and returns them; if a step is running that happens when it ends.
// done is told how many units went home; it runs with the cache locked.
func (c *Cache) Reclaim(lender, units int, done func(returned int)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pools[lender]
	c.betweenSteps(func() {
		victims := p.victims(units)
		c.vacate(p, victims)
		c.giveBack(p, victims)
		c.sweep()
		done(len(victims))
	})
}

// Lost says that units are no longer this master's: the lease ended or the
// lender took them. What lay in them is gone. When nothing of this master's
// touches them any more they are released.
func (c *Cache) Lost(lender int, units []wire.UnitEpoch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pools[lender]
	c.betweenSteps(func() {
		var release []wire.UnitEpoch
		for _, u := range units {
			if e, ok := p.epochs[u.Unit]; !ok || e != u.Epoch {
				continue // released already, by a call that crossed this one
			}
			release = append(release, u)
			c.evictFrom(p, []int{int(u.Unit)})
			if err := p.space.RemoveUnit(int(u.Unit)); err != nil {
				panic(fmt.Sprintf("BUG: unit %d of %s after eviction: %v", u.Unit, p.cfg.Name, err))
			}
			delete(p.epochs, u.Unit)
			delete(p.bad, int(u.Unit))
		}
		if len(release) > 0 {
			p.cfg.Ask.Release(release)
		}
		c.sweep()
		c.signal()
	})
}

// betweenSteps runs f now or, if a step is running, when it ends. mu is held.
func (c *Cache) betweenSteps(f func()) {
	if c.step != nil {
		c.deferred = append(c.deferred, f)
		return
	}
	f()
}

// vacate empties units of p: blocks move to other units of the same worker, to
// other workers, or into the regular cache; sequences whose blocks find no
// place are evicted and will be computed again.
func (c *Cache) vacate(p *pool, units []int) {
	for _, u := range units {
		p.space.CloseUnit(u)
	}
	var moves []*move
	for _, o := range p.lodgers(units) {
		m, err := c.rehome(o.id, o.index, o.block)
		if err != nil {
			c.unmove(moves, &move{undo: func() {}})
			c.evict(o.id)
			c.vacate(p, units)
			return
		}
		moves = append(moves, m)
	}
	err := c.run(moves)
	var bad corruptMoves
	switch {
	case err == nil:
	case errors.As(err, &bad):
		for _, m := range bad {
			c.corrupt(m.from, m.badLayer)
		}
		for _, m := range bad {
			if c.seqs[m.seq] != nil {
				c.evict(m.seq)
			}
		}
		c.vacate(p, units)
	default:
		// The bytes did not arrive: whoever has blocks there starts over.
		c.evictFrom(p, units)
	}
}

// evictFrom evicts every sequence with a block in one of the units.
func (c *Cache) evictFrom(p *pool, units []int) {
	for _, o := range p.lodgers(units) {
		if c.seqs[o.id] != nil { // not evicted for another block
			c.evict(o.id)
		}
	}
}

// rehome plans the move of block i of a sequence, a borrowed one, out of a
// closed unit.
func (c *Cache) rehome(seq uint64, i int, b *block) (*move, error) {
	m := &move{seq: seq, badLayer: -1, from: lentBlock{b.pool, b.id}}
	if c.hasRemoteBytes(b) {
		m.old = c.sealOf(seq, i, b)
	}
	if c.lentFree() > 0 {
		at := c.takeLent(1, nil)[0]
		if m.old != nil {
			m.new = c.newSeal(seq, i, at)
		}
		c.rehomeLent(m, b, at)
		return m, nil
	}
	if !c.space.fits(c.space.used()+1, c.lent-1) {
		return nil, errNoRoom
	}
	chunk, ok := c.space.takeChunk()
	if !ok {
		return nil, errNoRoom
	}
	c.rehomeLocal(m, b, chunk)
	return m, nil
}

// hasRemoteBytes reports whether a borrowed block's bytes are in borrowed
// memory (and not nowhere yet, or in a tail).
func (c *Cache) hasRemoteBytes(b *block) bool {
	return b.written > 0 && b.tail < 0
}

func (c *Cache) rehomeLent(m *move, b *block, at lentBlock) {
	m.undo = c.lentMove(at).undo
	if c.hasRemoteBytes(b) {
		m.guards = []guard{b.pool.guard(b.id), at.pool.guard(at.id)}
		for l := range c.cfg.Geometry.Layers {
			m.copies = append(m.copies, nvlink.Copy{Dst: at.pool.span(at.id, l), Src: b.pool.span(b.id, l)})
		}
	}
	m.commit = func() {
		at.pool.blocks[at.id] = b.pool.blocks[b.id]
		delete(b.pool.blocks, b.id)
		b.pool.space.Free([]elastic.BlockID{b.id})
		c.lent--
		b.pool, b.id, b.sums = at.pool, at.id, m.new.take()
		c.stats.MovedBlocks["borrowed"]++
	}
}

func (c *Cache) rehomeLocal(m *move, b *block, chunk int32) {
	m.undo = func() { c.space.putChunk(chunk); c.lent++ }
	// Counted at once, so that the next block's fits sees it.
	c.lent--
	dst := c.space.chunkOff(chunk)
	switch {
	case c.hasRemoteBytes(b):
		m.guards = []guard{b.pool.guard(b.id)}
		for l := range c.cfg.Geometry.Layers {
			m.copies = append(m.copies, nvlink.Copy{Dst: c.localSpan(dst, l), Src: b.pool.span(b.id, l)})
		}
	case b.tail >= 0:
		n := c.cfg.Geometry.FullBlockBytes()
		m.copies = []nvlink.Copy{{
			Dst: nvlink.Span{Arena: c.cfg.Local, Off: dst, Len: n},
			Src: nvlink.Span{Arena: c.cfg.Local, Off: c.space.tailOff(b.tail), Len: n},
		}}
	}
	m.commit = func() {
		b.pool.space.Free([]elastic.BlockID{b.id})
		delete(b.pool.blocks, b.id)
		if b.tail >= 0 {
			c.space.putTail(b.tail)
		}
		b.place, b.pool, b.chunk, b.tail, b.sums = local, nil, chunk, -1, nil
		c.stats.MovedBlocks["rc"]++
	}
}
