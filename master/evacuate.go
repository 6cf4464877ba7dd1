package master

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// keepTime is how long a reclaim may spend on saving blocks that nobody uses:
// its lender has a request waiting. Beyond it they are dropped, coldest first.
const keepTime = 20 * time.Millisecond

// Reclaim is a lender's wish to have units back. It empties the units that
// cost least and returns them; if a step is running that happens when it ends.
// done is told how many units went home; it runs with the cache locked.
func (c *Cache) Reclaim(lender, units int, done func(returned int)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pools[lender]
	c.betweenSteps(func() {
		c.settleNear()
		victims := c.victims(p, units)
		c.vacate(p, victims)
		c.giveBack(p, victims)
		c.sweep()
		done(len(victims))
	})
}

// victims lists n units to give up, or all: bad ones first, then of those with
// few blocks the ones with the fewest in use.
func (c *Cache) victims(p *pool, n int) []int {
	all := p.victims(min(n+n/2+16, p.space.Units()))
	if len(all) <= n {
		return all
	}
	used := make(map[int]int, len(all))
	for _, u := range all {
		if p.bad[u] {
			used[u] = -1
			continue
		}
		for _, b := range p.lodgers([]int{u}) {
			if b.users > 0 {
				used[u]++
			}
		}
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(used[a], used[b]) })
	return all[:n]
}

// Lost says that units are no longer this master's: the lease ended or the
// lender took them. What lay in them is gone. When nothing of this master's
// touches them any more they are released.
func (c *Cache) Lost(lender int, units []wire.UnitEpoch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pools[lender]
	c.betweenSteps(func() {
		c.settleNear()
		var release []wire.UnitEpoch
		for _, u := range units {
			if e, ok := p.epochs[u.Unit]; !ok || e != u.Epoch {
				continue // released already, by a call that crossed this one
			}
			release = append(release, u)
			c.spoil(asSet(p.lodgers([]int{int(u.Unit)})))
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

func asSet(blocks []*block) map[*block]bool {
	m := make(map[*block]bool, len(blocks))
	for _, b := range blocks {
		m[b] = true
	}
	return m
}

// vacate empties units of p. Blocks in use move to other units of the same
// worker, to other workers, or into the regular cache, where kept ones make
// way; sequences whose blocks find no place are evicted and will be computed
// again. Blocks that are only kept move as far as there is room and time, and
// are dropped where computing them again is cheaper.
func (c *Cache) vacate(p *pool, units []int) {
	for _, u := range units {
		p.space.CloseUnit(u)
	}
	for {
		c.thin(p.lodgers(units))
		lodgers := p.lodgers(units)
		if len(lodgers) == 0 {
			return
		}
		moves, homeless := c.rehome(lodgers)
		if homeless != nil {
			c.spoil(map[*block]bool{homeless: true})
			continue
		}
		err := c.run(moves)
		bad, corrupt := asCorrupt(err)
		switch {
		case err == nil:
		case corrupt:
			gone := map[*block]bool{}
			for _, m := range bad {
				c.corrupt(lentBlock{m.from.pool, m.from.id}, m.badLayer)
				gone[m.b] = true
			}
			c.spoil(gone)
		default:
			// The bytes did not arrive: whoever has blocks there starts over.
			c.spoil(asSet(lodgers))
		}
	}
}

// thin drops those of the blocks that are only kept and do not fit elsewhere,
// or are not worth their way.
func (c *Cache) thin(blocks []*block) {
	inUse := 0
	var kept []*block
	for _, b := range blocks {
		if b.users > 0 {
			inUse++
		} else {
			kept = append(kept, b)
		}
	}
	slices.SortFunc(kept, func(a, b *block) int {
		return cmp.Or(cmp.Compare(b.node.LastUse(), a.node.LastUse()), cmp.Compare(a.node.Depth(), b.node.Depth()))
	})
	room := c.spotsFree() - c.storeRoom() + max(0, c.spareChunks()) - inUse
	var spent time.Duration
	for i, b := range kept {
		if b.node == nil {
			continue // went with a block before it
		}
		if c.retreat(b) {
			continue
		}
		cost := c.copyTime(b)
		if i < room && spent+cost <= keepTime && c.worthMoving(b, cost) {
			spent += cost
			continue
		}
		c.lose(b.node)
	}
}

// rehome plans moves of blocks to other places, and counts them. homeless is a
// block that has none; nothing is planned then.
func (c *Cache) rehome(blocks []*block) (moves []*move, homeless *block) {
	slices.SortStableFunc(blocks, func(a, b *block) int { return cmp.Compare(min(b.users, 1), min(a.users, 1)) })
	for _, b := range blocks {
		if b.users == 0 && b.node == nil {
			continue // it made way for another
		}
		c.freeHome(b) // its memory goes before it would have come
		to, ok := c.refuge(b)
		if !ok {
			for _, m := range moves {
				c.undo(m)
			}
			return nil, b
		}
		m := c.plan(b, to)
		c.count(m, 1)
		moves = append(moves, m)
	}
	return moves, nil
}

// refuge takes a place for a block that has to leave a unit. Stores are too slow.
func (c *Cache) refuge(b *block) (spot, bool) {
	to, ok := c.takeLent()
	if !ok && b.users == 0 {
		to, ok = c.takeHost()
	}
	if ok {
		to.tail = b.tail // what is in a tail stays there
		return to, true
	}
	return c.chunkRefuge(b)
}

// chunkRefuge takes a chunk for a block that leaves borrowed memory. For one in
// use, kept blocks make way.
func (c *Cache) chunkRefuge(b *block) (spot, bool) {
	held := c.held
	if b.users > 0 {
		held--
	}
	for !c.space.fits(c.space.used()+1, held) {
		v := c.index.Victim(int(local))
		if b.users == 0 || v == nil {
			return spot{}, false
		}
		c.lose(v)
	}
	chunk, ok := c.space.takeChunk()
	if !ok {
		return spot{}, false
	}
	return chunkSpot(chunk), true
}
