package master

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/lsc"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/overflow/placement"
	"github.com/kvlend/kvlend/prefix"
	"github.com/kvlend/kvlend/scheduler"
)

// Cache implements scheduler.PrefixCache over the regular cache, borrowed units
// and host memory.
//
// Locking: mu guards everything below it. It is held while blocks in use move
// between steps (milliseconds), never during a forward pass; what lenders say
// meanwhile is queued and acted upon at the end of the step.
type Cache struct {
	cfg     Config
	stream  Passes
	changed chan struct{}
	most    atomic.Int64 // blocks of a sequence

	mu       sync.Mutex
	space    *space
	pools    []*pool // lenders in order of Config.Lender, then host memory
	order    []*pool // lenders in the order in which they are asked and used
	index    *prefix.Index[*block]
	seqs     map[uint64]*sequence
	evicted  []uint64
	step     *step  // the step in progress
	begun    uint64 // steps
	spills   uint64 // calls of spillable
	deferred []func()
	flights  []*flight // copies under way between steps

	pinned   int           // regular-cache blocks that sequences hold
	held     int           // far blocks that sequences hold: each needs its slots
	heldAt   [nPlaces]int  // of these, by place
	homes    int           // chunks that wait for the blocks they were taken for
	patience time.Duration // until when units for kept blocks are waited for; 0: they are not
	wanted   int           // chunks that the last refused request was short of

	asked   []*block // to be copied to a store
	orphans orphans
	// stranding: what is taken out of the index, except these, leaves its places in
	// stores to orphans.
	stranding map[*block]bool
	staging   *staging // nil: there are no stores
	copying   int      // copies under way
	restored  Restored

	blockTime time.Duration // to compute a block; 0: not known

	stats     Stats
	scratch   []byte             // of seed
	scratchOf *scratch           // of steps; nil while one is under way
	pieces    []nvlink.Copy      // of the last batch: memory for the next
	unitsOf   []int              // of seed
	wishes    []coordinator.Wish // of ask
	tokens    []int32
	matched   []*prefix.Node[*block]
	removed   []*prefix.Node[*block]
	loads     []time.Duration // of choose, by pool
	devices   []placement.Device
	parts     []placement.Part
}

// Stats counts since the start.
type Stats struct {
	LoadedBytes, StoredBytes int64
	MovedBlocks              map[string]uint64 // by destination: "rc", "borrowed", "host", "pool", "dropped"
	// CopiedBlocks were copied to stores and stayed where they were, too.
	CopiedBlocks     uint64
	EvictedSequences uint64
	StaleBlocks      uint64
	// VerifiedBlocks counts layer blocks whose checksums were compared in
	// steps, CorruptBlocks borrowed blocks that were not what had been stored.
	VerifiedBlocks, CorruptBlocks uint64
}

var (
	_ scheduler.PrefixCache   = (*Cache)(nil)
	_ scheduler.BorrowCounter = (*Cache)(nil)
	_ scheduler.StepCoster    = (*Cache)(nil)
)

// New returns a master's cache. It starts without any borrowed memory.
func New(cfg Config) (*Cache, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Wall == nil {
		cfg.Wall = time.Now
	}
	if cfg.Later == nil {
		cfg.Later = goroutines{}
	}
	c := &Cache{
		cfg: cfg, changed: make(chan struct{}, 1),
		space: newSpace(cfg), seqs: map[uint64]*sequence{},
		stats: Stats{MovedBlocks: map[string]uint64{}},
	}
	var err error
	c.index, err = prefix.New[*block](prefix.Options{BlockTokens: cfg.Geometry.BlockTokens, Classes: int(nPlaces), Now: cfg.Now})
	if err != nil {
		return nil, err
	}
	for i := range cfg.Lender {
		p, err := newPool(cfg.Lender[i], cfg)
		if err != nil {
			return nil, err
		}
		c.pools = append(c.pools, p)
	}
	c.order = slices.Clone(c.pools)
	if cfg.Host != nil {
		p, err := newHost(cfg)
		if err != nil {
			return nil, err
		}
		c.pools = append(c.pools, p)
	}
	if cfg.Overflow != nil {
		c.staging = newStaging(cfg.Overflow.Staging, cfg.Geometry)
		for _, s := range cfg.Overflow.Stores {
			p, err := newStored(s, cfg)
			if err != nil {
				return nil, err
			}
			c.pools = append(c.pools, p)
		}
	}
	if err := c.resize(); err != nil {
		return nil, err
	}
	c.loads = make([]time.Duration, len(c.pools))
	loads := make([]nvlink.Stream, len(c.pools))
	for i, p := range c.pools {
		p.via, loads[i] = i, p.cfg.Load
	}
	if len(loads) == 0 {
		loads = []nvlink.Stream{cfg.Store} // nothing is ever loaded
	}
	if c.stream = cfg.Passes; c.stream == nil {
		lines, err := lsc.New(lsc.Config{
			Layers: cfg.Geometry.Layers, Buffers: cfg.Buffers,
			LayerBlockBytes: cfg.Geometry.LayerBlockBytes(),
			Local:           cfg.Local, Loads: loads, Store: cfg.Store, Recorder: cfg.Recorder,
		})
		if err != nil {
			return nil, err
		}
		c.stream = pipeline{lines}
	}
	c.restored = c.restore()
	return c, nil
}

