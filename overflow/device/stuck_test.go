package device

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/overflow/ring"
)

// hangs is a stub's operation that ends when free is closed, and then as it
// should.
func hangs(free chan struct{}) func(m *stub, o *op) int32 {
	return func(m *stub, o *op) int32 {
		<-free
		return m.dramMedium.perform(o)
	}
}

// stuckError checks that err says which device is stuck.
func stuckError(t *testing.T, err error, name string) {
	t.Helper()
	var typed *Error
	if !errors.Is(err, ErrStuck) || !errors.As(err, &typed) || typed.Device != name || typed.Op != "close" {
		t.Fatalf("closing gives %v, want ErrStuck of device %s", err, name)
	}
}

// TestCloseOfAStuckDevice: Close ends in time and says what it is; what was not
// started ends at once; the device stays taken and its I/O's memory alive until it
// lets go.
func TestCloseOfAStuckDevice(t *testing.T) {
	e := testEngine(t, EngineOptions{CloseWait: 20 * time.Millisecond})
	free := make(chan struct{})
	s := openStub(t, e, "tired", hangs(free))
	copy(s.medium.(*stub).mem, "what the device holds")
	done := make(chan *IO, 8)
	var ios []*IO
	for range 8 { // of which 4 are under way at a time
		ios = append(ios, &IO{Buf: e.Memory().TryGet(Align), Done: func(io *IO) { done <- io }})
	}
	if err := s.Submit(ios); err != nil {
		t.Fatal(err)
	}
	stuckError(t, s.Close(), "tired")
	for range 4 {
		if io := <-done; !errors.Is(io.Err, ErrCancelled) {
			t.Errorf("what was never started ends with %v", io.Err)
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	if err := s.Submit(ios[:1]); !errors.Is(err, ErrClosed) {
		t.Errorf("Submit afterwards: %v", err)
	}
	taken := &store{e: e, medium: s.medium, info: s.info, meter: NewMeter()}
	if _, err := e.join(taken); !errors.Is(err, ErrInUse) {
		t.Errorf("the device can be opened while it is stuck: %v", err)
	}
	close(free)
	for range 4 {
		io := <-done
		if io.Err != nil || !bytes.HasPrefix(io.Buf, []byte("what the device holds")) {
			t.Errorf("%v, %q", io.Err, io.Buf[:21])
		}
	}
	for _, io := range ios {
		e.Memory().Put(io.Buf)
	}
	// The name is free once the device has let go.
	e.mu.Lock()
	for len(e.stores) > 0 {
		e.wait()
	}
	e.mu.Unlock()
	if err := openStub(t, e, "tired", hangs(free)).Close(); err != nil {
		t.Error(err)
	}
}

// TestEngineCloseWithStuckDevices: it takes one CloseWait for all of them, and the
// memory stays where the devices may still write to it.
func TestEngineCloseWithStuckDevices(t *testing.T) {
	e, err := NewEngine(EngineOptions{CloseWait: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	free := make(chan struct{})
	done := make(chan error, 8)
	names := []string{"one", "two", "three", "four"}
	var bufs [][]byte
	for _, name := range names {
		s := openStub(t, e, name, hangs(free))
		s.medium.(*stub).mem[5] = 77
		io := &IO{Buf: e.Memory().TryGet(Align), Done: func(io *IO) { done <- io.Err }}
		bufs = append(bufs, io.Buf)
		if err := s.Submit([]*IO{io}); err != nil {
			t.Fatal(err)
		}
	}
	fine := openStub(t, e, "fine", func(m *stub, o *op) int32 { return m.dramMedium.perform(o) })
	err = e.Close()
	for _, name := range names {
		if err == nil || !strings.Contains(err.Error(), "device "+name+":") {
			t.Errorf("the error names no device %s: %v", name, err)
		}
	}
	if !errors.Is(err, ErrStuck) || strings.Contains(err.Error(), "fine") {
		t.Errorf("closing gives %v", err)
	}
	if err := fine.Submit(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("a device that is not stuck answers %v after all was closed", err)
	}
	if err := e.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	if b := e.Memory().TryGet(Align); b != nil {
		t.Error("a closed engine gives buffers")
	}
	if _, err := e.Memory().Get(context.Background(), Align); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed engine's Get: %v", err)
	}
	select {
	case <-e.stopped:
		t.Fatal("the engine has ended under its I/O")
	default:
	}
	close(free)
	for range names {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for _, b := range bufs {
		if b[5] != 77 {
			t.Error("what the device read late did not reach its buffer")
		}
		e.Memory().Put(b)
	}
	<-e.stopped
}

// TestSyncIsLeftBehind: a sync that does not end holds nobody.
func TestSyncIsLeftBehind(t *testing.T) {
	e := testEngine(t, EngineOptions{CloseWait: 10 * time.Millisecond})
	free := make(chan struct{})
	defer close(free)
	s := openStub(t, e, "slow to sync", func(m *stub, o *op) int32 {
		<-free
		return 0
	})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := s.Sync(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Sync: %v", err)
	}
	stuckError(t, s.Close(), "slow to sync")
}

// pipeMedium reads from a pipe that nobody writes to, in the ring.
type pipeMedium struct {
	stub
	fds  [2]int
	slot int
}

func (m *pipeMedium) threads() *pool { return nil }

func (m *pipeMedium) attach(r *ring.Ring) (err error) {
	m.slot, err = r.AddFile(m.fds[0])
	return err
}

func (m *pipeMedium) detach(r *ring.Ring) error { return r.RemoveFile(m.slot) }

func (m *pipeMedium) prepare(r *ring.Ring, user uint64, o *op) {
	r.Read(user, m.slot, -1, o.buf, o.region)
}

func (m *pipeMedium) close() error {
	m.pool.close()
	return errors.Join(unix.Close(m.fds[0]), unix.Close(m.fds[1]))
}

// TestCloseCancels: what the kernel can still cancel does not make a device stuck.
func TestCloseCancels(t *testing.T) {
	e := testEngine(t, EngineOptions{CloseWait: 2 * time.Second})
	if e.loop.ring == nil {
		t.Skip("no io_uring here:", e.degraded)
	}
	m := &pipeMedium{stub: stub{dramMedium: dramMedium{pool: newPool(e, 1)}}}
	if err := unix.Pipe2(m.fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	info := Info{Name: "pipe", Kind: File, Size: 1 << 20, MaxIO: 2 * Align}
	s, err := e.join(&store{e: e, medium: m, info: info, depth: 3, meter: NewMeter()})
	if err != nil {
		t.Fatal(err)
	}
	mem := e.Memory().TryGet(64 << 10)
	defer e.Memory().Put(mem)
	done := make(chan error, 4)
	var ios []*IO
	for i := range 4 { // in two parts each, of which three are under way
		ios = append(ios, &IO{Buf: mem[i*4*Align:][:4*Align], Done: func(io *IO) { done <- io.Err }})
	}
	if err := s.Submit(ios); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range ios {
		if err := <-done; !errors.Is(err, ErrCancelled) {
			t.Errorf("%v, want ErrCancelled", err)
		}
	}
}
