package worker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/scheduler"
)

// step implements scheduler.Step: everything is in place, so it only makes the
// tables, and keeps what it completed.
type step struct {
	cache  *Cache
	steps  []scheduler.StepSeq
	blocks [][]*block
	tables [][]int64

	began time.Duration // of Config.StepClock
	lent  bool          // units were, when it began
}

// Begin implements scheduler.Cache.
func (c *Cache) Begin(ctx context.Context, steps []scheduler.StepSeq) (scheduler.Step, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	st := &step{cache: c, steps: slices.Clone(steps)}
	for _, s := range steps {
		n := c.space.Geometry().Blocks(s.Start + s.New)
		seq := c.seqs[s.ID]
		if seq == nil || len(seq.blocks) < n {
			return nil, &scheduler.LostError{IDs: []uint64{s.ID}, Err: fmt.Errorf("sequence %d: step to %d tokens without the blocks for them", s.ID, s.Start+s.New)}
		}
		seq.chain.fits(s, c.BlockTokens())
		st.blocks = append(st.blocks, seq.blocks[:n])
		st.tables = append(st.tables, make([]int64, n))
	}
	st.lent, st.began = c.lends(), c.cfg.StepClock()
	return st, nil
}

// Memory implements engine.KV.
func (st *step) Memory() []byte { return st.cache.cfg.Arena.Bytes() }

// Layer implements engine.KV.
func (st *step) Layer(l int) ([][]int64, error) {
	c := st.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, blocks := range st.blocks {
		for j, b := range blocks {
			st.tables[i][j] = c.space.Extent(b.id, l).Off
		}
	}
	return st.tables, nil
}

// Written implements engine.KV.
func (st *step) Written(int) {}

// Done implements engine.KV.
func (st *step) Done(int) {}

// Commit implements scheduler.Step.
func (st *step) Commit() error {
	c := st.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	st.measure()
	for _, s := range st.steps {
		if seq := c.seqs[s.ID]; seq != nil {
			c.advance(seq, s)
		}
	}
	return nil
}

// Abort implements scheduler.Step.
func (st *step) Abort() {}

// lends reports whether borrowers have units that they may use.
func (c *Cache) lends() bool {
	return c.cfg.Units.Count(elastic.Lent)+c.cfg.Units.Count(elastic.Reclaiming) > 0
}

// measure tells the guard how long the step took, if it was all the time either
// beside lending or not.
func (st *step) measure() {
	c := st.cache
	if st.lent != c.lends() {
		return
	}
	var w scheduler.Work
	kind := decodeStep
	for _, s := range st.steps {
		w.Add(s.Start, s.New)
		if s.New > 1 {
			kind = prefillStep
		}
	}
	c.guard.observe(c.cfg.Now(), kind, w, st.lent, c.cfg.StepClock()-st.began)
}
