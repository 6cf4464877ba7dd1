package session

// outbox holds the messages that the peer was not yet delivered, oldest first.
// The first message ever has number 1.
//
//	first        got+1          next          last
//	| received   | in flight    | not sent    |
type outbox struct {
	msgs  [][]byte
	bytes int
	first uint64 // number of msgs[0]
	got   uint64 // the peer has received messages up to here, at least first-1
	next  uint64 // number of the first message not sent over this connection
	top   uint64 // messages below were sent at least once
	// recover is the number below which a loss is assumed: until the peer
	// has received up to it, each progress makes more go out again.
	recover uint64
}

func (o *outbox) reset() { *o = outbox{first: 1, next: 1, top: 1} }

// last is the number of the newest message.
func (o *outbox) last() uint64 { return o.first + uint64(len(o.msgs)) - 1 }

func (o *outbox) push(b []byte) {
	o.msgs = append(o.msgs, b)
	o.bytes += len(b)
}

// rewind makes what was in flight go out again: the connection is new.
func (o *outbox) rewind() { o.next, o.recover = o.got+1, 0 }

// inFlight says whether the peer's word on something sent is awaited.
func (o *outbox) inFlight() bool { return o.next > o.got+1 }

// ack takes the peer's word that it has received messages up to got and
// delivered those up to done. It reports what is news. Numbers that were never
// sent are ignored: only a broken peer sends them.
func (o *outbox) ack(got, done uint64) (received, delivered bool) {
	if got >= o.top || done > got {
		return false, false
	}
	if got > o.got {
		o.got, received = got, true
		o.next = max(o.next, got+1)
	}
	if done < o.first {
		return received, false
	}
	k := int(done - o.first + 1)
	for i := range k {
		o.bytes -= len(o.msgs[i])
		o.msgs[i] = nil
	}
	o.msgs = o.msgs[k:]
	o.first = done + 1
	return received, true
}

// batch appends to dst the next messages to send, bounded in number and bytes
// but at least one if there is any, and tells how many were sent before.
func (o *outbox) batch(dst [][]byte, maxMsgs, maxBytes int) (first uint64, msgs [][]byte, again int) {
	first = o.next
	msgs = o.from(dst, first, maxMsgs, maxBytes)
	o.next += uint64(len(msgs))
	if o.top > first {
		again = int(min(o.top, o.next) - first)
	}
	o.top = max(o.top, o.next)
	return first, msgs, again
}

// oldest appends to dst the first messages in flight, to be sent again.
func (o *outbox) oldest(dst [][]byte, maxMsgs, maxBytes int) (first uint64, msgs [][]byte) {
	first = o.got + 1
	return first, o.from(dst, first, min(maxMsgs, int(o.next-first)), maxBytes)
}

func (o *outbox) from(dst [][]byte, n uint64, maxMsgs, maxBytes int) [][]byte {
	size := 0
	for i, m := range o.msgs[n-o.first:] {
		size += len(m)
		if i == maxMsgs || (i > 0 && size > maxBytes) {
			break
		}
		dst = append(dst, m)
	}
	return dst
}

// inbox puts what arrives in order and drops repetitions. It holds at most three
// times maxBytes, or one message: so much early, and twice that in order, since
// early messages that come into order are not refused.
type inbox struct {
	next     uint64 // number of the next message to be delivered in order
	done     uint64 // delivered up to here
	early    map[uint64][]byte
	ahead    int // bytes of early
	bytes    int // of messages in order that are not yet delivered
	window   int
	maxBytes int
}

func (in *inbox) reset(window, maxBytes int) {
	*in = inbox{next: 1, early: map[uint64][]byte{}, window: window, maxBytes: maxBytes}
}

// accept takes messages first, first+1, ... and returns those that are now in
// order, and how many were known already. Messages beyond the window are left
// out: their sender has to send them again.
func (in *inbox) accept(first uint64, msgs [][]byte) (ready [][]byte, known int) {
	for i, m := range msgs {
		n := first + uint64(i)
		_, dup := in.early[n]
		switch {
		case n < in.next, dup:
			known++
		case n > in.done+uint64(in.window):
		case n == in.next:
			if in.bytes > 0 && in.bytes+len(m) > in.maxBytes {
				return ready, known
			}
			ready = in.take(ready, m)
		case in.ahead+len(m) <= in.maxBytes:
			in.early[n] = m
			in.ahead += len(m)
		}
	}
	return ready, known
}

// take appends the next message in order, and early ones that follow it.
func (in *inbox) take(ready [][]byte, m []byte) [][]byte {
	for ok := true; ok; m, ok = in.early[in.next] {
		if _, early := in.early[in.next]; early {
			delete(in.early, in.next)
			in.ahead -= len(m)
		}
		ready = append(ready, m)
		in.bytes += len(m)
		in.next++
	}
	return ready
}

// delivered notes that the next message was handled.
func (in *inbox) delivered(size int) {
	in.done++
	in.bytes -= size
}
