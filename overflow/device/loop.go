package device

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/overflow/ring"
)

const (
	// maxOps bounds the operations under way, of all devices together.
	maxOps = 1024
	// turn is how many operations a device starts before the next has its turn.
	turn = 8
	// maxRetries bounds how often one operation is repeated without progress.
	maxRetries = 8
	// The end of one I/O may go unseen for so long in the hope of seeing several
	// at once: a part of what I/Os take, within bounds.
	patiencePart = 4
	patienceMin  = 100 * time.Microsecond
	patienceMax  = 500 * time.Microsecond
	// yieldEvery is less than what the Go runtime lets a goroutine run for
	// without a look at it (10 ms); see breathe.
	yieldEvery = 4 * time.Millisecond
	// Copies of at most copyHere bytes are made on the engine's goroutine, which
	// is cheaper than telling another; copyTurn bytes before it looks elsewhere.
	copyHere = 32 << 10
	copyTurn = 256 << 10

	// Names of completions that are no operation of the table.
	wakeUser   = ^uint64(0)
	cancelUser = wakeUser - 1
)

// op is one operation under way: a part of an IO, or a sync.
type op struct {
	s       *store
	io      *IO
	sync    *syncOp
	write   bool
	off     int64
	buf     []byte // what remains of the part
	region  int    // that holds buf; ring.Unregistered
	alt     bool   // takes the medium's other path
	retries int
	id      uint32 // index in the table
	gen     uint32 // raised at every use, so that a cancel cannot hit another
}

func (o *op) user() uint64 { return uint64(o.gen)<<32 | uint64(o.id) }

// loop is the state of the engine's goroutine.
type loop struct {
	e      *Engine
	ring   *ring.Ring // nil: everything runs in threads
	copies *pool      // of DRAM devices
	tid    int
	doze   chan struct{} // wakes the loop without a ring
	stop   bool          // under e.mu

	table    []op
	unused   []*op
	inRing   int // operations
	actives  []*store
	finished ioList
	touched  []*store // whose done IOs must be accounted
	syncs    []*syncOp
	listens  bool          // AwaitWake is under way
	flowing  bool          // I/Os came in since the last sleep
	copied   int           // bytes, in this round
	took     time.Duration // what I/Os took of late, on average
	seen     time.Time     // when the last results were reaped
	yielded  time.Time

	// What was taken from the engine, swapped so that nothing is allocated.
	cancels []*IO
	results []result
	calls   []func()
	reaped  []ring.Completion
}

func newLoop(e *Engine, r *ring.Ring) *loop {
	l := &loop{
		e: e, ring: r, tid: unix.Gettid(), doze: make(chan struct{}, 1),
		table: make([]op, maxOps), unused: make([]*op, 0, maxOps),
		reaped: make([]ring.Completion, 64),
	}
	l.copies = newPool(e, e.opts.CopyThreads)
	for i := range l.table {
		l.table[i].id = uint32(i)
		l.unused = append(l.unused, &l.table[i])
	}
	return l
}

// wake ends the loop's sleep. Any goroutine may call it.
func (l *loop) wake() {
	if l.ring != nil {
		l.ring.Wake()
		return
	}
	select {
	case l.doze <- struct{}{}:
	default: // it is awake already
	}
}

func (l *loop) run() {
	for l.collect() {
		l.copied = 0
		l.start()
		if l.finished.head != nil {
			l.deliver()
			if l.copied > 0 && l.inRing > 0 {
				l.enter(0, 0)
				l.reap()
			}
			continue // with what the Dones have submitted
		}
		l.sleep()
		l.reap()
	}
}

// collect takes what came in. It answers false when the engine is closed.
func (l *loop) collect() bool {
	stop := l.exchange()
	at := time.Time{}
	for _, r := range l.results {
		if at.IsZero() {
			at = time.Now()
		}
		r.o.s.medium.threads().done()
		l.ended(r.o, r.res, at)
	}
	for _, io := range l.cancels {
		if io != nil {
			l.cancel(io)
		}
	}
	for _, f := range l.calls {
		f()
	}
	clear(l.results)
	clear(l.cancels)
	clear(l.calls)
	return !stop
}

