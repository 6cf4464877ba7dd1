//go:build cuda && cgo

package cuda

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvlend/kvlend/nvlink"
)

// event implements nvlink.Event.
type event struct {
	m      *machine
	issued chan struct{} // closed when everything before it has been issued
	done   chan struct{}
	// Written before done is closed.
	err          error
	began, ended time.Time

	mu sync.Mutex
	// cu is the CUDA event while other streams may wait for it on their
	// devices: from issued to done.
	cu uint64
}

var _ nvlink.Timed = (*event)(nil)

// retire keeps devices from waiting for the CUDA event any more: it is reused.
func (e *event) retire() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cu = 0
}

// settle completes the event.
func (e *event) settle(err error, began, ended time.Time) {
	e.err, e.began, e.ended = err, began, ended
	close(e.done)
}

// Ran implements nvlink.Timed. The time between began and ended is the device's;
// both are late by what the host took to notice the end.
func (e *event) Ran() (began, ended time.Time) {
	select {
	case <-e.done:
		return e.began, e.ended
	default:
		return time.Time{}, time.Time{}
	}
}

func (e *event) Done() <-chan struct{} { return e.done }

func (e *event) Err() error {
	select {
	case <-e.done:
		return e.err
	default:
		return nil
	}
}

func (e *event) Wait(ctx context.Context) error {
	select {
	case <-e.done:
		return e.err
	default:
	}
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return fmt.Errorf("wait for event: %w", context.Cause(ctx))
	}
}
