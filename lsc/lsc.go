// Package lsc is the layer stream cache (SwiftCache section 3.2 and 3.3): the
// part of a master's arena that holds only the layer being executed. Full
// blocks live in borrowed memory; before the attention of a layer their layer
// block is loaded into a slot, and newly computed layer blocks are stored
// back, layer by layer, with events between the copy stream and the compute.
//
// With one buffer load(l) starts when attention(l-1) is done and store(l-1)
// has finished; with two it starts when those of layer l-2 are.
package lsc

import (
	"errors"

	"github.com/kvlend/kvlend/nvlink"
)

// Block is one borrowed full block that takes part in a pass.
type Block struct {
	// Remote gives the span of layer l in borrowed memory.
	Remote func(l int) nvlink.Span
	// Slots are offsets in the local arena, one per buffer: layer l uses
	// Slots[l % len(Slots)].
	Slots []int64
	// Load: attention reads history from this block. Store: this pass
	// writes the block. A block that is created whole in this pass is stored
	// and not loaded.
	Load, Store bool
	// Guard is asked before a copy is submitted and after it completed; false
	// means that the memory behind Remote has changed hands.
	Guard Guard
	// Key is the caller's name for the block, reported in StaleError.
	Key int64
}

// Guard fences copies with the epochs of the shared unit table.
type Guard interface {
	// MayLoad reports whether the memory still belongs to the lease.
	MayLoad() bool
	// MayStore reports MayLoad and that the lease lasts long enough for a store.
	MayStore() bool
}

// StaleError says that blocks lost their memory during a pass. Their bytes are
// not data.
type StaleError struct{ Keys []int64 }

func (e *StaleError) Error() string { return "borrowed memory changed hands during the pass" }

// ErrAborted is returned by a pass after Abort.
var ErrAborted = errors.New("pass aborted")