// exchange does all that needs the engine's lock: it says what is done and
// takes what is new.
func (l *loop) exchange() (stop bool) {
	e := l.e
	e.mu.Lock()
	e.asleep = false
	for _, s := range l.touched {
		s.inFlight -= s.doneOps
		s.bytes -= s.doneBytes
		e.bytes -= s.doneBytes
		s.doneOps, s.doneBytes = 0, 0
	}
	if len(l.touched) > 0 && e.waiting > 0 {
		e.room.Broadcast()
	}
	in := e.incoming
	e.incoming = ioList{}
	e.results, l.results = l.results[:0], e.results
	e.calls, l.calls = l.calls[:0], e.calls
	e.cancels, l.cancels = l.cancels[:0], e.cancels
	for i, io := range l.cancels {
		if !io.state.busy || !io.state.cancel {
			l.cancels[i] = nil // it has ended, and may have been submitted anew
		}
	}
	l.syncs = append(l.syncs, e.syncs...)
	e.syncs = e.syncs[:0]
	stop = l.stop
	e.mu.Unlock()
	clear(l.touched)
	l.touched = l.touched[:0]
	l.flowing = l.flowing || in.head != nil
	for io := in.pop(); io != nil; io = in.pop() {
		s := io.state.dev
		io.state.queued = true
		s.queue.push(io)
		l.activate(s)
	}
	return stop
}

// deliver calls the Done of what is finished.
func (l *loop) deliver() {
	if l.ring != nil && l.ring.Prepared() >= l.kick() {
		l.submit() // the devices work meanwhile
	}
	batch := l.finished
	l.finished = ioList{}
	l.e.mu.Lock()
	for io := batch.head; io != nil; io = io.state.next {
		io.state.busy = false
	}
	l.e.mu.Unlock()
	for io := batch.pop(); io != nil; io = batch.pop() {
		s := io.state.dev
		l.touch(s, len(io.Buf))
		io.Done(io)
	}
}

// touch remembers that one thing of s is done, for exchange to say so.
func (l *loop) touch(s *store, bytes int) {
	if s.doneOps == 0 {
		l.touched = append(l.touched, s)
	}
	s.doneOps++
	s.doneBytes += int64(bytes)
}

// cancel ends io as far as that is possible.
func (l *loop) cancel(io *IO) {
	st := &io.state
	st.cancelled = true
	s := st.dev
	if st.queued {
		s.queue.remove(io)
		st.queued = false
		st.err = ErrCancelled
	}
	if st.parts == 0 {
		if st.err != nil {
			l.finish(s, io, time.Now())
		}
		return
	}
	if s.medium.threads() != nil {
		return // a blocking call cannot be ended
	}
	l.cancelParts(func(o *op) bool { return o.io == io })
}

// cancelAll ends what is in flight on s as far as that is possible.
func (l *loop) cancelAll(s *store) {
	for s.queue.head != nil {
		l.cancel(s.queue.head)
	}
	if s.medium.threads() == nil {
		l.cancelParts(func(o *op) bool {
			if o.s == s && o.io != nil {
				o.io.state.cancelled = true
			}
			return o.s == s
		})
	}
}

// cancelParts asks the ring to end operations.
func (l *loop) cancelParts(which func(*op) bool) {
	for i := range l.table {
		if o := &l.table[i]; o.s != nil && which(o) {
			l.makeRoom()
			l.ring.Cancel(cancelUser, o.user())
		}
	}
}

func (l *loop) activate(s *store) {
	if !s.active {
		s.active = true
		l.actives = append(l.actives, s)
	}
}

