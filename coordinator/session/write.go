package session

import (
	"fmt"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// write sends whatever is due until the connection ends.
func (c *conn) write() error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var buf []byte
	for {
		m, wait, err := c.nextFrame(time.Now())
		if err != nil {
			return err
		}
		if m != nil {
			// Encoded messages do not change, so this needs no lock.
			if buf, err = wire.Append(buf[:0], m); err != nil {
				return err
			}
			if err := c.tc.Send(buf); err != nil {
				return c.lastWord(err, nil)
			}
			if cap(buf) > 2*batchBytes {
				buf = nil
			}
			continue
		}
		timer.Reset(wait)
		select {
		case <-c.done:
			return c.cause
		case <-c.wake:
		case <-timer.C:
		}
	}
}

// nextFrame returns the frame that is due now, or how long nothing is.
func (c *conn) nextFrame(now time.Time) (wire.Message, time.Duration, error) {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if silent := now.Sub(c.lastHeard); silent >= l.opt.PeerTimeout {
		return nil, 0, fmt.Errorf("no frame for %v: %w", silent.Round(time.Millisecond), ErrTimeout)
	}
	if l.cur != c {
		return nil, time.Until(c.lastHeard.Add(l.opt.PeerTimeout)), nil // about to end
	}
	if c.sayHello {
		c.sayHello = false
		c.lastSent = now
		h := l.opt.Self
		h.Peer = c.peer
		return &h, 0, nil
	}
	f := &wire.Frame{From: l.opt.Self.Incarnation, To: c.peer}
	due := c.fill(f, now)
	wake := earliest(c.lastSent.Add(l.opt.Heartbeat), c.lastHeard.Add(l.opt.PeerTimeout), c.ackAt, c.resendAt)
	due = due || !now.Before(c.lastSent.Add(l.opt.Heartbeat)) || (!c.ackAt.IsZero() && !now.Before(c.ackAt))
	if !due {
		return nil, max(0, wake.Sub(now)), nil
	}
	if cap(f.Messages) > cap(c.scratch) {
		c.scratch = f.Messages
	}
	f.Ack, f.Got = l.in.done, l.in.next-1
	c.acked, c.ackAt, c.lastSent = l.in.done, time.Time{}, now
	return f, 0, nil
}

// fill puts messages into a frame: the oldest again when their time is up,
// else the next. The caller holds link.mu.
func (c *conn) fill(f *wire.Frame, now time.Time) bool {
	l := c.link
	if l.resetsDue > 0 {
		return false // what is queued is not for this peer
	}
	o := &l.out
	if !c.resendAt.IsZero() && !now.Before(c.resendAt) && o.inFlight() {
		f.First, f.Messages = o.oldest(c.scratch[:0], resendMsgs, resendBytes)
		l.status.Resent += uint64(len(f.Messages))
		o.recover = max(o.recover, o.next)
		c.resendAt = now.Add(min(l.opt.ResendAfter<<min(c.resends, 16), maxResendWait))
		c.resends++
		return true
	}
	var again int
	f.First, f.Messages, again = o.batch(c.scratch[:0], batchMsgs, batchBytes)
	if len(f.Messages) == 0 {
		return false
	}
	l.status.Resent += uint64(again)
	l.status.Sent += uint64(len(f.Messages) - again)
	if c.resendAt.IsZero() {
		c.resendAt = now.Add(l.opt.ResendAfter)
	}
	return true
}

// earliest ignores zero times.
func earliest(first time.Time, more ...time.Time) time.Time {
	for _, t := range more {
		if !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}
