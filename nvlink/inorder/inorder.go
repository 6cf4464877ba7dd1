// Package inorder has what every implementation of nvlink.Stream needs: a queue
// of operations and the events that complete in their order.
package inorder

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvlend/kvlend/nvlink"
)

// Event is a nvlink.Timed that Settle completes. Make it with NewEvent or, as
// part of another type, MakeEvent; it must not be copied after its first use.
// Its methods are safe for concurrent use.
type Event struct {
	done chan struct{}
	// Written before done is closed.
	err          error
	began, ended time.Time
}

var _ nvlink.Timed = (*Event)(nil)

// NewEvent makes an event that has not happened.
func NewEvent() *Event { return &Event{done: make(chan struct{})} }

// MakeEvent is NewEvent for a field.
func MakeEvent() Event { return Event{done: make(chan struct{})} }

// Settle completes the event, once.
func (e *Event) Settle(err error, began, ended time.Time) {
	e.err, e.began, e.ended = err, began, ended
	close(e.done)
}

func (e *Event) settled() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// Ran implements nvlink.Timed.
func (e *Event) Ran() (began, ended time.Time) {
	if !e.settled() {
		return time.Time{}, time.Time{}
	}
	return e.began, e.ended
}

// Done implements nvlink.Event.
func (e *Event) Done() <-chan struct{} { return e.done }

// Err implements nvlink.Event.
func (e *Event) Err() error {
	if !e.settled() {
		return nil
	}
	return e.err
}

// Wait implements nvlink.Event. An event that has happened wins over a ctx that
// has ended.
func (e *Event) Wait(ctx context.Context) error {
	if e.settled() {
		return e.err
	}
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return fmt.Errorf("wait for event: %w", context.Cause(ctx))
	}
}

// Queue is an unbounded queue from many callers to one goroutine. Make it with
// NewQueue. Its methods are safe for concurrent use.
type Queue[T any] struct {
	mu     sync.Mutex
	wake   sync.Cond // on mu: items grew, or closed was set
	items  []T       // items[head:] waits
	head   int
	closed bool
}

// NewQueue makes an empty queue.
func NewQueue[T any]() *Queue[T] {
	q := &Queue[T]{}
	q.wake.L = &q.mu
	return q
}

// Push appends an item. It reports false, and appends nothing, once the queue
// is closed.
func (q *Queue[T]) Push(item T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	if q.head > len(q.items)/2 {
		// Move the waiting half down, so that the queue's memory is
		// bounded by what waits, not by what ever passed.
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, item)
	q.wake.Signal()
	return true
}

// Pop waits for the next item; false means closed and drained.
func (q *Queue[T]) Pop() (T, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var none T
	for q.head == len(q.items) {
		if q.closed {
			return none, false
		}
		q.wake.Wait()
	}
	item := q.items[q.head]
	q.items[q.head] = none
	q.head++
	return item, true
}

// Close refuses further items; those that wait can be popped still. It reports
// whether the queue was open.
func (q *Queue[T]) Close() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	was := !q.closed
	q.closed = true
	q.wake.Signal()
	return was
}
