// Package lsc is the layer stream cache (SwiftCache section 3.2 and 3.3): the
// part of a master's arena that holds only the layer being executed. Full
// blocks live in borrowed memory; before the attention of a layer their layer
// block is loaded into a slot, and newly computed layer blocks are stored
// back, layer by layer, with events between the copy stream and the compute.
//
// Blocks may carry checksums. They are taken and compared on the copy streams,
// between the copy and its event, so that the hashing hides behind computation
// as the transfer does.
//
// A block is streamed or promoted. Streamed blocks share the slots of one or two
// layers: with one buffer load(l) starts when attention(l-1) is done and
// store(l-1) has finished; with two it starts when those of layer l-2 are.
// A promoted block is loaded into memory of its own for all layers and is local
// afterwards; its loads wait for nobody.
//
// A link that carries both kinds is never idle while something may be loaded:
// of the batches that may start it takes that of the earliest layer, of one
// layer the streamed one, which others wait behind. A batch is one layer of one
// kind, and is not interrupted.
package lsc

import (
	"errors"
	"fmt"

	"github.com/kvlend/kvlend/nvlink"
)

// Block is one borrowed full block that takes part in a pass.
type Block struct {
	// Remote gives the span of layer l in borrowed memory.
	Remote func(l int) nvlink.Span
	// Slots are offsets in the local arena, one per buffer: layer l uses
	// Slots[l % len(Slots)]. With one per layer instead a loaded block is
	// promoted: the slots are its new home, whole and local once Finish has
	// returned nil. A block that is only stored may have one per layer too.
	Slots []int64
	// Via is the stream of its loads: an index into Config.Loads. Blocks that
	// lie behind different links travel at the same time.
	Via int
	// Load: attention reads history from this block. Store: this pass
	// writes the block. A block that is created whole in this pass is stored
	// and not loaded. A block with neither is ignored.
	Load, Store bool
	// Guard is asked before a copy is submitted and after it completed; false
	// means that the memory behind Remote has changed hands. Nil: it never does.
	Guard Guard
	// Sums are the block's checksums, one per layer: a store writes its
	// layer's, a load with Verify compares. They belong to the pass until
	// Finish or Abort has returned, and count for nothing if the pass failed.
	// Nil: none are kept.
	Sums []uint64
	// Seed enters every checksum (see Checksum): what the block is.
	Seed uint64
	// Verify compares what is loaded with Sums.
	Verify bool
	// Key is the caller's name for the block, reported in StaleError and
	// CorruptError.
	Key int64
}

// Guard fences copies with the epochs of the shared unit table. Once MayLoad
// is false it must stay false: the memory never comes back under the same
// lease. Guards are asked with the pass locked, so they must not call it.
type Guard interface {
	// MayLoad reports whether the memory still belongs to the lease.
	MayLoad() bool
	// MayStore reports MayLoad and that the lease lasts long enough for a
	// store: one layer's batch, behind at most one batch of loads and one of
	// stores that wait in the streams before it.
	MayStore() bool
}

// StaleError says that blocks lost their memory during a pass. Their bytes are
// not data. Keys are in the order of the pass's blocks.
type StaleError struct {
	Keys []int64
	Err  error // the failed transfer that showed it, if one did
}

func (e *StaleError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("memory of %d blocks was lost during the pass: %v", len(e.Keys), e.Err)
	}
	return fmt.Sprintf("borrowed memory of %d blocks changed hands during the pass", len(e.Keys))
}

// Unwrap is Err.
func (e *StaleError) Unwrap() error { return e.Err }

// ErrAborted is returned by a pass after Abort.
var ErrAborted = errors.New("pass aborted")
