package master

import (
	"cmp"
	"slices"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/lsc"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/prefix"
)

// place is where a block lives. The places that keep blocks are the classes of
// the prefix index, nearest first; a block that is being copied elsewhere is in
// class moving, so that nobody picks it twice.
type place uint8

const (
	local    place = iota // a chunk of the own arena: regular cache
	moving                // of the index only
	borrowed              // a full block in a lender's units
	host                  // a full block in host memory
	stored                // a full block in a store of the overflow pool
	nPlaces
)

// spot is a place in full.
type spot struct {
	place place
	chunk int32           // local
	pool  *pool           // all but local
	id    elastic.BlockID // in the pool
	tail  int32           // not local and partly filled: its tail, else -1
}

func chunkSpot(chunk int32) spot { return spot{place: local, chunk: chunk, tail: -1} }

// block is one full block. Sequences with the same prefix share it.
type block struct {
	spot
	// sums are the checksums, by layer, of bytes outside the own arena. Nil:
	// there are none, or nothing is verified.
	sums []uint64
	// written counts the tokens whose KV is in place.
	written int
	// ident says what a full block is: the key of its prefix or, where tokens
	// are not known, sequence and position.
	ident prefix.Key
	// users counts the sequences that hold the block.
	users int
	// node is the block's place in the index; nil: it belongs to one sequence.
	// Its references are the users.
	node *prefix.Node[*block]
	// busy is the copy to another place that is under way, as long as it needs the
	// place that the block has.
	busy *move
	// onLeave is the copy to a store after which a block that nobody uses gives up
	// the place that it has. Until then it is in class moving.
	onLeave *move
	// copy is a second place in a store, which outlives what is nearer; nil:
	// none. Kept blocks only, and none of those whose place is in a store.
	copy *copied
	// worthy: it is worth a write to a store; asked: it is listed for that; doubtful:
	// its place in a store may have been used again (StoreConfig.Doubt).
	worthy, asked, doubtful bool
	// came is where the block was before a hint brought it into the regular cache,
	// until a request uses it: local, if none did.
	came place
	// planned and homed are the numbers of the last steps that planned the block,
	// as an entry, and that take it to a chunk.
	planned, homed uint64
	spilled        uint64 // the number of the last spillable that listed it
	entry          entry
	chunkTo        int32
	// way is how passes get at the block where it is, see wayTo.
	way way
	// home is a chunk that waits for the block of a sequence, which the next
	// pass fills; -1: none.
	home int32
}

// way is how passes get at a block in borrowed memory.
type way struct {
	pool   *pool // of which it holds; nil: none
	id     elastic.BlockID
	remote func(l int) nvlink.Span
	guard  *guard
}

// wayTo is where the layers of a far block are, and who says whether they still
// are its own. In borrowed memory both stay the same for as long as the block is
// there.
func (b *block) wayTo() (func(l int) nvlink.Span, lsc.Guard) {
	p, id := b.pool, b.id
	if b.way.pool == p && b.way.id == id && b.place == borrowed {
		return b.way.remote, b.way.guard
	}
	g := p.guard(id)
	b.way = way{p, id, func(l int) nvlink.Span { return p.span(id, l) }, &g}
	return b.way.remote, b.way.guard
}

func newBlock(s spot) *block { return &block{spot: s, home: -1} }

// sequence is what a request holds.
type sequence struct {
	blocks       []*block
	peakBorrowed int
	steps        uint64 // begun: decides which blocks are sampled
	chain        chain
	receipt      receipt
}

// tally counts a block that is in use at its place, or no longer. One that has a
// home is not counted at its place.
func (c *Cache) tally(p place, n int) {
	if p == local {
		c.pinned += n
		return
	}
	c.held += n
	c.heldAt[p] += n
}

// use adds a user to a block.
func (c *Cache) use(b *block) {
	if b.node != nil {
		c.index.Ref(b.node)
	}
	if b.users++; b.users == 1 {
		c.tally(b.place, 1)
	}
}

