package master

import (
	"cmp"
	"slices"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/overflow/store"
	"github.com/kvlend/kvlend/prefix"
)

// orphan is a block in a store whose predecessors are not there: nobody finds it. It
// stays as long as nobody needs its place, for its predecessors may come back: with a
// device that is missing now, or computed again.
type orphan struct {
	key   prefix.Key
	pool  *pool
	id    elastic.BlockID
	sums  []uint64
	tag   uint64 // Cache.clock when it was stored
	depth int    // how many orphans come before it
	gone  bool
	// doubtful as its block was, or would be.
	doubtful bool
}

// orphans are all of them.
type orphans struct {
	byKey map[prefix.Key]*orphan
	order []*orphan // what goes first comes last; some may be gone
	mixed bool      // order is to be sorted
}

// add takes a block, whose place is taken, unless there is one of its key.
func (o *orphans) add(x *orphan) bool {
	if o.byKey[x.key] != nil {
		return false
	}
	if o.byKey == nil {
		o.byKey = map[prefix.Key]*orphan{}
	}
	o.byKey[x.key] = x
	o.order, o.mixed = append(o.order, x), true
	return true
}

// remove takes one out, whose place is the caller's from then on.
func (o *orphans) remove(x *orphan) {
	x.gone = true
	delete(o.byKey, x.key)
}

// next is the one to go first, nil if there is none: the oldest, the end of a chain
// before its beginning.
func (o *orphans) next() *orphan {
	if o.mixed {
		slices.SortFunc(o.order, func(a, b *orphan) int {
			return cmp.Or(cmp.Compare(b.tag, a.tag), cmp.Compare(a.depth, b.depth))
		})
		o.mixed = false
	}
	for len(o.order) > 0 {
		last := o.order[len(o.order)-1]
		if !last.gone {
			return last
		}
		o.order = o.order[:len(o.order)-1]
	}
	return nil
}

// in counts those in a store.
func (o *orphans) in(p *pool) int {
	n := 0
	for _, x := range o.byKey {
		if x.pool == p {
			n++
		}
	}
	return n
}

// dropOrphans frees the places of n orphans, if there are so many, and says how many
// it freed.
func (c *Cache) dropOrphans(n int) int {
	freed := 0
	for ; freed < n; freed++ {
		x := c.orphans.next()
		if x == nil {
			break
		}
		c.dropOrphan(x)
	}
	return freed
}

func (c *Cache) dropOrphan(x *orphan) {
	c.orphans.remove(x)
	x.pool.put(x.id)
}

// leaveOrphans gives up the orphans in a store that takes no more blocks. What is
// fenced keeps them for the next start (shelf.put).
func (c *Cache) leaveOrphans(p *pool) {
	for _, x := range c.orphans.byKey {
		if x.pool == p {
			c.dropOrphan(x)
		}
	}
}

// claim gives a block that was just computed the place of its orphan, as a copy.
func (c *Cache) claim(b *block) {
	x := c.orphans.byKey[b.node.Key()]
	switch {
	case x == nil:
	case b.place == stored || b.copy != nil:
		c.dropOrphan(x)
	default:
		c.orphans.remove(x)
		b.copy, b.doubtful = &copied{x.pool, x.id, x.sums}, x.doubtful
		x.pool.blocks[x.id] = b
	}
}

// strand gives up blocks that a device could not read, as spoil does. What continues
// them in stores stays there.
func (c *Cache) strand(blocks map[*block]bool) {
	c.stranding = blocks
	c.spoil(blocks)
	c.stranding = nil
}

// orphaned makes a block that was just taken out of the index one, with the place that
// it has in a store, if there is one.
func (c *Cache) orphaned(n *node) {
	b := n.Value
	x := &orphan{key: n.Key(), tag: uint64(c.clock()), depth: n.Depth(), doubtful: b.doubtful}
	switch {
	case b.copy != nil:
		x.pool, x.id, x.sums = b.copy.pool, b.copy.id, b.copy.sums
	case b.place == stored && b.busy == nil && b.tail < 0:
		x.pool, x.id, x.sums = b.pool, b.id, b.sums
	default:
		return
	}
	if !x.pool.shelf.open() || x.pool.shelf.Volatile || !c.orphans.add(x) {
		return
	}
	delete(x.pool.blocks, x.id)
	if b.copy != nil {
		b.copy = nil
	} else {
		b.place = moving // it has none
	}
}

// adoptOrphans keeps what restore found without its predecessors, if they may come
// back. It says how many.
func (c *Cache) adoptOrphans(all map[prefix.Key]found, known map[prefix.Key]*node) int {
	if len(all) == len(known) || !c.incomplete() {
		return 0
	}
	kept := 0
	for _, f := range all {
		if known[f.Key] != nil || f.Root || known[f.Parent] != nil || f.pool.shelf.Volatile {
			continue
		}
		x := &orphan{key: f.Key, pool: f.pool, id: elastic.BlockID(f.Slot), sums: f.Sums, tag: f.Tag, depth: depthIn(all, f.Entry), doubtful: f.doubtful()}
		if c.orphans.add(x) {
			kept++
		}
	}
	return kept
}

// maxDepth bounds the search for how many orphans come before one: in what order they
// go matters less than that it takes no time.
const maxDepth = 4096

func depthIn(all map[prefix.Key]found, e store.Entry) int {
	n := 0
	for up, ok := all[e.Parent]; ok && n < maxDepth && !e.Root; up, ok = all[e.Parent] {
		e = up.Entry
		n++
	}
	return n
}

// incomplete reports that a device is missing, or was made anew: an empty one beside
// one that is not may stand in for one that comes back.
func (c *Cache) incomplete() bool {
	if c.cfg.Overflow.Missing {
		return true
	}
	for _, p := range c.shelves {
		if !p.shelf.Volatile && p.shelf.Store.Stats().Live == 0 {
			return true
		}
	}
	return false
}
