// Package nvlink is the fabric: arenas that processes share, and in-order
// streams that copy lists of spans between them. Two fabrics implement it: shm
// (memfd memory, the default, every machine) and cuda (device memory over
// NVLink, build tag cuda). One behaviour suite (package nvlink/fabrictest)
// says what a fabric must do.
package nvlink

import (
	"context"
	"errors"
)

// Arena is one contiguous allocation that holds a model's KV cache. The
// supervisor creates it; other processes open it from a Handle. An Arena is
// safe for concurrent use; closing it while a stream still copies from or to
// it is refused with ErrBusy.
type Arena interface {
	Name() string
	Device() string // the device that holds it, as named in the config, e.g. "gpu0"
	Size() int64
	// Bytes is the arena as host memory, nil where the host cannot address
	// it. Only the process that serves the arena's own model may use it;
	// what belongs to peers travels through streams.
	Bytes() []byte
	Close() error
}

// Span is Len bytes of an arena.
type Span struct {
	Arena Arena
	Off   int64
	Len   int64
}

// Copy is one piece of a batched copy. Both spans have the same length.
type Copy struct {
	Dst, Src Span
}

// Stream executes operations in the order in which they were enqueued,
// asynchronously to the caller. Methods are safe for concurrent use.
type Stream interface {
	// CopyBatch enqueues a scatter-gather copy. The list is copied before
	// CopyBatch returns. Bad spans (outside their arena, empty, of unequal
	// length, a piece that overlaps itself, arenas of another fabric) are
	// refused at once with ErrBadSpan, naming the piece; nothing of the list
	// is copied then. Pieces may be copied in any order, so no destination
	// may overlap another piece of the same list; that is not checked.
	CopyBatch(pieces []Copy) error
	// Call enqueues a host function: it runs after everything before it and
	// before everything after it. It may enqueue more, to this stream too. Its
	// error poisons nothing; it is reported by the next Record's event.
	Call(f func() error) error
	// WaitEvent makes everything enqueued later wait for e (which may belong
	// to another stream or fabric). The error of e is not taken over.
	WaitEvent(e Event) error
	// Record returns an event that completes when everything enqueued so far has.
	Record() (Event, error)
	// Close waits for what was enqueued, then releases the stream. It returns
	// the first error that no event has reported. Afterwards every method
	// answers ErrClosed, Close nil.
	Close() error
}

// Event is a point in a stream's order.
type Event interface {
	Done() <-chan struct{} // closed on completion
	// Err is nil until Done, then the first error of the operations between
	// the previous event of the stream and this one.
	Err() error
	Wait(ctx context.Context) error // Done, then Err; or ctx's error
}

// Fabric opens arenas and streams.
type Fabric interface {
	Kind() string   // "shm" or "cuda"
	Emulated() bool // true when a link is paced rather than real
	// NewStream opens a stream of device dev (its copies' home end).
	NewStream(dev, name string) (Stream, error)
	// Close closes all streams. Arenas stay open.
	Close() error
}

// Errors of all fabrics.
var (
	ErrBusy    = errors.New("arena is in use by a stream")
	ErrClosed  = errors.New("closed")
	ErrBadSpan = errors.New("span outside its arena")
)
