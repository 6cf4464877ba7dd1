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

// pool is memory outside the own arena: what one worker has lent, host memory, or
// a store of the overflow pool. The cache's mutex guards it.
type pool struct {
	cfg     LenderConfig
	at      place               // of its blocks: borrowed, host or stored
	via     int                 // index of its loads' stream
	space   *elastic.BlockSpace // of a lender and of host memory
	shelf   *shelf              // of a store
	epochs  map[uint32]uint64   // of the units held
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
	return &pool{cfg: l, at: borrowed, space: sp, epochs: map[uint32]uint64{}, blocks: map[elastic.BlockID]*block{}, bad: map[int]bool{}, limit: c.StoreLimit, now: c.Now}, nil
}

// newHost returns the pool of host memory: one unit per block, or several in one
// where it has many, all there.
func newHost(c Config) (*pool, error) {
	g := c.Geometry
	spec := elastic.UnitSpec{Policy: elastic.PolicyLCM, Bytes: g.FullBlockBytes(), PerUnit: map[string]int{g.Name: 1}}.Within(c.Host.Arena.Size(), elastic.MaxUnits)
	p, err := newPool(LenderConfig{Name: "host", Spec: spec, Arena: c.Host.Arena, ArenaBytes: c.Host.Arena.Size(), Load: c.Host.Load}, c)
	if err != nil {
		return nil, err
	}
	p.at = host
	units, _ := spec.Divide(c.Host.Arena.Size())
	for u := range units {
		if err := p.space.AddUnit(u); err != nil {
			return nil, fmt.Errorf("host memory: %w", err)
		}
	}
	return p, nil
}

// free and used count its blocks.
func (p *pool) free() int {
	if p.shelf != nil {
		return p.shelf.left
	}
	return p.space.FreeBlocks()
}

func (p *pool) used() int {
	if p.shelf != nil {
		return p.shelf.taken
	}
	return p.space.UsedBlocks()
}

// has reports whether a block is taken.
func (p *pool) has(id elastic.BlockID) bool {
	if p.shelf != nil {
		return p.blocks[id] != nil
	}
	return p.space.Allocated(id)
}

// put gives back a block that was taken.
func (p *pool) put(id elastic.BlockID) {
	if p.shelf != nil {
		p.shelf.put(id)
		return
	}
	if err := p.space.Free([]elastic.BlockID{id}); err != nil {
		panic(fmt.Sprintf("BUG: a block of %s that was taken: %v", p.cfg.Name, err))
	}
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
	if p.shelf != nil {
		return p.shelf.span(p.cfg.Arena, id, l)
	}
	e := p.space.Extent(id, l)
	return nvlink.Span{Arena: p.cfg.Arena, Off: e.Off, Len: e.Len}
}

// guard fences copies of one block with the worker's unit table.
type guard struct {
	pool  *pool
	units []wire.UnitEpoch
	fault uint32 // of a store: how many faults there had been
}

func (p *pool) guard(id elastic.BlockID) guard {
	switch p.at {
	case host:
		return guard{pool: p}
	case stored:
		return guard{pool: p, fault: p.shelf.faults.Load()}
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
	if g.pool.shelf != nil {
		return g.pool.shelf.faults.Load() == g.fault
	}
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
	if len(g.units) == 0 {
		return true
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
		n += p.free()
	}
	return n
}

// lenders are the pools of borrowed memory; depots are the others, host memory
// and stores.
func (c *Cache) lenders() []*pool { return c.pools[:len(c.cfg.Lender)] }

func (c *Cache) depots() []*pool { return c.pools[len(c.cfg.Lender):] }

// takeLent takes a block of borrowed memory.
func (c *Cache) takeLent() (spot, bool) {
	for _, p := range c.order {
		if s, ok := c.takeFrom(p); ok {
			return s, true
		}
	}
	return spot{}, false
}

// takeSpot takes a block of borrowed memory or, if far, of host memory or of a
// store, where kept blocks make way.
func (c *Cache) takeSpot(far bool) (spot, bool) {
	if s, ok := c.takeLent(); ok || !far {
		return s, ok
	}
	if s, ok := c.takeHost(); ok {
		return s, true
	}
	spots := c.takeStored(1, inUse, nil)
	if len(spots) == 0 {
		return spot{}, false
	}
	return spots[0], true
}

// takeHost takes a block of host memory.
func (c *Cache) takeHost() (spot, bool) {
	for _, p := range c.depots() {
		if p.at != host {
			continue
		}
		if s, ok := c.takeFrom(p); ok {
			return s, true
		}
	}
	return spot{}, false
}

// takeFrom takes a block of a pool, if it has one.
func (c *Cache) takeFrom(p *pool) (spot, bool) {
	if p.free() == 0 {
		return spot{}, false
	}
	ids, err := p.space.Alloc(1)
	if err != nil {
		panic(fmt.Sprintf("BUG: a free block of %s cannot be had: %v", p.cfg.Name, err))
	}
	p.touch(p.now())
	return spot{place: p.at, pool: p, id: ids[0], tail: -1}, true
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
	plan := c.wishes[:0]
	for _, p := range c.order {
		more := p.cfg.MaxUnits - len(p.epochs)
		if now < p.refused {
			more = min(more, p.available)
		}
		w := coordinator.Wish{Units: max(0, min(p.cfg.Spec.UnitsFor(g, max(left, 0)), more)), Keep: n == keeping}
		left -= p.cfg.Spec.BlocksPer(g, w.Units)
		plan = append(plan, w)
	}
	c.wishes = plan
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
