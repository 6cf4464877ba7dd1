package node

import (
	"context"
	"errors"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/kvlend/kvlend/coordinator/session"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/scheduler"
)

// sender is the part of a session link that an outbox needs.
type sender interface {
	Send(ctx context.Context, m wire.Message) error
}

// outbox carries events from the scheduler's goroutine, which must not block,
// to the gateway link, which may. Consecutive tokens of a request that pile up
// meanwhile travel in one chunk. What can pile up is bounded by the running
// requests' max_tokens.
type outbox struct {
	mu      sync.Mutex
	pending []wire.Message // guarded by mu
	sent    map[string]int // guarded by mu; tokens emitted so far per live request

	wake chan struct{} // capacity 1
	log  hclog.Logger
}

func newOutbox(log hclog.Logger) *outbox {
	return &outbox{sent: map[string]int{}, wake: make(chan struct{}, 1), log: log}
}

// event is the scheduler's sink for request id.
func (o *outbox) event(id string, ev scheduler.Event) {
	o.mu.Lock()
	if ev.HasToken {
		o.addToken(id, ev)
	}
	switch {
	case ev.Err != nil:
		o.pending = append(o.pending, failure(id, ev.Err))
		delete(o.sent, id)
	case ev.Finish != "":
		o.pending = append(o.pending, finished(id, o.sent[id], ev))
		delete(o.sent, id)
	}
	o.mu.Unlock()
	o.signal()
}

func (o *outbox) addToken(id string, ev scheduler.Event) {
	first := o.sent[id]
	o.sent[id] = first + 1
	c := o.openChunk(id)
	if c == nil {
		c = &wire.Chunk{ID: id, First: first}
		o.pending = append(o.pending, c)
	}
	c.Tokens = append(c.Tokens, ev.Token.ID)
	c.Logprobs = append(c.Logprobs, ev.Token.Logprob)
	if len(ev.Token.Top) == 0 && c.Top == nil {
		return
	}
	for len(c.Top) < len(c.Tokens)-1 {
		c.Top = append(c.Top, nil)
	}
	top := make([]wire.TokenLogprob, len(ev.Token.Top))
	for i, t := range ev.Token.Top {
		top[i] = wire.TokenLogprob{ID: t.ID, Logprob: t.Logprob}
	}
	c.Top = append(c.Top, top)
}

// openChunk finds a chunk of request id that still waits to be sent. Only the
// newest few messages are looked at: with many requests a chunk each is fine.
func (o *outbox) openChunk(id string) *wire.Chunk {
	const lookBack = 32
	for i := len(o.pending) - 1; i >= 0 && i >= len(o.pending)-lookBack; i-- {
		if c, ok := o.pending[i].(*wire.Chunk); ok && c.ID == id {
			return c
		}
	}
	return nil
}

// push queues any other message.
func (o *outbox) push(m wire.Message) {
	o.mu.Lock()
	o.pending = append(o.pending, m)
	o.mu.Unlock()
	o.signal()
}

// forget drops what waits to be sent: its receiver is gone.
func (o *outbox) forget() {
	o.mu.Lock()
	o.pending = nil
	clear(o.sent)
	o.mu.Unlock()
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// run sends until ctx ends.
func (o *outbox) run(ctx context.Context, to sender) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
		}
		o.mu.Lock()
		batch := o.pending
		o.pending = nil
		o.mu.Unlock()
		for _, m := range batch {
			err := to.Send(ctx, m)
			if err != nil && ctx.Err() != nil {
				return
			}
			if errors.Is(err, wire.ErrInvalid) || errors.Is(err, session.ErrTooLarge) {
				o.unsendable(ctx, to, m, err)
			}
			// Any other error means that the link is closed or the gateway is
			// gone; its requests are cancelled by the reset callback.
		}
	}
}

// unsendable reports a message that can never be sent. A request hears of it: it
// would wait for ever.
func (o *outbox) unsendable(ctx context.Context, to sender, m wire.Message, err error) {
	o.log.Error("BUG: a message for the gateway is not valid and was not sent", "type", m.Type().String(), "error", err)
	var id string
	switch m := m.(type) {
	case *wire.Chunk:
		id = m.ID
	case *wire.Finished:
		id = m.ID
	case *wire.Failed:
		id = m.ID
	default:
		return // the question gets no answer
	}
	err = to.Send(ctx, &wire.Failed{ID: id, Code: "internal_error", Message: wire.Clip(err.Error(), wire.MaxText)})
	if err != nil {
		o.log.Error("a request that failed was not told so", "request", id, "error", err)
	}
}

func finished(id string, tokens int, ev scheduler.Event) *wire.Finished {
	u := ev.Usage
	return &wire.Finished{
		ID: id, Reason: ev.Finish, Tokens: tokens,
		Prompt: u.PromptTokens, Cached: u.CachedTokens, LogitsHash: u.LogitsHash,
		Preemptions: u.Preemptions, Borrowed: u.BorrowedBlocks,
		QueueMS: u.QueueMS, PrefillMS: u.PrefillMS, TotalMS: u.TotalMS,
		Receipt: wire.Receipt(u.Receipt),
	}
}
