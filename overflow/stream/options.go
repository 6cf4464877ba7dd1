package stream

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvlend/kvlend/overflow/device"
)

// Memory lends staging buffers, e.g. those that an engine has registered. It is
// safe for concurrent use, also from a device.IO's Done; neither method blocks.
type Memory interface {
	// TryGet returns a buffer of at least n bytes at an address that is a
	// multiple of device.Align; nil: none is free. n is a multiple of
	// device.Align, at most Options.MaxRead.
	TryGet(n int) []byte
	// Put takes back what TryGet returned.
	Put(b []byte)
}

// Holder is what an arena in host memory may implement: between Hold and Release
// its Close answers nvlink.ErrBusy. Streams hold the arenas of what they have
// enqueued. After Close, Hold answers nvlink.ErrClosed. Values are comparable.
type Holder interface {
	Hold() error
	Release()
}

// Errors that a *device.Error of a stream wraps, besides the device's own.
var (
	// ErrTimeout: the device did not answer within Options.Timeout.
	ErrTimeout = errors.New("no answer in time")
	// ErrAbandoned: cancelling it did not help either, or the device still has
	// such an I/O. It wraps ErrTimeout.
	ErrAbandoned = fmt.Errorf("%w, and not cancelled", ErrTimeout)
)

// Options configure a Stream.
type Options struct {
	Name   string // for errors; may be empty
	Memory Memory
	// Staging is the most that the stream uses of Memory at a time, in bytes;
	// at least MaxRead. 0: 16 MiB, or MaxRead if that is more.
	Staging int64
	// MaxRead is the size up to which neighbours are joined into one I/O and
	// above which pieces are cut, in bytes, a multiple of device.Align; 0: 1 MiB.
	// A device whose Info.MaxIO is lower has that instead.
	MaxRead int
	// Gap is how many bytes between two pieces are worth reading over, to make
	// one I/O of them. Nobody may write to these bytes meanwhile: leave it at 0
	// unless whoever owns the device knows that. Writes never span gaps.
	Gap int
	// Timeout, when set, is how long a device may take for one I/O, queueing in
	// the device included. Past it the I/O is cancelled and has failed with
	// ErrTimeout; past a quarter more it is abandoned.
	Timeout time.Duration
	// Slow, when set, is called once for each I/O that takes longer than
	// SlowAfter, when that has passed: the place to start something else. It
	// must not block.
	SlowAfter time.Duration
	Slow      func(dev string, waited time.Duration)
	// OnError, when set, is called for each failure of a device: once for an
	// I/O, and once for a Submit that was refused or I/Os that were not even
	// tried because of an abandoned one. It runs on the stream's goroutine and
	// must not block.
	OnError func(*device.Error)
}

const (
	defaultMaxRead = 1 << 20
	defaultStaging = 16 << 20
	// maxMaxRead keeps lengths far from the limits of system calls.
	maxMaxRead = 1 << 30
)

func (o *Options) check() error {
	if o.MaxRead == 0 {
		o.MaxRead = defaultMaxRead
	}
	if o.Staging == 0 {
		o.Staging = max(defaultStaging, int64(o.MaxRead))
	}
	switch {
	case o.Memory == nil:
		return fmt.Errorf("stream %q: Memory is nil", o.Name)
	case o.MaxRead < device.Align || o.MaxRead%device.Align != 0 || o.MaxRead > maxMaxRead:
		return fmt.Errorf("stream %q: MaxRead is %d; want a multiple of %d up to %d", o.Name, o.MaxRead, device.Align, maxMaxRead)
	case o.Staging < int64(o.MaxRead):
		return fmt.Errorf("stream %q: Staging is %d; want at least %d, MaxRead", o.Name, o.Staging, o.MaxRead)
	case o.Gap < 0 || o.Gap > o.MaxRead:
		return fmt.Errorf("stream %q: Gap is %d; want 0 to %d, MaxRead", o.Name, o.Gap, o.MaxRead)
	case o.Timeout < 0:
		return fmt.Errorf("stream %q: Timeout is %v; want at least 0", o.Name, o.Timeout)
	case (o.Slow != nil) != (o.SlowAfter > 0):
		return fmt.Errorf("stream %q: Slow and SlowAfter (%v): want both or none", o.Name, o.SlowAfter)
	}
	return nil
}

// Stats counts what a stream did since it was made.
type Stats struct {
	Batches, Pieces int64
	// Reads and Writes are I/Os that were submitted, Submits the calls.
	Reads, Writes, Submits int64
	// ReadBytes and WrittenBytes are what these I/Os transferred or were to,
	// PieceBytes what the pieces asked for: the rest is padding and gaps.
	ReadBytes, WrittenBytes, PieceBytes int64
	// Errors counts extents that failed, Timeouts those of them that the device
	// did not answer in time, Abandoned those that it still had when given up.
	Errors, Timeouts, Abandoned int64
	// OwnBuffer counts extents for which Memory had no buffer, so that they
	// went one at a time.
	OwnBuffer int64
}
