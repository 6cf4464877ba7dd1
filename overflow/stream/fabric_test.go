package stream_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/overflow/stream"
)

// The tests of this file say for a stream with a device end what package
// nvlink/fabrictest says for fabrics. That suite itself cannot run here: its
// copies lie at odd offsets and have both ends on arenas of one kind.

// plainRig has one device and enough of everything.
func plainRig(t *testing.T) *rig { return newRig(t, 2, 1<<20, 1<<20, stream.Options{}) }

func TestListIsCopied(t *testing.T) {
	r := plainRig(t)
	gate := make(chan struct{})
	r.must(r.s.Call(func() error { <-gate; return nil }))
	pieces := []nvlink.Copy{r.store(0, 0, 0, 64)}
	want := r.fill(5)
	r.copy(pieces...)
	pieces[0] = r.load(0, 0, 32, 1)
	close(gate)
	r.must(r.sync())
	r.equal("device", r.devs[0].bytes(0, 64), want[:64])
}

func TestEmptyList(t *testing.T) {
	r := plainRig(t)
	r.copy()
	r.must(r.sync())
}

// TestInOrder sends a value through a chain of cells on the device and in the
// host, which only gives the right end if each copy sees its predecessor's result.
func TestInOrder(t *testing.T) {
	const n = 200
	r := plainRig(t)
	want := r.fill(6)[:8]
	var calls []int
	for i := range int64(n) {
		r.copy(r.store(int(i%2), i*page, i*8, 8))
		r.copy(r.load(int(i%2), i*page, (i+1)*8, 8))
		if i%50 == 0 {
			r.must(r.s.Call(func() error { calls = append(calls, int(i)); return nil }))
		}
	}
	r.must(r.sync())
	r.equal("end of the chain", r.host.Bytes()[n*8:][:8], want)
	for k, i := range calls {
		if i != k*50 {
			t.Fatalf("calls ran in the order %v", calls)
		}
	}
}

func TestCallsEnqueue(t *testing.T) {
	const n = 50
	r := plainRig(t)
	want := r.fill(6)[:8]
	errs := make(chan error, n)
	var step func(i int64) error
	step = func(i int64) error {
		if i == n {
			errs <- nil
			return nil
		}
		err := r.s.CopyBatch([]nvlink.Copy{r.store(0, i*page, 8*i, 8)})
		if err == nil {
			err = r.s.CopyBatch([]nvlink.Copy{r.load(0, i*page, 8*i+8, 8)})
		}
		if err == nil {
			err = r.s.Call(func() error { return step(i + 1) })
		}
		if err != nil {
			errs <- err
		}
		return err
	}
	r.must(r.s.Call(func() error { return step(0) }))
	r.must(<-errs)
	r.must(r.sync())
	r.equal("end of the chain", r.host.Bytes()[8*n:][:8], want)
}

// hostEvent is an event that no stream made.
type hostEvent struct{ done chan struct{} }

func (e hostEvent) Done() <-chan struct{}      { return e.done }
func (e hostEvent) Err() error                 { return nil }
func (e hostEvent) Wait(context.Context) error { <-e.done; return nil }

func TestErrorsReachOneEvent(t *testing.T) {
	r := plainRig(t)
	want := r.fill(9)
	first, second := errors.New("first"), errors.New("second")
	r.must(r.s.Call(func() error { return first }))
	r.must(r.s.Call(func() error { return second }))
	r.copy(r.store(0, 0, 0, 8))
	e1, e2 := r.record(), r.record()
	if err := e1.Wait(t.Context()); !errors.Is(err, first) {
		t.Fatalf("event reports %v, want the first error", err)
	}
	if err := e2.Wait(t.Context()); err != nil {
		t.Fatalf("the next event reports %v again", err)
	}
	if !errors.Is(e1.Err(), first) || e2.Err() != nil {
		t.Fatalf("Err: %v, %v", e1.Err(), e2.Err())
	}
	r.equal("device", r.devs[0].bytes(0, 8), want[:8])
}

func TestWaitTakesNoError(t *testing.T) {
	r, other := plainRig(t), plainRig(t)
	r.must(other.s.Call(func() error { return errTest }))
	r.must(r.s.WaitEvent(other.record()))
	r.must(r.sync())
}

func TestWaitHonoursContext(t *testing.T) {
	r := plainRig(t)
	gate := make(chan struct{})
	defer close(gate)
	r.must(r.s.Call(func() error { <-gate; return nil }))
	e := r.record()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("Wait with a cancelled context: %v", err)
	}
	if isDone(e) || e.Err() != nil {
		t.Fatal("a cancelled wait completed the event")
	}
}

// foreign is an arena that the host cannot address.
type foreign struct{}

func (foreign) Name() string   { return "foreign" }
func (foreign) Device() string { return "nowhere" }
func (foreign) Size() int64    { return 1 << 20 }
func (foreign) Bytes() []byte  { return nil }
func (foreign) Close() error   { return nil }

