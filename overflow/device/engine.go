package device

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/overflow/ring"
)

// EngineOptions configure an Engine. The zero value means the defaults.
type EngineOptions struct {
	Memory int64 // bytes of I/O buffers, a multiple of Align (64 MiB)
	// InFlight is how many bytes of I/O may be under way before Submit waits (16
	// MiB more than Memory, so that nobody waits who takes his buffers from there,
	// not even for a device that hangs). A device never waits for others that
	// hold more than their share.
	InFlight  int64
	HugePages bool // reserved ones for Memory, where there are any; else transparent ones
	// Portable goes without io_uring: blocking reads and writes in threads.
	Portable bool
	// Threads for each device that goes without io_uring (16), and for the
	// copies of all DRAM devices (GOMAXPROCS, at most 4).
	Threads, CopyThreads int
	// Poller has the kernel poll for I/O on a thread of its own, which burns a
	// core: only for machines with many.
	Poller    bool
	PollerCPU int // the core it is bound to, counted from 1; 0: any
	// Entries is how many operations one system call takes at most, a power of two (256).
	Entries int
	// CloseWait is how long the Close of a device, and of the engine, waits for
	// I/O under way (10 s); see Device.
	CloseWait time.Duration
}

// Engine submits the I/O of all devices of a process, on one goroutine, which
// also calls every Done. It is safe for concurrent use.
type Engine struct {
	opts     EngineOptions
	arena    *arena
	backend  string
	degraded string
	loop     *loop
	stopped  chan struct{} // the goroutine has ended
	left     chan struct{} // Close has done what it does

	mu       sync.Mutex
	room     sync.Cond // on mu: bytes, stores or closed changed
	stores   map[*store]struct{}
	bytes    int64 // accepted and not done
	waiting  int   // in Submit and Close
	incoming ioList
	cancels  []*IO
	syncs    []*syncOp
	results  []result // of operations that ran in threads
	calls    []func()
	asleep   bool // the loop waits and must be woken
	closed   bool
}

// EngineStats says what an engine did.
type EngineStats struct {
	Backend  string // "io_uring ..." or "threads"
	Degraded string // why no io_uring, or no registered memory; empty: neither
	InFlight int64  // bytes
	Ring     ring.Counters
	Memory   map[string]Usage // by purpose
}

func (o EngineOptions) withDefaults() (EngineOptions, error) {
	set := func(v *int64, n int64) {
		if *v == 0 {
			*v = n
		}
	}
	set(&o.Memory, 64<<20)
	set(&o.InFlight, o.Memory+16<<20)
	set((*int64)(&o.CloseWait), int64(10*time.Second))
	if o.Threads == 0 {
		o.Threads = 16
	}
	if o.CopyThreads == 0 {
		o.CopyThreads = min(4, runtime.GOMAXPROCS(0))
	}
	if o.Entries == 0 {
		o.Entries = 256
	}
	switch {
	case o.Memory < Align || o.Memory%Align != 0 || o.Memory > 1<<42:
		return o, fmt.Errorf("device: Memory %d is not a multiple of %d in %d..%d", o.Memory, Align, Align, int64(1)<<42)
	case o.InFlight < Align:
		return o, fmt.Errorf("device: InFlight %d is less than %d", o.InFlight, Align)
	case o.CloseWait < 0:
		return o, fmt.Errorf("device: CloseWait %v is negative", o.CloseWait)
	case o.Threads < 1 || o.Threads > 1024:
		return o, fmt.Errorf("device: Threads %d is not in 1..1024", o.Threads)
	case o.CopyThreads < 1 || o.CopyThreads > 1024:
		return o, fmt.Errorf("device: CopyThreads %d is not in 1..1024", o.CopyThreads)
	}
	return o, nil
}

// NewEngine starts an engine. Where io_uring cannot be had it goes without, and
// Stats and the devices' Info say so.
func NewEngine(o EngineOptions) (*Engine, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	a, err := newArena(o.Memory, ring.MaxRegion, o.HugePages)
	if err != nil {
		return nil, fmt.Errorf("device: %w", err)
	}
	e := &Engine{opts: o, arena: a, stores: map[*store]struct{}{},
		stopped: make(chan struct{}), left: make(chan struct{})}
	e.room.L = &e.mu
	started := make(chan error)
	go e.run(started)
	if err := <-started; err != nil {
		return nil, errors.Join(err, a.close())
	}
	return e, nil
}

