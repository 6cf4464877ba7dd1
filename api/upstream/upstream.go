// Package upstream connects the gateway to model processes: an api.Upstream
// over a session link.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/coordinator/session"
	"github.com/kvlend/kvlend/coordinator/transport"
	"github.com/kvlend/kvlend/coordinator/wire"
)

// buffered is how many events of a generation may wait for the gateway, which
// promises to receive promptly.
const buffered = 64

// cancelTimeout is how long a Cancel may wait for room in the link's window.
const cancelTimeout = 10 * time.Second

// retryAfter is what clients are told when a model process does not answer.
const retryAfter = time.Second

// Upstream is one model process, reached over a link. It implements
// api.Upstream.
type Upstream struct {
	model string
	link  *session.Link
	up    atomic.Bool
	next  atomic.Uint64

	meet sync.Once
	met  chan struct{} // closed when the process was there for the first time

	mu    sync.Mutex
	calls map[string]*call
	asks  map[uint64]chan wire.Message
}

// call is a generation in progress. lock orders sends against the close.
type call struct {
	lock   sync.Mutex
	events chan api.Event
	closed bool
}

var _ api.Upstream = (*Upstream)(nil)

// Open starts the link to a model's process; it does not wait for it.
func Open(model string, d transport.Dialer, self wire.Hello) (*Upstream, error) {
	u := &Upstream{model: model, met: make(chan struct{}), calls: map[string]*call{}, asks: map[uint64]chan wire.Message{}}
	link, err := session.Open(session.Options{
		Dialer: d, Self: self, PeerModel: model,
		OnMessage: u.receive,
		OnUp: func(wire.Hello) {
			u.up.Store(true)
			u.meet.Do(func() { close(u.met) })
		},
		OnDown:      func(error) { u.up.Store(false) },
		OnPeerReset: u.Lost,
	})
	if err != nil {
		return nil, err
	}
	u.link = link
	return u, nil
}

// Close ends the link and every generation.
func (u *Upstream) Close() {
	u.link.Close()
	u.Lost()
}

// Met is closed when the model's process has answered for the first time.
func (u *Upstream) Met() <-chan struct{} { return u.met }

// Alive implements api.Upstream.
func (u *Upstream) Alive() bool { return u.up.Load() }

// Submit implements api.Upstream.
func (u *Upstream) Submit(ctx context.Context, s *wire.Submit) (<-chan api.Event, error) {
	if !u.Alive() {
		return nil, u.unavailable("its process does not answer")
	}
	c := &call{events: make(chan api.Event, buffered)}
	u.mu.Lock()
	if _, taken := u.calls[s.ID]; taken {
		u.mu.Unlock()
		return nil, fmt.Errorf("generation %q is running already", s.ID)
	}
	u.calls[s.ID] = c
	u.mu.Unlock()
	if err := u.link.Send(ctx, s); err != nil {
		u.drop(s.ID)
		return nil, u.unavailable(err.Error())
	}
	return c.events, nil
}

func (u *Upstream) unavailable(why string) error {
	return &api.SubmitError{Failed: wire.Failed{
		Code: "unavailable", Message: fmt.Sprintf("model %s is not available: %s", u.model, why), RetryAfter: retryAfter,
	}}
}

// Cancel implements api.Upstream.
func (u *Upstream) Cancel(id string) {
	u.mu.Lock()
	_, live := u.calls[id]
	u.mu.Unlock()
	if !live {
		return
	}
	m := &wire.Cancel{ID: id}
	if err := u.link.TrySend(m); errors.Is(err, session.ErrBackpressure) {
		// The process must hear of it, or it computes to the end for nobody.
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), cancelTimeout)
			defer cancel()
			if u.link.Send(ctx, m) != nil {
				u.drop(id)
			}
		}()
	} else if err != nil {
		u.drop(id)
	}
}

// Status implements api.Upstream.
func (u *Upstream) Status(ctx context.Context) (*wire.Status, error) {
	return ask[*wire.Status](ctx, u, func(id uint64) wire.Message { return &wire.StatusAsk{ID: id} })
}

