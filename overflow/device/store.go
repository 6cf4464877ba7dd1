package device

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvlend/kvlend/overflow/ring"
)

// store is the Device of an engine. What differs between kinds is its medium.
type store struct {
	e      *Engine
	medium medium
	info   Info
	write  bool // is allowed
	depth  int  // most operations under way
	meter  *Meter

	mu       sync.Mutex
	degraded string // guarded by mu; adds to info.Degraded

	// Under e.mu.
	closed   bool
	stuck    bool  // Close was over before what is in flight
	inFlight int   // IOs and syncs, until their Done returned
	bytes    int64 // of the IOs

	// The loop's own.
	queue     ioList
	ops       int // under way
	active    bool
	doneOps   int // since exchange last said so under e.mu
	doneBytes int64
}

// medium does the operations of one device, either in the ring or in threads.
type medium interface {
	// attach makes the medium known to the ring (nil: there is none), on the loop.
	attach(r *ring.Ring) error
	detach(r *ring.Ring) error
	// threads is where operations run; nil: in the ring.
	threads() *pool
	// prepare puts o into the ring.
	prepare(r *ring.Ring, user uint64, o *op)
	// perform does o at once and answers like a completion: bytes, or a negative errno.
	perform(o *op) int32
	// judge says what a result means.
	judge(o *op, res int32) verdict
	close() error
}

// verdict is the meaning of a result.
type verdict struct {
	n     int   // bytes that were transferred
	again bool  // the operation is worth repeating
	err   error // unless again: what went wrong
}

// syncOp is one Sync under way.
type syncOp struct {
	s    *store
	done chan error
}

// join makes s a device of its engine.
func (e *Engine) join(s *store) (*store, error) {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, openError(s.info.Name, fmt.Errorf("%w: the engine is", ErrClosed))
	}
	for o := range e.stores {
		if o.info.Name == s.info.Name {
			e.mu.Unlock()
			return nil, openError(s.info.Name, fmt.Errorf("%w: a device of that name is open", ErrInUse))
		}
	}
	e.stores[s] = struct{}{}
	s.inFlight++ // keeps Close waiting
	e.mu.Unlock()
	err := e.call(func() error { return s.medium.attach(e.loop.ring) })
	e.mu.Lock()
	defer e.mu.Unlock()
	s.inFlight--
	e.room.Broadcast()
	if err != nil {
		s.closed = true
		delete(e.stores, s)
		return nil, openError(s.info.Name, err)
	}
	return s, nil
}

func openError(name string, err error) error { return &Error{Device: name, Op: "open", Err: err} }

func (s *store) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.info
	i.Degraded = note(i.Degraded, s.degraded)
	return i
}

