// Package worker is the lender's side of kvlend, and the side of models that
// neither lend nor borrow: a cache whose blocks all lie in the model's own
// arena, in the units that are at home and in the remainder that is never
// lent (SwiftCache section 3.4). When a request of its own does not fit, the
// worker takes lent units back; when there is room to spare, it lends.
package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/scheduler"
)

// Config describes a worker's cache.
type Config struct {
	Units  *elastic.Units
	Policy elastic.ScalePolicy
	Arena  nvlink.Arena
	// MaxBlocks is what the arena holds when every unit is at home.
	MaxBlocks int
	// Need asks borrowers for units, without blocking. It is called with the
	// cache locked, again whenever the need is looked at anew: it says how many units are
	// to come home in all.
	Need func(units int)
	// Hold is how long nothing is lent after a request had to wait for
	// units: if it is cancelled meanwhile, nobody says so.
	Hold time.Duration
	Now  func() time.Duration
}

// Cache implements scheduler.Cache.
//
// Locking: mu guards the units, the block space and what is below; the lending
// protocol works on the same units under the same lock (Locked).
type Cache struct {
	cfg     Config
	changed chan struct{}

	mu    sync.Mutex
	space *elastic.BlockSpace // of the units
	seqs  map[uint64][]elastic.BlockID
	needy time.Duration // a request waits for units; until then nothing is lent
}

var _ scheduler.Cache = (*Cache)(nil)

// New returns a worker's cache.
func New(cfg Config) (*Cache, error) {
	if cfg.Units == nil || cfg.Policy == nil || cfg.Need == nil || cfg.Now == nil || cfg.Arena == nil {
		return nil, errors.New("a worker's cache needs Units, Policy, Arena, Need and Now")
	}
	return &Cache{cfg: cfg, space: cfg.Units.Space(), changed: make(chan struct{}, 1), seqs: map[uint64][]elastic.BlockID{}}, nil
}

// BlockTokens implements scheduler.Cache.
func (c *Cache) BlockTokens() int { return c.space.Geometry().BlockTokens }

// MaxTokens implements scheduler.Cache.
func (c *Cache) MaxTokens() int { return c.cfg.MaxBlocks * c.BlockTokens() }

// Changed implements scheduler.Cache.
func (c *Cache) Changed() <-chan struct{} { return c.changed }

// Evicted implements scheduler.Cache: a worker never loses its own blocks.
func (c *Cache) Evicted() []uint64 { return nil }

func (c *Cache) signal() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Reserve implements scheduler.Cache. What is missing is taken back from
// borrowers, in units (Algorithm 1, ScaleUp).
func (c *Cache) Reserve(id uint64, tokens int) error {
	if tokens > c.MaxTokens() {
		return scheduler.ErrNever
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sp := c.space
	held := c.seqs[id]
	need := sp.Geometry().Blocks(tokens) - len(held)
	if need <= 0 {
		return nil
	}
	c.cfg.Policy.Observe(c.cfg.Now(), tokens)
	if need > sp.FreeBlocks() {
		return c.scaleUp(need)
	}
	blocks, err := sp.AppendAlloc(held, need)
	if err != nil {
		return fmt.Errorf("%w: %v", scheduler.ErrWait, err)
	}
	c.seqs[id] = blocks
	c.needy = 0
	return nil
}

// scaleUp asks for the units that need more blocks take.
func (c *Cache) scaleUp(need int) error {
	u := c.cfg.Units
	g := c.space.Geometry()
	units := min(u.Spec().UnitsFor(g, need-c.space.FreeBlocks()), u.Away())
	if units == 0 {
		return scheduler.ErrWait
	}
	c.needy = c.cfg.Now() + c.cfg.Hold
	c.cfg.Need(units)
	return scheduler.ErrComing
}

// Release implements scheduler.Cache.
func (c *Cache) Release(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.space.Free(c.seqs[id]); err != nil {
		panic("BUG: a sequence's blocks: " + err.Error())
	}
	delete(c.seqs, id)
	c.needy = 0 // whoever still waits says so again
	c.signal()
}

// Locked runs f on the units while nobody else does, and wakes the scheduler if
// f reports that units came home.
func (c *Cache) Locked(f func() (home bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f() {
		c.signal()
	}
}

// Lendable is how many units may be lent now: those that the scale-down policy
// spares, none while a request of the worker's own waits for memory. The cache
// must be locked.
func (c *Cache) Lendable() int {
	if c.cfg.Now() < c.needy {
		return 0
	}
	return min(c.cfg.Units.Grantable(), c.cfg.Policy.Down(c.cfg.Now(), c.cfg.Units.ScaleState()))
}

// step implements scheduler.Step: everything is in place, so it only makes the
// tables.
type step struct {
	cache  *Cache
	blocks [][]elastic.BlockID
	tables [][]int64
}

// Begin implements scheduler.Cache.
func (c *Cache) Begin(ctx context.Context, steps []scheduler.StepSeq) (scheduler.Step, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	st := &step{cache: c}
	for _, s := range steps {
		n := c.space.Geometry().Blocks(s.Start + s.New)
		held := c.seqs[s.ID]
		if len(held) < n {
			return nil, &scheduler.LostError{IDs: []uint64{s.ID}, Err: fmt.Errorf("sequence %d: step to %d tokens with %d blocks", s.ID, s.Start+s.New, len(held))}
		}
		st.blocks = append(st.blocks, held[:n])
		st.tables = append(st.tables, make([]int64, n))
	}
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
		for j, id := range blocks {
			st.tables[i][j] = c.space.Extent(id, l).Off
		}
	}
	return st.tables, nil
}

// Written implements engine.KV.
func (st *step) Written(int) {}

// Done implements engine.KV.
func (st *step) Done(int) {}

// Commit implements scheduler.Step.
func (st *step) Commit() error { return nil }

// Abort implements scheduler.Step.
func (st *step) Abort() {}