// BlockTokens implements scheduler.Cache.
func (c *Cache) BlockTokens() int { return c.cfg.Geometry.BlockTokens }

// MaxTokens implements scheduler.Cache (SwiftCache Eq. 4-5). Stores that are out of
// use hold nothing.
func (c *Cache) MaxTokens() int { return int(c.most.Load()) * c.cfg.Geometry.BlockTokens }

// resize takes note of how many blocks there may be. mu is held.
func (c *Cache) resize() error {
	var far []int
	for _, l := range c.cfg.Lender {
		far = append(far, l.Spec.BlocksPer(c.cfg.Geometry, l.MaxUnits))
	}
	for _, p := range c.shelves {
		if p.shelf.fenced == nil {
			far = append(far, p.shelf.Store.Geometry().Slots)
		}
	}
	most, err := elastic.NewCapacity(c.cfg.Geometry, c.cfg.ArenaBytes, far, c.cfg.Buffers)
	c.most.Store(int64(min(c.cfg.MaxBlocks, most.Blocks)))
	return err
}

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
	if tokens > c.MaxTokens() {
		return scheduler.ErrNever
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.seqs[id]
	if s == nil {
		s = &sequence{}
	}
	b := c.BlockTokens()
	more := (tokens+b-1)/b - len(s.blocks)
	if more <= 0 {
		return nil
	}
	remote, err := c.room(more, 0, c.urgency(s))
	if err != nil {
		return err
	}
	c.seqs[id] = s
	return c.extend(s, remote, more-remote)
}

// urgency says how badly a sequence needs memory: nothing runs without it if no
// other sequence has any.
func (c *Cache) urgency(s *sequence) need {
	for _, other := range c.seqs {
		if other != s {
			return growing
		}
	}
	return stuck
}

// extend adds blocks to a sequence: borrowed ones first, so that the last block,
// which is written token by token, is a local one where there is a choice.
// A refusal, with a part of the blocks there, is possible where the last ones were
// to be in a store.
func (c *Cache) extend(s *sequence, remote, locals int) error {
	add := func(at spot) {
		b := newBlock(at)
		if at.place != local {
			at.pool.blocks[at.id] = b
		}
		c.use(b)
		s.blocks = append(s.blocks, b)
	}
	for range remote {
		at, ok := c.takeSpot(true)
		if !ok {
			return c.refusal("a store has just failed")
		}
		add(at)
	}
	for range locals {
		chunk, ok := c.space.takeChunk()
		if !ok {
			panic("BUG: the regular cache has no chunk that room promised")
		}
		add(chunkSpot(chunk))
	}
	c.notePeak(s)
	return nil
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
	c.tidy()
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

// Evicted implements scheduler.Cache.
func (c *Cache) Evicted() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.evicted
	c.evicted = nil
	return out
}

// lentUsed counts the borrowed blocks that are taken, in use or kept.
func (c *Cache) lentUsed() int {
	n := 0
	for _, p := range c.lenders() {
		n += p.used()
	}
	return n
}

// spanAt is where layer l of a spot lies.
func (c *Cache) spanAt(s spot, l int) span {
	switch {
	case s.tail >= 0:
		return c.localSpan(c.space.tailOff(s.tail), l)
	case s.place == local:
		return c.localSpan(c.space.chunkOff(s.chunk), l)
	}
	return s.pool.span(s.id, l)
}

// free gives back a spot that was taken and is not used.
func (c *Cache) free(s spot) {
	if s.tail >= 0 {
		c.space.putTail(s.tail)
	}
	if s.place == local {
		c.space.putChunk(s.chunk)
		return
	}
	s.pool.put(s.id)
}
