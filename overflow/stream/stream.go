package stream

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/inorder"
)

// Stream is an nvlink.Stream between devices and host memory; see the package
// for what it promises. It has one goroutine, and one more for functions once
// there was a Call: I/O and copies go on while a function runs.
type Stream struct {
	opt      Options
	finished atomic.Pointer[unit] // list of I/Os whose Done was called
	fresh    atomic.Bool          // fed has something, or closed was set
	wake     chan struct{}        // something happened; holds one
	ended    chan struct{}        // the goroutine has ended
	stats    counters
	watcher  watcher
	caller   caller

	mu     sync.Mutex
	fed    []op     // for the goroutine to take
	spare  []*batch // for reuse
	closed bool
	// hurried: GiveUp was called for what is in queue and in fed[:given].
	hurried bool
	given   int

	// Of the goroutine only.

	queue  []op
	base   uint64 // sequence number of queue[0]
	head   int    // queue[head:] is not over
	cursor int    // queue[:cursor] has been started
	gate   <-chan struct{}
	last   bool // closed was seen
	inCall bool // the caller runs the one at head

	blockers int // reads and calls in queue[head:cursor]
	writers  int // writes there

	units   []*unit // unused
	stuck   []*unit // abandoned, perhaps still in flight
	shunned []shunned
	held    int64  // bytes of buffers in use
	own     []byte // the stream's own buffer, nil: none, or in use

	err error // first error since the last event
	// When the first copy or call since the last event began, when the last
	// one ended, and when the last operation of any kind did.
	began, until, idle time.Time
}

// counters are Stats, to be read at any time.
type counters struct {
	batches, pieces, reads, writes, submits, read, written, asked atomic.Int64
	errors, timeouts, abandoned, ownBuffer                        atomic.Int64
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
}

// keepSegs and keepBatches bound what a stream keeps for reuse.
const (
	keepSegs    = 1 << 16
	keepBatches = 16
)

var _ nvlink.Stream = (*Stream)(nil)

// New starts a stream.
func New(o Options) (*Stream, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	s := &Stream{opt: o, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go s.loop()
	return s, nil
}

// CopyBatch enqueues a copy list; see nvlink.Stream. Exactly one end of each
// piece is on an *Arena, at an offset that is a multiple of device.Align; the
// other is an arena with Bytes. Lengths are free: a device is read and written in
// whole blocks of device.Align, and zeros are written behind a piece up to the
// end of its last block. Who lays out the device owns that padding.
func (s *Stream) CopyBatch(pieces []nvlink.Copy) error {
	b := s.takeBatch()
	if err := b.fill(&s.opt, pieces); err != nil {
		s.giveBatch(b)
		return fmt.Errorf("stream %q: %w", s.opt.Name, err)
	}
	if err := s.push(op{kind: opCopy, batch: b}); err != nil {
		s.giveBatch(b)
		return err
	}
	return nil
}

// Call enqueues f; see nvlink.Stream. f must not Close the stream. Reads behind
// it may have started before it runs.
func (s *Stream) Call(f func() error) error {
	if f == nil {
		return fmt.Errorf("stream %q: Call of nil", s.opt.Name)
	}
	return s.push(op{kind: opCall, call: f})
}

// WaitEvent makes what is enqueued later wait for e, its I/O too; see
// nvlink.Stream.
func (s *Stream) WaitEvent(e nvlink.Event) error {
	if e == nil {
		return fmt.Errorf("stream %q: WaitEvent of nil", s.opt.Name)
	}
	return s.push(op{kind: opWait, wait: e})
}

// Record returns an event that completes after all that was enqueued before. It
// is an nvlink.Timed. The time of a batch begins when its first I/O was submitted
// or, if that ran ahead, when what precedes it in the stream was over: times of
// batches do not overlap, so their sum is what the stream took. For writes an
// event says that the devices have them, not that they are durable.
func (s *Stream) Record() (nvlink.Event, error) {
	e := inorder.NewEvent()
	if err := s.push(op{kind: opRecord, event: e}); err != nil {
		return nil, err
	}
	return e, nil
}

// Close refuses new operations, waits for the queued ones and ends the
// goroutine. It returns the first error that no event has reported. It does not
// wait for I/O that was abandoned.
func (s *Stream) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.fresh.Store(true)
	s.mu.Unlock()
	s.wakeUp()
	<-s.ended
	if !first {
		return nil
	}
	return s.err
}

// Stats returns the counters so far.
func (s *Stream) Stats() Stats {
	c := &s.stats
	return Stats{
		Batches: c.batches.Load(), Pieces: c.pieces.Load(),
		Reads: c.reads.Load(), Writes: c.writes.Load(), Submits: c.submits.Load(),
		ReadBytes: c.read.Load(), WrittenBytes: c.written.Load(), PieceBytes: c.asked.Load(),
		Errors: c.errors.Load(), Timeouts: c.timeouts.Load(), Abandoned: c.abandoned.Load(),
		OwnBuffer: c.ownBuffer.Load(),
	}
}

