package master

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvlend/kvlend/lsc"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/scheduler"
)

// entry is a line of a block table: where the layer block of layer l lies.
type entry struct {
	off    [2]int64 // by l mod buffers; both equal with one buffer
	stride int64    // added per layer
}

// step implements scheduler.Step. Only the scheduler's goroutine uses it.
type step struct {
	cache    *Cache
	steps    []scheduler.StepSeq
	pass     Pass
	tables   [][]entry
	out      [][]int64
	held     []*block         // that travel in this step, by lsc key
	homes    map[*block]int32 // chunks that blocks are loaded into, to stay
	promoted int              // of homes: blocks that need no slots now
	shared   map[*block]entry // blocks of several sequences that are planned already
	filled   []*block         // blocks whose tails this step completes
	opened   []*block         // blocks that got a tail in this step
	hedge    hedge
}

// Begin implements scheduler.Cache.
func (c *Cache) Begin(ctx context.Context, steps []scheduler.StepSeq) (scheduler.Step, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.step != nil {
		panic("BUG: a step is already running")
	}
	st := &step{cache: c, steps: slices.Clone(steps), homes: map[*block]int32{}, shared: map[*block]entry{}}
	plan, err := st.plan()
	if err == nil {
		st.pass, err = c.stream.Begin(plan)
	}
	if err != nil {
		st.giveUp()
		return nil, err
	}
	c.step = st
	return st, nil
}

// plan gives every far block of the step its slots, or a chunk to stay in, and
// builds the tables.
func (st *step) plan() ([]lsc.Block, error) {
	c := st.cache
	for _, s := range st.steps {
		seq := c.seqs[s.ID]
		if blocks := c.blocksFor(s); seq == nil || len(seq.blocks) < blocks {
			return nil, &scheduler.LostError{IDs: []uint64{s.ID}, Err: fmt.Errorf("sequence %d has no blocks for %d tokens", s.ID, s.Start+s.New)}
		}
		if seq.steps++; seq.steps == 1 {
			for _, b := range seq.blocks {
				b.came = local // its receipt has said so
			}
		}
		c.identify(seq, s)
		st.promote(seq, s)
	}
	slots := c.slotCursor()
	var plan []lsc.Block
	for _, s := range st.steps {
		seq := c.seqs[s.ID]
		table := make([]entry, c.blocksFor(s))
		for i := range table {
			e, lb, err := st.entry(seq, s, i, slots)
			if err != nil {
				return nil, err
			}
			table[i] = e
			if lb != nil {
				plan = append(plan, *lb)
			}
		}
		st.tables = append(st.tables, table)
		st.out = append(st.out, make([]int64, len(table)))
	}
	st.expect(plan)
	return plan, nil
}

// blocksFor is how many blocks hold what a step needs.
func (c *Cache) blocksFor(s scheduler.StepSeq) int {
	b := c.BlockTokens()
	return (s.Start + s.New + b - 1) / b
}

// promote takes chunks for blocks of a sequence that are loaded in this step
// anyway, so that the next steps find them in the regular cache: those that
// must come there, and others while there are chunks to spare.
func (st *step) promote(seq *sequence, s scheduler.StepSeq) {
	c := st.cache
	for _, b := range seq.blocks[:s.Start/c.BlockTokens()] {
		if _, planned := st.homes[b]; planned || b.place == local {
			continue
		}
		if b.home >= 0 {
			st.homes[b] = b.home
			continue
		}
		if b.busy != nil {
			continue // it is read where it is
		}
		if !c.space.fits(c.space.used()+1+c.wanted, c.held-st.promoted-1) {
			continue
		}
		if chunk, ok := c.space.takeChunk(); ok {
			st.homes[b] = chunk
			st.promoted++
		}
	}
}

