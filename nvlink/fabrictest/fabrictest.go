// Package fabrictest is the behaviour suite that every fabric passes: Run for
// what one process can see, RunProcesses for memory that two processes share.
// It reaches arenas only through the Harness, so that device memory which the
// host cannot address is tested in the same way.
package fabrictest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/nvlink"
)

// Harness is how the suite gets at a fabric.
type Harness struct {
	// Devices are two device names of which arenas are made; they may be
	// equal where there is one device.
	Devices [2]string
	// New makes a fabric. The suite closes it.
	New func(t testing.TB) nvlink.Fabric
	// NewArena makes a zeroed arena. The suite closes it.
	NewArena func(t testing.TB, f nvlink.Fabric, name, device string, size int64) nvlink.Arena
	// Read and Write access an arena from the host, on no stream. Nil: Bytes.
	Read  func(t testing.TB, a nvlink.Arena, off int64, dst []byte)
	Write func(t testing.TB, a nvlink.Arena, off int64, src []byte)
}

// rig is one test's fabric.
type rig struct {
	testing.TB
	h Harness
	f nvlink.Fabric
}

// Run runs the suite. New and NewArena are called for each test.
func Run(t *testing.T, h Harness) {
	for name, f := range map[string]func(*rig){
		"CopiesBytes":           testCopiesBytes,
		"ScatterGather":         testScatterGather,
		"BigLists":              testBigLists,
		"ListIsCopied":          testListIsCopied,
		"EmptyList":             testEmptyList,
		"InOrder":               testInOrder,
		"CallsEnqueue":          testCallsEnqueue,
		"Asynchronous":          testAsynchronous,
		"EventsAcrossStreams":   testEventsAcrossStreams,
		"EventOfOtherMaker":     testEventOfOtherMaker,
		"ErrorsReachOneEvent":   testErrorsReachOneEvent,
		"WaitTakesNoError":      testWaitTakesNoError,
		"WaitHonoursContext":    testWaitHonoursContext,
		"BadSpansAreRefused":    testBadSpansAreRefused,
		"NilIsRefused":          testNilIsRefused,
		"ConcurrentStreams":     testConcurrentStreams,
		"OneStreamManyCallers":  testOneStreamManyCallers,
		"ArenaIsBusy":           testArenaIsBusy,
		"ClosedArena":           testClosedArena,
		"CloseDrains":           testCloseDrains,
		"ClosedStream":          testClosedStream,
		"ClosedFabric":          testClosedFabric,
		"CloseReportsLostError": testCloseReportsLostError,
	} {
		t.Run(name, func(t *testing.T) { f(newRig(t, h)) })
	}
}

func newRig(t testing.TB, h Harness) *rig {
	if h.Read == nil {
		h.Read = func(_ testing.TB, a nvlink.Arena, off int64, dst []byte) { copy(dst, a.Bytes()[off:][:len(dst)]) }
	}
	if h.Write == nil {
		h.Write = func(_ testing.TB, a nvlink.Arena, off int64, src []byte) { copy(a.Bytes()[off:][:len(src)], src) }
	}
	r := &rig{TB: t, h: h, f: h.New(t)}
	t.Cleanup(func() {
		// Tests that leave an error unreported check it themselves.
		_ = r.f.Close()
	})
	return r
}

// arena makes an arena on device 0 or 1 that is closed after the fabric's use.
func (r *rig) arena(name string, dev int, size int64) nvlink.Arena {
	r.Helper()
	a := r.h.NewArena(r.TB, r.f, name, r.h.Devices[dev], size)
	r.Cleanup(func() {
		if err := a.Close(); err != nil {
			r.Errorf("close arena %q: %v", name, err)
		}
	})
	// Cleanups run last in, first out: streams must end before arenas.
	r.Cleanup(func() { _ = r.f.Close() })
	return a
}

func (r *rig) stream(name string) nvlink.Stream {
	r.Helper()
	s, err := r.f.NewStream(r.h.Devices[0], name)
	if err != nil {
		r.Fatal(err)
	}
	return s
}

