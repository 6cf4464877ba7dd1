// Package master is the borrower's side of kvlend: the cache of a model whose
// conversations need more KV than its own arena holds. Its blocks live in the
// regular cache (full blocks in the model's own arena) or in units borrowed
// from workers, from where they are streamed one layer at a time through the
// layer stream cache (SwiftCache section 3.2).
//
// # The arena
//
//	| chunk 0 | chunk 1 | ... | chunk n-1 | rest | tail 0 | ... | tail t-1 |
//
// A chunk is L layer blocks and is either one block of the regular cache or L
// slots of the layer stream cache; the rest (K_master mod L layer blocks) can
// only be slots. The split is not fixed: with x borrowed blocks in use, the
// regular cache may have floor((K_master - buffers*x) / L) blocks. With all
// workers' memory borrowed that is Eq. 4-5; with none it is a plain cache, so
// that lending never costs a master anything.
//
// The tails are workspace beside the KV arena: the partly filled last block of
// a sequence stays there until it is full, if its place is in borrowed memory.
//
// # Prefix reuse
//
// A full block whose tokens are known is kept by its prefix when its sequence
// ends, wherever it lies, and later sequences that begin with the same tokens
// share it (Admit). What nobody uses is the room that others get: cold blocks of
// the regular cache move to borrowed memory in the background while there is
// some, then to host memory, and are dropped where there is none. A block that
// comes back is loaded layer by layer in the pass that needs it: into a chunk
// of the regular cache, where it stays (promotion), or, where there is no
// chunk for it, through a slot.
//
// # Verified blocks
//
// Borrowed memory is written by other processes' fabric too, so every layer
// block that goes there leaves a checksum in the master's own memory, and is
// compared with it on its way back (Config.Verify). The checksum is seeded with
// what the block is: the chained hash of the model's identity, the tenant's salt
// and all tokens up to its last; its place; and the epochs of its units. A block
// that does not verify is never data: its unit takes no more blocks until it has
// gone home, and the sequences that use it are computed again.
package master

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/lsc"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/ranges"
)

// Config describes a master's cache.
type Config struct {
	Geometry   elastic.Geometry
	ArenaBytes int64 // of the KV arena, without the tails
	Tails      int   // number of tail blocks behind it
	Buffers    int   // LSC buffers, 1 or 2
	MaxBlocks  int   // full blocks that Eq. 4-5 allow, lending included
	MaxLent    int   // borrowed blocks that Eq. 4 allows (N_LSC)

	Local  nvlink.Arena  // the model's own arena: KV arena and tails
	Store  nvlink.Stream // slots and tails to borrowed memory
	Move   nvlink.Stream // whole blocks from place to place, between steps
	Lender []LenderConfig
	Host   *HostConfig // memory of the host behind the borrowed memory; nil: none
	// Overflow is what lies behind all of them; nil: nothing.
	Overflow *OverflowConfig

	// Verify says what is compared with its checksum when it is loaded.
	Verify Verify
	// Recorder, when set, is told when transfers ran.
	Recorder lsc.Recorder
	// Log hears of corruption, once per unit. Nil: nobody does.
	Log Logger

	// IdleReturn is how long an empty borrowed unit is kept.
	IdleReturn time.Duration
	// StoreLimit is the longest that a store may take: no store is started
	// with less than this left of the lease.
	StoreLimit time.Duration
	Now        func() time.Duration // monotonic; CLOCK_BOOTTIME in production
	// Passes carries what far blocks a step needs; nil: a layer stream cache of
	// the arena (package lsc).
	Passes Passes
	// Later runs what has to wait; nil: goroutines and timers do.
	Later Later
	// Wall is the time of day, which orders what is stored across restarts; nil:
	// time.Now.
	Wall func() time.Time
}

// Passes begins passes: *lsc.Pipeline is the one that moves bytes.
type Passes interface {
	Begin(blocks []lsc.Block) (Pass, error)
}

// Pass is one pass over all layers, of whose methods *lsc.Pass tells.
type Pass interface {
	Layer(l int) error
	Written(l int)
	Done(l int)
	Finish() error
	Abort()
	Stats() lsc.Stats
	Loads(func(lsc.Load))
}

// pipeline is a layer stream cache as Passes.
type pipeline struct{ *lsc.Pipeline }