// entry plans block i of a sequence; lb is nil when nothing is to be carried.
func (st *step) entry(seq *sequence, s scheduler.StepSeq, i int, slots func() (int64, bool)) (entry, *lsc.Block, error) {
	c := st.cache
	blk := seq.blocks[i]
	if blk.place == local {
		return fixed(c.space.chunkOff(blk.chunk), c.space.layerBytes), nil, nil
	}
	if e, planned := st.shared[blk]; planned {
		return e, nil, nil
	}
	lb, e, err := st.remote(s, i, blk, slots)
	if err != nil {
		return entry{}, nil, err
	}
	if blk.users > 1 {
		st.shared[blk] = e
	}
	if lb != nil {
		lb.Key, lb.Via = int64(len(st.held)), blk.pool.via
		c.seal(lb, seq, blk, i)
		if _, home := st.homes[blk]; home {
			lb.Verify = c.verifies(blk.pool) // it is the last time
		}
		st.held = append(st.held, blk)
	}
	return e, lb, nil
}

// seal gives a block its checksums for the pass: those to verify against, or
// room for those of what is stored.
func (c *Cache) seal(lb *lsc.Block, seq *sequence, blk *block, i int) {
	if !c.verifies(blk.pool) {
		return
	}
	if blk.sums == nil {
		blk.sums = make([]uint64, c.cfg.Geometry.Layers)
	}
	lb.Sums, lb.Seed = blk.sums, c.seed(blk.ident, lentBlock{blk.pool, blk.id})
	lb.Verify = lb.Load && (blk.place == stored || c.cfg.Verify.due(i, seq.steps))
}

func fixed(off, stride int64) entry { return entry{off: [2]int64{off, off}, stride: stride} }

// remote plans block i of a sequence, which has its place in borrowed memory:
// a partly filled one is in its tail, any other in a slot.
func (st *step) remote(s scheduler.StepSeq, i int, blk *block, slots func() (int64, bool)) (*lsc.Block, entry, error) {
	c := st.cache
	b := c.BlockTokens()
	first, last := i*b, (i+1)*b
	end := s.Start + s.New
	id := blk.id
	p := blk.pool
	lb := &lsc.Block{
		Remote: func(l int) nvlink.Span { return p.span(id, l) },
		Guard:  p.guard(id),
	}
	if chunk, home := st.homes[blk]; home {
		base := c.space.chunkOff(chunk)
		lb.Load, lb.Slots = true, c.layerOffs(base)
		return lb, fixed(base, c.space.layerBytes), nil
	}
	partly := (first < s.Start && s.Start < last) || (end < last)
	if partly {
		if blk.tail < 0 {
			t, ok := c.space.takeTail()
			if !ok {
				return nil, entry{}, fmt.Errorf("BUG: sequence %d: no tail left", s.ID)
			}
			blk.tail = t
			st.opened = append(st.opened, blk)
		}
		base := c.space.tailOff(blk.tail)
		if end < last {
			return nil, fixed(base, c.space.layerBytes), nil
		}
		// This step completes the tail: store it, a layer at a time.
		st.filled = append(st.filled, blk)
		lb.Store, lb.Slots = true, c.layerOffs(base)
		return lb, fixed(base, c.space.layerBytes), nil
	}
	c.closeTail(blk) // of a step that failed; the block is written anew
	e := entry{}
	for k := range c.cfg.Buffers {
		off, ok := slots()
		if !ok {
			return nil, entry{}, fmt.Errorf("BUG: sequence %d: no slot left for block %d", s.ID, i)
		}
		lb.Slots = append(lb.Slots, off)
		e.off[k] = off
	}
	if c.cfg.Buffers == 1 {
		e.off[1] = e.off[0]
	}
	lb.Load, lb.Store = first < s.Start, first >= s.Start
	return lb, e, nil
}

// layerOffs lists the offsets of the layer blocks of a chunk or a tail.
func (c *Cache) layerOffs(base int64) []int64 {
	out := make([]int64, c.cfg.Geometry.Layers)
	for l := range out {
		out[l] = base + int64(l)*c.space.layerBytes
	}
	return out
}

// slotCursor hands out the slots that are free in this step.
func (c *Cache) slotCursor() func() (int64, bool) {
	var offs []int64
	need := c.held * c.cfg.Buffers
	c.space.slotOffsets(func(off int64) bool {
		offs = append(offs, off)
		return len(offs) < need
	})
	return func() (int64, bool) {
		if len(offs) == 0 {
			return 0, false
		}
		off := offs[0]
		offs = offs[1:]
		return off, true
	}
}

