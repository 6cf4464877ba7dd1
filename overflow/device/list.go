package device

// ioList is a queue of IOs, linked through their states.
type ioList struct{ head, tail *IO }

func (l *ioList) push(io *IO) {
	io.state.prev, io.state.next = l.tail, nil
	if l.tail == nil {
		l.head = io
	} else {
		l.tail.state.next = io
	}
	l.tail = io
}

// join appends all of o, which must not be used afterwards.
func (l *ioList) join(o ioList) {
	if o.head == nil {
		return
	}
	if l.tail == nil {
		*l = o
		return
	}
	l.tail.state.next, o.head.state.prev = o.head, l.tail
	l.tail = o.tail
}

func (l *ioList) remove(io *IO) {
	s := &io.state
	if s.prev == nil {
		l.head = s.next
	} else {
		s.prev.state.next = s.next
	}
	if s.next == nil {
		l.tail = s.prev
	} else {
		s.next.state.prev = s.prev
	}
	s.prev, s.next = nil, nil
}

func (l *ioList) pop() *IO {
	io := l.head
	if io != nil {
		l.remove(io)
	}
	return io
}
