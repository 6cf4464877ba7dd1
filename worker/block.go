package worker

import (
	"slices"
	"time"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/prefix"
)

// block is one of the worker's own full blocks. Sequences with the same prefix
// share it.
type block struct {
	id elastic.BlockID
	// users counts the sequences that hold the block. Without users it is kept
	// by its prefix, in the list of idle ones.
	users int
	// node is the block's place in the index; nil: it belongs to one sequence.
	// Its references are the users.
	node *prefix.Node[*block]

	// The following are of idle blocks.
	since      time.Duration // the last user left
	cold       bool          // nobody has used it for Config.KeepFor
	prev, next *block
}

// sequence is what a request holds.
type sequence struct {
	blocks  []*block
	chain   chain
	receipt receipt
}

// idleList are the blocks that nobody uses, in the order in which they were let
// go: cold ones first. A sequence lets its last block go first, and whoever uses
// a block uses all before it. So a block stands behind all that continue it,
// the first of the list is never continued, and what continues a cold block is
// cold.
type idleList struct {
	first, last *block
	young       *block // the first that is not cold
	len, cold   int
}

func (l *idleList) push(b *block) {
	b.prev, b.next = l.last, nil
	if l.last != nil {
		l.last.next = b
	} else {
		l.first = b
	}
	l.last = b
	if l.young == nil {
		l.young = b
	}
	l.len++
}

func (l *idleList) remove(b *block) {
	if l.young == b {
		l.young = b.next
	}
	if b.prev != nil {
		b.prev.next = b.next
	} else {
		l.first = b.next
	}
	if b.next != nil {
		b.next.prev = b.prev
	} else {
		l.last = b.prev
	}
	b.prev, b.next = nil, nil
	l.len--
	if b.cold {
		l.cold--
	}
}

// warm counts, by unit, the blocks that lending has to leave alone.
type warm struct {
	blocks []int32
	units  int // that have any
	of     []int
}

func (w *warm) add(sp *elastic.BlockSpace, id elastic.BlockID, n int32) {
	w.of = sp.AppendUnitsOf(w.of[:0], id)
	for _, u := range w.of {
		was := w.blocks[u]
		w.blocks[u] += n
		switch {
		case was == 0:
			w.units++
		case was+n == 0:
			w.units--
		}
	}
}

// alloc adds n new blocks to a sequence. The caller has made room.
func (c *Cache) alloc(s *sequence, n int) {
	ids, err := c.space.AppendAlloc(c.ids[:0], n)
	if err != nil {
		panic("BUG: room was made for blocks: " + err.Error())
	}
	c.ids = ids
	for _, id := range ids {
		b := &block{id: id, users: 1}
		c.blocks[id] = b
		c.warm.add(c.space, id, 1)
		s.blocks = append(s.blocks, b)
	}
}

// use adds a user to a kept block.
func (c *Cache) use(b *block) {
	c.index.Ref(b.node)
	if b.users++; b.users > 1 {
		return
	}
	c.idle.remove(b)
	if b.cold {
		b.cold = false
		c.warm.add(c.space, b.id, 1)
	}
}

// unuse takes a user away. A block that nobody uses is kept by its prefix, or
// freed where it has none.
func (c *Cache) unuse(b *block) {
	b.users--
	if b.node != nil {
		c.index.Unref(b.node)
	}
	switch {
	case b.users > 0:
	case b.node == nil:
		c.free(b)
	default:
		b.since = c.cfg.Now()
		c.idle.push(b)
	}
}

// unuseAll lets blocks go, the last ones first: they are worth least.
func (c *Cache) unuseAll(blocks []*block) {
	for _, b := range slices.Backward(blocks) {
		c.unuse(b)
	}
}

// free gives a block's memory back.
func (c *Cache) free(b *block) {
	if !b.cold {
		c.warm.add(c.space, b.id, -1)
	}
	delete(c.blocks, b.id)
	c.ids = append(c.ids[:0], b.id)
	if err := c.space.Free(c.ids); err != nil {
		panic("BUG: a block of the worker's own: " + err.Error())
	}
}

// forget drops a block that nobody uses, with all that continues it.
func (c *Cache) forget(b *block) {
	c.removed = c.index.Remove(b.node, c.removed[:0])
	for _, n := range c.removed {
		c.idle.remove(n.Value)
		c.free(n.Value)
	}
	c.stats.Dropped += uint64(len(c.removed))
	clear(c.removed)
}

// chill notes which idle blocks have become cold.
func (c *Cache) chill() {
	now := c.cfg.Now()
	for b := c.idle.young; b != nil && now >= b.since+c.cfg.KeepFor; b = c.idle.young {
		c.chillNext()
	}
}

// chillNext makes the oldest of the young idle blocks a cold one.
func (c *Cache) chillNext() {
	b := c.idle.young
	b.cold = true
	c.idle.cold++
	c.idle.young = b.next
	c.warm.add(c.space, b.id, -1)
}

// vacator is the cache as elastic.Units sees it, which calls it with the cache
// locked.
type vacator struct{ *Cache }

// Vacatable implements elastic.Vacator: units that hold nothing but cold blocks.
func (v vacator) Vacatable() int {
	v.chill()
	return v.space.Units() - v.space.EmptyUnits() - v.warm.units
}

// Vacate implements elastic.Vacator. The units with the coldest blocks go first.
func (v vacator) Vacate(n int) {
	target := v.space.EmptyUnits() + n
	for _, u := range v.coldUnits(n) {
		if v.space.EmptyUnits() < target {
			v.empty(u)
		}
	}
}

// coldUnits lists at least n units, or all there are, that hold nothing but cold
// blocks, from the one with the coldest on.
func (c *Cache) coldUnits(n int) []int {
	var units []int
	seen := map[int]bool{}
	for b := c.idle.first; b != c.idle.young && len(units) < n; b = b.next {
		c.warm.of = c.space.AppendUnitsOf(c.warm.of[:0], b.id)
		for _, u := range c.warm.of {
			if c.warm.blocks[u] == 0 && !seen[u] {
				seen[u] = true
				units = append(units, u)
			}
		}
	}
	return units
}

// empty drops all blocks of a unit, which are cold.
func (c *Cache) empty(unit int) {
	for _, id := range c.space.BlocksIn(unit) {
		if b := c.blocks[id]; b != nil { // not dropped with one that it continued
			c.forget(b)
		}
	}
}