func (p pipeline) Begin(blocks []lsc.Block) (Pass, error) {
	pass, err := p.Pipeline.Begin(blocks)
	if err != nil {
		return nil, err // and no Pass, which would not be nil
	}
	return pass, nil
}

// Later runs functions on goroutines of their own, or whatever stands for them
// where the time is not the clock's.
type Later interface {
	// When runs f once e is over.
	When(e nvlink.Event, f func())
	// After runs f when d has passed.
	After(d time.Duration, f func())
}

// goroutines is the Later of the clock.
type goroutines struct{}

func (goroutines) When(e nvlink.Event, f func()) {
	go func() {
		<-e.Done()
		f()
	}()
}

func (goroutines) After(d time.Duration, f func()) { time.AfterFunc(d, f) }

// LenderConfig describes a worker from which this master borrows. The order of
// lenders is the order in which they are asked, until their links are measured.
type LenderConfig struct {
	Name     string
	Owner    uint32 // the master's index in the unit table
	Spec     elastic.UnitSpec
	MaxUnits int // most units that this worker may lend
	Arena    nvlink.Arena
	// ArenaBytes is what the units divide.
	ArenaBytes int64
	Table      *elastic.UnitTable
	Ask        Asker
	Load       nvlink.Stream // its memory to slots and chunks
}

// Logger takes a message and pairs of keys and values (hclog.Logger has it).
type Logger interface {
	Warn(msg string, args ...any)
}

// Asker asks a worker for units, without blocking: the answer comes as
// Granted or Denied. Asking again while an answer is outstanding raises the
// number of units wanted, it never adds to it.
type Asker interface {
	Want(w coordinator.Wish)
	Release(units []wire.UnitEpoch)
}

// HostConfig describes memory of the host that holds what nobody uses. It cannot
// be streamed from: a block comes back into the regular cache before, or layer
// by layer while, it is used.
type HostConfig struct {
	Arena nvlink.Arena
	Load  nvlink.Stream
	// Sync loads all of a prefix before its first step begins, rather than
	// layer by layer within it.
	Sync bool
}

// errNoRoom says that an internal move found no place; callers turn it into an
// eviction or into scheduler.ErrWait.
var errNoRoom = errors.New("no room")

func (c Config) validate() error {
	g := c.Geometry
	switch {
	case c.Buffers != 1 && c.Buffers != 2:
		return fmt.Errorf("lsc buffers: %d, must be 1 or 2", c.Buffers)
	case g.Layers <= c.Buffers:
		return fmt.Errorf("model %s: %d layers, the layer stream cache with %d buffers needs at least %d",
			g.Name, g.Layers, c.Buffers, c.Buffers+1)
	case c.ArenaBytes < g.FullBlockBytes():
		return fmt.Errorf("arena of %s: %d bytes, one block needs %d", g.Name, c.ArenaBytes, g.FullBlockBytes())
	case c.Tails < 1:
		return fmt.Errorf("tails of %s: %d, must be at least 1", g.Name, c.Tails)
	case c.Local.Size() < c.ArenaBytes+int64(c.Tails)*g.FullBlockBytes():
		return fmt.Errorf("arena of %s: %d bytes, %d and %d tails need %d", g.Name, c.Local.Size(),
			c.ArenaBytes, c.Tails, c.ArenaBytes+int64(c.Tails)*g.FullBlockBytes())
	case c.Host != nil && c.Host.Arena.Size() < g.FullBlockBytes():
		return fmt.Errorf("host memory of %s: %d bytes, one block needs %d", g.Name, c.Host.Arena.Size(), g.FullBlockBytes())
	case c.Overflow != nil && (c.Overflow.Move == nil || c.Overflow.Staging == nil || c.Overflow.Staging.Size() < g.FullBlockBytes()):
		return fmt.Errorf("overflow pool of %s: it needs a stream for moves, and staging memory for a block of %d bytes", g.Name, g.FullBlockBytes())
	case c.Verify.on() && !(ranges.Can(c.Store, c.Local) && ranges.Can(c.Move, c.Local)):
		return fmt.Errorf("lending.verify: %q, must be %s: neither the host nor the streams can read arena %q", string(c.Verify), VerifyOff, c.Local.Name())
	}
	return c.Verify.validate()
}
