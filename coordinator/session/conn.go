package session

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kvlend/kvlend/coordinator/transport"
	"github.com/kvlend/kvlend/coordinator/wire"
)

const (
	batchMsgs  = 4096
	batchBytes = 256 << 10
	// A resent batch is smaller: most of what it holds may have arrived.
	resendMsgs  = 64
	resendBytes = 64 << 10
	// ackDelay lets an acknowledgement travel with an answer.
	ackDelay = 5 * time.Millisecond
	// maxResendWait bounds the doubling of ResendAfter.
	maxResendWait = 2 * time.Second
	// lastWordWait bounds the wait for what a peer said before it closed.
	lastWordWait = 100 * time.Millisecond
	maxRetired   = 64
	maxRefusals  = 16
)

// conn is one connection that passed the handshake. Of several, the newest is
// the Link's; the others are on their way out.
type conn struct {
	link  *Link
	tc    transport.Conn
	wake  chan struct{} // capacity 1: the writer has something to do
	done  chan struct{} // closed by fail
	once  sync.Once
	cause error // set before done is closed

	// Guarded by link.mu.
	peer      uint64    // the peer's incarnation
	sayHello  bool      // the peer asked for a Hello
	lastHeard time.Time // of any valid frame
	lastSent  time.Time
	ackAt     time.Time // an acknowledgement is due; zero: none
	acked     uint64    // the number last acknowledged
	resendAt  time.Time // the oldest message goes out again; zero: none in flight
	resends   int       // in a row
	scratch   [][]byte  // of the writer: the messages of one frame
}