// Memory implements engine.KV.
func (st *step) Memory() []byte { return st.cache.cfg.Local.Bytes() }

// Layer implements engine.KV.
func (st *step) Layer(l int) ([][]int64, error) {
	stop := st.watch()
	err := st.pass.Layer(l)
	stop()
	if err != nil {
		return nil, st.lostFrom(err)
	}
	for i, t := range st.tables {
		for j, e := range t {
			st.out[i][j] = e.off[l&1] + int64(l)*e.stride
		}
	}
	return st.out, nil
}

// Written implements engine.KV.
func (st *step) Written(l int) { st.pass.Written(l) }

// Done implements engine.KV.
func (st *step) Done(l int) { st.pass.Done(l) }

// Commit implements scheduler.Step.
func (st *step) Commit() error {
	err := st.pass.Finish()
	st.end(err == nil)
	return st.lostFrom(err)
}

// Abort implements scheduler.Step.
func (st *step) Abort() {
	st.pass.Abort()
	st.end(false)
}

// end closes the step: it books what was written and does what had to wait.
func (st *step) end(ok bool) {
	c := st.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	stats := st.pass.Stats()
	c.stats.LoadedBytes += stats.LoadedBytes
	c.stats.StoredBytes += stats.StoredBytes
	c.stats.VerifiedBlocks += uint64(stats.VerifiedBlocks)
	c.learn(st.pass)
	if ok {
		st.book()
	} else {
		st.giveUp()
	}
	c.step = nil
	work := c.deferred
	c.deferred = nil
	for _, f := range work {
		f()
	}
	c.sweep()
	c.tidy()
}

func (st *step) book() {
	c := st.cache
	b := c.BlockTokens()
	for blk, chunk := range st.homes {
		if blk.home >= 0 {
			c.endHome(blk)
		}
		m := &move{b: blk, from: blk.spot, to: chunkSpot(chunk)}
		c.count(m, 1)
		c.commit(m)
	}
	for _, blk := range st.filled {
		c.closeTail(blk)
	}
	for _, s := range st.steps {
		seq := c.seqs[s.ID]
		if seq == nil {
			continue
		}
		for i := s.Start / b; i*b < s.Start+s.New; i++ {
			seq.blocks[i].written = min(b, s.Start+s.New-i*b)
		}
		c.advance(seq, s)
	}
}

// giveUp takes back what a step that failed was given: the tails it opened,
// with nothing in them, and the chunks that nothing arrived in.
func (st *step) giveUp() {
	c := st.cache
	for _, blk := range st.opened {
		c.closeTail(blk)
	}
	for blk, chunk := range st.homes {
		if blk.home < 0 { // else it waits for the next attempt
			c.space.putChunk(chunk)
		}
	}
}

func (c *Cache) closeTail(b *block) {
	if b.tail >= 0 {
		c.space.putTail(b.tail)
		b.tail = -1
	}
}

// lostFrom turns stale and corrupt blocks into the sequences that hold them.
// When the step has ended, nobody finds those blocks any more.
func (st *step) lostFrom(err error) error {
	var stale *lsc.StaleError
	var corrupt *lsc.CorruptError
	var keys []int64
	c := st.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case errors.As(err, &stale):
		keys = stale.Keys
		c.stats.StaleBlocks += uint64(len(keys))
	case errors.As(err, &corrupt):
		keys = corrupt.Keys
		for _, k := range keys {
			c.corrupt(lentBlock{st.held[k].pool, st.held[k].id}, corrupt.Layer)
		}
	default:
		return err
	}
	gone, spared := map[*block]bool{}, map[*block]bool{}
	for _, k := range keys {
		if b := st.held[k]; st.given(b) {
			spared[b] = true // it is whole, and only late
		} else {
			gone[b] = true
		}
	}
	ids := c.holders(gone)
	for _, id := range c.holders(spared) {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	c.betweenSteps(func() {
		for _, id := range c.holders(spared) {
			c.evict(id)
		}
		c.spoil(gone)
	})
	return &scheduler.LostError{Err: err, IDs: ids}
}
