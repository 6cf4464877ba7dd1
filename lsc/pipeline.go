package lsc

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvlend/kvlend/nvlink"
)

// Config describes a Pipeline.
type Config struct {
	// Layers is L, at least 1.
	Layers int
	// Buffers is 1 or 2: the slots of each block.
	Buffers int
	// LayerBlockBytes is M_block, at least 1.
	LayerBlockBytes int64
	// Local is the master's own arena, which holds the slots.
	Local nvlink.Arena
	// Load and Store carry the copies. They may be the same stream; with two
	// streams loads and stores travel at the same time.
	Load, Store nvlink.Stream
	// Loads, where loads come over several links, has a stream for each; Load
	// is nil then.
	Loads []nvlink.Stream
	// Recorder, when set, is told when transfers ran.
	Recorder Recorder
}

// Recorder is told when the transfers of a pass ran, on the streams themselves,
// once the pass has ended. Streams whose events are not nvlink.Timed are left
// out. It must be safe for concurrent use.
type Recorder interface {
	// On reports whether anyone wants to know.
	On() bool
	// Transfer is one batch: name is "load", "promote" or "store", via the
	// stream of a load.
	Transfer(name string, via, layer int, began, ended time.Time, bytes int64)
}

// Pipeline starts passes. It is safe for concurrent use; passes that run at
// the same time must not share slots.
type Pipeline struct {
	cfg Config

	mu    sync.Mutex
	spare []nvlink.Copy // piece list of a finished pass, for the next one
}

// New checks cfg and makes a pipeline. Streams and arena remain the caller's.
func New(cfg Config) (*Pipeline, error) {
	switch {
	case cfg.Layers < 1:
		return nil, fmt.Errorf("lsc: Layers is %d; want at least 1", cfg.Layers)
	case cfg.Buffers != 1 && cfg.Buffers != 2:
		return nil, fmt.Errorf("lsc: Buffers is %d; want 1 or 2", cfg.Buffers)
	case cfg.Local == nil:
		return nil, fmt.Errorf("lsc: Local is nil")
	case cfg.LayerBlockBytes < 1 || cfg.LayerBlockBytes > cfg.Local.Size():
		return nil, fmt.Errorf("lsc: LayerBlockBytes is %d; want 1 to %d, the size of arena %q",
			cfg.LayerBlockBytes, cfg.Local.Size(), cfg.Local.Name())
	case (cfg.Load == nil) == (cfg.Loads == nil):
		return nil, fmt.Errorf("lsc: Load and Loads: want one of the two")
	case cfg.Store == nil || slices.Contains(cfg.Loads, nil):
		return nil, fmt.Errorf("lsc: Store or one of Loads is nil")
	}
	cfg.Loads = slices.Clone(cfg.Loads)
	if cfg.Load != nil {
		cfg.Loads = []nvlink.Stream{cfg.Load}
	}
	return &Pipeline{cfg: cfg}, nil
}

// Begin starts a pass over blocks and at once the loads that wait for nobody:
// those of the first layers (as many as there are buffers) and of promoted
// blocks. The slice is copied; Remote and Guard of a block are called until the
// pass ends, one call at a time, from whichever goroutine calls the pass or
// from a stream. Each slot must belong to one block only. After Begin
// succeeded, Finish or Abort must be called.
func (p *Pipeline) Begin(blocks []Block) (*Pass, error) {
	for i := range blocks {
		if err := p.checkBlock(&blocks[i]); err != nil {
			return nil, fmt.Errorf("lsc: block %d (key %d): %w", i, blocks[i].Key, err)
		}
	}
	ps := newPass(p, blocks)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	// An error is kept and returned by Layer, like that of later loads.
	for i := range ps.lanes {
		ps.start(&ps.lanes[i])
	}
	return ps, nil
}

func (p *Pipeline) checkBlock(b *Block) error {
	if !b.Load && !b.Store {
		return nil
	}
	if b.Remote == nil {
		return fmt.Errorf("has no Remote")
	}
	if n := len(b.Slots); n != p.cfg.Buffers && n != p.cfg.Layers {
		return fmt.Errorf("has %d slots; want %d, one per buffer, or %d, one per layer", n, p.cfg.Buffers, p.cfg.Layers)
	}
	if b.Load && (b.Via < 0 || b.Via >= len(p.cfg.Loads)) {
		return fmt.Errorf("has Via %d; want 0 to %d, an index into Loads", b.Via, len(p.cfg.Loads)-1)
	}
	for _, s := range b.Slots {
		if s < 0 || s > p.cfg.Local.Size()-p.cfg.LayerBlockBytes {
			return fmt.Errorf("slot at %d; want 0 to %d", s, p.cfg.Local.Size()-p.cfg.LayerBlockBytes)
		}
	}
	return p.checkSums(b)
}

func (p *Pipeline) takeSpare() []nvlink.Copy {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.spare
	p.spare = nil
	return s[:0]
}

func (p *Pipeline) giveSpare(s []nvlink.Copy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if cap(s) > cap(p.spare) {
		p.spare = s
	}
}