// run is the engine's goroutine. It stays on one thread: the ring demands it,
// and Submit recognises calls from a Done by it.
func (e *Engine) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(e.stopped)
	r, err := e.openRing()
	if err != nil {
		started <- err
		return
	}
	e.loop = newLoop(e, r)
	started <- nil
	e.loop.run()
	e.loop.copies.close()
	if r != nil {
		// Nothing is in flight: what could still fail is of no consequence.
		_ = r.Close()
	}
}

func (e *Engine) openRing() (*ring.Ring, error) {
	if e.opts.Portable {
		e.backend, e.degraded = "threads", "no io_uring: configured to go without"
		return nil, nil
	}
	r, err := ring.New(ring.Options{
		Entries: e.opts.Entries, Completions: max(4*maxOps, 2*e.opts.Entries),
		Passthrough: true, Poller: e.opts.Poller, PollerCPU: e.opts.PollerCPU,
	})
	if err != nil && !errors.Is(err, ring.ErrUnsupported) {
		return nil, err
	}
	if err != nil {
		// Old kernels know io_uring without passthrough.
		plain, again := ring.New(ring.Options{
			Entries: e.opts.Entries, Completions: max(4*maxOps, 2*e.opts.Entries),
			Poller: e.opts.Poller, PollerCPU: e.opts.PollerCPU,
		})
		if again != nil {
			e.backend, e.degraded = "threads", err.Error()
			return nil, nil
		}
		r = plain
	}
	e.backend = r.Features().String()
	if err := r.RegisterMemory(e.arena.regions()); err != nil {
		e.degraded = lockFault(err, e.opts.Memory, memlock)
	} else {
		e.arena.registered = true
	}
	return r, nil
}

// Memory hands out buffers for I/O.
func (e *Engine) Memory() *Memory { return e.arena.purpose("other") }

// Stats are counters since NewEngine.
func (e *Engine) Stats() EngineStats {
	s := EngineStats{Backend: e.backend, Degraded: e.degraded, Memory: e.Memory().Usage()}
	if e.loop.ring != nil {
		s.Ring = e.loop.ring.Counters()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.InFlight = e.bytes
	return s
}

// Close closes the devices that are still open, all at once, then the engine. It
// must not be called from a Done. Buffers that were not put back are an error
// that names their purposes; their memory stays mapped.
//
// When devices are stuck (see Device), which the error says, the engine's memory
// and its goroutine stay until they let go of their I/O.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		<-e.left
		return nil
	}
	e.closed = true
	open := make([]*store, 0, len(e.stores))
	for s := range e.stores {
		open = append(open, s)
	}
	e.mu.Unlock()
	defer close(e.left)
	errs := make([]error, len(open), len(open)+1)
	var wg sync.WaitGroup
	for i, s := range open {
		wg.Go(func() { errs[i] = s.Close() })
	}
	wg.Wait()
	if e.settled() {
		return errors.Join(append(errs, e.stop())...)
	}
	e.arena.shut()
	go func() {
		e.mu.Lock()
		for len(e.stores) > 0 {
			e.wait()
		}
		e.mu.Unlock()
		// Nobody is left who could hear of buffers that were not put back.
		_ = e.stop()
	}()
	return errors.Join(errs...)
}

// settled waits until every device is closed, by whomever, or stuck, and says
// whether none is.
func (e *Engine) settled() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		waiting := false
		for s := range e.stores {
			waiting = waiting || !s.stuck
		}
		if !waiting {
			return len(e.stores) == 0
		}
		e.wait()
	}
}

// stop ends the goroutine, which has nothing more to do, and unmaps the memory.
func (e *Engine) stop() error {
	e.mu.Lock()
	e.loop.stop = true
	wake := e.wakeLocked()
	e.mu.Unlock()
	if wake {
		e.loop.wake()
	}
	<-e.stopped
	return e.arena.close()
}

// wakeLocked says that the loop must be woken by whoever holds mu, after
// releasing it.
func (e *Engine) wakeLocked() bool {
	wake := e.asleep
	e.asleep = false
	return wake
}

// call has f run on the loop and waits for it. Not from a Done.
func (e *Engine) call(f func() error) error {
	done := make(chan error, 1)
	e.post(func() { done <- f() })
	return <-done
}

// post has f run on the loop.
func (e *Engine) post(f func()) {
	e.mu.Lock()
	e.calls = append(e.calls, f)
	wake := e.wakeLocked()
	e.mu.Unlock()
	if wake {
		e.loop.wake()
	}
}

// onLoop says whether the caller runs on the engine's goroutine, that is, in a Done.
func (e *Engine) onLoop() bool { return unix.Gettid() == e.loop.tid }

// wait waits until something changes. Called under mu.
func (e *Engine) wait() {
	e.waiting++
	e.room.Wait()
	e.waiting--
}
