// Package worker is the lender's side of kvlend, and the side of models that
// neither lend nor borrow: a cache whose blocks all lie in the model's own
// arena, in the units that are at home and in the remainder that is never
// lent (SwiftCache section 3.4). When a request of its own does not fit, the
// worker takes lent units back; when there is room to spare, it lends.
//
// Full blocks whose tokens are known stay when their sequence ends, by prefix
// (DESIGN section 7), and later sequences share them. Those that nobody uses are
// first protected and then cold (Config.KeepFor): a unit that holds nothing but
// cold blocks is as good as empty to whoever wants to borrow it.
package worker

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/prefix"
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
	// KeepFor is how long blocks that nobody uses are kept, by prefix, from
	// lending and, while units are away, from the worker's own requests. After
	// that they make way for both, the coldest first.
	KeepFor time.Duration
	// MaxSlowdown is how much slower steps may be while units are lent, as a
	// share of their time; beyond that nothing is lent for a while. 0: no limit.
	MaxSlowdown float64
	// StepClock is what steps are timed with; nil: Now. A process that shares
	// its cores with borrowers is better timed by its CPU time.
	StepClock func() time.Duration
	Now       func() time.Duration
}

// Cache implements scheduler.PrefixCache.
//
// Locking: mu guards the units, the block space and what is below; the lending
// protocol works on the same units under the same lock (Locked).
type Cache struct {
	cfg     Config
	changed chan struct{}

	mu     sync.Mutex
	space  *elastic.BlockSpace // of the units
	index  *prefix.Index[*block]
	seqs   map[uint64]*sequence
	blocks map[elastic.BlockID]*block
	idle   idleList
	warm   warm
	needy  time.Duration // a request waits for units; until then nothing is lent
	asked  time.Duration // since when no unit has come home that was waited for; 0: none is
	guard  *guard
	stats  Stats

	ids     []elastic.BlockID
	matched []*prefix.Node[*block]
	removed []*prefix.Node[*block]
}

// Stats counts since the start.
type Stats struct {
	Reused  uint64 // tokens of admitted sequences that were kept before
	Merged  uint64 // blocks that two sequences computed at the same time
	Dropped uint64 // kept blocks that made way
}

var _ scheduler.PrefixCache = (*Cache)(nil)

// New returns a worker's cache.
func New(cfg Config) (*Cache, error) {
	if cfg.Units == nil || cfg.Policy == nil || cfg.Need == nil || cfg.Now == nil || cfg.Arena == nil {
		return nil, errors.New("a worker's cache needs Units, Policy, Arena, Need and Now")
	}
	if cfg.KeepFor < 0 {
		return nil, fmt.Errorf("KeepFor is %v, must be at least 0", cfg.KeepFor)
	}
	if !(cfg.MaxSlowdown >= 0) {
		return nil, fmt.Errorf("MaxSlowdown is %v, must be at least 0", cfg.MaxSlowdown)
	}
	if cfg.StepClock == nil {
		cfg.StepClock = cfg.Now
	}
	c := &Cache{
		cfg: cfg, space: cfg.Units.Space(), changed: make(chan struct{}, 1),
		seqs: map[uint64]*sequence{}, blocks: map[elastic.BlockID]*block{},
		warm: warm{blocks: make([]int32, cfg.Units.Total())}, guard: newGuard(cfg.MaxSlowdown),
	}
	var err error
	if c.index, err = prefix.New[*block](prefix.Options{BlockTokens: c.BlockTokens(), Classes: 1}); err != nil {
		return nil, err
	}
	cfg.Units.SetVacator(vacator{c})
	return c, nil
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

// Reserve implements scheduler.Cache. A sequence whose first Reserve this is
// has tokens that nobody knows: its blocks are not kept.
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
	need := c.space.Geometry().Blocks(tokens) - len(s.blocks)
	if need <= 0 {
		return nil
	}
	c.cfg.Policy.Observe(c.cfg.Now(), tokens)
	if err := c.room(need); err != nil {
		return err
	}
	c.seqs[id] = s
	c.alloc(s, need)
	return nil
}

// Release implements scheduler.Cache. Full blocks stay, by prefix.
func (c *Cache) Release(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.seqs[id]; s != nil {
		c.unuseAll(s.blocks)
		delete(c.seqs, id)
	}
	c.needy = 0 // whoever still waits says so again
	c.signal()
}

// Locked runs f on the units while nobody else does, and wakes the scheduler if
// f reports that units came home.
func (c *Cache) Locked(f func() (home bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f() {
		c.asked = 0
		c.signal()
	}
}

// Lendable is how many units may be lent now: those that the scale-down policy
// spares, cold blocks not counted, and none while a request of the worker's own
// waits for memory or lending has been found to slow them down. To a request of
// the borrower's, blocks that are only kept give way however young they are; to
// blocks that the borrower only keeps, cold ones. The cache must be locked.
func (c *Cache) Lendable(w coordinator.Wish) int {
	now := c.cfg.Now()
	if now < c.needy || c.guard.backsOff(now) {
		return 0
	}
	c.chill()
	n := c.cfg.Units.Grantable()
	for ; !w.Keep && n < w.Units && c.idle.young != nil; n = c.cfg.Units.Grantable() {
		c.chillNext()
	}
	state := c.cfg.Units.ScaleState()
	state.Used -= c.idle.cold
	return min(n, c.cfg.Policy.Down(now, state))
}

// Stats returns the counters.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}
