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
	cache  *Cache
	steps  []scheduler.StepSeq
	pass   *lsc.Pass
	tables [][]entry
	out    [][]int64
	held   []stepBlock // by lsc key
	filled []*block    // blocks whose tails this step completes
	opened []*block    // blocks that got a tail in this step
}

// stepBlock is a borrowed block that travels in a step, and whose it is.
type stepBlock struct {
	seq uint64
	at  lentBlock
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
	st := &step{cache: c, steps: slices.Clone(steps)}
	plan, err := st.plan()
	if err == nil {
		st.pass, err = c.stream.Begin(plan)
	}
	if err != nil {
		st.closeOpened()
		return nil, err
	}
	c.step = st
	return st, nil
}

// plan gives every borrowed block of the step its slots and builds the tables.
func (st *step) plan() ([]lsc.Block, error) {
	c := st.cache
	slots := c.slotCursor()
	var plan []lsc.Block
	for _, s := range st.steps {
		seq := c.seqs[s.ID]
		b := c.BlockTokens()
		blocks := (s.Start + s.New + b - 1) / b
		if seq == nil || len(seq.blocks) < blocks {
			return nil, &scheduler.LostError{IDs: []uint64{s.ID}, Err: fmt.Errorf("sequence %d has no blocks for %d tokens", s.ID, s.Start+s.New)}
		}
		seq.steps++
		table := make([]entry, blocks)
		for i := range table {
			blk := seq.blocks[i]
			if blk.place == local {
				table[i] = fixed(c.space.chunkOff(blk.chunk), c.space.layerBytes)
				continue
			}
			lb, e, err := st.remote(s, i, blk, slots)
			if err != nil {
				return nil, err
			}
			table[i] = e
			if lb != nil {
				c.seal(lb, seq, s.ID, i)
				st.held = append(st.held, stepBlock{s.ID, lentBlock{blk.pool, blk.id}})
				plan = append(plan, *lb)
			}
		}
		st.tables = append(st.tables, table)
		st.out = append(st.out, make([]int64, blocks))
	}
	return plan, nil
}

// seal gives block i of a sequence its checksums for the pass: those to verify
// against, or room for those of what is stored.
func (c *Cache) seal(lb *lsc.Block, s *sequence, id uint64, i int) {
	if !c.cfg.Verify.on() {
		return
	}
	blk := s.blocks[i]
	if blk.sums == nil {
		blk.sums = make([]uint64, c.cfg.Geometry.Layers)
	}
	lb.Sums, lb.Seed = blk.sums, c.seed(id, i, lentBlock{blk.pool, blk.id})
	lb.Verify = lb.Load && c.cfg.Verify.due(i, s.steps)
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
		Key:    int64(len(st.held)),
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
		lb.Store = true
		for l := range c.cfg.Geometry.Layers {
			lb.Slots = append(lb.Slots, base+int64(l)*c.space.layerBytes)
		}
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

// slotCursor hands out the slots that are free in this step.
func (c *Cache) slotCursor() func() (int64, bool) {
	var offs []int64
	need := c.lent * c.cfg.Buffers
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
	if err := st.pass.Layer(l); err != nil {
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
	if ok {
		st.book()
	} else {
		st.closeOpened()
	}
	c.step = nil
	work := c.deferred
	c.deferred = nil
	for _, f := range work {
		f()
	}
	c.sweep()
}

func (st *step) book() {
	c := st.cache
	b := c.BlockTokens()
	for _, s := range st.steps {
		seq := c.seqs[s.ID]
		if seq == nil {
			continue
		}
		for i := s.Start / b; i*b < s.Start+s.New; i++ {
			seq.blocks[i].written = min(b, s.Start+s.New-i*b)
		}
	}
	for _, blk := range st.filled {
		c.closeTail(blk)
	}
}

// closeOpened gives back the tails of a step that failed: nothing is in them.
func (st *step) closeOpened() {
	for _, blk := range st.opened {
		st.cache.closeTail(blk)
	}
}

func (c *Cache) closeTail(b *block) {
	if b.tail >= 0 {
		c.space.putTail(b.tail)
		b.tail = -1
	}
}

// lostFrom turns stale and corrupt blocks into the sequences that own them.
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
			c.corrupt(st.held[k].at, corrupt.Layer)
		}
	default:
		return err
	}
	lost := &scheduler.LostError{Err: err}
	for _, k := range keys {
		// Keys follow the order of sequences.
		if id := st.held[k].seq; len(lost.IDs) == 0 || lost.IDs[len(lost.IDs)-1] != id {
			lost.IDs = append(lost.IDs, id)
		}
	}
	return lost
}
