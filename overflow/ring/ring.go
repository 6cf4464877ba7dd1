// Package ring is io_uring on raw system calls: as much of it as storage needs,
// with reads, writes, syncs and NVMe commands on registered files and memory,
// and one system call for a batch of them.
//
// A Ring belongs to one OS thread: its methods (Wake excepted) are called by
// the goroutine that called New, and that goroutine is locked to its thread
// (runtime.LockOSThread). The kernel enforces it: with the flags used here
// (SINGLE_ISSUER, DEFER_TASKRUN; Linux 6.1) completions are posted only while
// that thread asks for them, which spares an interrupt and a lock for each. On
// an older kernel the ring goes without these flags.
//
// Operations are prepared (Read, Write, ...), handed over by Enter and come
// back from Reap, named by the number that the caller gave them.
package ring

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnsupported says that this kernel, or what confines this process, offers
// no io_uring that is good enough. It wraps the reason.
var ErrUnsupported = errors.New("io_uring is not available")

// Options of a Ring. The zero value means the defaults.
type Options struct {
	Entries int // operations that one Enter takes; a power of two (256)
	// Completions is how many results the kernel keeps for Reap; a power of
	// two, at least twice Entries (4096). Whoever keeps fewer operations in
	// flight loses no result.
	Completions int
	Files       int // slots for registered files (64)
	// Passthrough makes room for NVMe commands: entries of 128 bytes, results of 32.
	Passthrough bool
	// Poller has the kernel poll for submissions on a thread of its own. It
	// burns a core: never on a machine with few of them.
	Poller     bool
	PollerIdle time.Duration // until the poller sleeps (1 s)
	PollerCPU  int           // the core it is bound to, counted from 1; 0: any
}

// Completion is the result of one operation.
type Completion struct {
	User  uint64 // as given when it was prepared
	Res   int32  // bytes or, negative, an errno; NVMe: 0 or a status
	Flags uint32
}

// More says that the operation will complete again.
func (c Completion) More() bool { return c.Flags&cqeMore != 0 }

// Counters count since New. They may be read by any goroutine.
type Counters struct {
	Enters      uint64 // calls of io_uring_enter
	Submitted   uint64 // operations handed to the kernel
	Completions uint64 // results reaped
}

// Features says what a Ring came to use.
type Features struct {
	Deferred    bool // SINGLE_ISSUER and DEFER_TASKRUN
	Poller      bool
	Passthrough bool
	MinWait     bool // waiting for several results with a bound on time
}

func (f Features) String() string {
	names := []string{"io_uring"}
	for _, p := range []struct {
		on   bool
		name string
	}{{f.Deferred, "deferred"}, {f.Poller, "poller"}, {f.Passthrough, "passthrough"}, {f.MinWait, "min-wait"}} {
		if p.on {
			names = append(names, p.name)
		}
	}
	return strings.Join(names, " ")
}

// Ring is one io_uring instance.
type Ring struct {
	fd       int
	wakeFD   int
	one      [8]byte // what wakes; never changes
	features Features
	m        mapping
	arg      getEventsArg
	ts       timespec

	tail      uint32 // of the submission queue, with what is prepared
	unclaimed uint32 // prepared, not yet taken by the kernel
	files     []int32
	closed    bool

	enters, submitted, completions atomic.Uint64
}

func (o Options) withDefaults() (Options, error) {
	if o.Entries == 0 {
		o.Entries = 256
	}
	if o.Completions == 0 {
		o.Completions = max(4096, 2*o.Entries)
	}
	if o.Files == 0 {
		o.Files = 64
	}
	if o.PollerIdle == 0 {
		o.PollerIdle = time.Second
	}
	switch {
	case !powerOfTwo(o.Entries) || o.Entries > 32768:
		return o, fmt.Errorf("ring: Entries %d is not a power of two of at most 32768", o.Entries)
	case !powerOfTwo(o.Completions) || o.Completions < 2*o.Entries || o.Completions > 65536:
		return o, fmt.Errorf("ring: Completions %d is not a power of two in %d..65536", o.Completions, 2*o.Entries)
	case o.Files < 1 || o.Files > 32768:
		return o, fmt.Errorf("ring: Files %d is not in 1..32768", o.Files)
	case o.PollerIdle < 0 || o.PollerIdle > time.Hour:
		return o, fmt.Errorf("ring: PollerIdle %v is not in 0..1h", o.PollerIdle)
	case o.PollerCPU < 0:
		return o, fmt.Errorf("ring: PollerCPU %d is negative", o.PollerCPU)
	}
	return o, nil
}

func powerOfTwo(n int) bool { return n > 0 && n&(n-1) == 0 }