func (s *Stream) push(o op) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return fmt.Errorf("stream %q: %w", s.opt.Name, nvlink.ErrClosed)
	}
	s.fed = append(s.fed, o)
	s.fresh.Store(true)
	s.mu.Unlock()
	s.wakeUp()
	return nil
}

func (s *Stream) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// receive takes what was enqueued.
func (s *Stream) receive() {
	if !s.fresh.Load() {
		return
	}
	if s.head > len(s.queue)/2 {
		// Move the waiting half down, so that the queue's memory is
		// bounded by what waits, not by what ever passed.
		n := copy(s.queue, s.queue[s.head:])
		clear(s.queue[n:])
		s.queue = s.queue[:n]
		s.base += uint64(s.head)
		s.cursor -= s.head
		s.head = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was := len(s.queue)
	s.queue = append(s.queue, s.fed...)
	clear(s.fed)
	s.fed = s.fed[:0]
	if s.hurried {
		s.hurried = false
		s.hurry(was + s.given)
	}
	s.last = s.closed
	s.fresh.Store(false)
}

func (s *Stream) takeBatch() *batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.spare)
	if n == 0 {
		return &batch{}
	}
	b := s.spare[n-1]
	s.spare = s.spare[:n-1]
	return b
}

// giveBatch lets go of the batch's arenas and keeps it for reuse.
func (s *Stream) giveBatch(b *batch) {
	b.reset()
	s.mu.Lock()
	defer s.mu.Unlock()
	if cap(b.segs) <= keepSegs && len(s.spare) < keepBatches {
		s.spare = append(s.spare, b)
	}
}

func (s *Stream) loop() {
	defer close(s.ended)
	defer s.watcher.close()
	defer s.caller.close()
	// See recoverFault.
	debug.SetPanicOnFault(true)
	for {
		s.receive()
		s.settle()
		s.issue()
		if s.step() {
			continue
		}
		if s.last && s.head == len(s.queue) {
			return
		}
		select {
		case <-s.wake:
		case <-s.gate: // nil unless the cursor stands at a wait
		}
	}
}

// step does the next thing that is due in the stream's order; false: it is not
// there yet.
func (s *Stream) step() bool {
	if s.head == len(s.queue) {
		return false
	}
	o := &s.queue[s.head]
	if o.kind == opCopy && o.batch.landed != nil {
		s.deliver(o.batch)
		return true
	}
	if s.head == s.cursor || o.kind == opCopy && o.batch.left > 0 || o.kind == opCall && !s.called(o) {
		return false
	}
	s.passed(o)
	done := *o
	*o = op{}
	s.head++
	s.finish(done)
	return true
}

// called has the function at head run, and reports whether it has.
func (s *Stream) called(o *op) bool {
	if !s.inCall {
		s.inCall = true
		s.caller.run(s, o.call)
		return false
	}
	if !s.caller.over.Load() {
		return false
	}
	s.inCall = false
	return true
}

// deliver scatters one read of the batch whose turn it is.
func (s *Stream) deliver(b *batch) {
	u := b.landed
	b.landed = u.next
	s.over(u, u.scatter())
}

// finish runs an operation, or ends one whose I/O is over.
func (s *Stream) finish(o op) {
	switch o.kind {
	case opCopy:
		s.fail(o.batch.err)
		if b := o.batch; !b.began.IsZero() {
			s.ran(b.began, time.Now())
		}
		s.stats.batches.Add(1)
		s.stats.pieces.Add(int64(o.batch.pieces))
		s.stats.asked.Add(o.batch.bytes)
		s.giveBatch(o.batch)
	case opCall:
		s.fail(s.caller.err)
		s.ran(s.caller.began, s.caller.ended)
		s.caller.err = nil
	case opWait:
		s.idle = time.Now()
	case opRecord:
		err, began, ended := s.err, s.began, s.until
		s.err, s.began, s.until = nil, time.Time{}, time.Time{}
		o.event.Settle(err, began, ended)
	}
}

// ran notes the time of a copy or call for the next event.
func (s *Stream) ran(began, ended time.Time) {
	if began.Before(s.idle) {
		began = s.idle // it ran ahead
	}
	if s.began.IsZero() {
		s.began = began
	}
	s.until, s.idle = ended, ended
}

func (s *Stream) fail(err error) {
	if s.err == nil && err != nil {
		s.err = fmt.Errorf("stream %q: %w", s.opt.Name, err)
	}
}
