package master

import (
	"fmt"
	"time"

	"github.com/kvlend/kvlend/prefix"
	"github.com/kvlend/kvlend/scheduler"
)

const (
	// spareShare is the part of the regular cache that is kept free, so that a
	// request need not wait while cold blocks move out.
	spareShare = 16
	// maxLeaving bounds the blocks that leave the regular cache at once.
	maxLeaving = 64
)

// room makes place for fresh new blocks, and for homes that must be chunks. It
// returns how many of the fresh ones are to be borrowed. What is kept and not
// used makes way; what is in use moves only if slots are short. why says how badly
// it is needed. A refusal is scheduler.ErrWait or ErrComing.
func (c *Cache) room(fresh, homes int, why need) (remote int, err error) {
	c.wanted = 0
	need := fresh + homes
	firm := c.pinned + c.homes + c.arriving()
	total := c.space.split(firm, need, c.held)
	if !c.space.fits(firm+need-total, c.held+total) || c.held+total > c.cfg.MaxLent {
		return 0, c.refusal("%d blocks in use leave no room for %d more", firm+c.held, need)
	}
	remote = min(total, fresh)
	if over := c.space.used() + need - total - c.space.most(c.held+total); over > 0 {
		if err := c.clear(over, why); err != nil {
			c.wanted = over
			return 0, err
		}
	}
	// After that, since what left the regular cache may have gone there.
	if err := c.borrow(total, why); err != nil {
		return 0, err
	}
	if spill := total - remote; spill > 0 {
		if err := c.spill(spill); err != nil {
			return 0, err
		}
	}
	return remote, nil
}

// borrow sees to it that n blocks of borrowed memory are free: with more units,
// or where nobody lends more, in place of what is kept there.
func (c *Cache) borrow(n int, why need) error {
	short := n - c.lentFree()
	if short <= 0 {
		return nil
	}
	c.sweep() // what is set aside and empty can be asked for again
	if c.ask(short, why) {
		return scheduler.ErrComing
	}
	for c.lentFree() < n {
		v := c.victim(borrowed)
		if v == nil && c.nearing() {
			if why != stuck || !c.settles() {
				return scheduler.ErrComing
			}
			continue
		}
		if c.sweep() && c.ask(n-c.lentFree(), why) {
			return scheduler.ErrComing
		}
		switch {
		case v != nil:
			c.lose(v)
		case why == stuck && c.farFree() >= n-c.lentFree():
			return nil // it is streamed from farther away
		default:
			return c.refusal("%d borrowed blocks are free, %d are needed", c.lentFree(), n)
		}
	}
	return nil
}

// refusal is an ErrWait that says what is short.
func (c *Cache) refusal(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{scheduler.ErrWait}, args...)...)
}

// victim is the kept block to drop so that sooner or later one of place p goes:
// a chain loses its end first, which may lie nearer.
func (c *Cache) victim(p place) *prefix.Node[*block] {
	if v := c.index.Victim(int(p)); v != nil || c.index.Evictable(int(p)) == 0 {
		return v
	}
	for near := range p {
		if v := c.index.Victim(int(near)); v != nil && near != moving {
			return v
		}
	}
	return nil
}

// lose drops a kept block and what continues it, or the nearer one of its places.
func (c *Cache) lose(n *prefix.Node[*block]) {
	if c.retreat(n.Value) {
		return
	}
	c.stats.MovedBlocks["dropped"] += uint64(c.forget(n))
}

// clear frees n chunks of kept blocks. They move to borrowed or host memory as
// far as there is room; beyond that the coldest of all kept blocks is dropped, and
// what leaves for a disk that takes too long. ErrComing says that the rest is on its
// way out. A request without which nothing runs waits for that here, unless it is on
// its way to a disk: it keeps nobody from anything.
func (c *Cache) clear(n int, why need) error {
	target := c.space.used() - n
	failed := false // what was sent off did not arrive: no more is
	for c.space.used() > target {
		used := c.space.used()
		n := used - target - c.leaving()
		switch room := c.spotsFree(); {
		case c.dropLate():
		case n <= 0 && why == stuck && c.settles():
			failed = c.space.used() >= used
		case n <= 0:
			return scheduler.ErrComing
		case n <= room && !failed:
			c.patience = 0
			if started := c.depart(n); started < n {
				if c.copying > 0 {
					return scheduler.ErrComing // a disk makes room for the others
				}
				return c.refusal("%d of %d kept blocks can leave the regular cache", started, n)
			}
		case n > room && c.awaitUnits(n-room):
			return scheduler.ErrComing
		default:
			v := c.coldest()
			if v == nil {
				return c.refusal("%d chunks are missing and nothing that is kept gives way", n)
			}
			c.lose(v)
		}
	}
	return nil
}

// keepPatience is how long a request waits for units that blocks could move to,
// before these are dropped. An answer takes a millisecond; a lender that is away
// gives none.
const keepPatience = 20 * time.Millisecond

// awaitUnits asks for units for kept blocks that have to leave the regular cache
// and find no room elsewhere, and reports whether to wait for the answer.
func (c *Cache) awaitUnits(short int) bool {
	if !c.ask(short, keeping) {
		c.patience = 0
		return false
	}
	now := c.cfg.Now()
	if c.patience == 0 {
		c.patience = now + keepPatience
		c.cfg.Later.After(keepPatience, c.signal)
	}
	if now < c.patience {
		return true
	}
	c.patience = 0
	return false
}

// coldest is the kept block whose loss costs least, wherever it is.
func (c *Cache) coldest() *prefix.Node[*block] {
	var best *prefix.Node[*block]
	for p := range nPlaces {
		v := c.index.Victim(int(p))
		if p == moving || v == nil {
			continue
		}
		if best == nil || v.LastUse() < best.LastUse() {
			best = v
		}
	}
	return best
}

// spotsFree counts the blocks outside the own arena that can be had for kept ones.
func (c *Cache) spotsFree() int { return c.lentFree() + c.farFree() }

// farFree counts those of host memory and of stores.
func (c *Cache) farFree() int {
	n := c.storeRoom()
	for _, p := range c.depots() {
		if p.at == host {
			n += p.free()
		}
	}
	return n
}

// tidy keeps a part of the regular cache free: cold blocks leave for borrowed
// memory, which is asked for, or for host memory. Hot ones, streamed because
// they came when there was no chunk, find room that way.
func (c *Cache) tidy() {
	if len(c.pools) == 0 {
		return
	}
	c.save()
	c.unload()
	spare := c.reserve()
	short := spare + c.wanted + min(c.held, spare) - c.spareChunks() - c.leaving()
	short = min(short, c.index.Evictable(int(local)), maxLeaving-c.leaving())
	if short <= 0 {
		return
	}
	if lent := c.lentFree(); lent < short && c.ask(short-lent, keeping) {
		short = lent // the others leave when the units are there, or are refused
	}
	c.depart(min(short, c.spotsFree()))
}

// reserve is how many chunks are kept free.
func (c *Cache) reserve() int { return max(1, c.space.chunks/spareShare) }

// spareChunks is how many more regular-cache blocks there may be at the moment.
func (c *Cache) spareChunks() int { return c.space.most(c.held) - c.space.used() }
