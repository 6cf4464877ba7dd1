package master

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvlend/kvlend/lsc"
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
	number   uint64   // of the step: blocks that say it have been looked at
	held     []*block // that travel in this step, by lsc key
	homes    []*block // that are loaded into chunks (block.chunkTo), to stay
	promoted int      // of homes: blocks that need no slots now
	filled   []*block // blocks whose tails this step completes
	opened   []*block // blocks that got a tail in this step
	room     *scratch
	hedge    hedge
}

// scratch is memory that steps use one after the other: they are planned anew
// each time, over tens of thousands of blocks.
type scratch struct {
	blocks  []lsc.Block
	entries []entry
	outs    []int64
	offs    []int64 // of slots
	tables  [][]entry
	out     [][]int64
	held    []*block
	homes   []*block
}

// grow returns n more elements of a list whose elements do not move.
func grow[T any](list *[]T, n int) []T {
	l := *list
	if cap(l)-len(l) < n {
		l = make([]T, 0, max(2*cap(l), n)) // the others keep the old one
	}
	l = l[:len(l)+n]
	*list = l
	return l[len(l)-n : len(l) : len(l)]
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
	c.begun++
	st := &step{cache: c, steps: slices.Clone(steps), number: c.begun, room: c.takeScratch()}
	st.tables, st.out, st.held, st.homes = st.room.tables[:0], st.room.out[:0], st.room.held[:0], st.room.homes[:0]
	plan, err := st.plan()
	st.room.blocks = plan
	if err == nil {
		st.pass, err = c.stream.Begin(plan)
	}
	if err != nil {
		st.giveUp()
		c.putScratch(st)
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
	plan := st.room.blocks[:0]
	for _, s := range st.steps {
		seq := c.seqs[s.ID]
		n := c.blocksFor(s)
		table := grow(&st.room.entries, n)
		for i, blk := range seq.blocks[:n] {
			if blk.place == local {
				table[i] = fixed(c.space.chunkOff(blk.chunk), c.space.layerBytes)
				continue
			}
			e, err := st.entry(seq, s, i, slots, &plan)
			if err != nil {
				return nil, err
			}
			table[i] = e
		}
		st.tables = append(st.tables, table)
		st.out = append(st.out, grow(&st.room.outs, n))
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
		if b.place == local || b.homed == st.number {
			continue
		}
		if b.home >= 0 {
			st.goHome(b, b.home)
			continue
		}
		if b.busy != nil {
			continue // it is read where it is
		}
		if !c.space.fits(c.space.used()+1+c.wanted, c.held-st.promoted-1) {
			continue
		}
		if chunk, ok := c.space.takeChunk(); ok {
			st.goHome(b, chunk)
			st.promoted++
		}
	}
}

// goHome notes that a block is loaded into a chunk, to stay.
func (st *step) goHome(b *block, chunk int32) {
	b.homed, b.chunkTo = st.number, chunk
	st.homes = append(st.homes, b)
}

// entry plans block i of a sequence, which is not local: it adds to the plan what
// is to be carried.
func (st *step) entry(seq *sequence, s scheduler.StepSeq, i int, slots func() (int64, bool), plan *[]lsc.Block) (entry, error) {
	blk := seq.blocks[i]
	if blk.planned == st.number {
		return blk.entry, nil
	}
	lb, e, err := st.remote(s, i, blk, slots)
	if err != nil {
		return entry{}, err
	}
	if blk.users > 1 {
		blk.planned, blk.entry = st.number, e
	}
	if lb.Slots != nil {
		lb.Key, lb.Via = int64(len(st.held)), blk.pool.via
		st.cache.seal(&lb, seq, blk, i)
		if blk.homed == st.number {
			lb.Verify = st.cache.verifies(blk.pool) // it is the last time
		}
		st.held = append(st.held, blk)
		*plan = append(*plan, lb)
	}
	return e, nil
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
// a partly filled one is in its tail, any other in a slot. Without Slots nothing is
// to be carried.
func (st *step) remote(s scheduler.StepSeq, i int, blk *block, slots func() (int64, bool)) (lsc.Block, entry, error) {
	c := st.cache
	b := c.BlockTokens()
	first, last := i*b, (i+1)*b
	end := s.Start + s.New
	lb := lsc.Block{}
	lb.Remote, lb.Guard = blk.wayTo()
	if blk.homed == st.number {
		base := c.space.chunkOff(blk.chunkTo)
		lb.Load, lb.Slots = true, st.layerOffs(base)
		return lb, fixed(base, c.space.layerBytes), nil
	}
	partly := (first < s.Start && s.Start < last) || (end < last)
	if partly {
		if blk.tail < 0 {
			t, ok := c.space.takeTail()
			if !ok {
				return lb, entry{}, fmt.Errorf("BUG: sequence %d: no tail left", s.ID)
			}
			blk.tail = t
			st.opened = append(st.opened, blk)
		}
		base := c.space.tailOff(blk.tail)
		if end < last {
			return lb, fixed(base, c.space.layerBytes), nil
		}
		// This step completes the tail: store it, a layer at a time.
		st.filled = append(st.filled, blk)
		lb.Store, lb.Slots = true, st.layerOffs(base)
		return lb, fixed(base, c.space.layerBytes), nil
	}
	c.closeTail(blk) // of a step that failed; the block is written anew
	e := entry{}
	offs := grow(&st.room.offs, c.cfg.Buffers)
	for k := range offs {
		off, ok := slots()
		if !ok {
			return lb, entry{}, fmt.Errorf("BUG: sequence %d: no slot left for block %d", s.ID, i)
		}
		offs[k], e.off[k] = off, off
	}
	if c.cfg.Buffers == 1 {
		e.off[1] = e.off[0]
	}
	lb.Slots = offs
	lb.Load, lb.Store = first < s.Start, first >= s.Start
	return lb, e, nil
}

// layerOffs lists the offsets of the layer blocks of a chunk or a tail.
func (st *step) layerOffs(base int64) []int64 {
	c := st.cache
	out := grow(&st.room.offs, c.cfg.Geometry.Layers)
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
	c.putScratch(st)
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
	for _, blk := range st.homes {
		if blk.home >= 0 {
			c.endHome(blk)
		}
		m := &move{b: blk, from: blk.spot, to: chunkSpot(blk.chunkTo)}
		c.count(m, 1)
		c.commit(m)
	}
	for _, blk := range st.filled {
		c.closeTail(blk)
	}
	for _, blk := range st.held {
		blk.doubtful = blk.doubtful && blk.place != stored // it was verified
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
	for _, blk := range st.homes {
		if blk.home < 0 { // else it waits for the next attempt
			c.space.putChunk(blk.chunkTo)
		}
		blk.homed = 0
	}
}

// takeScratch takes the memory of the step before.
func (c *Cache) takeScratch() *scratch {
	s := c.scratchOf
	if s == nil {
		s = &scratch{}
	}
	c.scratchOf = nil
	return s
}

// putScratch gives it to the next one. What a pass keeps of it, it does not use
// when its step has ended.
func (c *Cache) putScratch(st *step) {
	s := st.room
	s.tables, s.out, s.held, s.homes = st.tables, st.out, st.held, st.homes
	s.entries, s.outs, s.offs = s.entries[:0], s.outs[:0], s.offs[:0]
	clear(s.blocks)
	c.scratchOf = s
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
	c.noteFaults() // a device that is out of use keeps its book as it is
	giveUp := c.spoil
	switch {
	case errors.As(err, &stale):
		keys, giveUp = stale.Keys, c.strand
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
		giveUp(gone)
	})
	return &scheduler.LostError{Err: err, IDs: ids}
}