func (r *rig) read(a nvlink.Arena, off, n int64) []byte {
	b := make([]byte, n)
	r.h.Read(r.TB, a, off, b)
	return b
}

// fill writes a pattern over the whole arena and returns it.
func (r *rig) fill(a nvlink.Arena, seed int) []byte {
	b := pattern(a.Size(), seed)
	r.h.Write(r.TB, a, 0, b)
	return b
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) record(s nvlink.Stream) nvlink.Event {
	r.Helper()
	e, err := s.Record()
	r.must(err)
	return e
}

// sync waits for the stream and returns its error.
func (r *rig) sync(s nvlink.Stream) error {
	r.Helper()
	return r.record(s).Wait(context.Background())
}

func pattern(n int64, seed int) []byte {
	b := make([]byte, n)
	x := uint32(seed)*2654435761 + 12345
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func piece(dst nvlink.Arena, dstOff int64, src nvlink.Arena, srcOff, n int64) nvlink.Copy {
	return nvlink.Copy{
		Dst: nvlink.Span{Arena: dst, Off: dstOff, Len: n},
		Src: nvlink.Span{Arena: src, Off: srcOff, Len: n},
	}
}

func isDone(e nvlink.Event) bool {
	select {
	case <-e.Done():
		return true
	default:
		return false
	}
}

func testCopiesBytes(r *rig) {
	src, dst := r.arena("src", 1, 1<<20), r.arena("dst", 0, 1<<20)
	want := r.fill(src, 1)
	s := r.stream("s")
	for _, n := range []int64{1, 3, 8, 63, 64, 65, 4095, 4096, 65537, 1 << 20} {
		back := r.fill(dst, 2)
		off := min(n%7, 1<<20-n)
		r.must(s.CopyBatch([]nvlink.Copy{piece(dst, off, src, 1<<20-n, n)}))
		r.must(r.sync(s))
		copy(back[off:], want[1<<20-n:])
		if !bytes.Equal(r.read(dst, 0, 1<<20), back) {
			r.Fatalf("copy of %d bytes to %d is wrong", n, off)
		}
		if !bytes.Equal(r.read(src, 0, 1<<20), want) {
			r.Fatalf("copy of %d bytes changed its source", n)
		}
	}
}

// testScatterGather mixes neighbours, gaps, reversed order and three arenas
// in both directions in one list.
func testScatterGather(r *rig) {
	a, b, c := r.arena("a", 0, 4096), r.arena("b", 1, 4096), r.arena("c", 1, 4096)
	wa, wb, wc := r.fill(a, 1), r.fill(b, 2), r.fill(c, 3)
	old := bytes.Clone(wa)
	s := r.stream("s")
	r.must(s.CopyBatch([]nvlink.Copy{
		piece(a, 0, b, 100, 50), piece(a, 50, b, 150, 50), // neighbours at both ends
		piece(a, 100, b, 300, 10), piece(a, 120, b, 310, 10), // at one end
		piece(a, 210, c, 7, 10), piece(a, 200, c, 17, 10), // crosswise
		piece(b, 2000, a, 1000, 33), piece(c, 0, a, 1033, 1),
		piece(a, 4000, b, 4000, 96),
		piece(a, 3000, a, 2000, 100), // within one arena
	}))
	r.must(r.sync(s))
	copy(wa[0:100], wb[100:200])
	copy(wa[100:110], wb[300:310])
	copy(wa[120:130], wb[310:320])
	copy(wa[210:220], wc[7:17])
	copy(wa[200:210], wc[17:27])
	copy(wa[4000:4096], wb[4000:4096])
	copy(wa[3000:3100], old[2000:2100])
	copy(wb[2000:2033], old[1000:1033])
	copy(wc[0:1], old[1033:1034])
	for i, x := range []nvlink.Arena{a, b, c} {
		if !bytes.Equal(r.read(x, 0, 4096), [][]byte{wa, wb, wc}[i]) {
			r.Fatalf("arena %q differs", x.Name())
		}
	}
}

func testBigLists(r *rig) {
	const n, size = 10_000, 96
	src, dst := r.arena("src", 1, n*size), r.arena("dst", 0, n*size)
	from := r.fill(src, 4)
	want := make([]byte, n*size)
	var pieces []nvlink.Copy
	for i := int64(0); i < n; i++ {
		j := i * 7919 % n
		pieces = append(pieces, piece(dst, i*size, src, j*size, size))
		copy(want[i*size:][:size], from[j*size:])
	}
	s := r.stream("s")
	for range 3 {
		r.must(s.CopyBatch(pieces))
	}
	r.must(r.sync(s))
	if !bytes.Equal(r.read(dst, 0, n*size), want) {
		r.Fatal("bytes differ")
	}
}

func testListIsCopied(r *rig) {
	src, dst := r.arena("src", 1, 64), r.arena("dst", 0, 64)
	want := r.fill(src, 5)
	s := r.stream("s")
	gate := make(chan struct{})
	r.must(s.Call(func() error { <-gate; return nil }))
	pieces := []nvlink.Copy{piece(dst, 0, src, 0, 64)}
	r.must(s.CopyBatch(pieces))
	pieces[0] = piece(dst, 0, dst, 32, 1)
	close(gate)
	r.must(r.sync(s))
	if !bytes.Equal(r.read(dst, 0, 64), want) {
		r.Fatal("a list that changed after CopyBatch changed the copy")
	}
}

func testEmptyList(r *rig) {
	s := r.stream("s")
	r.must(s.CopyBatch(nil))
	r.must(r.sync(s))
}

// testInOrder sends a value through a chain of cells, which only gives the
// right end if each copy sees its predecessor's result.
func testInOrder(r *rig) {
	const n = 500
	a := r.arena("a", 0, 8*(n+1))
	first := pattern(8, 6)
	r.h.Write(r.TB, a, 0, first)
	s := r.stream("s")
	var calls []int
	for i := int64(0); i < n; i++ {
		r.must(s.CopyBatch([]nvlink.Copy{piece(a, 8*(i+1), a, 8*i, 8)}))
		if i%50 == 0 {
			r.must(s.Call(func() error { calls = append(calls, int(i)); return nil }))
		}
	}
	r.must(r.sync(s))
	if !bytes.Equal(r.read(a, 8*n, 8), first) {
		r.Fatal("copies of one stream overtook each other")
	}
	for k, i := range calls {
		if i != k*50 {
			r.Fatalf("calls ran in the order %v", calls)
		}
	}
}

// testCallsEnqueue has each call enqueue the copy that comes after it and the
// next call.
func testCallsEnqueue(r *rig) {
	const n = 50
	a := r.arena("a", 0, 8*(n+1))
	want := pattern(8, 11)
	r.h.Write(r.TB, a, 0, want)
	s, errs := r.stream("s"), make(chan error, 1)
	var step func(i int64) error
	step = func(i int64) error {
		if i == n {
			errs <- nil
			return nil
		}
		err := s.CopyBatch([]nvlink.Copy{piece(a, 8*(i+1), a, 8*i, 8)})
		if err == nil {
			err = s.Call(func() error { return step(i + 1) })
		}
		if err != nil {
			errs <- err
		}
		return err
	}
	r.must(s.Call(func() error { return step(0) }))
	r.must(<-errs)
	r.must(r.sync(s))
	if !bytes.Equal(r.read(a, 8*n, 8), want) {
		r.Fatal("bytes differ")
	}
}

func testAsynchronous(r *rig) {
	src, dst := r.arena("src", 1, 64), r.arena("dst", 0, 64)
	r.fill(src, 7)
	s := r.stream("s")
	gate := make(chan struct{})
	r.must(s.Call(func() error { <-gate; return nil }))
	r.must(s.CopyBatch([]nvlink.Copy{piece(dst, 0, src, 0, 64)}))
	e := r.record(s)
	if isDone(e) || e.Err() != nil {
		r.Fatal("an event is done before what precedes it")
	}
	if !bytes.Equal(r.read(dst, 0, 64), make([]byte, 64)) {
		r.Fatal("a copy ran before what precedes it")
	}
	close(gate)
	r.must(e.Wait(context.Background()))
	if !isDone(e) {
		r.Fatal("Wait returned before Done")
	}
}

func testEventsAcrossStreams(r *rig) {
	a := r.arena("a", 0, 192)
	want := pattern(64, 8)
	r.h.Write(r.TB, a, 0, want)
	s1, s2 := r.stream("one"), r.stream("two")
	gate := make(chan struct{})
	r.must(s1.Call(func() error { <-gate; return nil }))
	r.must(s1.CopyBatch([]nvlink.Copy{piece(a, 64, a, 0, 64)}))
	e1 := r.record(s1)
	r.must(s2.WaitEvent(e1))
	r.must(s2.CopyBatch([]nvlink.Copy{piece(a, 128, a, 64, 64)}))
	e2 := r.record(s2)
	// And back: stream one goes on only after stream two.
	r.must(s1.WaitEvent(e2))
	e3 := r.record(s1)
	if isDone(e1) || isDone(e2) || isDone(e3) {
		r.Fatal("an event is done although stream one stands still")
	}
	close(gate)
	r.must(e3.Wait(context.Background()))
	if !isDone(e1) || !isDone(e2) {
		r.Fatal("events completed out of order")
	}
	if !bytes.Equal(r.read(a, 128, 64), want) {
		r.Fatal("stream two did not wait for stream one")
	}
	// A wait for what is long past costs nothing.
	r.must(s2.WaitEvent(e1))
	r.must(r.sync(s2))
}

// hostEvent is an event that no fabric made.
type hostEvent struct{ done chan struct{} }

func (e hostEvent) Done() <-chan struct{}      { return e.done }
func (e hostEvent) Err() error                 { return nil }
func (e hostEvent) Wait(context.Context) error { <-e.done; return nil }

func testEventOfOtherMaker(r *rig) {
	s := r.stream("s")
	e := hostEvent{make(chan struct{})}
	r.must(s.WaitEvent(e))
	after := r.record(s)
	if isDone(after) {
		r.Fatal("the stream did not wait for a foreign event")
	}
	close(e.done)
	r.must(after.Wait(context.Background()))
}

func testErrorsReachOneEvent(r *rig) {
	src, dst := r.arena("src", 1, 8), r.arena("dst", 0, 8)
	want := r.fill(src, 9)
	s := r.stream("s")
	first, second := errors.New("first"), errors.New("second")
	r.must(s.Call(func() error { return first }))
	r.must(s.Call(func() error { return second }))
	r.must(s.CopyBatch([]nvlink.Copy{piece(dst, 0, src, 0, 8)}))
	e1, e2 := r.record(s), r.record(s)
	if err := e1.Wait(context.Background()); !errors.Is(err, first) {
		r.Fatalf("event reports %v, want the first error", err)
	}
	if err := e2.Wait(context.Background()); err != nil {
		r.Fatalf("the next event reports %v again", err)
	}
	if !errors.Is(e1.Err(), first) || e2.Err() != nil {
		r.Fatalf("Err: %v, %v", e1.Err(), e2.Err())
	}
	if !bytes.Equal(r.read(dst, 0, 8), want) {
		r.Fatal("an error of Call kept a later copy from running")
	}
}

func testWaitTakesNoError(r *rig) {
	s1, s2 := r.stream("one"), r.stream("two")
	r.must(s1.Call(func() error { return errors.New("of stream one") }))
	e := r.record(s1)
	r.must(s2.WaitEvent(e))
	r.must(r.sync(s2))
}

func testWaitHonoursContext(r *rig) {
	s := r.stream("s")
	gate := make(chan struct{})
	defer close(gate)
	r.must(s.Call(func() error { <-gate; return nil }))
	e := r.record(s)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := e.Wait(ctx); !errors.Is(err, context.Canceled) {
		r.Fatalf("Wait with a cancelled context: %v", err)
	}
	if isDone(e) {
		r.Fatal("a cancelled wait completed the event")
	}
}

// foreign is an arena that belongs to no fabric.
type foreign struct{}

func (foreign) Name() string   { return "foreign" }
func (foreign) Device() string { return "nowhere" }
func (foreign) Size() int64    { return 1 << 20 }
func (foreign) Bytes() []byte  { return nil }
func (foreign) Close() error   { return nil }

func testBadSpansAreRefused(r *rig) {
	a, b := r.arena("a", 0, 4096), r.arena("b", 1, 4096)
	r.fill(a, 1)
	s := r.stream("s")
	good := piece(b, 0, a, 0, 64)
	uneven := piece(b, 64, a, 64, 8)
	uneven.Src.Len = 9
	for name, bad := range map[string]nvlink.Copy{
		"past the end of dst": piece(b, 4090, a, 0, 7),
		"past the end of src": piece(b, 0, a, 4096, 1),
		"negative offset":     piece(b, -1, a, 0, 8),
		"negative length":     piece(b, 0, a, 0, -8),
		"empty":               piece(b, 0, a, 0, 0),
		"overflow":            piece(b, 1<<62, a, 0, 1<<62+1),
		"huge offset":         piece(b, 0, a, 1<<63-1, 8),
		"uneven":              uneven,
		"onto itself":         piece(a, 8, a, 0, 16),
		"nil arena":           piece(nil, 0, a, 0, 8),
		"foreign arena":       piece(b, 0, foreign{}, 0, 8),
	} {
		err := s.CopyBatch([]nvlink.Copy{good, good, bad, good})
		if !errors.Is(err, nvlink.ErrBadSpan) || !strings.Contains(err.Error(), "piece 2") {
			r.Errorf("%s: %v; want ErrBadSpan naming piece 2", name, err)
		}
	}
	r.must(r.sync(s))
	if !bytes.Equal(r.read(b, 0, 64), make([]byte, 64)) {
		r.Error("pieces of a refused list were copied")
	}
}

func testNilIsRefused(r *rig) {
	s := r.stream("s")
	if err := s.Call(nil); err == nil {
		r.Error("Call(nil) was accepted")
	}
	if err := s.WaitEvent(nil); err == nil {
		r.Error("WaitEvent(nil) was accepted")
	}
	r.must(r.sync(s))
}

func testConcurrentStreams(r *rig) {
	const n, size = 4, 1 << 16
	src, dst := r.arena("src", 1, n*size), r.arena("dst", 0, n*size)
	want := r.fill(src, 10)
	errs := make(chan error, n)
	for i := range int64(n) {
		s := r.stream(fmt.Sprintf("s%d", i))
		go func() {
			for k := range int64(64) {
				off := i*size + k*(size/64)
				if err := s.CopyBatch([]nvlink.Copy{piece(dst, off, src, off, size/64)}); err != nil {
					errs <- err
					return
				}
			}
			e, err := s.Record()
			if err == nil {
				err = e.Wait(context.Background())
			}
			errs <- err
		}()
	}
	for range n {
		r.must(<-errs)
	}
	if !bytes.Equal(r.read(dst, 0, n*size), want) {
		r.Fatal("bytes differ")
	}
}

func testOneStreamManyCallers(r *rig) {
	const n = 8
	a := r.arena("a", 0, 2*n*64)
	want := r.fill(a, 11)[:n*64]
	s := r.stream("s")
	errs := make(chan error, n)
	for i := range int64(n) {
		go func() {
			err := s.CopyBatch([]nvlink.Copy{piece(a, (n+i)*64, a, i*64, 64)})
			if err == nil {
				var e nvlink.Event
				if e, err = s.Record(); err == nil {
					err = e.Wait(context.Background())
				}
			}
			errs <- err
		}()
	}
	for range n {
		r.must(<-errs)
	}
	if !bytes.Equal(r.read(a, n*64, n*64), want) {
		r.Fatal("bytes differ")
	}
}

func testArenaIsBusy(r *rig) {
	src, dst := r.arena("src", 1, 64), r.arena("dst", 0, 64)
	s := r.stream("s")
	gate := make(chan struct{})
	r.must(s.Call(func() error { <-gate; return nil }))
	r.must(s.CopyBatch([]nvlink.Copy{piece(dst, 0, src, 0, 8), piece(dst, 8, src, 16, 8)}))
	for _, a := range []nvlink.Arena{src, dst} {
		if err := a.Close(); !errors.Is(err, nvlink.ErrBusy) {
			r.Errorf("close of %q with copies in flight: %v", a.Name(), err)
		}
	}
	close(gate)
	r.must(r.sync(s))
	r.must(src.Close())
	r.must(src.Close())
}

func testClosedArena(r *rig) {
	src, dst := r.arena("src", 1, 64), r.arena("dst", 0, 64)
	s := r.stream("s")
	r.must(src.Close())
	err := s.CopyBatch([]nvlink.Copy{piece(dst, 0, src, 0, 8)})
	if !errors.Is(err, nvlink.ErrClosed) {
		r.Fatalf("copy from a closed arena: %v", err)
	}
	r.must(dst.Close()) // the refused copy holds nothing
}

func testCloseDrains(r *rig) {
	src, dst := r.arena("src", 1, 1<<16), r.arena("dst", 0, 1<<16)
	want := r.fill(src, 12)
	s := r.stream("s")
	gate := make(chan struct{})
	r.must(s.Call(func() error { <-gate; return nil }))
	r.must(s.CopyBatch([]nvlink.Copy{piece(dst, 0, src, 0, 1<<16)}))
	e := r.record(s)
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	// The stream refuses new work as soon as Close has begun.
	for !errors.Is(s.CopyBatch(nil), nvlink.ErrClosed) {
		runtime.Gosched()
	}
	select {
	case <-closed:
		r.Fatal("Close returned with operations queued")
	default:
	}
	close(gate)
	r.must(<-closed)
	if !isDone(e) || !bytes.Equal(r.read(dst, 0, 1<<16), want) {
		r.Fatal("Close dropped what was queued")
	}
}

func testClosedStream(r *rig) {
	s := r.stream("s")
	r.must(s.Close())
	r.must(s.Close())
	_, recErr := s.Record()
	for name, err := range map[string]error{
		"CopyBatch": s.CopyBatch(nil),
		"Call":      s.Call(func() error { return nil }),
		"WaitEvent": s.WaitEvent(hostEvent{make(chan struct{})}),
		"Record":    recErr,
	} {
		if !errors.Is(err, nvlink.ErrClosed) {
			r.Errorf("%s on a closed stream: %v", name, err)
		}
	}
}

func testClosedFabric(r *rig) {
	src, dst := r.arena("src", 1, 64), r.arena("dst", 0, 64)
	want := r.fill(src, 13)
	s := r.stream("s")
	r.must(s.CopyBatch([]nvlink.Copy{piece(dst, 0, src, 0, 64)}))
	r.must(r.f.Close())
	r.must(r.f.Close())
	if !bytes.Equal(r.read(dst, 0, 64), want) {
		r.Error("closing the fabric dropped a copy")
	}
	if err := s.CopyBatch(nil); !errors.Is(err, nvlink.ErrClosed) {
		r.Errorf("stream of a closed fabric: %v", err)
	}
	if _, err := r.f.NewStream(r.h.Devices[0], "late"); !errors.Is(err, nvlink.ErrClosed) {
		r.Errorf("NewStream on a closed fabric: %v", err)
	}
}

func testCloseReportsLostError(r *rig) {
	s := r.stream("s")
	lost := errors.New("lost")
	r.must(s.Call(func() error { return lost }))
	if err := s.Close(); !errors.Is(err, lost) {
		r.Fatalf("Close: %v, want the error that no event reported", err)
	}
}