// New opens a ring. The caller has locked its goroutine to its thread. Where
// io_uring is missing, forbidden or too old the error wraps ErrUnsupported.
func New(o Options) (*Ring, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Ring{fd: -1, wakeFD: -1, one: [8]byte{1}}
	if err := r.open(o); err != nil {
		r.Close()
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return r, nil
}

func (r *Ring) open(o Options) error {
	p, err := r.setup(o)
	if err != nil {
		return fmt.Errorf("io_uring_setup: %w", err)
	}
	if p.features&featSingleMmap == 0 || p.features&featNoDrop == 0 || p.features&featExtArg == 0 {
		return fmt.Errorf("kernel features %#x: Linux 5.11 is needed", p.features)
	}
	r.features.MinWait = p.features&featMinTimeout != 0
	r.features.Poller = o.Poller
	r.features.Passthrough = o.Passthrough
	if err := r.m.open(r.fd, &p); err != nil {
		return err
	}
	r.tail = r.m.sqTail.Load()
	if err := r.probe(o); err != nil {
		return err
	}
	r.files = make([]int32, o.Files)
	for i := range r.files {
		r.files[i] = -1
	}
	if err := registerFiles(r.fd, r.files); err != nil {
		return fmt.Errorf("register %d file slots: %w", len(r.files), err)
	}
	r.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	return nil
}

// setup opens the ring's file with the best flags that the kernel takes.
func (r *Ring) setup(o Options) (params, error) {
	base := uint32(setupCQSize | setupClamp)
	if o.Passthrough {
		base |= setupSQE128 | setupCQE32
	}
	attempts := []uint32{setupSubmitAll | setupSingleIssuer | setupDeferTaskrun, setupSubmitAll | setupCoopTaskrun, 0}
	if o.Poller {
		base |= setupSQPoll
		if o.PollerCPU > 0 {
			base |= setupSQAff
		}
		attempts = []uint32{setupSubmitAll | setupSingleIssuer, 0}
	}
	var last error
	for _, extra := range attempts {
		p := params{flags: base | extra, cqEntries: uint32(o.Completions)}
		if o.Poller {
			p.sqThreadIdle = uint32(o.PollerIdle.Milliseconds())
			p.sqThreadCPU = uint32(max(0, o.PollerCPU-1))
		}
		fd, err := setup(uint32(o.Entries), &p)
		if err == nil {
			r.fd = fd
			r.features.Deferred = p.flags&setupDeferTaskrun != 0
			return p, nil
		}
		last = err
		if !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	return params{}, last
}

// probe makes sure that the kernel knows the operations.
func (r *Ring) probe(o Options) error {
	known, err := probeOps(r.fd)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	need := []uint8{opReadFixed, opWriteFixed, opRead, opWrite, opFsync, opPollAdd, opAsyncCancel}
	if o.Passthrough {
		need = append(need, opUringCmd)
	}
	for _, op := range need {
		if !known[op] {
			return fmt.Errorf("operation %d is unknown to this kernel", op)
		}
	}
	return nil
}

// Features says what the ring uses.
func (r *Ring) Features() Features { return r.features }

// Counters are what was done so far.
func (r *Ring) Counters() Counters {
	return Counters{Enters: r.enters.Load(), Submitted: r.submitted.Load(), Completions: r.completions.Load()}
}

// RegisterMemory makes regions of memory known, so that operations on them (by
// their index here) need not map them each time. It may be called once. A
// region has at most MaxRegion bytes, is not Go heap and outlives the ring.
func (r *Ring) RegisterMemory(regions [][]byte) error {
	if err := registerBuffers(r.fd, regions); err != nil {
		return fmt.Errorf("register %d regions of memory: %w", len(regions), err)
	}
	return nil
}

// MaxRegion is the most that the kernel registers as one region, in bytes.
const MaxRegion = 1 << 30

// AddFile registers an open file and returns its slot.
func (r *Ring) AddFile(fd int) (slot int, err error) {
	for i, old := range r.files {
		if old >= 0 {
			continue
		}
		if err := updateFile(r.fd, i, int32(fd)); err != nil {
			return 0, fmt.Errorf("register a file: %w", err)
		}
		r.files[i] = int32(fd)
		return i, nil
	}
	return 0, fmt.Errorf("register a file: all %d slots are taken", len(r.files))
}

// RemoveFile gives a slot back. No operation on it is in flight.
func (r *Ring) RemoveFile(slot int) error {
	if slot < 0 || slot >= len(r.files) || r.files[slot] < 0 {
		panic(fmt.Sprintf("BUG: no file in slot %d", slot))
	}
	r.files[slot] = -1
	if err := updateFile(r.fd, slot, -1); err != nil {
		return fmt.Errorf("unregister a file: %w", err)
	}
	return nil
}

// Prepared is how many operations wait for Enter.
func (r *Ring) Prepared() int { return int(r.unclaimed) }

// Room is how many more operations can be prepared before Enter.
func (r *Ring) Room() int {
	return int(r.m.sqEntries - (r.tail - r.m.sqHead.Load()))
}

// Enter hands over what was prepared and waits until wait results (0: does not
// wait) are there to be reaped. For wait above 1, patience bounds that: when it
// is over, one result is enough. It may return early, with fewer.
//
// It answers unix.EBUSY when results must be reaped before the kernel takes
// more; what was prepared stays so.
func (r *Ring) Enter(wait int, patience time.Duration) error {
	r.m.sqTail.Store(r.tail)
	for {
		flags, needed := r.enterFlags(wait)
		if !needed {
			return nil
		}
		n, err := r.enter(r.unclaimed, uint32(wait), flags, patience)
		if err == nil {
			r.claimed(uint32(n))
			if r.unclaimed == 0 || n == 0 {
				return nil
			}
			continue // the kernel stopped in the middle
		}
		switch {
		case errors.Is(err, unix.EINTR):
			if wait > 0 && r.Ready() > 0 {
				wait = 0 // they are here; hand over the rest without waiting
			}
			continue
		case errors.Is(err, unix.ETIME):
			// Without min-wait the patience is over, which says nothing about
			// results; with it, longWait is.
			if r.Ready() > 0 || wait <= 1 {
				return nil
			}
			wait = 1
			continue
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EBUSY):
			return unix.EBUSY
		}
		return fmt.Errorf("io_uring_enter of %d operations: %w", r.unclaimed, err)
	}
}

// enterFlags says whether a call is needed at all, and with which flags.
func (r *Ring) enterFlags(wait int) (flags uint32, needed bool) {
	if wait > 0 || r.features.Deferred {
		// Deferred results are posted only to a call that asks for them.
		flags |= enterGetEvents
	}
	if r.features.Poller {
		r.claimed(r.unclaimed)
		if r.m.sqFlags.Load()&sqNeedWakeup != 0 {
			return flags | enterSQWakeup, true
		}
		return flags, wait > 0
	}
	return flags, true
}

func (r *Ring) claimed(n uint32) {
	n = min(n, r.unclaimed)
	r.unclaimed -= n
	r.submitted.Add(uint64(n))
}

// longWait is for how many seconds a call waits for its first result before it
// is made anew.
const longWait = 3600

// enter is one system call.
func (r *Ring) enter(n, wait, flags uint32, patience time.Duration) (int, error) {
	r.arg = getEventsArg{}
	if wait > 1 && patience > 0 {
		flags |= enterExtArg
		if r.features.MinWait {
			r.arg.minWaitUsec = uint32(max(1, min(patience.Microseconds(), 1e9)))
			// The kernel goes on waiting for one result only under a general
			// bound; without, it would come back with none.
			r.ts = timespec{sec: longWait}
		} else {
			r.ts = timespec{sec: int64(patience / time.Second), nsec: int64(patience % time.Second)}
		}
	}
	r.enters.Add(1)
	return enter(r, n, wait, flags)
}

// Ready is how many results can be reaped.
func (r *Ring) Ready() int {
	return int(r.m.cqTail.Load() - r.m.cqHead.Load())
}

// Reap moves results into out and says how many.
func (r *Ring) Reap(out []Completion) int {
	head := r.m.cqHead.Load()
	n := min(int(r.m.cqTail.Load()-head), len(out))
	for i := range n {
		out[i] = r.m.completion(head + uint32(i))
	}
	if n > 0 {
		r.m.cqHead.Store(head + uint32(n))
		r.completions.Add(uint64(n))
	}
	return n
}

// Wake makes the operation prepared by AwaitWake complete. Any goroutine may
// call it, until Close.
func (r *Ring) Wake() {
	for {
		// EAGAIN: the counter is full, so a wake-up is under way anyhow.
		if _, err := unix.Write(r.wakeFD, r.one[:]); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// Close releases the ring; what is in flight is abandoned, so wait for it
// first: the kernel may still write to its memory. Registered memory and files
// stay open.
func (r *Ring) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	err := r.m.close()
	for _, fd := range []int{r.fd, r.wakeFD} {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	return err
}

// Probe says whether a ring can be opened here, and what it would use.
func Probe(o Options) (Features, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, err := New(o)
	if err != nil {
		return Features{}, err
	}
	return r.Features(), r.Close()
}
