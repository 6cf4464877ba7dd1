//go:build cuda && cgo

package cuda

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/inorder"
)

// Stream issues its operations in order to a CUDA stream of its device. It
// implements nvlink.Stream.
type Stream struct {
	fabric *Fabric
	name   string
	home   *lane

	queue *inorder.Queue[op]

	mu   sync.Mutex
	free []*batch // for reuse

	points chan *point   // to the waiter, in order
	done   chan struct{} // both goroutines have ended
	err    error         // the waiter's: first error since the last event; read after done

	// Of the issuing goroutine only.
	away    map[*device]*lane // other devices that copy for this stream
	staging *staging
	pending *point // what was issued since the last point
	start   uint64 // timing of the copies in pending: before the first,
	end     uint64 // and after the last; 0: not recorded yet
	waited  bool   // for an event of another stream, after the last copy
	batches int    // in pending
}

type opKind uint8

const (
	opCopy opKind = iota
	opRanges
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
	event *event
}

const (
	keepBatches = 16
	// pendingMost bounds the batches between two points: what they hold is
	// given back at points only.
	pendingMost = 16
	pointsAhead = 64
)

var _ nvlink.Stream = (*Stream)(nil)

func newStream(f *Fabric, name string, home *lane) *Stream {
	s := &Stream{
		fabric: f, name: name, home: home, away: map[*device]*lane{}, pending: &point{}, queue: inorder.NewQueue[op](),
		points: make(chan *point, pointsAhead), done: make(chan struct{}),
	}
	go s.loop()
	go s.await()
	return s
}

// CopyBatch enqueues a copy list; see nvlink.Stream and the package's Copies.
func (s *Stream) CopyBatch(pieces []nvlink.Copy) error {
	b := s.take()
	if err := b.fill(s.fabric.m, s.home.dev, pieces); err != nil {
		s.give(b)
		return fmt.Errorf("stream %q: %w", s.name, err)
	}
	if err := s.push(op{kind: opCopy, batch: b}); err != nil {
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

// WaitEvent makes what is enqueued later wait for e; see nvlink.Stream. For an
// event of this fabric the device waits, not the host.
func (s *Stream) WaitEvent(e nvlink.Event) error {
	if e == nil {
		return fmt.Errorf("stream %q: WaitEvent of nil", s.name)
	}
	return s.push(op{kind: opWait, wait: e})
}

// Record returns an event that completes after all that was enqueued before.
func (s *Stream) Record() (nvlink.Event, error) {
	e := &event{m: s.fabric.m, issued: make(chan struct{}), Event: inorder.MakeEvent()}
	if err := s.push(op{kind: opRecord, event: e}); err != nil {
		return nil, err
	}
	return e, nil
}

// Close refuses new operations, waits for the queued ones and releases the
// stream. It returns the first error that no event has reported.
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
	if len(s.free) < keepBatches && b.small() {
		s.free = append(s.free, b)
	}
}

// loop issues operations until the stream is closed and drained.
func (s *Stream) loop() {
	for {
		o, ok := s.queue.Pop()
		if !ok {
			break
		}
		s.execute(o)
	}
	s.post(nil, nil)
	close(s.points)
}

func (s *Stream) execute(o op) {
	switch o.kind {
	case opCopy, opRanges:
		s.issue(o)
	case opCall:
		barrier := make(chan struct{})
		s.post(nil, barrier)
		<-barrier
		began := time.Now()
		s.pending.fail(o.call())
		s.pending.began, s.pending.ended = began, time.Now()
	case opWait:
		s.wait(o.wait)
	case opRecord:
		s.post(o.event, nil)
	}
}

// issue submits a batch, which pending holds from then on.
func (s *Stream) issue(o op) {
	b := o.batch
	if len(b.parts) == 0 && len(b.ranges) == 0 {
		s.give(b)
		return
	}
	s.pending.batches = append(s.pending.batches, b)
	if s.start == 0 {
		var err error
		if s.start, err = s.home.mark(); err != nil {
			s.pending.fail(err)
		}
	}
	s.dropEnd()
	s.waited = false
	if o.kind == opCopy {
		s.pending.fail(s.copy(b))
	} else {
		s.pending.fail(s.ranges(b))
	}
	s.pending.work = true
	if s.batches++; s.batches >= pendingMost {
		s.post(nil, nil)
	}
}

// dropEnd forgets the end of the copies: there are more.
func (s *Stream) dropEnd() {
	if s.end != 0 {
		s.pending.home.events = append(s.pending.home.events, s.end)
		s.end = 0
	}
}

// markEnd records the end of the copies, once, and before the stream waits for
// anything else.
func (s *Stream) markEnd() {
	if s.end != 0 || s.start == 0 {
		return
	}
	var err error
	if s.end, err = s.home.mark(); err != nil {
		s.pending.fail(err)
	}
}

// wait makes what is issued later wait for e: on the device, where e is a CUDA
// event, else here.
func (s *Stream) wait(e nvlink.Event) {
	own, ok := e.(*event)
	if !ok || own.m != s.fabric.m {
		<-e.Done()
		return
	}
	<-own.issued
	s.markEnd()
	own.mu.Lock()
	cu := own.cu
	var err error
	if cu != 0 {
		// Under the lock: it is recycled once it is done.
		err = s.home.drv.streamWait(s.home.dev, s.home.stream, cu)
	}
	own.mu.Unlock()
	if cu == 0 || err != nil {
		<-own.Done() // err, if it stays, is that of the next operation
	}
	if cu != 0 {
		s.pending.work, s.waited = true, true
		s.pending.after = append(s.pending.after, own)
	}
}

// on runs f, which issues to a lane of dev, in the order of the stream.
func (s *Stream) on(dev *device, f func(*lane) error) error {
	if dev == s.home.dev {
		return f(s.home)
	}
	ln, err := s.lane(dev)
	if err != nil {
		return err
	}
	if err := s.after(ln, s.home); err != nil {
		return err
	}
	err = f(ln)
	return errors.Join(err, s.join(ln))
}

// join makes home wait for a lane, or the host where that fails: what the lane
// uses must not be given back before it ends.
func (s *Stream) join(ln *lane) error {
	if err := s.after(s.home, ln); err != nil {
		return errors.Join(err, ln.drv.sync(ln.dev, ln.stream))
	}
	return nil
}

// lane gives the stream's lane on a device.
func (s *Stream) lane(dev *device) (*lane, error) {
	if dev == s.home.dev {
		return s.home, nil
	}
	if ln := s.away[dev]; ln != nil {
		return ln, nil
	}
	ln, err := s.fabric.lane(dev)
	if err == nil {
		s.away[dev] = ln
	}
	return ln, err
}

// after makes one lane wait for what was issued to another.
func (s *Stream) after(ln, before *lane) error {
	if ln == before {
		return nil
	}
	e, err := before.mark()
	if err != nil {
		return err
	}
	s.pending.keep(before, e)
	return ln.drv.streamWait(ln.dev, ln.stream, e)
}

// copy issues the parts of a batch.
func (s *Stream) copy(b *batch) error {
	var errs []error
	for i := range b.parts {
		p := &b.parts[i]
		if p.from == p.to {
			errs = append(errs, s.on(p.from, func(ln *lane) error { return ln.copy(p.runs) }))
		} else {
			errs = append(errs, s.staged(p))
		}
	}
	return errors.Join(errs...)
}
