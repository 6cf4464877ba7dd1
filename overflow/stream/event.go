package stream

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlend/kvlend/nvlink"
)

// event implements nvlink.Timed.
type event struct {
	done chan struct{}
	// Written before done is closed.
	err          error
	began, ended time.Time
}

var _ nvlink.Timed = (*event)(nil)

// Ran implements nvlink.Timed. The time of a batch begins when its first I/O
// was submitted or, if that ran ahead, when what precedes it in the stream was
// over: times of batches do not overlap, so their sum is what the stream took.
func (e *event) Ran() (began, ended time.Time) {
	if !isDone(e) {
		return time.Time{}, time.Time{}
	}
	return e.began, e.ended
}

func (e *event) Done() <-chan struct{} { return e.done }

func (e *event) Err() error {
	if !isDone(e) {
		return nil
	}
	return e.err
}

func (e *event) Wait(ctx context.Context) error {
	if isDone(e) {
		return e.err
	}
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return fmt.Errorf("wait for event: %w", context.Cause(ctx))
	}
}

func isDone(e nvlink.Event) bool {
	select {
	case <-e.Done():
		return true
	default:
		return false
	}
}
