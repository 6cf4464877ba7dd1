// Package session makes a link out of frames: messages arrive in order and
// exactly once for as long as both processes live, whatever the transport
// loses, repeats, reorders or cuts.
//
// # How
//
// Each message has a number; a frame carries consecutive messages and the
// number up to which the other side's messages were delivered (not merely
// received: a message counts as delivered when OnMessage returned). What is
// not acknowledged is sent again, after a timeout that doubles or over the
// next connection. A bounded window is in flight or queued; a full one blocks
// Send. An end that hears nothing for PeerTimeout gives the connection up;
// the dialing end connects again, with a delay that doubles.
//
// Every end has an incarnation, a random number per Link. When the peer comes
// back with another one, its process was restarted: numbers start again at 1,
// messages that the old process had not acknowledged are dropped, and
// OnPeerReset is called before any message of the new process. An incarnation
// that was replaced is not accepted again, so a process that was stopped and
// wakes up cannot push its successor away.
//
// A peer with another configuration, name or protocol is refused: it is told
// why, OnRefused hears of it once per reason, Status shows it, and dialing
// goes on slowly.
//
// # Callbacks
//
// All callbacks run on one goroutine, one at a time, in order: OnUp, messages,
// OnDown, then OnPeerReset if need be, OnUp, and so on. While one runs, the
// peer's window fills up. Callbacks must not call Close or Flush, and should
// use TrySend: two ends that wait for each other in Send never end.
package session

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvlend/kvlend/coordinator/transport"
	"github.com/kvlend/kvlend/coordinator/wire"
)

// Errors. They are wrapped: use errors.Is.
var (
	// ErrClosed: the link was closed at this end.
	ErrClosed = errors.New("link closed")
	// ErrBackpressure: the window is full.
	ErrBackpressure = errors.New("link busy: too many messages wait for the peer")
	// ErrTooLarge: a message can never be sent.
	ErrTooLarge = errors.New("message too large")
	// ErrRefused: this end refuses the peer, or the peer refuses this end.
	ErrRefused = errors.New("link refused")
	// ErrTimeout: the peer was silent for PeerTimeout.
	ErrTimeout = errors.New("peer silent")
)

// MaxMessage bounds an encoded message; a frame has to hold it.
const MaxMessage = wire.MaxMessage - 1024

// Options of a Link. Zero durations and counts mean the defaults.
type Options struct {
	// Exactly one of the two. The Link closes its Listener.
	Dialer   transport.Dialer
	Listener transport.Listener

	// Self is what this end says of itself. Incarnation and Peer are filled in.
	Self wire.Hello
	// PeerModel is the Model that the peer must be, if not empty.
	PeerModel string

	Heartbeat   time.Duration // longest silence of ours; default 500ms
	PeerTimeout time.Duration // longest silence of the peer; default 3s
	RetryMin    time.Duration // before connecting again, doubling; default 20ms
	RetryMax    time.Duration // default 1s
	RefusedWait time.Duration // before connecting again after a refusal; default 5s
	ResendAfter time.Duration // without an acknowledgement, doubling; default 250ms
	Window      int           // messages queued or in flight; default 4096
	WindowBytes int           // their bytes; default 32 MiB; one message always fits

	OnMessage   func(wire.Message)    // required
	OnUp        func(peer wire.Hello) // connected, by a peer that passed all checks
	OnDown      func(err error)       // no longer connected
	OnPeerReset func()                // the peer is another process than before
	OnRefused   func(err error)       // once per distinct reason
}

func (o *Options) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.Heartbeat, 500*time.Millisecond)
	def(&o.PeerTimeout, 3*time.Second)
	def(&o.RetryMin, 20*time.Millisecond)
	def(&o.RetryMax, time.Second)
	def(&o.RefusedWait, 5*time.Second)
	def(&o.ResendAfter, 250*time.Millisecond)
	if o.Window <= 0 {
		o.Window = 4096
	}
	if o.WindowBytes <= 0 {
		o.WindowBytes = 32 << 20
	}
}

func (o *Options) validate() error {
	switch {
	case (o.Dialer == nil) == (o.Listener == nil):
		return errors.New("session: exactly one of Dialer and Listener must be set")
	case o.OnMessage == nil:
		return errors.New("session: OnMessage must be set")
	case o.PeerTimeout < 2*o.Heartbeat:
		return fmt.Errorf("session: PeerTimeout is %v, must be at least twice the Heartbeat (%v)", o.PeerTimeout, o.Heartbeat)
	case o.Window > wire.MaxBatch:
		return fmt.Errorf("session: Window is %d, must be at most %d", o.Window, wire.MaxBatch)
	}
	return o.Self.Validate()
}

