package device

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// stub is memory whose operations a test has its hands on.
type stub struct {
	dramMedium
	do func(o *op) int32
}

func (m *stub) perform(o *op) int32 { return m.do(o) }
func (m *stub) close() error        { m.pool.close(); return nil }

// openStub opens a device of 1 MiB that is performed by do, or by a copy.
func openStub(t *testing.T, e *Engine, name string, do func(m *stub, o *op) int32) *store {
	t.Helper()
	m := &stub{dramMedium: dramMedium{mem: make([]byte, 1<<20), pool: newPool(e, 2)}}
	m.do = func(o *op) int32 { return do(m, o) }
	info := Info{Name: name, Path: "stub", Kind: File, Size: 1 << 20, MaxIO: 64 << 10}
	s, err := e.join(&store{e: e, medium: m, info: info, write: true, depth: 4, meter: NewMeter()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func testEngine(t *testing.T, o EngineOptions) *Engine {
	t.Helper()
	e, err := NewEngine(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// TestAHangingDeviceStopsNoOther: its own Submit waits at the engine's bound,
// that of others does not; what waits in its queue can be cancelled.
func TestAHangingDeviceStopsNoOther(t *testing.T) {
	e := testEngine(t, EngineOptions{InFlight: 256 << 10})
	free := make(chan struct{})
	hung := openStub(t, e, "hung", func(m *stub, o *op) int32 {
		<-free
		return m.dramMedium.perform(o)
	})
	fine := openStub(t, e, "fine", func(m *stub, o *op) int32 { return m.dramMedium.perform(o) })
	mem := e.Memory().TryGet(2 << 20)
	defer e.Memory().Put(mem)
	done := make(chan *IO, 64)
	var ios []*IO
	for i := range 16 {
		at := i * 64 << 10
		ios = append(ios, &IO{Off: int64(at), Buf: mem[at : at+64<<10], Done: func(io *IO) { done <- io }})
	}
	if err := hung.Submit(ios); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ok := make(chan error, 1)
		io := &IO{Write: true, Buf: mem[1<<20:][:64<<10], Done: func(io *IO) { ok <- io.Err }}
		if err := fine.Submit([]*IO{io}); err != nil {
			t.Fatal(err)
		}
		if err := <-ok; err != nil {
			t.Fatal(err)
		}
	}
	later := &IO{Buf: mem[1<<20:][:Align], Done: func(io *IO) { done <- io }}
	submitted := make(chan error)
	go func() { submitted <- hung.Submit([]*IO{later}) }()
	hung.Cancel(ios[15]) // it waits in the queue
	if io := <-done; io != ios[15] || !errors.Is(io.Err, ErrCancelled) {
		t.Fatalf("%v", io.Err)
	}
	select {
	case <-submitted:
		t.Fatal("Submit did not wait, with 4 times the bound in flight")
	default:
	}
	close(free)
	if err := <-submitted; err != nil {
		t.Fatal(err)
	}
	for range 16 {
		if io := <-done; io.Err != nil {
			t.Error(io.Err)
		}
	}
}

// TestShortTransfersGoOn: what a device leaves undone is asked for again, at
// aligned offsets.
func TestShortTransfersGoOn(t *testing.T) {
	e := testEngine(t, EngineOptions{})
	s := openStub(t, e, "short", func(m *stub, o *op) int32 {
		if o.off%Align != 0 || len(o.buf)%Align != 0 {
			t.Errorf("%d bytes at %d: not aligned", len(o.buf), o.off)
		}
		part := *o
		part.buf = o.buf[:min(len(o.buf), Align+512)]
		return m.dramMedium.perform(&part)
	})
	mem := e.Memory().TryGet(1 << 20)
	defer e.Memory().Put(mem)
	for i := range mem {
		mem[i] = byte(i / 777)
	}
	want := bytes.Clone(mem)
	for _, write := range []bool{true, false} {
		done := make(chan error, 1)
		if err := s.Submit([]*IO{{Write: write, Buf: mem, Done: func(io *IO) { done <- io.Err }}}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if write {
			clear(mem)
		}
	}
	if !bytes.Equal(mem, want) {
		t.Error("read back differently")
	}
}

func TestFailuresAreTyped(t *testing.T) {
	e := testEngine(t, EngineOptions{})
	res := make(chan int32, 1)
	s := openStub(t, e, "bad", func(m *stub, o *op) int32 {
		r := <-res
		res <- r
		return r
	})
	mem := e.Memory().TryGet(256 << 10)
	defer e.Memory().Put(mem)
	for _, c := range []struct {
		res  int32
		want error
	}{
		{512, ErrShort}, {0, ErrGone}, {-int32(unix.EIO), ErrIO}, {-int32(unix.ENOSPC), ErrFull},
		{-int32(unix.ENODEV), ErrGone}, {-int32(unix.EROFS), ErrReadOnly}, {-int32(unix.EAGAIN), ErrIO},
	} {
		res <- c.res
		done := make(chan error, 1)
		io := &IO{Off: 4096, Buf: mem, Done: func(io *IO) { done <- io.Err }}
		if err := s.Submit([]*IO{io}); err != nil {
			t.Fatal(err)
		}
		var typed *Error
		if err := <-done; !errors.Is(err, c.want) || !errors.As(err, &typed) || typed.Device != "bad" || typed.Off != 4096 || typed.Len != len(mem) {
			t.Errorf("result %d: %v, want %v", c.res, err, c.want)
		}
		<-res
	}
	res <- -int32(unix.EIO)
	var typed *Error
	if err := s.Sync(context.Background()); !errors.Is(err, ErrIO) || !errors.As(err, &typed) || typed.Op != "sync" {
		t.Errorf("sync: %v", err)
	}
	<-res
}

// TestNamespaceWithoutRing: an NVMe namespace without a ring is its block device.
func TestNamespaceWithoutRing(t *testing.T) {
	e := testEngine(t, EngineOptions{Portable: true})
	path := t.TempDir() + "/f"
	d, err := Open(context.Background(), e, Options{Path: path, Size: 1 << 20, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	n, err := OpenNVMe(context.Background(), e, NVMeOptions{Name: "n", Path: "/dev/null", Block: path})
	if err != nil {
		t.Fatal(err)
	}
	if i := n.Info(); i.Name != "n" || i.Kind != File || i.Size != 1<<20 || i.Degraded == "" {
		t.Errorf("%+v", i)
	}
}
