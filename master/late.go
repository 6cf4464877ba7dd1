package master

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/lsc"
)

const (
	// lateTimes is how many times what was predicted a disk may take before nobody
	// waits for it any more, and lateLeast how long it may in any case.
	lateTimes = 4
	lateLeast = 500 * time.Millisecond
	// writeShare is what writes are guessed to achieve of the bandwidth of reads.
	writeShare = 0.25
)

// patienceWith is how long a flight to or from stores may take.
func (c *Cache) patienceWith(f *flight) time.Duration {
	var longest time.Duration
	bytes := map[*pool]int64{}
	for _, m := range f.moves {
		p, share := m.from.pool, 1.0
		if m.from.place != stored {
			p, share = m.to.pool, writeShare
		}
		bytes[p] += int64(m.layers) * c.cfg.Geometry.LayerBlockBytes()
		rate := cmp.Or(p.link.rate, guessedRate/10) * share
		longest = max(longest, time.Duration(float64(bytes[p])/rate*float64(time.Second)))
	}
	return lateTimes*longest + lateLeast
}

// overdue takes note of a flight that should have landed long ago: who waits for it
// goes on without.
func (c *Cache) overdue(f *flight) {
	if f.landed {
		return
	}
	f.late = true
	for _, m := range f.moves {
		m.late = true
		if m.from.place == stored {
			c.tardyStore(m.from.pool)
		}
	}
	c.signal()
}

// late reports that a disk keeps what was written to it for too long.
func (c *Cache) late() bool {
	return slices.ContainsFunc(c.flights, func(f *flight) bool { return f.late })
}

// dropLate drops the blocks that leave for a disk that takes too long, and reports
// whether there were any. Their room is free at once: the bytes are in staging memory.
func (c *Cache) dropLate() bool {
	var gone []*block
	for _, f := range c.flights {
		for _, m := range f.moves {
			if f.late && m.leaves() && m.b.node != nil {
				gone = append(gone, m.b)
			}
		}
	}
	for _, b := range gone {
		if b.node != nil {
			c.lose(b.node)
		}
	}
	return gone != nil
}

const (
	// tardyFor is how long nothing is read from a store whose device has answered
	// too late; twice as long each time that it does so again, up to tardyMost.
	tardyFor  = 2 * time.Second
	tardyMost = time.Minute
)

// tardyStore takes note of a device that has answered too late: what lies there is
// computed for a while. mu is held.
func (c *Cache) tardyStore(p *pool) {
	s, now := p.shelf, c.cfg.Now()
	if now < s.avoid {
		return
	}
	s.late++
	if now-s.avoid > tardyMost {
		s.avoidFor = 0 // it was well for a while
	}
	s.avoidFor = min(max(tardyFor, 2*s.avoidFor), tardyMost)
	s.avoid = now + s.avoidFor
	if c.cfg.Log != nil {
		c.cfg.Log.Warn("a device of the overflow pool answers several times later than it should: for a while what it holds is computed again",
			"store", p.cfg.Name, "while", s.avoidFor)
	}
}

// tardy reports that a block is not to be waited for: it lies on a device that has
// lately answered too late, or is on its way from one.
func (c *Cache) tardy(b *block) bool {
	if b.busy != nil && b.busy.late && b.busy.to.place == local {
		return true
	}
	return b.place == stored && c.cfg.Now() < b.pool.shelf.avoid
}

// hedge gives up a step's reads from stores when they take several times as long as
// was predicted: computing anew is the faster way then. It is for steps that bring
// home what they read. What is streamed from a store in every step has no other
// place, and would be read from there again.
type hedge struct {
	stores []*pool       // that the step reads from; none: there is no hedge
	left   time.Duration // that the step may wait for them
	turn   atomic.Uint64 // of the wait under way
	given  atomic.Bool   // it has been too long
}

// expect sets the step's hedge from what its blocks should take to load.
func (st *step) expect(plan []lsc.Block) {
	c, h := st.cache, &st.hedge
	if c.cfg.Overflow == nil {
		return
	}
	bytes := map[*pool]int64{}
	for _, lb := range plan {
		b := st.held[lb.Key]
		if b.place != stored || !lb.Load {
			continue
		}
		if b.homed != st.number {
			return
		}
		bytes[b.pool] += c.cfg.Geometry.FullBlockBytes()
	}
	var longest time.Duration
	for _, p := range c.shelves {
		if bytes[p] == 0 {
			continue
		}
		h.stores = append(h.stores, p)
		rate := cmp.Or(p.link.rate, guessedRate/10)
		longest = max(longest, time.Duration(float64(bytes[p])/rate*float64(time.Second)))
	}
	h.left = lateTimes*longest + lateLeast
}

// watch begins a wait for a layer; the result ends it.
func (st *step) watch() (stop func()) {
	h, now := &st.hedge, st.cache.cfg.Now
	if len(h.stores) == 0 || h.given.Load() {
		return func() {}
	}
	turn, began := h.turn.Add(1), now()
	st.cache.cfg.Later.After(h.left, func() {
		if h.turn.CompareAndSwap(turn, turn+1) {
			st.giveUpReads()
		}
	})
	return func() {
		h.turn.Add(1)
		h.left = max(0, h.left-(now()-began))
	}
}

// giveUpReads fails the reads that the step still waits for. Their stores hear of it
// by StoreFault, with an error that says so.
func (st *step) giveUpReads() {
	type hurried interface{ GiveUp() }
	st.hedge.given.Store(true)
	for _, p := range st.hedge.stores {
		if load, ok := p.cfg.Load.(hurried); ok {
			load.GiveUp()
		}
	}
}

// given reports that reads of the block's store were given up, and that nothing else
// is wrong with it. The cache is locked.
func (st *step) given(b *block) bool {
	if b.place != stored || !st.hedge.given.Load() {
		return false
	}
	st.cache.noteFaults()
	return b.pool.shelf.fenced == nil && st.cache.tardy(b)
}