// Check implements api.Upstream.
func (u *Upstream) Check(ctx context.Context) (*wire.CheckReport, error) {
	return ask[*wire.CheckReport](ctx, u, func(id uint64) wire.Message { return &wire.CheckAsk{ID: id} })
}

// Drain implements api.Upstream.
func (u *Upstream) Drain(ctx context.Context, undo bool) (*wire.DrainState, error) {
	return ask[*wire.DrainState](ctx, u, func(id uint64) wire.Message { return &wire.DrainAsk{ID: id, Undo: undo} })
}

// Unload implements api.Upstream.
func (u *Upstream) Unload(ctx context.Context, device string, undo bool) (*wire.UnloadState, error) {
	return ask[*wire.UnloadState](ctx, u, func(id uint64) wire.Message { return &wire.UnloadAsk{ID: id, Device: device, Undo: undo} })
}

// Trace implements api.Upstream.
func (u *Upstream) Trace(ctx context.Context, length time.Duration) (*wire.Trace, error) {
	return ask[*wire.Trace](ctx, u, func(id uint64) wire.Message { return &wire.TraceAsk{ID: id, Length: length} })
}

// ask sends a question and waits for the answer of the same number.
func ask[A wire.Message](ctx context.Context, u *Upstream, question func(id uint64) wire.Message) (answer A, err error) {
	id := u.next.Add(1)
	ch := make(chan wire.Message, 1)
	u.mu.Lock()
	u.asks[id] = ch
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		delete(u.asks, id)
		u.mu.Unlock()
	}()
	if err := u.link.Send(ctx, question(id)); err != nil {
		return answer, err
	}
	select {
	case m := <-ch:
		a, ok := m.(A)
		if !ok {
			return answer, fmt.Errorf("model %s answered with %s", u.model, m.Type())
		}
		return a, nil
	case <-ctx.Done():
		return answer, fmt.Errorf("model %s does not answer: %w", u.model, ctx.Err())
	}
}

// receive runs on the link's goroutine.
func (u *Upstream) receive(m wire.Message) {
	switch m := m.(type) {
	case *wire.Chunk:
		u.deliver(m.ID, m, false)
	case *wire.Finished:
		u.deliver(m.ID, m, true)
	case *wire.Failed:
		u.deliver(m.ID, m, true)
	case *wire.Status:
		u.answer(m.ID, m)
	case *wire.CheckReport:
		u.answer(m.ID, m)
	case *wire.DrainState:
		u.answer(m.ID, m)
	case *wire.UnloadState:
		u.answer(m.ID, m)
	case *wire.Trace:
		u.answer(m.ID, m)
	}
}

// answer hands a question's answer to whoever still waits for it.
func (u *Upstream) answer(id uint64, m wire.Message) {
	u.mu.Lock()
	ch := u.asks[id]
	delete(u.asks, id)
	u.mu.Unlock()
	if ch != nil {
		ch <- m
	}
}

func (u *Upstream) deliver(id string, ev api.Event, last bool) {
	u.mu.Lock()
	c := u.calls[id]
	if last {
		delete(u.calls, id)
	}
	u.mu.Unlock()
	if c == nil {
		return
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.closed {
		return
	}
	c.events <- ev
	if last {
		c.closed = true
		close(c.events)
	}
}

// drop ends a generation without an event.
func (u *Upstream) drop(id string) {
	u.mu.Lock()
	c := u.calls[id]
	delete(u.calls, id)
	u.mu.Unlock()
	if c != nil {
		c.end()
	}
}

func (c *call) end() {
	c.lock.Lock()
	defer c.lock.Unlock()
	if !c.closed {
		c.closed = true
		close(c.events)
	}
}

// Lost ends every generation: the process is gone, or is another one now.
func (u *Upstream) Lost() {
	u.mu.Lock()
	calls := u.calls
	u.calls = map[string]*call{}
	u.mu.Unlock()
	for _, c := range calls {
		c.end()
	}
}
