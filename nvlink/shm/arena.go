package shm

import (
	"fmt"
	"sync/atomic"

	"github.com/kvlend/kvlend/nvlink"
)

// Arena is an nvlink.Arena in shared memory.
type Arena struct {
	*Region
	device string
	// refs counts batches that are queued or running on this arena.
	// Close sets it to arenaClosed, which it may do only from zero.
	refs atomic.Int64
}

const arenaClosed = -1 << 62

var _ nvlink.Arena = (*Arena)(nil)

// Create makes an arena of size bytes. Its memory is zero.
func Create(name, device string, size int64) (*Arena, error) {
	if device == "" {
		return nil, fmt.Errorf("arena %q: device is empty", name)
	}
	r, err := CreateRegion(name, size)
	if err != nil {
		return nil, err
	}
	return newArena(r, device), nil
}

// Open maps an arena of size bytes (0: whatever size it has) that another
// process created and handed down as descriptor fd; see OpenRegion.
func Open(fd int, name, device string, size int64) (*Arena, error) {
	if device == "" {
		return nil, fmt.Errorf("arena %q: device is empty", name)
	}
	r, err := OpenRegion(fd, name, size)
	if err != nil {
		return nil, err
	}
	return newArena(r, device), nil
}

func newArena(r *Region, device string) *Arena { return &Arena{Region: r, device: device} }

// Device names the device that the arena stands for.
func (a *Arena) Device() string { return a.device }

// Close unmaps the arena. It answers nvlink.ErrBusy while a stream has copies
// from or to it in its queue. Slices from Bytes must not be used afterwards.
func (a *Arena) Close() error {
	if !a.refs.CompareAndSwap(0, arenaClosed) && a.refs.Load() >= 0 {
		return fmt.Errorf("close arena %q: %w", a.name, nvlink.ErrBusy)
	}
	return a.Region.Close()
}

// Hold makes Close answer nvlink.ErrBusy until Release: streams that other
// packages make hold the arenas that they copy from and to. On a closed arena it
// answers nvlink.ErrClosed.
func (a *Arena) Hold() error {
	if a.refs.Add(1) > 0 {
		return nil
	}
	a.refs.Add(-1)
	return fmt.Errorf("arena %q: %w", a.name, nvlink.ErrClosed)
}

// Release undoes one Hold.
func (a *Arena) Release() { a.refs.Add(-1) }