func TestBadSpansAreRefused(t *testing.T) {
	r := plainRig(t)
	want := r.fill(1)
	good := r.store(0, 0, 0, 64)
	uneven := r.load(0, 0, 0, 8)
	uneven.Src.Len = 9
	for name, bad := range map[string]nvlink.Copy{
		"past the end of dst":  r.load(0, 0, 1<<20-7, 8),
		"past the end of src":  r.load(0, 1<<20, 0, 1),
		"past the device":      r.store(0, 1<<20-page, 0, page+1),
		"negative offset":      r.load(0, 0, -1, 8),
		"negative far offset":  r.load(0, -page, 0, 8),
		"negative length":      r.load(0, 0, 0, -8),
		"empty":                r.store(0, 0, 0, 0),
		"overflow":             r.load(0, 1<<62, 0, 1<<62+1),
		"huge offset":          r.store(0, 0, 1<<63-1, 8),
		"uneven":               uneven,
		"unaligned":            r.store(0, 512, 0, 8),
		"host to host":         {Dst: span(r.host, 0, 8), Src: span(r.host, 8, 8)},
		"device to device":     {Dst: span(r.ar[0], 0, 8), Src: span(r.ar[1], 0, 8)},
		"nil arena":            {Dst: span(nil, 0, 8), Src: span(r.ar[0], 0, 8)},
		"both nil":             {Dst: span(nil, 0, 8), Src: span(nil, 0, 8)},
		"nil device":           {Dst: span(r.host, 0, 8), Src: span((*stream.Arena)(nil), 0, 8)},
		"arena without memory": {Dst: span(foreign{}, 0, 8), Src: span(r.ar[0], 0, 8)},
	} {
		err := r.s.CopyBatch([]nvlink.Copy{good, good, bad, good})
		if !errors.Is(err, nvlink.ErrBadSpan) || !strings.Contains(err.Error(), "piece 2") {
			t.Errorf("%s: %v; want ErrBadSpan naming piece 2", name, err)
		}
	}
	r.must(r.sync())
	if got := r.devs[0].asked(); got != nil {
		t.Errorf("pieces of a refused list were copied: %v", got)
	}
	r.equal("host", r.host.Bytes(), want)
	// Nothing refused holds an arena.
	r.must(r.ar[0].Close())
	r.must(r.ar[0].Close())
	r.must(r.host.Close())
}

func TestNilIsRefused(t *testing.T) {
	r := plainRig(t)
	if r.s.Call(nil) == nil || r.s.WaitEvent(nil) == nil {
		t.Error("nil was accepted")
	}
	r.must(r.sync())
}

func TestOneStreamManyCallers(t *testing.T) {
	const n = 8
	r := plainRig(t)
	want := r.fill(11)
	errs := make(chan error, n)
	for i := range int64(n) {
		go func() {
			err := r.s.CopyBatch([]nvlink.Copy{r.store(int(i%2), i*page, i*64, 64)})
			if err == nil {
				var e nvlink.Event
				if e, err = r.s.Record(); err == nil {
					err = e.Wait(context.Background())
				}
			}
			errs <- err
		}()
	}
	for range n {
		r.must(<-errs)
	}
	for i := range int64(n) {
		r.equal("device", r.devs[i%2].bytes(i*page, 64), want[i*64:][:64])
	}
}

func TestArenaIsBusy(t *testing.T) {
	r := plainRig(t)
	gate := make(chan struct{})
	r.must(r.s.Call(func() error { <-gate; return nil }))
	r.copy(r.load(0, 0, 0, 8), r.store(1, page, 16, 8))
	for _, a := range []nvlink.Arena{r.ar[0], r.ar[1], r.host} {
		if err := a.Close(); !errors.Is(err, nvlink.ErrBusy) {
			t.Errorf("close of %q with copies in flight: %v", a.Name(), err)
		}
	}
	close(gate)
	r.must(r.sync())
	r.must(r.ar[0].Close())
	if err := r.s.CopyBatch([]nvlink.Copy{r.load(0, 0, 0, 8)}); !errors.Is(err, nvlink.ErrClosed) {
		t.Errorf("copy from a closed arena: %v", err)
	}
	r.must(r.host.Close())
	if err := r.s.CopyBatch([]nvlink.Copy{r.load(1, 0, 0, 8)}); !errors.Is(err, nvlink.ErrClosed) {
		t.Errorf("copy to a closed arena: %v", err)
	}
}

func TestCloseDrains(t *testing.T) {
	r := plainRig(t)
	want := r.fill(12)
	gate := make(chan struct{})
	r.must(r.s.Call(func() error { <-gate; return nil }))
	r.copy(r.store(0, 0, 0, 1<<16))
	e := r.record()
	closed := make(chan error)
	go func() { closed <- r.s.Close() }()
	for !errors.Is(r.s.CopyBatch(nil), nvlink.ErrClosed) {
		runtime.Gosched()
	}
	select {
	case <-closed:
		t.Fatal("Close returned with operations queued")
	default:
	}
	close(gate)
	r.must(<-closed)
	if !isDone(e) {
		t.Error("Close dropped an event")
	}
	r.equal("device", r.devs[0].bytes(0, 1<<16), want[:1<<16])
}

func TestClosedStream(t *testing.T) {
	r := plainRig(t)
	r.must(r.s.Call(func() error { return errTest }))
	if err := r.s.Close(); !errors.Is(err, errTest) {
		t.Fatalf("Close: %v, want the error that no event reported", err)
	}
	r.must(r.s.Close())
	_, recErr := r.s.Record()
	for name, err := range map[string]error{
		"CopyBatch": r.s.CopyBatch(nil),
		"Call":      r.s.Call(func() error { return nil }),
		"WaitEvent": r.s.WaitEvent(hostEvent{make(chan struct{})}),
		"Record":    recErr,
	} {
		if !errors.Is(err, nvlink.ErrClosed) {
			t.Errorf("%s on a closed stream: %v", name, err)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	mem := newMemory(t, 0)
	for field, o := range map[string]stream.Options{
		"Memory":    {},
		"MaxRead":   {Memory: mem, MaxRead: 1000},
		"Staging":   {Memory: mem, Staging: page},
		"Gap":       {Memory: mem, Gap: -1},
		"Timeout":   {Memory: mem, Timeout: -1},
		"SlowAfter": {Memory: mem, SlowAfter: 1},
	} {
		o.Name = "x"
		if s, err := stream.New(o); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
			if err == nil {
				r := s.Close()
				t.Log(r)
			}
		}
	}
}