// start starts what the bounds allow, the devices taking turns.
func (l *loop) start() {
	l.startSyncs()
	at := time.Time{}
	for again := true; again; {
		again = false
		kept := l.actives[:0]
		for _, s := range l.actives {
			if at.IsZero() {
				at = time.Now()
			}
			if l.turn(s, at) {
				again = true
			}
			if s.queue.head == nil {
				s.active = false
				continue
			}
			kept = append(kept, s)
		}
		clear(l.actives[len(kept):])
		l.actives = kept
	}
}

// turn starts a few operations of s, and says whether it did.
func (l *loop) turn(s *store, at time.Time) bool {
	n := 0
	for ; n < turn && s.ops < s.depth && len(l.unused) > 0; n++ {
		io := s.queue.head
		if io == nil {
			break
		}
		st := &io.state
		size := min(len(io.Buf)-st.issued, int(s.info.MaxIO))
		here := s.info.Kind == DRAM && size <= copyHere
		if here && l.copied >= copyTurn {
			break
		}
		if st.issued == 0 {
			io.Began = at
			s.meter.Began(io)
		}
		o := l.take(s)
		o.io, o.write, o.off = io, io.Write, io.Off+int64(st.issued)
		o.buf = io.Buf[st.issued : st.issued+size]
		o.region = l.e.arena.regionOf(o.buf)
		st.issued += size
		st.parts++
		if st.issued == len(io.Buf) {
			s.queue.remove(io)
			st.queued = false
		}
		if here {
			l.copied += size
			l.ended(o, s.medium.perform(o), time.Now())
			continue
		}
		l.issue(o)
	}
	return n > 0
}

func (l *loop) startSyncs() {
	for len(l.syncs) > 0 && len(l.unused) > 0 {
		y := l.syncs[0]
		l.syncs = l.syncs[1:]
		o := l.take(y.s)
		o.sync, o.region = y, ring.Unregistered
		l.issue(o)
	}
}

func (l *loop) take(s *store) *op {
	o := l.unused[len(l.unused)-1]
	l.unused = l.unused[:len(l.unused)-1]
	*o = op{s: s, id: o.id, gen: o.gen + 1}
	s.ops++
	return o
}

// issue hands o to the ring or to a thread.
func (l *loop) issue(o *op) {
	if p := o.s.medium.threads(); p != nil {
		p.push(o)
		return
	}
	l.makeRoom()
	o.s.medium.prepare(l.ring, o.user(), o)
	l.inRing++
	if l.ring.Prepared() >= l.kick() {
		l.submit()
	}
}

// kick is how many prepared operations are worth a call of their own: the first
// of a burst, or so many that what is under way could end meanwhile.
func (l *loop) kick() int {
	return max(turn, 2*(l.inRing-l.ring.Prepared()))
}

// makeRoom makes sure that an operation can be prepared.
func (l *loop) makeRoom() {
	for l.ring.Room() == 0 {
		l.submit()
		if l.ring.Room() == 0 {
			runtime.Gosched() // the kernel's poller is behind
		}
	}
}

// submit hands over what is prepared, if anything is.
func (l *loop) submit() {
	if l.ring.Prepared() > 0 {
		l.enter(0, 0)
	}
}

func (l *loop) enter(wait int, patience time.Duration) {
	err := l.ring.Enter(wait, patience)
	if err != nil && !errors.Is(err, unix.EBUSY) {
		panic(fmt.Sprintf("BUG: the ring refuses its operations: %v", err))
	}
}

// sleep waits for something to happen, unless something has.
func (l *loop) sleep() {
	e := l.e
	if l.ring != nil && !l.listens {
		l.makeRoom()
		l.ring.AwaitWake(wakeUser)
		l.listens = true
	}
	e.mu.Lock()
	// What is touched is still to be accounted: Close may wait for that alone.
	news := len(l.touched) > 0 || e.incoming.head != nil || len(e.cancels)+len(e.results)+len(e.calls)+len(e.syncs) > 0 || l.stop
	e.asleep = !news
	e.mu.Unlock()
	switch {
	case l.ring != nil && news:
		l.submit()
	case l.ring != nil:
		l.breathe()
		l.enter(l.worth())
		l.flowing = false
	case !news:
		<-l.doze
	}
}

