package session

import (
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
)

type eventKind uint8

const (
	eventMessage eventKind = iota
	eventUp
	eventDown
	eventReset
	eventRefused
)

// event is a callback that is due.
type event struct {
	kind  eventKind
	msg   wire.Message
	size  int // of the encoded message
	hello wire.Hello
	err   error
}

// enqueue makes the dispatcher call back. The caller holds mu. The queue is
// bounded by the inbox for messages, and by the pace of connecting for others.
func (l *Link) enqueue(e event) {
	l.queue = append(l.queue, e)
	select {
	case l.events <- struct{}{}:
	default:
	}
}

// dispatch runs all callbacks until Close.
func (l *Link) dispatch() {
	var batch []event
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-l.events:
		}
		l.mu.Lock()
		batch, l.queue = l.queue, batch[:0]
		l.mu.Unlock()
		for i := range batch {
			if l.ctx.Err() != nil {
				return
			}
			l.call(&batch[i])
			batch[i] = event{}
		}
	}
}

func (l *Link) call(e *event) {
	switch e.kind {
	case eventMessage:
		l.opt.OnMessage(e.msg)
		l.delivered(e.size)
	case eventUp:
		if l.opt.OnUp != nil {
			l.opt.OnUp(e.hello)
		}
	case eventDown:
		if l.opt.OnDown != nil {
			l.opt.OnDown(e.err)
		}
	case eventReset:
		l.peerReset()
	case eventRefused:
		if l.opt.OnRefused != nil {
			l.opt.OnRefused(e.err)
		}
	}
}

// peerReset drops what was meant for the old process, tells the owner, and
// only then lets messages flow to the new one.
func (l *Link) peerReset() {
	l.mu.Lock()
	l.status.Resets++
	l.status.Dropped += uint64(len(l.out.msgs))
	l.out.reset()
	l.resetsDue--
	l.freed()
	l.mu.Unlock()
	if l.opt.OnPeerReset != nil {
		l.opt.OnPeerReset()
	}
	l.mu.Lock()
	l.wakeWriter()
	l.mu.Unlock()
}

// delivered acknowledges a message whose callback returned. A message of an
// old process has nobody who waits for that.
func (l *Link) delivered(size int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.Received++
	if l.resetsDue > 0 {
		return
	}
	l.in.delivered(size)
	if l.cur != nil {
		l.cur.ackSoon(time.Now())
	}
}
