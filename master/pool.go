package master

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/nvlink"
)

// pool is the memory that one worker has lent: its units, and the master's
// blocks inside them. The cache's mutex guards it.
type pool struct {
	cfg     LenderConfig
	via     int  // index of its loads' stream
	host    bool // host memory: the master's own, and never streamed from
	space   *elastic.BlockSpace
	epochs  map[uint32]uint64 // of the units held
	blocks  map[elastic.BlockID]*block
	bad     map[int]bool  // units with corrupt blocks: closed, and returned when empty
	touched time.Duration // last time a block was taken or freed
	// refused is the time until which the worker has no more than available.
	refused   time.Duration
	available int
	limit     time.Duration // Config.StoreLimit
	now       func() time.Duration
	link      link
}

// lentBlock is a block in a pool.
type lentBlock struct {
	pool *pool
	id   elastic.BlockID
}

func newPool(l LenderConfig, c Config) (*pool, error) {
	sp, err := elastic.NewBlockSpace(elastic.SpaceOptions{Geometry: c.Geometry, Spec: l.Spec, Arena: l.ArenaBytes})
	if err != nil {
		return nil, fmt.Errorf("units of %s: %w", l.Name, err)
	}
	return &pool{cfg: l, space: sp, epochs: map[uint32]uint64{}, blocks: map[elastic.BlockID]*block{}, bad: map[int]bool{}, limit: c.StoreLimit, now: c.Now}, nil
}

// newHost returns the pool of host memory: one unit per block, all there.
func newHost(c Config) (*pool, error) {
	g := c.Geometry
	spec := elastic.UnitSpec{Policy: elastic.PolicyLCM, Bytes: g.FullBlockBytes(), PerUnit: map[string]int{g.Name: 1}}
	p, err := newPool(LenderConfig{Name: "host", Spec: spec, Arena: c.Host.Arena, ArenaBytes: c.Host.Arena.Size(), Load: c.Host.Load}, c)
	if err != nil {
		return nil, err
	}
	p.host = true
	for u := range int(c.Host.Arena.Size() / spec.Bytes) {
		if err := p.space.AddUnit(u); err != nil {
			return nil, fmt.Errorf("host memory: %w", err)
		}
	}
	return p, nil
}

// place is where the pool's blocks are.
func (p *pool) place() place {
	if p.host {
		return host
	}
	return borrowed
}

// victims lists n units to give up, or all: bad ones first, then those with
// the fewest blocks.
func (p *pool) victims(n int) []int {
	out := slices.Sorted(maps.Keys(p.bad))
	if len(out) >= n {
		return out[:n]
	}
	return p.space.AppendVictims(out, n-len(out))
}

// emptyUnits lists the open units without blocks.
func (p *pool) emptyUnits() []int {
	return p.space.Victims(p.space.EmptyUnits())
}

// lodgers lists the blocks that lie in units, wholly or in part, each once. It
// looks at these units only, however many are held.
func (p *pool) lodgers(units []int) []*block {
	var out []*block
	var ids []elastic.BlockID
	seen := map[*block]bool{}
	for _, u := range units {
		ids = p.space.AppendBlocksIn(ids[:0], u)
		for _, id := range ids {
			b, ok := p.blocks[id]
			// A place that a move has taken is nobody's until the bytes arrive.
			if ok && !seen[b] {
				seen[b] = true
				out = append(out, b)
			}
		}
	}
	return out
}

func (p *pool) touch(now time.Duration) { p.touched = now }

// span is where layer l of a block lies in the worker's arena.
func (p *pool) span(id elastic.BlockID, l int) nvlink.Span {
	e := p.space.Extent(id, l)
	return nvlink.Span{Arena: p.cfg.Arena, Off: e.Off, Len: e.Len}
}

// guard fences copies of one block with the worker's unit table.
type guard struct {
	pool  *pool
	units []wire.UnitEpoch
}

func (p *pool) guard(id elastic.BlockID) guard {
	if p.host {
		return guard{pool: p}
	}
	units := p.space.UnitsOf(id)
	g := guard{pool: p, units: make([]wire.UnitEpoch, len(units))}
	for i, u := range units {
		g.units[i] = wire.UnitEpoch{Unit: uint32(u), Epoch: p.epochs[uint32(u)]}
	}
	return g
}

// MayLoad implements lsc.Guard.
func (g guard) MayLoad() bool {
	for _, u := range g.units {
		if !g.pool.cfg.Table.MayUse(int(u.Unit), g.pool.cfg.Owner, u.Epoch) {
			return false
		}
	}
	return true
}

// MayStore implements lsc.Guard.
func (g guard) MayStore() bool {
	if !g.MayLoad() {
		return false
	}
	now := g.pool.now()
	for _, u := range g.units {
		if g.pool.cfg.Table.Remaining(int(u.Unit), now) < g.pool.limit {
			return false
		}
	}
	return true
}

