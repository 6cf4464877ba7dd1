package stream

import (
	"fmt"
	"sync/atomic"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/overflow/device"
)

// Arena is a device as an nvlink.Arena: Size is the device's, offsets of spans
// are offsets in the device. It is safe for concurrent use.
type Arena struct {
	dev  device.Device
	info device.Info
	// refs counts batches that are queued or running on this arena, and I/Os
	// that were abandoned. Close sets it to closedRefs, only from zero.
	refs atomic.Int64
}

const closedRefs = -1 << 62

var _ nvlink.Arena = (*Arena)(nil)

// NewArena makes an arena of dev, which remains the caller's to close.
func NewArena(dev device.Device) *Arena {
	return &Arena{dev: dev, info: dev.Info()}
}

// Name is the device's name.
func (a *Arena) Name() string { return a.info.Name }

// Device is the device's name.
func (a *Arena) Device() string { return a.info.Name }

// Size is the device's, in bytes.
func (a *Arena) Size() int64 { return a.info.Size }

// Bytes is nil: the host cannot address a device.
func (a *Arena) Bytes() []byte { return nil }

// Close ends the use of the arena, not of its device. It answers
// nvlink.ErrBusy while a stream has I/O on it.
func (a *Arena) Close() error {
	if !a.refs.CompareAndSwap(0, closedRefs) && a.refs.Load() >= 0 {
		return fmt.Errorf("close arena of device %q: %w", a.info.Name, nvlink.ErrBusy)
	}
	return nil
}

// Hold keeps the arena from being closed until Release.
func (a *Arena) Hold() error {
	if a.refs.Add(1) > 0 {
		return nil
	}
	a.refs.Add(-1)
	return fmt.Errorf("arena of device %q: %w", a.info.Name, nvlink.ErrClosed)
}

// Release undoes one Hold.
func (a *Arena) Release() { a.refs.Add(-1) }

// same reports whether both are arenas of one device.
func (a *Arena) same(b *Arena) bool { return a == b || a.info.Name == b.info.Name }

// check says what is wrong with a span of the device.
func (a *Arena) check(s *nvlink.Span) error {
	switch {
	case s.Off < 0 || s.Len <= 0 || s.Off > a.info.Size-s.Len:
		return fmt.Errorf("[%d, +%d) of device %q with %d bytes: %w", s.Off, s.Len, a.info.Name, a.info.Size, nvlink.ErrBadSpan)
	case s.Off%device.Align != 0:
		return fmt.Errorf("offset %d of device %q is no multiple of %d: %w", s.Off, a.info.Name, device.Align, nvlink.ErrBadSpan)
	}
	return nil
}