// Status is a snapshot of a Link, for status pages and metrics.
type Status struct {
	Up      bool
	Peer    wire.Hello // the latest, zero before the first
	Down    error      // why the link is not up; nil when up
	Refused error      // the latest refusal since the link was last up

	Queued int // messages not yet acknowledged by the peer

	Sent, Received uint64 // messages, once each
	Resent         uint64 // messages sent again
	Duplicates     uint64 // messages received again
	Dropped        uint64 // messages of ours lost with a peer's process
	Connects       uint64
	Resets         uint64
}

// Link is one end. All methods are safe for concurrent use.
type Link struct {
	opt    Options
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	events chan struct{} // capacity 1: the dispatcher has something to do

	mu        sync.Mutex
	closed    bool
	cur       *conn // the connection in use, or nil
	status    Status
	retired   []uint64 // incarnations of the peer that were replaced
	refusals  map[string]struct{}
	out       outbox
	in        inbox
	queue     []event
	resetsDue int           // changes of the peer for which OnPeerReset was not yet called
	room      chan struct{} // closed when messages leave the window
}

// Open starts a link. It does not wait for the peer.
func Open(o Options) (*Link, error) {
	o.setDefaults()
	o.Self.Incarnation, o.Self.Peer = newIncarnation(), 0
	if err := o.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &Link{
		opt: o, ctx: ctx, cancel: cancel,
		events:   make(chan struct{}, 1),
		room:     make(chan struct{}),
		refusals: map[string]struct{}{},
	}
	l.status.Down = errors.New("not yet connected")
	l.out.reset()
	l.in.reset(o.Window, 2*o.WindowBytes)
	l.wg.Go(l.dispatch)
	if o.Dialer != nil {
		l.wg.Go(l.dialLoop)
	} else {
		l.wg.Go(l.acceptLoop)
	}
	return l, nil
}

func newIncarnation() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])>>1 | 1
}

// TrySend queues a message, or fails with ErrBackpressure when the window is
// full, ErrTooLarge, ErrClosed, or wire.ErrInvalid. While the link is down
// messages wait for the peer, unless it turns out to be another process. The
// message is encoded at once and not kept.
func (l *Link) TrySend(m wire.Message) error {
	b, err := encode(m)
	if err != nil {
		return err
	}
	_, err = l.push(b)
	return err
}

// Send is TrySend, but waits while the window is full.
func (l *Link) Send(ctx context.Context, m wire.Message) error {
	b, err := encode(m)
	if err != nil {
		return err
	}
	for {
		room, err := l.push(b)
		if !errors.Is(err, ErrBackpressure) {
			return err
		}
		select {
		case <-room:
		case <-l.ctx.Done():
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrBackpressure, ctx.Err())
		}
	}
}

func encode(m wire.Message) ([]byte, error) {
	b, err := wire.Encode(m)
	if err == nil && len(b) > MaxMessage {
		err = fmt.Errorf("%s of %d bytes, at most %d are accepted: %w", m.Type(), len(b), MaxMessage, ErrTooLarge)
	}
	return b, err
}

// push queues b, or returns a channel that is closed when trying again makes sense.
func (l *Link) push(b []byte) (<-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	if n := len(l.out.msgs); n >= l.opt.Window || (n > 0 && l.out.bytes+len(b) > l.opt.WindowBytes) {
		return l.room, ErrBackpressure
	}
	l.out.push(b)
	l.wakeWriter()
	return nil, nil
}

// Flush waits until the peer has been delivered everything that was sent
// before, or is another process.
func (l *Link) Flush(ctx context.Context) error {
	l.mu.Lock()
	last, resets := l.out.last(), l.status.Resets
	l.mu.Unlock()
	for {
		l.mu.Lock()
		done := l.out.first > last || l.status.Resets != resets
		room := l.room
		l.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-room:
		case <-l.ctx.Done():
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Status returns a snapshot.
func (l *Link) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.status
	s.Queued = len(l.out.msgs)
	return s
}

// Incarnation is what this end calls itself.
func (l *Link) Incarnation() uint64 { return l.opt.Self.Incarnation }

// Close ends the link at once and waits for its goroutines: no callback runs
// after it. What the peer has not acknowledged may or may not arrive; use
// Flush before to be sure. It may be repeated.
func (l *Link) Close() {
	l.mu.Lock()
	l.closed = true
	c := l.cur
	l.mu.Unlock()
	l.cancel()
	if l.opt.Listener != nil {
		_ = l.opt.Listener.Close()
	}
	if c != nil {
		c.fail(ErrClosed)
	}
	l.wg.Wait()
}

// freed tells waiting senders that the window moved. The caller holds mu.
func (l *Link) freed() {
	close(l.room)
	l.room = make(chan struct{})
}

// wakeWriter makes the connection look for something to send. The caller holds mu.
func (l *Link) wakeWriter() {
	if l.cur != nil {
		l.cur.signal()
	}
}
