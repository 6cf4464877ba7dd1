package master

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/overflow/store"
	"github.com/kvlend/kvlend/prefix"
)

type node = prefix.Node[*block]

// copied is a block's second place, in a store.
type copied struct {
	pool *pool
	id   elastic.BlockID
	sums []uint64
}

const (
	// copyTime is how long copies to the stores may keep a reclaim waiting: so
	// much of them is in the air at once.
	copyTime = 5 * time.Millisecond
	// maxAsked bounds the list of blocks that are to be copied.
	maxAsked = 1 << 14
)

// offer lists a kept block to be copied to a store, if it is worth it: a copy
// outlives the process, and lets its block leave faster memory at no cost.
func (c *Cache) offer(b *block) {
	if c.cfg.Overflow == nil || b.asked || b.copy != nil || b.place == stored || b.node == nil || len(c.asked) >= maxAsked {
		return
	}
	if door := c.cfg.Overflow.Door; !b.worthy && door != nil && !door.Admit(b.node.Key()) {
		return
	}
	b.worthy, b.asked = true, true
	c.asked = append(c.asked, b)
}

// save starts copies of listed blocks. A block whose predecessor has no place in a
// store would not be found after a restart.
func (c *Cache) save() {
	if len(c.asked) == 0 || c.copying > 0 {
		return
	}
	most := min(c.copyBatch(), len(c.staging.free))
	var picked []*block
	rest := c.asked[:0]
	for _, b := range c.asked {
		switch {
		case b.node == nil || b.copy != nil || b.place == stored:
			b.asked = false
		case len(picked) == most, c.moves(b), b.awaits(picked):
			rest = append(rest, b)
		case !b.anchored(picked):
			b.asked = false
		default:
			b.asked = false
			picked = append(picked, b)
		}
	}
	clear(c.asked[len(rest):])
	c.asked = rest
	c.fetch(picked, copying)
}

// moves reports that a block is on its way to another place, or will be.
func (c *Cache) moves(b *block) bool {
	if b.busy != nil || b.home >= 0 {
		return true
	}
	return c.step != nil && b.homed == c.step.number
}

// awaits reports that what precedes the block is listed and not picked yet.
func (b *block) awaits(picked []*block) bool {
	up := b.node.Parent()
	return up != nil && up.Value.asked && !slices.Contains(picked, up.Value)
}

// copyBatch is how many blocks are copied at once.
func (c *Cache) copyBatch() int {
	rate := 0.0
	for _, p := range c.shelves {
		if p.shelf.fenced == nil {
			rate += cmp.Or(p.link.rate, guessedRate/10)
		}
	}
	return min(max(1, int(rate*copyTime.Seconds()/float64(c.cfg.Geometry.FullBlockBytes()))), maxLeaving)
}

// anchored reports that what precedes the block is in a store, or will be.
func (b *block) anchored(picked []*block) bool {
	up := b.node.Parent()
	if up == nil {
		return true
	}
	b = up.Value
	switch {
	case b.copy != nil:
		return !b.copy.pool.shelf.Volatile
	case b.place == stored:
		return !b.pool.shelf.Volatile
	}
	return b.busy != nil && b.busy.copy && !b.busy.leave || slices.Contains(picked, b)
}

// Persist copies all that is kept to the stores, as far as they have room and
// budget, and makes it durable. It is for the end: no step may run meanwhile, or
// follow. It returns when that is done, or with ctx's error.
func (c *Cache) Persist(ctx context.Context) error {
	if c.cfg.Overflow == nil {
		return nil
	}
	c.mu.Lock()
	c.rest(ctx)
	c.asked = c.asked[:0]
	for n := range c.index.All() { // what comes first, first
		if b := n.Value; b.copy == nil && b.place != stored {
			b.asked = true
			c.asked = append(c.asked, b)
		}
	}
	for before := -1; len(c.asked) != before && ctx.Err() == nil; {
		before = len(c.asked)
		c.save()
		c.rest(ctx)
	}
	c.mu.Unlock()
	err := ctx.Err()
	for _, s := range c.cfg.Overflow.Stores {
		err = cmp.Or(err, s.Store.Flush(ctx))
	}
	return err
}

// rest lets everything land that is in the air, until ctx ends. The cache is not
// locked meanwhile.
func (c *Cache) rest(ctx context.Context) {
	for len(c.flights) > 0 && ctx.Err() == nil {
		f := c.flights[0]
		c.mu.Unlock()
		select {
		case <-f.event.Done():
		case <-ctx.Done():
		}
		c.mu.Lock()
		if ctx.Err() == nil && !f.landed {
			c.arrived(f)
		}
	}
}

// landCopy books a copy whose bytes have arrived.
func (c *Cache) landCopy(m *move, ok bool) {
	c.copying--
	c.unstage(m)
	b := m.b
	leaves := m.leaves()
	if b.onLeave == m {
		b.onLeave = nil
	}
	useless := b.node == nil || b.copy != nil || b.place == stored || m.to.pool.shelf.Volatile && !leaves
	if !ok || m.fenced() != nil || useless {
		c.free(m.to)
	} else {
		b.copy = &copied{m.to.pool, m.to.id, m.new.take()}
		b.doubtful = false
		m.to.pool.blocks[m.to.id] = b
		c.enter(b, m.to, b.copy.sums)
		c.stats.CopiedBlocks++
		if leaves && c.retreat(b) {
			return
		}
	}
	if m.leave && b.node != nil && b.busy == nil {
		c.index.SetClass(b.node, int(b.place))
	}
}

// enter tells a store which block it holds, so that a restart finds it.
func (c *Cache) enter(b *block, at spot, sums []uint64) {
	n := b.node
	_, err := at.pool.shelf.Store.Commit(&store.Entry{
		Slot: store.Slot(at.id), Key: n.Key(), Parent: n.Before(), Root: n.Parent() == nil, Tokens: n.Tokens(), Sums: sums,
		Tag: uint64(c.clock()),
	})
	if err != nil && c.cfg.Log != nil {
		// It serves this process, and is forgotten with it.
		c.cfg.Log.Warn("a block in a store will not survive a restart", "store", at.pool.cfg.Name, "error", err)
	}
}

// clock orders what is stored by age, also across restarts.
func (c *Cache) clock() int64 { return c.cfg.Wall().Unix() }

// dropCopy gives up a block's second place.
func (c *Cache) dropCopy(b *block) {
	if b.copy == nil {
		return
	}
	p, id := b.copy.pool, b.copy.id
	b.copy = nil
	delete(p.blocks, id)
	p.put(id)
}

// retreat gives up the nearer place of a kept block that has a copy, which costs
// nothing, and reports whether it did.
func (c *Cache) retreat(b *block) bool {
	if b.copy == nil || b.users > 0 || b.busy != nil || b.node == nil {
		return false
	}
	c.recede(b)
	return true
}

// recede makes the copy of a block its only place.
func (c *Cache) recede(b *block) {
	from, copy := b.spot, b.copy
	b.copy = nil
	c.freeSpot(from)
	c.settleAt(b, spot{place: stored, pool: copy.pool, id: copy.id, tail: -1})
	b.sums = copy.sums
	c.stats.MovedBlocks[stored.String()]++
}
