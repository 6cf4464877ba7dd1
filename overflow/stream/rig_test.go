package stream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/shm"
	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/stream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const page = device.Align

// fake is a device in memory whose I/Os end when the test says so.
type fake struct {
	t    testing.TB
	info device.Info
	// hold keeps I/Os in flight until land; otherwise they end in Submit.
	hold bool
	// deaf: Cancel does nothing.
	deaf bool
	// fault, when set, is asked when an I/O ends.
	fault func(io *device.IO) error
	// refuse, when set, is the answer to Submit.
	refuse error

	// news has something after each Submit that was held; of room for one.
	news chan struct{}

	mu      sync.Mutex
	mem     []byte
	flying  []*device.IO
	submits []int // I/Os of each Submit
	log     []ioKey
}

// ioKey is what was asked for.
type ioKey struct {
	Write  bool
	Off, N int
}

func newFake(t testing.TB, name string, size int64) *fake {
	d := &fake{t: t, info: device.Info{Name: name, Kind: device.DRAM, Size: size}, mem: make([]byte, size), news: make(chan struct{}, 1)}
	for i := range d.mem {
		d.mem[i] = byte(i*7 + i>>8*13 + len(name))
	}
	return d
}

func (d *fake) Info() device.Info { return d.info }

func (d *fake) Submit(ios []*device.IO) error {
	d.mu.Lock()
	if d.refuse != nil {
		defer d.mu.Unlock()
		return d.refuse
	}
	d.submits = append(d.submits, len(ios))
	for _, io := range ios {
		d.log = append(d.log, ioKey{io.Write, int(io.Off), len(io.Buf)})
		if io.Off < 0 || io.Off%page != 0 || len(io.Buf) == 0 || len(io.Buf)%page != 0 || io.Off+int64(len(io.Buf)) > d.info.Size {
			d.t.Errorf("device %s: bad I/O of %d bytes at %d", d.info.Name, len(io.Buf), io.Off)
		}
		for _, x := range d.flying {
			if (x.Write || io.Write) && io.Off < x.Off+int64(len(x.Buf)) && x.Off < io.Off+int64(len(io.Buf)) {
				d.t.Errorf("device %s: I/Os of %d at %d and %d at %d overlap and one writes", d.info.Name, len(x.Buf), x.Off, len(io.Buf), io.Off)
			}
		}
		d.flying = append(d.flying, io)
	}
	hold := d.hold
	d.mu.Unlock()
	if hold {
		select {
		case d.news <- struct{}{}:
		default:
		}
	} else {
		for _, io := range slices.Clone(ios) {
			d.land(io, nil)
		}
	}
	return nil
}

// land ends an I/O that is in flight; false: it is not.
func (d *fake) land(io *device.IO, err error) bool {
	d.mu.Lock()
	i := slices.Index(d.flying, io)
	if i < 0 {
		d.mu.Unlock()
		return false
	}
	d.flying = slices.Delete(d.flying, i, i+1)
	if err == nil && d.fault != nil {
		err = d.fault(io)
	}
	at := d.mem[io.Off:][:len(io.Buf)]
	switch {
	case err != nil:
		op := "read"
		if io.Write {
			op = "write"
		}
		clear(io.Buf[:len(io.Buf)/2]) // half a transfer
		err = &device.Error{Device: d.info.Name, Op: op, Off: io.Off, Len: len(io.Buf), Err: err}
	case io.Write:
		copy(at, io.Buf)
	default:
		copy(io.Buf, at)
	}
	d.mu.Unlock()
	io.Err = err
	io.Done(io)
	return true
}

// inFlight lists what is in flight.
func (d *fake) inFlight() []*device.IO {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.flying)
}

// landAll ends everything in flight, last first, and reports how many.
func (d *fake) landAll() int {
	ios := d.inFlight()
	for _, io := range slices.Backward(ios) {
		d.land(io, nil)
	}
	return len(ios)
}

// asked is what was submitted since the last call.
func (d *fake) asked() []ioKey {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.log
	d.log = nil
	return l
}

func (d *fake) Cancel(io *device.IO) {
	if !d.deaf {
		d.land(io, device.ErrCancelled)
	}
}

func (d *fake) Sync(context.Context) error { return nil }

func (d *fake) Close() error { return nil }

func (d *fake) bytes(off, n int64) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return bytes.Clone(d.mem[off:][:n])
}