// note joins two reasons.
func note(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

func (s *store) degrade(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.degraded = why
}

// Meter is what the device achieves.
func (s *store) Meter() *Meter { return s.meter }

// Check says what is wrong with the fields of a batch for a device of that
// description: what every Device checks before it starts anything.
func Check(i Info, ios []*IO) error {
	for n, io := range ios {
		var what string
		switch {
		case io.Done == nil:
			what = "it has no Done"
		case len(io.Buf) == 0 || len(io.Buf)%Align != 0:
			what = fmt.Sprintf("its length is not a positive multiple of %d", Align)
		case io.Off < 0 || io.Off%Align != 0:
			what = fmt.Sprintf("its offset is not a multiple of %d", Align)
		case int64(len(io.Buf)) > i.Size || io.Off > i.Size-int64(len(io.Buf)):
			what = fmt.Sprintf("it does not end within the device's %d bytes", i.Size)
		case address(io.Buf)%Align != 0:
			what = fmt.Sprintf("its buffer does not begin at a multiple of %d", Align)
		default:
			continue
		}
		return Fault(i.Name, io, fmt.Errorf("%w: I/O %d of the batch: %s", ErrUnaligned, n, what))
	}
	return nil
}

// Fault is the failure of io on a device.
func Fault(name string, io *IO, err error) *Error {
	op := "read"
	if io.Write {
		op = "write"
	}
	return &Error{Device: name, Op: op, Off: io.Off, Len: len(io.Buf), Err: err}
}

func (s *store) fault(io *IO, err error) *Error { return Fault(s.info.Name, io, err) }

// Unwritten is how many bytes of a range were never written, as far as the
// system can tell (it can for files).
func (s *store) Unwritten(off, n int64) (int64, error) {
	m, ok := s.medium.(*fileMedium)
	if !ok || s.info.Kind != File {
		return 0, nil
	}
	return unwritten(m.fd, off, off+n)
}

// Submit implements Device.
func (s *store) Submit(ios []*IO) error {
	if err := Check(s.info, ios); err != nil {
		return err
	}
	if !s.write {
		for i, io := range ios {
			if io.Write {
				return s.fault(io, fmt.Errorf("%w (I/O %d of the batch)", ErrReadOnly, i))
			}
		}
	}
	e := s.e
	e.mu.Lock()
	if err := s.admit(); err != nil {
		e.mu.Unlock()
		return err
	}
	var batch ioList
	var bytes int64
	for i, io := range ios {
		if io.state.busy {
			for _, taken := range ios[:i] {
				taken.state.busy = false
			}
			e.mu.Unlock()
			return s.fault(io, fmt.Errorf("%w: I/O %d of the batch is in flight already", ErrUnaligned, i))
		}
		io.state = ioState{dev: s, busy: true}
		batch.push(io)
		bytes += int64(len(io.Buf))
	}
	e.incoming.join(batch)
	e.bytes += bytes
	s.bytes += bytes
	s.inFlight += len(ios)
	wake := e.wakeLocked()
	e.mu.Unlock()
	if wake {
		e.loop.wake()
	}
	return nil
}

// admit waits while too much is in flight. Called under e.mu.
func (s *store) admit() error {
	for !s.closed {
		// Whoever holds less than its share never waits, so that a device that
		// hangs does not stop the others.
		full := s.e.bytes > s.e.opts.InFlight && s.bytes > s.e.opts.InFlight/int64(len(s.e.stores))
		if !full || s.e.onLoop() {
			return nil
		}
		s.e.wait()
	}
	return &Error{Device: s.info.Name, Op: "submit", Err: ErrClosed}
}

// Cancel implements Device.
func (s *store) Cancel(io *IO) {
	e := s.e
	e.mu.Lock()
	wake := false
	if io.state.busy && io.state.dev == s && !io.state.cancel {
		io.state.cancel = true
		e.cancels = append(e.cancels, io)
		wake = e.wakeLocked()
	}
	e.mu.Unlock()
	if wake {
		e.loop.wake()
	}
}

// Sync implements Device.
func (s *store) Sync(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e := s.e
	op := &syncOp{s: s, done: make(chan error, 1)}
	e.mu.Lock()
	if s.closed {
		e.mu.Unlock()
		return &Error{Device: s.info.Name, Op: "sync", Err: ErrClosed}
	}
	if s.info.Kind == DRAM || !s.write {
		e.mu.Unlock()
		return nil
	}
	s.inFlight++
	e.syncs = append(e.syncs, op)
	wake := e.wakeLocked()
	e.mu.Unlock()
	if wake {
		e.loop.wake()
	}
	select {
	case err := <-op.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close implements Device. It must not be called from a Done.
func (s *store) Close() error {
	e := s.e
	e.mu.Lock()
	if s.closed {
		e.mu.Unlock()
		return nil
	}
	s.closed = true
	e.room.Broadcast()
	e.mu.Unlock()
	half := e.opts.CloseWait / 2
	if s.idle(half) {
		return s.leave()
	}
	e.post(func() { e.loop.cancelAll(s) })
	if s.idle(e.opts.CloseWait - half) {
		return s.leave()
	}
	e.mu.Lock()
	n := s.inFlight
	s.stuck = true
	e.room.Broadcast()
	e.mu.Unlock()
	go func() {
		s.idle(0)
		// Close has answered: nobody is left who could hear of it.
		_ = s.leave()
	}()
	return &Error{Device: s.info.Name, Op: "close", Err: fmt.Errorf("%w to %d operations within %v, nor to their cancelling", ErrStuck, n, e.opts.CloseWait)}
}

// idle waits until nothing is in flight, at most for d (0: for ever), and says
// whether it is so.
func (s *store) idle(d time.Duration) bool {
	e := s.e
	late := false // under e.mu
	if d > 0 {
		timer := time.AfterFunc(d, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			late = true
			e.room.Broadcast()
		})
		defer timer.Stop()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for s.inFlight > 0 && !late {
		e.wait()
	}
	return s.inFlight == 0
}

// leave takes a device that nothing is in flight on from its engine.
func (s *store) leave() error {
	e := s.e
	e.mu.Lock()
	_, joined := e.stores[s]
	e.mu.Unlock()
	if !joined {
		return nil
	}
	err := e.call(func() error { return s.medium.detach(e.loop.ring) })
	if cerr := s.medium.close(); err == nil {
		err = cerr
	}
	e.mu.Lock()
	delete(e.stores, s)
	e.room.Broadcast()
	e.mu.Unlock()
	if err != nil {
		return &Error{Device: s.info.Name, Op: "close", Err: err}
	}
	return nil
}
