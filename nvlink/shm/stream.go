package shm

import (
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/inorder"
)

// Stream executes its operations on one goroutine, in order.
type Stream struct {
	fabric *Fabric
	name   string

	queue *inorder.Queue[op]

	mu   sync.Mutex
	free []*batch // for reuse

	done chan struct{} // the goroutine has ended

	// Of the goroutine only.
	err   error     // first error since the last event
	ready time.Time // paced fabric: when the last operation was over
	// When the first copy or call since the last event began, and when the
	// last one ended.
	began, ended time.Time
}

type opKind uint8

const (
	opCopy opKind = iota
	opCall
	opWait
	opRecord
)

// op is one queued operation; kind says which field is set.
type op struct {
	kind  opKind
	batch *batch
	call  func() error
	wait  nvlink.Event
	event *inorder.Event
	// queued is when a paced copy was enqueued.
	queued time.Time
}

// keepRuns and keepBatches bound what a stream keeps for reuse.
const (
	keepRuns    = 1 << 16
	keepBatches = 16
)

var _ nvlink.Stream = (*Stream)(nil)

func newStream(f *Fabric, name string) *Stream {
	s := &Stream{fabric: f, name: name, queue: inorder.NewQueue[op](), done: make(chan struct{})}
	go s.loop()
	return s
}

// CopyBatch enqueues a copy list; see nvlink.Stream. Neighbouring pieces in
// the list become one memory copy.
func (s *Stream) CopyBatch(pieces []nvlink.Copy) error {
	b := s.take()
	if err := b.fill(s.fabric, pieces); err != nil {
		s.give(b)
		return fmt.Errorf("stream %q: %w", s.name, err)
	}
	o := op{kind: opCopy, batch: b}
	if len(b.hops) > 0 {
		o.queued = s.fabric.cfg.Clock.Now()
	}
	if err := s.push(o); err != nil {
		s.give(b)
		return err
	}
	return nil
}

// Call enqueues f; see nvlink.Stream. f must not Close the stream.
func (s *Stream) Call(f func() error) error {
	if f == nil {
		return fmt.Errorf("stream %q: Call of nil", s.name)
	}
	return s.push(op{kind: opCall, call: f})
}

// WaitEvent makes what is enqueued later wait for e; see nvlink.Stream. The
// error of e is not taken over.
func (s *Stream) WaitEvent(e nvlink.Event) error {
	if e == nil {
		return fmt.Errorf("stream %q: WaitEvent of nil", s.name)
	}
	return s.push(op{kind: opWait, wait: e})
}

// Record returns an event that completes after all that was enqueued before.
func (s *Stream) Record() (nvlink.Event, error) {
	e := inorder.NewEvent()
	if err := s.push(op{kind: opRecord, event: e}); err != nil {
		return nil, err
	}
	return e, nil
}

// Close refuses new operations, waits for the queued ones and ends the
// goroutine. It returns the first error that no event has reported.
func (s *Stream) Close() error {
	first := s.queue.Close()
	<-s.done
	if !first {
		return nil
	}
	s.fabric.forget(s)
	return s.err
}

func (s *Stream) push(o op) error {
	if !s.queue.Push(o) {
		return fmt.Errorf("stream %q: %w", s.name, nvlink.ErrClosed)
	}
	return nil
}

func (s *Stream) take() *batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.free)
	if n == 0 {
		return &batch{}
	}
	b := s.free[n-1]
	s.free = s.free[:n-1]
	return b
}

// give releases the batch's arenas and keeps it for reuse.
func (s *Stream) give(b *batch) {
	b.reset()
	s.mu.Lock()
	defer s.mu.Unlock()
	if cap(b.runs) <= keepRuns && len(s.free) < keepBatches {
		s.free = append(s.free, b)
	}
}

func (s *Stream) loop() {
	defer close(s.done)
	// A mapping whose memory is gone (out of memory in the kernel, or a
	// peer's file that is not what it should be) faults. That becomes an
	// error of this stream, not the end of the process.
	debug.SetPanicOnFault(true)
	for {
		o, ok := s.queue.Pop()
		if !ok {
			return
		}
		s.execute(o)
	}
}

func (s *Stream) execute(o op) {
	switch o.kind {
	case opCopy:
		s.fail(s.copy(o.batch, o.queued))
		s.give(o.batch)
	case opCall:
		began := time.Now()
		s.fail(o.call())
		s.ran(began, time.Now())
		s.tick()
	case opWait:
		<-o.wait.Done()
		s.tick()
	case opRecord:
		err, began, ended := s.err, s.began, s.ended
		s.err, s.began, s.ended = nil, time.Time{}, time.Time{}
		o.event.Settle(err, began, ended)
	}
}

// ran notes the time of a copy or call for the next event.
func (s *Stream) ran(began, ended time.Time) {
	if s.began.IsZero() {
		s.began = began
	}
	s.ended = ended
}

// tick notes that what comes next cannot have started before now.
func (s *Stream) tick() {
	if s.fabric.timed() {
		s.ready = s.fabric.cfg.Clock.Now()
	}
}

func (s *Stream) fail(err error) {
	if s.err == nil && err != nil {
		s.err = fmt.Errorf("stream %q: %w", s.name, err)
	}
}

// copy moves the batch's bytes, then waits until its links would have
// delivered them.
func (s *Stream) copy(b *batch, queued time.Time) error {
	if len(b.hops) == 0 {
		began := time.Now()
		err := b.move(s.fabric.cfg.Workers)
		s.ran(began, time.Now())
		return err
	}
	clock := s.fabric.cfg.Clock
	// A paced link stands for a copy engine, which starts when a copy is
	// enqueued or its predecessor arrives. That this goroutine wakes later, by
	// a tenth of a millisecond while the others compute, must not count, nor
	// may the lateness of timers add up.
	start := s.ready
	if queued.After(start) {
		start = queued
	}
	var end time.Time
	for _, h := range b.hops {
		if t := h.link.reserve(start, h.bytes); t.After(end) {
			end = t
		}
	}
	var err error
	if b.even {
		err = b.spread(clock, start, end)
	} else {
		err = b.move(s.fabric.cfg.Workers)
	}
	moved := clock.Now()
	clock.SleepUntil(end)
	s.ready = end
	if moved.After(end) {
		end = moved // the machine is slower than the link
	}
	s.ran(start, end)
	return err
}
