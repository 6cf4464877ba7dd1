package master

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvlend/kvlend/nvlink"
)

// flight is a batch of moves of kept blocks whose bytes travel in the
// background, between and during steps. Full blocks never change, so they may
// be read meanwhile; they stay where they were until the flight has landed.
type flight struct {
	moves  []*move
	event  nvlink.Event
	err    error // of its start
	began  time.Duration
	landed bool
	disk   bool // to or from stores
	fetch  bool // to staging memory
	late   bool // a disk takes several times as long as it should
}

// depart makes up to n of the coldest kept blocks leave the regular cache, and
// returns how many will have: to borrowed memory while there is room, to the copy
// that they have in a store, to host memory, to a store. What is worth none of
// these is dropped. It may be fewer, and the others later: where what is colder has
// to leave host memory first, or staging memory is full.
func (c *Cache) depart(n int) int {
	gone := 0
	var moves []*move
	var far []*block
	room := c.storeRoom()
	hosted := c.relieve(n - c.lentFree())
	for gone < n {
		v := c.index.Victim(int(local))
		if v == nil {
			break
		}
		b := v.Value
		to, ok := c.takeLent()
		switch {
		case ok:
		case c.retreat(b):
			gone++
			continue
		default:
			to, ok = c.takeHost()
		}
		full := c.staging != nil && len(far) == len(c.staging.free)
		if !ok && (room == 0 || hosted || b.worthy && full && !c.late()) {
			break
		}
		switch {
		case ok:
			moves = append(moves, c.sendOff(b, to))
		case len(far) < room && b.worthy && !full:
			far = append(far, b)
			c.index.SetClass(v, int(moving))
		default:
			c.lose(v)
		}
		gone++
	}
	c.takeOff(moves)
	c.fetch(far, leaving)
	return gone
}

// sendOff plans the way of a kept block that nobody may pick meanwhile.
func (c *Cache) sendOff(b *block, to spot) *move {
	m := c.plan(b, to)
	b.busy = m
	c.index.SetClass(b.node, int(moving))
	return m
}

// takeOff starts a flight of moves, or two: disks have one of their own.
func (c *Cache) takeOff(moves []*move) {
	far := func(m *move) bool { return m.from.place == stored || m.to.place == stored }
	slices.SortStableFunc(moves, func(a, b *move) int {
		switch {
		case far(a) == far(b):
			return 0
		case far(b):
			return -1
		}
		return 1
	})
	n := len(moves)
	if i := slices.IndexFunc(moves, far); i >= 0 {
		n = i
	}
	c.depart1(&flight{moves: moves[:n]})
	c.depart1(&flight{moves: moves[n:], disk: true})
}

// depart1 starts a flight and sees to its landing.
func (c *Cache) depart1(f *flight) {
	if len(f.moves) == 0 {
		return
	}
	f.began = c.cfg.Now()
	ev, err := c.launch(c.streamOf(f.disk), f.moves)
	if ev == nil {
		c.land(f, err) // the stream is closed: nothing is in the air
		return
	}
	f.event, f.err = ev, err
	c.flights = append(c.flights, f)
	if f.disk {
		c.cfg.Later.After(c.patienceWith(f), func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.overdue(f)
		})
	}
	c.cfg.Later.When(ev, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !f.landed {
			c.arrived(f)
			c.sweep()
			c.tidy()
		}
		c.signal() // whoever settled it may have been somebody else's
	})
}

// settle waits until everything that is in the air has landed, disks included:
// only where nobody may need the cache meanwhile.
func (c *Cache) settle() {
	for c.settleNear(); len(c.flights) > 0; c.settleNear() {
		f := c.flights[0]
		<-f.event.Done()
		c.arrived(f)
	}
}

// settleNear waits for the flights that no disk can keep in the air:
// milliseconds.
func (c *Cache) settleNear() {
	near := func(f *flight) bool { return !f.disk }
	for i := slices.IndexFunc(c.flights, near); i >= 0; i = slices.IndexFunc(c.flights, near) {
		f := c.flights[i]
		<-f.event.Done()
		c.arrived(f)
	}
}

// settles settles what is near, and reports whether there was anything.
func (c *Cache) settles() bool {
	was := c.nearing()
	c.settleNear()
	return was
}

// nearing reports that something is in the air that no disk can keep there.
func (c *Cache) nearing() bool {
	return slices.ContainsFunc(c.flights, func(f *flight) bool { return !f.disk })
}

func (c *Cache) arrived(f *flight) {
	c.flights = slices.DeleteFunc(c.flights, func(g *flight) bool { return g == f })
	c.observe(f, c.cfg.Now()-f.began)
	c.noteFaults() // a device that is out of use keeps its book as it is
	c.land(f, cmp.Or(f.err, f.event.Err()))
}

// land books a flight. A block that came into use where it was stays there.
func (c *Cache) land(f *flight, err error) {
	f.landed = true
	if f.fetch {
		c.fetched(f, err)
		return
	}
	for _, m := range f.moves {
		b := m.b
		if m.copy {
			c.landCopy(m, err == nil)
			continue
		}
		if m.orphan {
			c.freeSpot(m.from)
			c.free(m.to)
			continue
		}
		if m.spill {
			c.betweenSteps(func() { c.landSpill(m, err == nil) })
			continue
		}
		b.busy = nil
		if err == nil && m.fenced() == nil && b.users == 0 && !m.corrupt() {
			c.commit(m)
			continue
		}
		c.free(m.to)
		c.index.SetClass(b.node, int(m.from.place))
		switch {
		case err == nil && m.corrupt():
			c.corrupt(lentBlock{m.from.pool, m.from.id}, m.badLayer)
			c.spoil(map[*block]bool{b: true})
		case m.from.place == stored && (err != nil || m.fenced() != nil):
			// Its device could not read it, or failed meanwhile.
			c.strand(map[*block]bool{b: true})
		}
	}
}

// leaving and arriving count the chunks that will be free, and those that are
// taken, when what is in the air has landed.
func (c *Cache) leaving() int {
	return c.airborne(func(m *move) bool { return m.from.place == local && (!m.copy || m.leaves()) })
}

func (c *Cache) arriving() int {
	return c.airborne(func(m *move) bool { return !m.copy && m.to.place == local })
}

func (c *Cache) airborne(counts func(*move) bool) int {
	n := 0
	for _, f := range c.flights {
		for _, m := range f.moves {
			if counts(m) {
				n++
			}
		}
	}
	return n
}
