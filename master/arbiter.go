package master

import (
	"time"

	"github.com/kvlend/kvlend/lsc"
	"github.com/kvlend/kvlend/prefix"
	"github.com/kvlend/kvlend/scheduler"
)

// link is what has been measured of the way to one pool.
type link struct {
	rate float64 // bytes per second, smoothed; 0: nothing was measured
}

const (
	// leastObserved is the smallest batch that says something about bandwidth.
	leastObserved = 64 << 10
	// guessedRate stands for a link that nobody has used yet where some figure
	// is needed.
	guessedRate = 1e9
)

func (l *link) observe(bytes int64, d time.Duration) {
	if bytes < leastObserved || d <= 0 {
		return
	}
	rate := float64(bytes) / d.Seconds()
	if l.rate == 0 {
		l.rate = rate
	}
	l.rate += (rate - l.rate) / 4
}

// time is how long bytes take; 0 when nothing is known.
func (l *link) time(bytes int64) time.Duration {
	if l.rate == 0 {
		return 0
	}
	return time.Duration(float64(bytes) / l.rate * float64(time.Second))
}

// faster is how many times the bandwidth of one link must be another's for it to
// be used first: less is noise.
const faster = 1.25

// rank puts lenders whose links turned out to be faster before others. Unmeasured
// ones keep their place.
func (c *Cache) rank() {
	for i := 1; i < len(c.order); i++ {
		a, b := c.order[i-1].link.rate, c.order[i].link.rate
		if a > 0 && b > faster*a {
			c.order[i-1], c.order[i] = c.order[i], c.order[i-1]
		}
	}
}

// observe learns from a flight over a single link.
func (c *Cache) observe(f *flight, d time.Duration) {
	var p *pool
	var bytes int64
	for _, m := range f.moves {
		far := m.to.pool
		if m.from.place != local {
			far = m.from.pool
		}
		if p != nil && p != far || m.to.place == stored {
			return // of stores it is reads that count
		}
		p = far
		bytes += int64(m.layers) * c.cfg.Geometry.LayerBlockBytes()
	}
	if p.shelf != nil {
		p.noteRate()
		return
	}
	p.link.observe(bytes, d)
	c.rank()
}

// copyTime estimates how long a block takes from where it is.
func (c *Cache) copyTime(b *block) time.Duration {
	bytes := c.cfg.Geometry.FullBlockBytes()
	if t := b.pool.link.time(bytes); t > 0 {
		return t
	}
	return time.Duration(float64(bytes) / guessedRate * float64(time.Second))
}

// worthMoving reports whether saving a kept block is cheaper than computing it
// again, as far as that is known.
func (c *Cache) worthMoving(_ *block, cost time.Duration) bool {
	return c.blockTime == 0 || cost < c.blockTime
}

// receipt is a sequence's account.
type receipt = scheduler.Receipt

// choose decides how much of a matched prefix is used. Using k blocks means to
// load those that are far while the rest is computed: with loads hidden layer
// by layer behind computation, all but the first layer's, the prompt takes
//
//	T(k) = max(load(k), compute(k)) + load(k)/L
//
// and k minimises T. Blocks of the regular cache cost nothing, so what precedes
// and includes the leading ones is always used. Without measurements everything
// is used. (What may be computed while a later span is loaded is not exploited:
// the scheduler computes a prompt from its first missing token on.)
func (c *Cache) choose(a scheduler.Admission, nodes []*prefix.Node[*block]) ([]*prefix.Node[*block], receipt) {
	var r receipt
	b, end := c.BlockTokens(), len(a.Tokens)
	best := len(nodes)
	if whole := computeTime(a, 0, end); whole > 0 {
		c.blockTime = whole * time.Duration(b) / time.Duration(end)
		r.RecomputeMS = inMS(whole)
		var load, least time.Duration
		least, best = whole, 0
		clear(c.loads)
		for k, n := range nodes {
			if p := n.Value.pool; n.Value.place != local {
				// Links and devices work at the same time.
				c.loads[p.via] += p.link.time(c.cfg.Geometry.FullBlockBytes())
				load = max(load, c.loads[p.via])
			}
			t := max(load, computeTime(a, (k+1)*b, end)) + load/time.Duration(c.cfg.Geometry.Layers)
			if t <= least {
				least, best = t, k+1
			}
		}
		r.PredictedMS = inMS(least)
	}
	return nodes[:best], c.account(nodes, best, r)
}

// account books in a receipt that the first k nodes are used.
func (c *Cache) account(nodes []*prefix.Node[*block], k int, r receipt) receipt {
	b := c.BlockTokens()
	r.Local, r.Borrowed, r.Host, r.Pool = 0, 0, 0, 0
	r.Declined = (len(nodes) - k) * b
	for _, n := range nodes[:k] {
		switch max(n.Value.place, n.Value.came) {
		case local:
			r.Local += b
		case borrowed:
			r.Borrowed += b
		case host:
			r.Host += b
		case stored:
			r.Pool += b
		}
	}
	return r
}

func computeTime(a scheduler.Admission, from, to int) time.Duration {
	if a.Compute == nil {
		return 0
	}
	return a.Compute(from, to)
}

func inMS(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// learn measures the links from the loads of a pass.
func (c *Cache) learn(p Pass) {
	p.Loads(func(l lsc.Load) {
		if far := c.pools[l.Via]; far.shelf == nil {
			far.link.observe(l.Bytes, l.Busy)
		} else {
			far.noteRate()
		}
	})
	c.rank()
}

// worthStreaming asks the scheduler, if an admission of so many blocks would make
// every step stream more than now: those of its borrowed ones that stay where
// they are, and what of its need for chunks is borrowed. Promoted ones of the
// need are in borrowed memory now.
func (c *Cache) worthStreaming(a scheduler.Admission, blocks, need, promoted, streamed int) bool {
	per := c.streamTime()
	if a.Worth == nil || per == 0 {
		return true
	}
	extra := streamed + c.space.split(c.pinned+c.homes+c.arriving(), need, c.held-promoted)
	if extra == 0 {
		return true
	}
	alone := c.space.split(0, blocks, 0)
	return a.Worth(scheduler.Streams{Now: time.Duration(extra) * per, Alone: time.Duration(alone) * per})
}

// streamTime is how long a borrowed block takes to stream once, over the first
// link of those that were measured; 0 when none was.
func (c *Cache) streamTime() time.Duration {
	for _, p := range c.order {
		if t := p.link.time(c.cfg.Geometry.FullBlockBytes()); t > 0 {
			return t
		}
	}
	return 0
}

// StepCost implements scheduler.StepCoster: what every step of a sequence streams
// from borrowed memory, blocks that are on their way home not counted.
func (c *Cache) StepCost(id uint64) (bytes int64, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.seqs[id]
	if s == nil || c.held == 0 {
		return 0, 0
	}
	size := c.cfg.Geometry.FullBlockBytes()
	for _, b := range s.blocks {
		if b.place != local && b.home < 0 && b.tail < 0 && b.written == c.BlockTokens() {
			bytes += size
			d += b.pool.link.time(size)
		}
	}
	return bytes, d
}
