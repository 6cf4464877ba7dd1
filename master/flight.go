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
}

// depart starts the way of up to n of the coldest kept blocks out of the regular
// cache, to borrowed or host memory, and returns how many started.
func (c *Cache) depart(n int) int {
	var moves []*move
	for len(moves) < n {
		v := c.index.Victim(int(local))
		if v == nil {
			break
		}
		to, ok := c.takeSpot(true)
		if !ok {
			break
		}
		m := c.plan(v.Value, to)
		v.Value.busy = m
		c.index.SetClass(v, int(moving))
		moves = append(moves, m)
	}
	c.takeOff(moves)
	return len(moves)
}

// takeOff starts a flight and sees to its landing.
func (c *Cache) takeOff(moves []*move) {
	if len(moves) == 0 {
		return
	}
	f := &flight{moves: moves, began: c.cfg.Now()}
	ev, err := c.launch(moves)
	if ev == nil {
		c.land(f, err) // the stream is closed: nothing is in the air
		return
	}
	f.event, f.err = ev, err
	c.flights = append(c.flights, f)
	go func() {
		<-ev.Done()
		c.mu.Lock()
		defer c.mu.Unlock()
		if !f.landed {
			c.arrived(f)
			c.sweep()
			c.tidy()
			c.signal()
		}
	}()
}

// settle waits until everything that is in the air has landed: milliseconds.
func (c *Cache) settle() {
	for len(c.flights) > 0 {
		f := c.flights[0]
		<-f.event.Done()
		c.arrived(f)
	}
}

func (c *Cache) arrived(f *flight) {
	c.flights = slices.DeleteFunc(c.flights, func(g *flight) bool { return g == f })
	c.observe(f, c.cfg.Now()-f.began)
	c.land(f, cmp.Or(f.err, f.event.Err()))
}

// land books a flight. A block that came into use where it was stays there.
func (c *Cache) land(f *flight, err error) {
	f.landed = true
	for _, m := range f.moves {
		b := m.b
		if m.orphan {
			c.freeSpot(m.from)
			c.free(m.to)
			continue
		}
		b.busy = nil
		if err == nil && m.fenced() == nil && b.users == 0 && !m.corrupt() {
			c.commit(m)
			continue
		}
		c.free(m.to)
		c.index.SetClass(b.node, int(m.from.place))
		if err == nil && m.corrupt() {
			c.corrupt(lentBlock{m.from.pool, m.from.id}, m.badLayer)
			c.spoil(map[*block]bool{b: true})
		}
	}
}

// leaving and arriving count the chunks that will be free, and those that are
// taken, when what is in the air has landed.
func (c *Cache) leaving() int { return c.airborne(func(m *move) place { return m.from.place }) }

func (c *Cache) arriving() int { return c.airborne(func(m *move) place { return m.to.place }) }

func (c *Cache) airborne(end func(*move) place) int {
	n := 0
	for _, f := range c.flights {
		for _, m := range f.moves {
			if end(m) == local {
				n++
			}
		}
	}
	return n
}
