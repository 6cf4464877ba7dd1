package master

import (
	"cmp"
	"slices"
	"time"
)

const (
	// lateTimes is how many times what was predicted a disk may take before nobody
	// waits for it any more, and lateLeast how long it may in any case.
	lateTimes = 4
	lateLeast = 100 * time.Millisecond
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
		bytes[p] += int64(len(m.copies)) * c.cfg.Geometry.LayerBlockBytes()
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
	s.late++
	if now < s.avoid {
		return
	}
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