// lentFree counts the free blocks in borrowed memory.
func (c *Cache) lentFree() int {
	n := 0
	for _, p := range c.lenders() {
		n += p.space.FreeBlocks()
	}
	return n
}

// lenders are the pools of borrowed memory, host memory not among them.
func (c *Cache) lenders() []*pool { return c.pools[:len(c.cfg.Lender)] }

// takeSpot takes a block of borrowed memory or, if far, of host memory.
func (c *Cache) takeSpot(far bool) (spot, bool) {
	for _, p := range c.order {
		if p.space.FreeBlocks() > 0 {
			return c.takeFrom(p), true
		}
	}
	for _, p := range c.pools[len(c.order):] { // host memory
		if far && p.space.FreeBlocks() > 0 {
			return c.takeFrom(p), true
		}
	}
	return spot{}, false
}

// takeFrom takes a block of a pool that has one.
func (c *Cache) takeFrom(p *pool) spot {
	ids, err := p.space.Alloc(1)
	if err != nil {
		panic(fmt.Sprintf("BUG: a free block of %s cannot be had: %v", p.cfg.Name, err))
	}
	p.touch(p.now())
	return spot{place: p.place(), pool: p, id: ids[0], tail: -1}
}

// need is what units are asked for.
type need uint8

const (
	keeping need = iota // room for kept blocks
	growing             // a request that can wait while others run
	stuck               // a request without which nothing runs
)

// ask asks lenders for units that hold at least short more blocks, and reports
// whether an answer is to be waited for. A lender that has just said what little
// it has is asked for that, if all of them together have enough.
func (c *Cache) ask(short int, n need) bool {
	now := c.cfg.Now()
	g := c.cfg.Geometry
	asked, left := false, short
	var plan []coordinator.Wish
	for _, p := range c.order {
		more := p.cfg.MaxUnits - len(p.epochs)
		if now < p.refused {
			more = min(more, p.available)
		}
		w := coordinator.Wish{Units: max(0, min(p.cfg.Spec.UnitsFor(g, max(left, 0)), more)), Keep: n == keeping}
		left -= p.cfg.Spec.BlocksPer(g, w.Units)
		plan = append(plan, w)
	}
	for i, p := range c.order {
		w := plan[i]
		if w.Units == 0 || now < p.refused && left > 0 {
			continue
		}
		if n == stuck {
			w.Least = w.Units
		}
		if n != keeping {
			p.touch(now) // what is gathered for a request is not idle
		}
		p.cfg.Ask.Want(w)
		asked = true
	}
	return asked
}

// Granted adds units that a lender has granted.
func (c *Cache) Granted(lender int, units []wire.UnitEpoch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pools[lender]
	var useless []wire.UnitEpoch
	for _, u := range units {
		if err := p.space.AddUnit(int(u.Unit)); err != nil {
			useless = append(useless, u) // it does not exist, or is held already
			continue
		}
		p.epochs[u.Unit] = u.Epoch
	}
	if len(useless) > 0 {
		p.cfg.Ask.Release(useless)
	}
	p.touch(c.cfg.Now())
	p.refused = 0
	c.tidy()
	c.signal()
}

// Denied records that a lender has no more than available before retry has passed.
// The caller calls Retry when it has.
func (c *Cache) Denied(lender int, retry time.Duration, available int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pools[lender]
	p.refused, p.available = c.cfg.Now()+retry, available
	c.signal() // another lender may be asked
}

// Retry says that a lender may be asked again.
func (c *Cache) Retry() { c.signal() }

// ReturnIdle gives back the empty units of pools that nobody has touched for
// the configured time.
func (c *Cache) ReturnIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.Now()
	c.settle()
	for _, p := range c.lenders() {
		if len(p.epochs) == 0 || now-p.touched < c.cfg.IdleReturn {
			continue
		}
		c.giveBack(p, p.emptyUnits())
	}
}

// giveBack removes empty units from p and returns them to their owner.
func (c *Cache) giveBack(p *pool, units []int) {
	if len(units) == 0 {
		return
	}
	out := make([]wire.UnitEpoch, 0, len(units))
	for _, u := range units {
		if err := p.space.RemoveUnit(u); err != nil {
			panic(fmt.Sprintf("BUG: empty unit %d of %s: %v", u, p.cfg.Name, err))
		}
		out = append(out, wire.UnitEpoch{Unit: uint32(u), Epoch: p.epochs[uint32(u)]})
		delete(p.epochs, uint32(u))
		delete(p.bad, u)
		p.forget(u)
	}
	p.cfg.Ask.Release(out)
}

// forget drops a unit's pages from this process's mapping where the fabric has
// one, so that a master's resident set does not keep what it gave back.
func (p *pool) forget(unit int) {
	type forgetter interface{ Forget(off, n int64) error }
	if f, ok := p.cfg.Arena.(forgetter); ok {
		size := p.cfg.Spec.Bytes
		f.Forget(int64(unit)*size, size) // a hint: failing costs memory, not data
	}
}
