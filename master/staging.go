package master

import (
	"slices"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/nvlink"
)

// staging is memory of the host through which blocks pass when they are copied to
// stores. The first leg is a matter of milliseconds; from then on the copy needs
// nothing of the memory that the block lies in, however slow the disk.
type staging struct {
	arena nvlink.Arena
	geo   elastic.Geometry
	size  int     // in blocks
	free  []int32 // which of them
}

func newStaging(a nvlink.Arena, g elastic.Geometry) *staging {
	s := &staging{arena: a, geo: g, size: int(a.Size() / g.FullBlockBytes())}
	for i := range s.size {
		s.free = append(s.free, int32(i))
	}
	return s
}

// span is where layer l of a staged block lies.
func (s *staging) span(i int32, l int) span {
	n := s.geo.LayerBlockBytes()
	return span{Arena: s.arena, Off: int64(i)*s.geo.FullBlockBytes() + int64(l)*n, Len: n}
}

// unstage gives back what a move has of the staging memory.
func (c *Cache) unstage(m *move) {
	if m.stage >= 0 {
		c.staging.free = append(c.staging.free, m.stage)
		m.stage = -1
	}
}

// fetch begins copies of blocks to stores: their bytes come into staging memory,
// where there is room. Blocks that leave are in class moving until they are copied.
func (c *Cache) fetch(blocks []*block, why storing) {
	var moves []*move
	for _, b := range blocks {
		if b.node == nil {
			continue // what came before it was dropped, and it with it
		}
		last := len(c.staging.free) - 1
		m := &move{b: b, from: b.spot, to: spot{place: stored, tail: -1}, badLayer: -1, copy: true, leave: why == leaving, stage: c.staging.free[last], layers: c.cfg.Geometry.Layers}
		c.staging.free = c.staging.free[:last]
		if b.far() {
			m.guards, m.old = []guard{b.pool.guard(b.id)}, c.sealOf(b)
		}
		b.busy = m
		if m.leave {
			b.onLeave = m
		}
		c.index.SetClass(b.node, int(moving))
		moves = append(moves, m)
	}
	c.copying += len(moves)
	c.depart1(&flight{moves: moves, fetch: true})
}

// fetched sends on what has arrived in staging memory.
func (c *Cache) fetched(f *flight, err error) {
	var ready []*move
	for _, m := range f.moves {
		switch {
		case m.orphan, err != nil, m.fenced() != nil:
			c.endFetch(m)
		case m.corrupt():
			c.endFetch(m)
			c.corrupt(lentBlock{m.from.pool, m.from.id}, m.badLayer)
			c.betweenSteps(func() { c.spoil(map[*block]bool{m.b: true}) })
		default:
			ready = append(ready, m)
		}
	}
	spots := c.placesFor(ready)
	var moves []*move
	for _, m := range ready {
		if m.orphan || len(spots) == 0 { // it may have made way for the others
			c.endFetch(m)
			if b := m.b; m.leave && b.node != nil && b.users == 0 {
				c.lose(b.node) // no store takes it
			}
			continue
		}
		m.to, spots = spots[0], spots[1:]
		m.guards, m.old = []guard{m.to.pool.guard(m.to.id)}, nil
		// The block may go where it likes now.
		m.b.busy = nil
		if !m.leave {
			c.index.SetClass(m.b.node, int(m.b.place))
		}
		m.new = c.newSeal(m.b, lentBlock{m.to.pool, m.to.id})
		moves = append(moves, m)
	}
	for _, s := range spots {
		c.free(s)
	}
	c.depart1(&flight{moves: moves, disk: true})
}

// placesFor takes places in stores for what has arrived in staging memory: chains that
// are continued by it stay together.
func (c *Cache) placesFor(ready []*move) (spots []spot) {
	why := copying
	if len(ready) > 0 && ready[0].leave {
		why = leaving
		slices.Reverse(ready) // the last of a chain leaves first
	}
	for len(ready) > 0 {
		first, n := ready[0].b.node, 1
		for last := first; n < len(ready) && ready[n].b.node != nil && ready[n].b.node.Parent() == last; n++ {
			last = ready[n].b.node
		}
		spots = append(spots, c.takeStored(n, why, first)...)
		ready = ready[n:]
	}
	return spots
}

// endFetch gives up a copy that has no place in a store yet.
func (c *Cache) endFetch(m *move) {
	c.copying--
	c.unstage(m)
	m.b.onLeave = nil
	if m.orphan {
		c.freeSpot(m.from)
		return
	}
	m.b.busy = nil
	c.index.SetClass(m.b.node, int(m.b.place))
}

// leaves reports that a copy under way is followed by the end of the place that its
// block has.
func (m *move) leaves() bool {
	b := m.b
	return m.leave && b.onLeave == m && b.users == 0 && (m.orphan || b.node != nil)
}

// relieve sees to it that host memory has n free blocks sooner or later, in place of
// what is colder there than all of the regular cache: what is worth it leaves for a
// store, the rest is dropped. It reports whether any is on its way.
func (c *Cache) relieve(n int) bool {
	if c.cfg.Host == nil || c.staging == nil || c.storeRoom() == 0 {
		return false
	}
	for _, p := range c.depots() {
		if p.at == host {
			n -= p.free()
		}
	}
	n -= c.airborne(func(m *move) bool { return m.from.place == host && m.leaves() })
	var far []*block
	for ; n > 0; n-- {
		v, near := c.index.Victim(int(host)), c.index.Victim(int(local))
		if v == nil || near == nil || v.LastUse() > near.LastUse() {
			break
		}
		b := v.Value
		switch {
		case c.retreat(b):
		case !b.worthy || c.late():
			c.lose(v)
		case len(far) < len(c.staging.free):
			far = append(far, b)
			c.index.SetClass(v, int(moving))
		default:
			n = 0
		}
	}
	c.fetch(far, leaving)
	return c.airborne(func(m *move) bool { return m.from.place == host && m.leaves() }) > 0
}
