package api

import (
	"sync"
	"time"
)

// item is an event of one choice on its way to the request's handler. A nil
// event says that the choice's channel was closed.
type item struct {
	choice int
	event  Event
	at     time.Time
}

// mailbox takes the events of all of a request's choices, so that no model
// process ever waits for a client. It is bounded: put refuses when the handler
// is too far behind.
type mailbox struct {
	wake chan struct{} // capacity 1: there may be news

	mu     sync.Mutex // guards the fields below
	items  []item
	limit  int
	over   bool // an event was refused
	closed bool // nobody will take any more
}

func newMailbox(limit int) *mailbox {
	return &mailbox{wake: make(chan struct{}, 1), limit: limit}
}

// put says whether the event was taken. Closing markers always are.
func (b *mailbox) put(it item) bool {
	b.mu.Lock()
	ok := !b.closed && !b.over && (it.event == nil || len(b.items) < b.limit)
	switch {
	case ok:
		b.items = append(b.items, it)
	case !b.closed:
		b.over = true
	}
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
	return ok
}

// take returns everything that has come, in order, and whether something was
// refused after it.
func (b *mailbox) take() (items []item, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	items, b.items = b.items, nil
	return items, b.over
}

// close drops what is there and refuses the rest.
func (b *mailbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.items = true, nil
}