// breathe goes through the scheduler now and then. Of a goroutine that never
// does the Go runtime's monitor thinks that it hogs its processor: it would
// take that away in every wait and signal the thread, waking every 20
// microseconds to do so, which costs more than the I/O of large reads.
func (l *loop) breathe() {
	if l.seen.Sub(l.yielded) < yieldEvery {
		return
	}
	l.submit() // the devices work meanwhile
	runtime.Gosched()
	l.yielded = time.Now()
}

// worth is how many results are worth waiting for together, and how long. As
// long as I/Os come in, or wait for others to end, the devices must not run out
// of them.
func (l *loop) worth() (int, time.Duration) {
	patience := max(patienceMin, min(l.took/patiencePart, patienceMax))
	switch {
	case len(l.actives) > 0:
		return max(1, min(2*l.inRing/5, 32)), patience
	case l.flowing:
		return max(1, min(l.inRing/3, 32)), patience
	}
	return max(1, min(l.inRing/2, 32)), patience
}

// reap takes results from the ring.
func (l *loop) reap() {
	if l.ring == nil {
		return
	}
	n := l.ring.Reap(l.reaped)
	if n == 0 {
		return
	}
	at := time.Now()
	l.seen = at
	for _, c := range l.reaped[:n] {
		switch c.User {
		case wakeUser:
			l.listens = c.More()
		case cancelUser:
		default:
			o := &l.table[uint32(c.User)]
			if o.gen != uint32(c.User>>32) || o.s == nil {
				panic(fmt.Sprintf("BUG: the ring completes operation %#x, which is not under way", c.User))
			}
			l.inRing--
			l.ended(o, c.Res, at)
		}
	}
}

// ended takes note of the end of an operation, or goes on with it.
func (l *loop) ended(o *op, res int32, at time.Time) {
	v := o.s.medium.judge(o, res)
	v.n = min(v.n, len(o.buf))
	if v.n < len(o.buf) {
		v.n -= v.n % Align // what is left must stay aligned
	}
	o.buf, o.off = o.buf[v.n:], o.off+int64(v.n)
	if v.again || v.err == nil && len(o.buf) > 0 {
		if o.retries++; v.n > 0 {
			o.retries = 0
		}
		switch {
		case o.io != nil && o.io.state.cancelled:
			v.err = ErrCancelled
		case o.retries <= maxRetries:
			o.gen++
			l.issue(o)
			return
		case v.err == nil:
			v.err = ErrShort
		}
	}
	s, io, y := o.s, o.io, o.sync
	*o = op{id: o.id, gen: o.gen}
	l.unused = append(l.unused, o)
	s.ops--
	if y == nil {
		l.partEnded(s, io, v.err, at)
		return
	}
	l.touch(s, 0)
	if v.err != nil {
		v.err = &Error{Device: s.info.Name, Op: "sync", Err: v.err}
	}
	y.done <- v.err
}

// partEnded finishes io when nothing more of it is to come.
func (l *loop) partEnded(s *store, io *IO, err error, at time.Time) {
	st := &io.state
	st.parts--
	if err != nil && st.err == nil {
		st.err = err
	}
	if st.err != nil && st.queued {
		s.queue.remove(io)
		st.queued = false
	}
	if st.parts == 0 && !st.queued {
		l.finish(s, io, at)
	}
}

func (l *loop) finish(s *store, io *IO, at time.Time) {
	io.Ended, io.Err = at, nil
	if io.state.issued == 0 {
		io.Began = at // it was cancelled before it was started
	}
	if io.state.err != nil {
		io.Err = s.fault(io, io.state.err)
	}
	if io.state.issued > 0 {
		l.took += (at.Sub(io.Began) - l.took) / 16
		s.meter.Ended(io)
	}
	l.finished.push(io)
}
