package master

import (
	"fmt"
	"maps"
	"sync"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/lsc"
	"github.com/kvlend/kvlend/scheduler"
)

// Cache implements scheduler.Cache over the regular cache and borrowed units.
//
// Locking: mu guards everything below it. It is held while blocks move between
// steps (milliseconds), never during a forward pass; what lenders say
// meanwhile is queued and acted upon at the end of the step.
type Cache struct {
	cfg     Config
	stream  *lsc.Pipeline
	changed chan struct{}

	mu       sync.Mutex
	space    *space
	pools    []*pool
	seqs     map[uint64]*sequence
	evicted  []uint64
	step     *step // the step in progress
	deferred []func()
	lent     int // borrowed blocks held by sequences
	stats    Stats
	identity uint64 // of the model, in every seed
	scratch  []byte // of seed
	unitsOf  []int  // of seed
}

// Stats counts since the start.
type Stats struct {
	LoadedBytes, StoredBytes int64
	MovedBlocks              map[string]uint64 // by destination: "rc", "borrowed", "dropped"
	EvictedSequences         uint64
	StaleBlocks              uint64
	// VerifiedBlocks counts layer blocks whose checksums were compared in
	// steps, CorruptBlocks blocks that were not what had been stored.
	VerifiedBlocks, CorruptBlocks uint64
}

var _ scheduler.Cache = (*Cache)(nil)

// New returns a master's cache. It starts without any borrowed memory.
func New(cfg Config) (*Cache, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	stream, err := lsc.New(lsc.Config{
		Layers: cfg.Geometry.Layers, Buffers: cfg.Buffers,
		LayerBlockBytes: cfg.Geometry.LayerBlockBytes(),
		Local:           cfg.Local, Load: cfg.Load, Store: cfg.Store,
	})
	if err != nil {
		return nil, err
	}
	c := &Cache{
		cfg: cfg, stream: stream, changed: make(chan struct{}, 1),
		space: newSpace(cfg), seqs: map[uint64]*sequence{},
		stats: Stats{MovedBlocks: map[string]uint64{}}, identity: cfg.Identity.hash(cfg.Geometry),
	}
	for i := range cfg.Lender {
		p, err := newPool(cfg.Lender[i], cfg)
		if err != nil {
			return nil, err
		}
		c.pools = append(c.pools, p)
	}
	return c, nil
}

// BlockTokens implements scheduler.Cache.
func (c *Cache) BlockTokens() int { return c.cfg.Geometry.BlockTokens }

// MaxTokens implements scheduler.Cache (SwiftCache Eq. 4-5).
func (c *Cache) MaxTokens() int { return c.cfg.MaxBlocks * c.cfg.Geometry.BlockTokens }

// Changed implements scheduler.Cache.
func (c *Cache) Changed() <-chan struct{} { return c.changed }

func (c *Cache) signal() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Reserve implements scheduler.Cache. Blocks go to the regular cache as long
// as it has room; beyond that they go to borrowed memory, and regular-cache
// blocks follow them where slots are short. Missing units are asked for.
func (c *Cache) Reserve(id uint64, tokens int) error {
	b := c.BlockTokens()
	if tokens > c.MaxTokens() {
		return scheduler.ErrNever
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.seqs[id]
	held := 0
	if s != nil {
		held = len(s.blocks)
	}
	need := (tokens+b-1)/b - held
	if need <= 0 {
		return nil
	}
	remote := c.space.split(need, c.lent)
	if !c.space.fits(c.space.used()+need-remote, c.lent+remote) || c.lent+remote > c.cfg.MaxLent {
		return scheduler.ErrWait // others hold what this needs
	}
	if short := remote - c.lentFree(); short > 0 {
		if c.ask(short) {
			return scheduler.ErrComing
		}
		return scheduler.ErrWait
	}
	if spill := remote - need; spill > 0 {
		if err := c.spill(spill); err != nil {
			return fmt.Errorf("%w: %v", scheduler.ErrWait, err)
		}
		remote = need
	}
	if s == nil {
		s = &sequence{}
		c.seqs[id] = s
	}
	c.extend(id, s, remote, need-remote)
	return nil
}

// extend adds blocks to sequence id: borrowed ones first, so that the last block, which
// is written token by token, is a local one where there is a choice.
func (c *Cache) extend(id uint64, s *sequence, remote, locals int) {
	for _, at := range c.takeLent(remote, nil) {
		b := &block{place: borrowed, pool: at.pool, id: at.id, tail: -1}
		at.pool.blocks[at.id] = owned{id, s, len(s.blocks), b}
		s.blocks = append(s.blocks, b)
	}
	for range locals {
		chunk, ok := c.space.takeChunk()
		if !ok {
			panic("BUG: the regular cache has no chunk that split promised")
		}
		s.blocks = append(s.blocks, &block{place: local, chunk: chunk, tail: -1})
	}
	c.notePeak(s)
}

func (c *Cache) notePeak(s *sequence) {
	n := 0
	for _, b := range s.blocks {
		if b.place == borrowed {
			n++
		}
	}
	s.peakBorrowed = max(s.peakBorrowed, n)
}

// PeakBorrowed is the most borrowed blocks that sequence id has held at once.
func (c *Cache) PeakBorrowed(id uint64) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.seqs[id]; s != nil {
		return s.peakBorrowed
	}
	return 0
}

// Release implements scheduler.Cache.
func (c *Cache) Release(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.seqs[id]
	if s == nil {
		return
	}
	c.drop(id, s)
	c.sweep()
	c.signal()
}

// Stats returns a copy of the counters.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.MovedBlocks = maps.Clone(s.MovedBlocks)
	return s
}

func (c *Cache) drop(id uint64, s *sequence) {
	for _, b := range s.blocks {
		c.freeBlock(b)
	}
	delete(c.seqs, id)
}

// freeBlock gives back a block's memory and leaves b without a place.
func (c *Cache) freeBlock(b *block) {
	c.closeTail(b)
	switch b.place {
	case local:
		c.space.putChunk(b.chunk)
	case borrowed:
		b.pool.space.Free([]elastic.BlockID{b.id})
		delete(b.pool.blocks, b.id)
		b.pool.touch(c.cfg.Now())
		c.lent--
	}
}

// Evicted implements scheduler.Cache.
func (c *Cache) Evicted() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.evicted
	c.evicted = nil
	return out
}

// evict drops a sequence whose blocks have nowhere to stay; the scheduler
// computes it again.
func (c *Cache) evict(id uint64) {
	c.stats.EvictedSequences++
	c.stats.MovedBlocks["dropped"] += uint64(len(c.seqs[id].blocks))
	c.drop(id, c.seqs[id])
	c.evicted = append(c.evicted, id)
	c.signal()
}