func newConn(l *Link, tc transport.Conn) *conn {
	return &conn{link: l, tc: tc, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// fail ends the connection; the first cause stays.
func (c *conn) fail(cause error) {
	c.once.Do(func() {
		c.cause = cause
		close(c.done)
		_ = c.tc.Close()
	})
}

func (c *conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// dialLoop keeps the link connected until Close.
func (l *Link) dialLoop() {
	wait := l.opt.RetryMin
	for {
		began := time.Now()
		err := l.dialOnce()
		if time.Since(began) > l.opt.PeerTimeout {
			wait = l.opt.RetryMin // it held for a while
		}
		l.noteDown(err)
		// The jitter keeps restarted processes from dialing in step.
		pause := wait/2 + rand.N(wait/2+1)
		if errors.Is(err, ErrRefused) {
			pause = l.opt.RefusedWait
		}
		wait = min(2*wait, l.opt.RetryMax)
		timer := time.NewTimer(pause)
		select {
		case <-l.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// dialOnce returns why the connection ended or why there was none.
func (l *Link) dialOnce() error {
	tc, err := l.opt.Dialer.Dial(l.ctx)
	if err != nil {
		return err
	}
	return l.serve(tc)
}

// acceptLoop serves whoever connects, each on its own goroutine.
func (l *Link) acceptLoop() {
	for {
		tc, err := l.opt.Listener.Accept(l.ctx)
		if err != nil {
			l.noteDown(err)
			return
		}
		l.wg.Go(func() { l.noteDown(l.serve(tc)) })
	}
}

// noteDown records why there is no connection, if there is none.
func (l *Link) noteDown(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur == nil && !l.status.Up {
		l.status.Down = err
	}
	if !errors.Is(err, ErrRefused) {
		return
	}
	l.status.Refused = err
	if _, known := l.refusals[err.Error()]; !known && len(l.refusals) < maxRefusals {
		l.refusals[err.Error()] = struct{}{}
		l.enqueue(event{kind: eventRefused, err: err})
	}
}

// serve runs a connection to its end.
func (l *Link) serve(tc transport.Conn) error {
	c := newConn(l, tc)
	defer c.fail(ErrClosed)
	hello, err := c.handshake()
	if err != nil {
		return err
	}
	if err := l.adopt(c, hello); err != nil {
		return err
	}
	var reader sync.WaitGroup
	reader.Go(func() { c.fail(c.read()) })
	c.fail(c.write())
	reader.Wait()
	l.drop(c)
	return c.cause
}

// handshake says Hello until the peer has said it. Frames may be lost, so it
// is repeated; whoever heard the other's Hello answers with one that names it.
func (c *conn) handshake() (wire.Hello, error) {
	l := c.link
	b, err := wire.Encode(&l.opt.Self)
	if err != nil {
		return wire.Hello{}, err
	}
	heard := make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() { c.greet(b, heard) })
	defer sender.Wait()
	defer close(heard)
	for {
		m, err := c.recv()
		if err != nil {
			return wire.Hello{}, c.why(err)
		}
		switch m := m.(type) {
		case *wire.Hello:
			if err := l.check(m); err != nil {
				c.refuse(err)
				return wire.Hello{}, err
			}
			return *m, nil
		case *wire.Bye:
			return wire.Hello{}, fmt.Errorf("%w by the peer: %s", ErrRefused, m.Reason)
		}
		// A frame that overtook the Hello: it will come again.
	}
}

// lastWord is why the connection ended when a Send failed with err. A peer
// that refuses says so and closes: what it said is still there to be received,
// and closing this end would lose it. It waits no longer than until heard.
func (c *conn) lastWord(err error, heard <-chan struct{}) error {
	giveUp := time.NewTimer(lastWordWait)
	defer giveUp.Stop()
	select {
	case <-c.done:
	case <-heard:
	case <-c.link.ctx.Done():
	case <-giveUp.C:
	}
	return c.why(err)
}

// greet repeats a Hello until the handshake ends, and ends the connection when
// it takes too long.
func (c *conn) greet(hello []byte, heard <-chan struct{}) {
	giveUp := time.NewTimer(c.link.opt.PeerTimeout)
	defer giveUp.Stop()
	again := time.NewTicker(c.link.opt.ResendAfter)
	defer again.Stop()
	for {
		if err := c.tc.Send(hello); err != nil {
			c.fail(c.lastWord(err, heard))
			return
		}
		select {
		case <-heard:
			return
		case <-c.link.ctx.Done():
			c.fail(ErrClosed)
			return
		case <-giveUp.C:
			c.fail(fmt.Errorf("no greeting within %v: %w", c.link.opt.PeerTimeout, ErrTimeout))
			return
		case <-again.C:
		}
	}
}

// refuse tells the peer why; it is the last frame.
func (c *conn) refuse(why error) {
	if b, err := wire.Encode(&wire.Bye{Reason: wire.Clip(why.Error(), wire.MaxText)}); err == nil {
		_ = c.tc.Send(b) // the connection ends anyway
	}
}

// check decides whether a peer may connect.
func (l *Link) check(h *wire.Hello) error {
	self := &l.opt.Self
	switch {
	case h.ConfigHash != self.ConfigHash:
		return fmt.Errorf("%w: %s %q runs configuration %q, %s %q runs %q: start both with the same configuration",
			ErrRefused, h.Role, h.Model, h.ConfigHash, self.Role, self.Model, self.ConfigHash)
	case l.opt.PeerModel != "" && h.Model != l.opt.PeerModel:
		return fmt.Errorf("%w: the peer is %q, must be %q", ErrRefused, h.Model, l.opt.PeerModel)
	case h.Incarnation == self.Incarnation:
		return fmt.Errorf("%w: %q is connected to itself", ErrRefused, h.Model)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Contains(l.retired, h.Incarnation) {
		return fmt.Errorf("%w: %q was replaced by another process", ErrRefused, h.Model)
	}
	return nil
}

// adopt makes c the link's connection.
func (l *Link) adopt(c *conn, h wire.Hello) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	if slices.Contains(l.retired, h.Incarnation) {
		return fmt.Errorf("%w: %q was replaced by another process", ErrRefused, h.Model)
	}
	if old := l.cur; old != nil {
		old.fail(errors.New("the peer connected again"))
		l.down(old.cause)
	}
	if known := l.status.Peer.Incarnation; known != 0 && known != h.Incarnation {
		l.retired = append(l.retired, known)
		if len(l.retired) > maxRetired {
			l.retired = l.retired[1:]
		}
		l.in.reset(l.opt.Window, 2*l.opt.WindowBytes)
		l.resetsDue++
		l.enqueue(event{kind: eventReset})
	}
	now := time.Now()
	c.peer, c.sayHello, c.lastHeard = h.Incarnation, true, now
	l.cur = c
	l.out.rewind()
	l.status.Up, l.status.Down, l.status.Refused = true, nil, nil
	l.status.Peer = h
	l.status.Connects++
	l.enqueue(event{kind: eventUp, hello: h})
	return nil
}

// drop notes the end of a connection, unless another took its place.
func (l *Link) drop(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur == c {
		l.cur = nil
		l.down(c.cause)
	}
}

// down reports the end of the current connection. The caller holds mu.
func (l *Link) down(cause error) {
	l.status.Up, l.status.Down = false, cause
	l.enqueue(event{kind: eventDown, err: cause})
}

// why prefers the reason for which we closed the connection ourselves.
func (c *conn) why(err error) error {
	select {
	case <-c.done:
		return c.cause
	default:
		return err
	}
}

func (c *conn) recv() (wire.Message, error) {
	b, err := c.tc.Recv()
	if err != nil {
		return nil, err
	}
	m, err := wire.Parse(b)
	if err != nil {
		err = fmt.Errorf("%w: malformed frame: %w", ErrRefused, err)
		c.refuse(err)
	}
	return m, err
}

// read handles frames until the connection ends.
func (c *conn) read() error {
	for {
		m, err := c.recv()
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *wire.Frame:
			err = c.frame(m)
		case *wire.Hello:
			c.helloAgain(m)
		case *wire.Bye:
			err = fmt.Errorf("%w by the peer: %s", ErrRefused, m.Reason)
		default:
			err = fmt.Errorf("%w: %s outside of a frame", ErrRefused, m.Type())
		}
		if err != nil {
			return err
		}
	}
}

// helloAgain answers a peer that has not heard our Hello.
func (c *conn) helloAgain(h *wire.Hello) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.lastHeard = time.Now()
	if h.Peer == 0 {
		c.sayHello = true
		c.signal()
	}
}

// frame takes in a frame.
func (c *conn) frame(f *wire.Frame) error {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur != c || f.From != c.peer || f.To != l.opt.Self.Incarnation {
		return nil // of another life
	}
	now := time.Now()
	c.lastHeard = now
	if l.resetsDue == 0 {
		received, delivered := l.out.ack(f.Got, f.Ack)
		if received {
			c.progress(now)
		}
		if delivered {
			l.freed()
		}
	}
	if len(f.Messages) == 0 {
		return nil
	}
	ready, known := l.in.accept(f.First, f.Messages)
	l.status.Duplicates += uint64(known)
	c.ackSoon(now)
	for _, b := range ready {
		m, err := parseInner(b)
		if err != nil {
			// It would come again for ever: the peer is not one of ours.
			return fmt.Errorf("%w: malformed message: %w", ErrRefused, err)
		}
		l.enqueue(event{kind: eventMessage, msg: m, size: len(b)})
	}
	return nil
}

// parseInner decodes a message inside a frame.
func parseInner(b []byte) (wire.Message, error) {
	m, err := wire.Parse(b)
	switch m.(type) {
	case *wire.Hello, *wire.Frame:
		return nil, fmt.Errorf("%s inside of a frame", m.Type())
	}
	return m, err
}

// progress follows an acknowledgement. The caller holds link.mu.
func (c *conn) progress(now time.Time) {
	o := &c.link.out
	c.resends = 0
	c.resendAt = time.Time{}
	if !o.inFlight() {
		return
	}
	c.resendAt = now.Add(c.link.opt.ResendAfter)
	if o.got+1 < o.recover {
		c.resendAt = now // the next batch of a loss
		c.signal()
	}
}

// ackSoon makes the writer acknowledge. The caller holds link.mu.
func (c *conn) ackSoon(now time.Time) {
	if c.ackAt.IsZero() {
		c.ackAt = now.Add(ackDelay)
		c.signal()
	}
	if c.link.in.done-c.acked >= uint64(c.link.opt.Window/4) {
		c.ackAt = now
		c.signal()
	}
}
