// Package device is what the overflow pool stores blocks on: DRAM, files, block
// devices and NVMe namespaces behind one asynchronous interface. One behaviour
// suite (package devicetest) says what a device must do.
//
// I/O goes straight to the device, without the page cache (O_DIRECT): offsets,
// lengths and memory addresses are multiples of Align. All devices of a process
// share one Engine, which submits for them in batches.
package device

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Align is what the offsets, lengths and memory addresses of I/O are multiples
// of, in bytes.
const Align = 4096

// Kind says what a device is.
type Kind string

// The kinds of devices.
const (
	DRAM  Kind = "dram"  // memory of this process: gone with it
	File  Kind = "file"  // a preallocated file on a filesystem
	Block Kind = "block" // a raw block device
	NVMe  Kind = "nvme"  // an NVMe namespace by passthrough
)

// Info describes a device.
type Info struct {
	Name string // as configured; unique in a pool
	Path string // empty for DRAM
	Kind Kind
	Size int64 // bytes, a multiple of Align
	// Degraded says why a slower path than the intended one is in use, e.g.
	// "no io_uring: pread in 8 threads"; empty: none is.
	Degraded string
	// MaxIO is the largest I/O that is worth submitting as one, in bytes.
	MaxIO int64
}

// IO is one read or write. It belongs to the device from Submit until Done is
// called.
type IO struct {
	Write bool
	Off   int64 // in the device
	// Buf is filled or written whole. Buffers from Engine.Memory travel
	// without being mapped anew each time.
	Buf []byte
	// Done is called once, with Err set, on a goroutine that serves all
	// devices: it must not block. It may call Submit.
	Done func(*IO)
	// Err is a *Error; nil: all of Buf was transferred.
	Err error
	// Began and Ended are when the I/O was handed to the system and when its
	// end was seen. Valid in Done.
	Began, Ended time.Time
	// Owner is the caller's.
	Owner any

	state ioState
}

// Device is one store of bytes. Methods are safe for concurrent use.
type Device interface {
	Info() Info
	// Submit starts ios in one batch. They run concurrently, in any order;
	// nobody may have two in flight that overlap of which one writes. An error
	// (a bad offset, length or buffer, naming the I/O; ErrClosed) means that
	// none was started and no Done will be called. It waits while more than
	// the engine's bound is in flight, unless called from a Done.
	Submit(ios []*IO) error
	// Cancel asks for the end of an I/O that was submitted. Its Done is called
	// all the same, with ErrCancelled if it came in time.
	Cancel(io *IO)
	// Sync makes durable what was written by every I/O whose Done was called
	// before Sync was. A DRAM device does nothing: what it holds is never
	// durable.
	Sync(ctx context.Context) error
	// Close waits for what is in flight, but not longer than the engine's
	// CloseWait: halfway it asks for the end of what has not ended, and past it
	// the error wraps ErrStuck. Such I/O is still the device's, its buffer too; if
	// it ever ends, its Done is called, and only then is the device let go of:
	// until then nobody can open it. Afterwards Submit and Sync answer ErrClosed,
	// Close nil.
	Close() error
}

// Errors that a *Error wraps.
var (
	ErrClosed    = errors.New("device is closed")
	ErrCancelled = errors.New("cancelled")
	ErrShort     = errors.New("short transfer")       // fewer bytes than asked for, again and again
	ErrGone      = errors.New("device is gone")       // unplugged, or the file has shrunk
	ErrReadOnly  = errors.New("device is read-only")  // or was opened that way
	ErrFull      = errors.New("no space left")        // behind the file
	ErrIO        = errors.New("input/output error")   // of the medium
	ErrInUse     = errors.New("device is in use")     // by another process
	ErrUnaligned = errors.New("unaligned or outside") // an IO's fields
	ErrStuck     = errors.New("no answer")            // to I/O under way while it was closed
)

// Error is the failure of one operation.
type Error struct {
	Device string
	Op     string // "read", "write", "sync", "open"
	Off    int64
	Len    int
	Err    error // one of the above, or wrapping the system's
}

func (e *Error) Error() string {
	return fmt.Sprintf("device %s: %s of %d bytes at %d: %v", e.Device, e.Op, e.Len, e.Off, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// ioState is the engine's part of an IO. dev, busy and cancel change under the
// engine's lock; the rest belongs to the engine's goroutine.
type ioState struct {
	dev        *store
	busy       bool // from Submit until just before Done
	cancel     bool // was asked for
	prev, next *IO  // in one list at a time: incoming, a device's queue, finished
	issued     int  // bytes of Buf for which an operation was started
	parts      int  // operations under way
	queued     bool // in its device's queue: more operations are to come
	cancelled  bool // the engine has taken note of cancel
	err        error
}