// unuse takes a user away. A block that nobody uses is kept by its prefix, or
// freed where it has none.
func (c *Cache) unuse(b *block) {
	if b.users == 1 {
		c.freeHome(b)
		c.tally(b.place, -1)
	}
	b.users--
	if b.node != nil {
		c.index.Unref(b.node)
	} else if b.users == 0 && b.busy != nil {
		b.busy.orphan = true // a disk still has to take what lies there
	} else if b.users == 0 {
		c.freeSpot(b.spot)
	}
}

// giveHome takes a chunk for a far block in use, which needs no slots then.
func (c *Cache) giveHome(b *block) {
	chunk, ok := c.space.takeChunk()
	if !ok {
		panic("BUG: the regular cache has no chunk that room promised")
	}
	b.home = chunk
	c.homes++
	c.tally(b.place, -1)
}

// endHome books that the chunk waits for the block no longer.
func (c *Cache) endHome(b *block) (chunk int32) {
	chunk, b.home = b.home, -1
	c.homes--
	c.tally(b.place, 1)
	return chunk
}

func (c *Cache) freeHome(b *block) {
	if b.home >= 0 {
		c.space.putChunk(c.endHome(b))
	}
}

// drop ends a sequence. Its last blocks are let go first: they are worth least.
func (c *Cache) drop(id uint64, s *sequence) {
	for _, b := range slices.Backward(s.blocks) {
		c.unuse(b)
	}
	delete(c.seqs, id)
}

// freeSpot gives back the memory of a spot.
func (c *Cache) freeSpot(s spot) {
	if s.tail >= 0 {
		c.space.putTail(s.tail)
	}
	if s.place == local {
		c.space.putChunk(s.chunk)
		return
	}
	s.pool.put(s.id)
	delete(s.pool.blocks, s.id)
	s.pool.touch(c.cfg.Now())
}

// settleAt books a block at a new spot; the old one is the caller's.
func (c *Cache) settleAt(b *block, s spot) {
	if b.users > 0 {
		c.tally(b.place, -1)
		c.tally(s.place, 1)
	}
	b.spot, b.way = s, way{}
	if s.place != local {
		s.pool.blocks[s.id] = b
	}
	if b.node != nil {
		c.index.SetClass(b.node, int(s.place))
	}
}

// forget takes a block that nobody uses out of the index, with all that
// continues it, and frees their memory.
func (c *Cache) forget(n *prefix.Node[*block]) int {
	c.removed = c.index.Remove(n, c.removed[:0])
	for _, n := range c.removed {
		b := n.Value
		b.node = nil
		if c.stranding != nil && !c.stranding[b] {
			c.orphaned(n)
		}
		c.dropCopy(b)
		if b.place == moving {
			continue // an orphan has its place
		}
		if b.busy != nil {
			b.busy.orphan = true // its copy still reads the old place
			continue
		}
		c.freeSpot(b.spot)
	}
	k := len(c.removed)
	clear(c.removed)
	return k
}

// holders lists the sequences that hold one of the blocks.
func (c *Cache) holders(blocks map[*block]bool) []uint64 {
	var ids []uint64
	for id, s := range c.seqs {
		if slices.ContainsFunc(s.blocks, func(b *block) bool { return blocks[b] }) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// spoil gives up blocks whose bytes are gone or wrong: whoever uses them starts
// over, and nobody finds them again.
func (c *Cache) spoil(blocks map[*block]bool) {
	for _, id := range c.holders(blocks) {
		c.evict(id)
	}
	kept := make([]*block, 0, len(blocks))
	for b := range blocks {
		if b.node != nil {
			kept = append(kept, b)
		}
	}
	// In an order of their own: whoever takes their places next gets the same ones
	// in every run.
	slices.SortFunc(kept, func(a, b *block) int {
		x, y := a.node.Key(), b.node.Key()
		return cmp.Or(cmp.Compare(x.Hi, y.Hi), cmp.Compare(x.Lo, y.Lo))
	})
	for _, b := range kept {
		if b.node != nil { // not forgotten with one that it continued
			c.stats.MovedBlocks["dropped"] += uint64(c.forget(b.node))
		}
	}
}

// evict drops a sequence whose blocks have nowhere to stay; the scheduler
// computes it again.
func (c *Cache) evict(id uint64) {
	c.stats.EvictedSequences++
	c.drop(id, c.seqs[id])
	c.evicted = append(c.evicted, id)
	c.signal()
}