// memory is a stream.Memory that counts.
type memory struct {
	t    testing.TB
	mu   sync.Mutex
	left int // bytes; TryGet fails beyond
	peak int
	out  map[*byte]int
	free map[int][][]byte
}

func newMemory(t testing.TB, n int) *memory {
	return &memory{t: t, left: n, out: map[*byte]int{}, free: map[int][][]byte{}}
}

func (m *memory) TryGet(n int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n > m.left {
		return nil
	}
	m.left -= n
	var b []byte
	if k := len(m.free[n]); k > 0 {
		b = m.free[n][k-1]
		m.free[n] = m.free[n][:k-1]
	} else {
		b = make([]byte, n)
		for i := range b {
			b[i] = 0xa5
		}
	}
	m.out[&b[0]] = n
	m.peak = max(m.peak, m.used())
	return b
}

func (m *memory) used() int {
	sum := 0
	for _, n := range m.out {
		sum += n
	}
	return sum
}

func (m *memory) Put(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, ok := m.out[&b[0]]
	if !ok {
		m.t.Error("a buffer was put back that was not out")
		return
	}
	delete(m.out, &b[0])
	m.left += n
	m.free[n] = append(m.free[n], b[:n])
}

// empty checks that every buffer came back.
func (m *memory) empty() {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.out) != 0 {
		m.t.Errorf("%d buffers are still out", len(m.out))
	}
}

// rig is a stream with devices and one host arena.
type rig struct {
	testing.TB
	mem  *memory
	host *shm.Arena
	devs []*fake
	ar   []*stream.Arena
	s    *stream.Stream
	errs []*device.Error // of OnError
}

// newRig makes devices of devSize bytes, a host arena of hostSize and a stream.
func newRig(t testing.TB, n int, devSize, hostSize int64, o stream.Options) *rig {
	t.Helper()
	r := &rig{TB: t, mem: newMemory(t, 1<<30)}
	host, err := shm.Create("host", "gpu0", hostSize)
	r.must(err)
	r.host = host
	for i := range n {
		d := newFake(t, fmt.Sprintf("d%d", i), devSize)
		r.devs = append(r.devs, d)
		r.ar = append(r.ar, stream.NewArena(d))
	}
	if o.Memory == nil {
		o.Memory = r.mem
	}
	o.Name = "s"
	o.OnError = func(e *device.Error) { r.errs = append(r.errs, e) }
	r.s, err = stream.New(o)
	r.must(err)
	t.Cleanup(r.close)
	return r
}

// close lets go of everything and checks that nothing was left behind.
func (r *rig) close() {
	for _, d := range r.devs {
		d.mu.Lock()
		d.hold = false
		d.mu.Unlock()
		d.landAll()
	}
	_ = r.s.Close() // tests of faults leave errors that no event reported
	for _, d := range r.devs {
		d.landAll()
	}
	r.mem.empty()
	for _, a := range r.ar {
		r.must(a.Close())
	}
	r.must(r.host.Close())
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) record() nvlink.Event {
	r.Helper()
	e, err := r.s.Record()
	r.must(err)
	return e
}

func (r *rig) sync() error {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return r.record().Wait(ctx)
}

func span(a nvlink.Arena, off, n int64) nvlink.Span { return nvlink.Span{Arena: a, Off: off, Len: n} }

// load is a piece from device i to the host, store one to it.
func (r *rig) load(i int, off, host, n int64) nvlink.Copy {
	return nvlink.Copy{Dst: span(r.host, host, n), Src: span(r.ar[i], off, n)}
}

func (r *rig) store(i int, off, host, n int64) nvlink.Copy {
	return nvlink.Copy{Src: span(r.host, host, n), Dst: span(r.ar[i], off, n)}
}

func (r *rig) copy(pieces ...nvlink.Copy) {
	r.Helper()
	r.must(r.s.CopyBatch(pieces))
}

// fill writes a pattern over the host arena.
func (r *rig) fill(seed int) []byte {
	b := r.host.Bytes()
	for i := range b {
		b[i] = byte(i*11 + i>>8*5 + seed)
	}
	return bytes.Clone(b)
}

func (r *rig) equal(what string, got, want []byte) {
	r.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := range want {
		if got[i] != want[i] {
			r.Fatalf("%s: byte %d is %#x, want %#x", what, i, got[i], want[i])
		}
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

var errTest = errors.New("a fault of the test")
