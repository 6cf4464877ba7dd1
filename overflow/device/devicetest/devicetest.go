// Package devicetest says what a device.Device must do: one behaviour suite
// that every kind of device passes, in the ring and in threads.
package devicetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvlend/kvlend/overflow/device"
)

// MinSize is how large a subject's device must be at least, in bytes.
const MinSize = 24 << 20

// Subject is an open device that may be overwritten.
type Subject struct {
	Device device.Device
	Memory *device.Memory // of its engine, at least MinSize
	// Allocates says that the device may allocate at every I/O.
	Allocates bool
}

// Run runs the suite. open opens a fresh subject; what must be closed besides
// the device is closed by t's cleanup.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Subject)
	}{
		{"Info", testInfo},
		{"RoundTrip", testRoundTrip},
		{"GoMemory", testGoMemory},
		{"Batch", testBatch},
		{"Concurrent", testConcurrent},
		{"Model", testModel},
		{"Refusals", testRefusals},
		{"TwiceInFlight", testTwiceInFlight},
		{"Cancel", testCancel},
		{"DoneSubmits", testDoneSubmits},
		{"Times", testTimes},
		{"Sync", testSync},
		{"CloseInFlight", testCloseInFlight},
		{"SubmitsDuringClose", testSubmitsDuringClose},
		{"NoAllocation", testNoAllocation},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t)
			if s.Device.Info().Size < MinSize {
				t.Fatalf("the subject has %d bytes, %d are needed", s.Device.Info().Size, MinSize)
			}
			c.test(t, s)
			if err := s.Device.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			for purpose, u := range s.Memory.Usage() {
				if u.InUse != 0 {
					t.Errorf("%d bytes of memory for %q were not put back", u.InUse, purpose)
				}
			}
		})
	}
}

// Do submits ios as one batch, without their Done, and waits for all. It
// returns the first error.
func Do(d device.Device, ios ...*device.IO) error {
	var wg sync.WaitGroup
	wg.Add(len(ios))
	for _, io := range ios {
		io.Done = func(*device.IO) { wg.Done() }
	}
	if err := d.Submit(ios); err != nil {
		return err
	}
	wg.Wait()
	for _, io := range ios {
		if io.Err != nil {
			return io.Err
		}
	}
	return nil
}

// Fill fills b with bytes that follow from seed; no two pages are equal.
func Fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
}

func filled(n int, seed uint64) []byte {
	b := make([]byte, n)
	Fill(b, seed)
	return b
}

func (s Subject) get(t testing.TB, n int) []byte {
	b, err := s.Memory.Get(context.Background(), n)
	if err != nil {
		t.Fatalf("a buffer of %d bytes: %v", n, err)
	}
	return b
}

// put writes data at off.
func (s Subject) put(t testing.TB, off int64, data []byte) {
	t.Helper()
	b := s.get(t, len(data))
	defer s.Memory.Put(b)
	copy(b, data)
	if err := Do(s.Device, &device.IO{Write: true, Off: off, Buf: b}); err != nil {
		t.Fatalf("write of %d bytes at %d: %v", len(data), off, err)
	}
}

// want reads what must be data.
func (s Subject) want(t testing.TB, off int64, data []byte) {
	t.Helper()
	b := s.get(t, len(data))
	defer s.Memory.Put(b)
	clear(b)
	if err := Do(s.Device, &device.IO{Off: off, Buf: b}); err != nil {
		t.Fatalf("read of %d bytes at %d: %v", len(data), off, err)
	}
	if !bytes.Equal(b, data) {
		t.Fatalf("%d bytes at %d read back differently", len(data), off)
	}
}

func testInfo(t *testing.T, s Subject) {
	i := s.Device.Info()
	if i.Name == "" || i.Kind == "" {
		t.Errorf("name %q, kind %q", i.Name, i.Kind)
	}
	if i.Size%device.Align != 0 || i.MaxIO < device.Align || i.MaxIO%device.Align != 0 {
		t.Errorf("size %d, largest I/O %d: not multiples of %d", i.Size, i.MaxIO, device.Align)
	}
	if (i.Path == "") != (i.Kind == device.DRAM) {
		t.Errorf("path %q of kind %s", i.Path, i.Kind)
	}
}

func testRoundTrip(t *testing.T, s Subject) {
	maxIO := int(s.Device.Info().MaxIO)
	for i, n := range []int{device.Align, 3 * device.Align, 64 << 10, maxIO, maxIO + device.Align, 4*maxIO - device.Align} {
		n = min(n, 8<<20)
		data := filled(n, uint64(i))
		off := int64(i) * device.Align
		s.put(t, off, data)
		s.want(t, off, data)
	}
	// The last bytes of the device.
	data := filled(64<<10, 99)
	end := s.Device.Info().Size - int64(len(data))
	s.put(t, end, data)
	s.want(t, end, data)
}

// testGoMemory uses buffers that are not the engine's.
func testGoMemory(t *testing.T, s Subject) {
	w, r := aligned(128<<10), aligned(128<<10)
	Fill(w, 5)
	if err := Do(s.Device, &device.IO{Write: true, Off: 8192, Buf: w}); err != nil {
		t.Fatal(err)
	}
	if err := Do(s.Device, &device.IO{Off: 8192, Buf: r}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(w, r) {
		t.Fatal("read back differently")
	}
}

// testBatch submits thousands of small I/Os at once.
func testBatch(t *testing.T, s Subject) {
	const n = 5000
	mem := s.get(t, n*device.Align)
	defer s.Memory.Put(mem)
	Fill(mem, 1)
	want := bytes.Clone(mem)
	for _, write := range []bool{true, false} {
		ios := make([]*device.IO, n)
		for i, p := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
			at := p * device.Align
			ios[i] = &device.IO{Write: write, Off: int64(at), Buf: mem[at : at+device.Align]}
		}
		if err := Do(s.Device, ios...); err != nil {
			t.Fatal(err)
		}
		if write {
			clear(mem)
		}
	}
	if !bytes.Equal(mem, want) {
		t.Fatal("read back differently")
	}
}

// testConcurrent has goroutines write and read areas of their own.
func testConcurrent(t *testing.T, s Subject) {
	const workers, area, rounds = 8, 2 << 20, 12
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 3))
			model := make([]byte, area)
			base := int64(w) * area
			buf, err := s.Memory.Get(context.Background(), area)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Memory.Put(buf)
			Fill(buf, uint64(w))
			copy(model, buf)
			if err := Do(s.Device, &device.IO{Write: true, Off: base, Buf: buf}); err != nil {
				t.Error(err)
				return
			}
			for range rounds {
				n := (1 + r.IntN(32)) * device.Align
				off := r.IntN((area-n)/device.Align) * device.Align
				Fill(buf[:n], r.Uint64())
				copy(model[off:], buf[:n])
				err := Do(s.Device, &device.IO{Write: true, Off: base + int64(off), Buf: buf[:n]})
				clear(buf)
				if err == nil {
					err = Do(s.Device, &device.IO{Off: base, Buf: buf})
				}
				if err != nil {
					t.Error(err)
					return
				}
				if !bytes.Equal(buf, model) {
					t.Errorf("worker %d read something else than it wrote", w)
					return
				}
			}
		})
	}
	wg.Wait()
}

// testModel compares random batches with a model in memory.
func testModel(t *testing.T, s Subject) {
	const pages = 256
	model := make([]byte, pages*device.Align)
	s.put(t, 0, model)
	rapid.Check(t, func(rt *rapid.T) {
		write := rapid.Bool().Draw(rt, "write")
		cuts := rapid.SliceOfNDistinct(rapid.IntRange(0, pages), 2, 20, rapid.ID[int]).Draw(rt, "cuts")
		mem := s.get(t, len(model))
		defer s.Memory.Put(mem)
		Fill(mem, rapid.Uint64().Draw(rt, "seed"))
		var ios []*device.IO
		for i := 1; i < len(cuts); i++ { // disjoint, since each lies between neighbours in order
			from, to := cuts[i-1]*device.Align, cuts[i]*device.Align
			if from >= to || i%2 == 0 {
				continue
			}
			if len(ios) > 0 && overlaps(ios, int64(from), int64(to)) {
				continue
			}
			ios = append(ios, &device.IO{Write: write, Off: int64(from), Buf: mem[from:to]})
		}
		if err := Do(s.Device, ios...); err != nil {
			rt.Fatal(err)
		}
		for _, io := range ios {
			at := model[io.Off : io.Off+int64(len(io.Buf))]
			if write {
				copy(at, io.Buf)
			} else if !bytes.Equal(at, io.Buf) {
				rt.Fatalf("%d bytes at %d differ from the model", len(io.Buf), io.Off)
			}
		}
	})
	s.want(t, 0, model)
}

func overlaps(ios []*device.IO, from, to int64) bool {
	for _, io := range ios {
		if from < io.Off+int64(len(io.Buf)) && io.Off < to {
			return true
		}
	}
	return false
}

func testRefusals(t *testing.T, s Subject) {
	const a = device.Align
	size := s.Device.Info().Size
	mem := s.get(t, 4*a)
	defer s.Memory.Put(mem)
	before := filled(a, 1)
	s.put(t, 0, before)
	Fill(mem, 2)
	never := func(io *device.IO) { t.Errorf("Done of an I/O of a refused batch was called: %v", io.Err) }
	for name, io := range map[string]*device.IO{
		"offset":            {Off: 1, Buf: mem[:a], Done: never},
		"negative offset":   {Off: -a, Buf: mem[:a], Done: never},
		"length":            {Buf: mem[:a-1], Done: never},
		"empty":             {Done: never},
		"beyond the end":    {Off: size, Buf: mem[:a], Done: never},
		"across the end":    {Off: size - a, Buf: mem[:2*a], Done: never},
		"far beyond":        {Off: 1<<63 - a, Buf: mem[:a], Done: never},
		"unaligned address": {Buf: mem[512 : 512+a], Done: never},
		"no Done":           {Buf: mem[:a]},
	} {
		good := &device.IO{Write: true, Buf: mem[:a], Done: never}
		err := s.Device.Submit([]*device.IO{good, io})
		var e *device.Error
		if !errors.Is(err, device.ErrUnaligned) || !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if e.Device != s.Device.Info().Name || e.Op != "read" || e.Off != io.Off || e.Len != len(io.Buf) {
			t.Errorf("%s: the error tells of another I/O: %v", name, e)
		}
	}
	if err := s.Device.Submit(nil); err != nil {
		t.Errorf("an empty batch: %v", err)
	}
	s.want(t, 0, before)
}

// testTwiceInFlight submits an IO that is in flight.
func testTwiceInFlight(t *testing.T, s Subject) {
	mem := s.get(t, device.Align)
	defer s.Memory.Put(mem)
	done := make(chan error, 1)
	io := &device.IO{Buf: mem}
	io.Done = func(io *device.IO) {
		// It is the caller's again; a batch that holds it twice is refused whole.
		again := *io
		other := &device.IO{Buf: again.Buf, Done: func(*device.IO) { t.Error("Done of a refused batch was called") }}
		err := s.Device.Submit([]*device.IO{other, other})
		if !errors.Is(err, device.ErrUnaligned) {
			done <- errors.Join(errors.New("an I/O twice in a batch was not refused"), err)
			return
		}
		done <- io.Err
	}
	if err := s.Device.Submit([]*device.IO{io}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// testCancel cancels I/Os at every stage: each is done once, with its effect or
// with ErrCancelled.
func testCancel(t *testing.T, s Subject) {
	const n, size = 400, 8 * device.Align
	mem := s.get(t, n*size)
	defer s.Memory.Put(mem)
	Fill(mem, 3)
	var wg sync.WaitGroup
	wg.Add(n)
	calls := make([]int, n)
	ios := make([]*device.IO, n)
	for i := range ios {
		ios[i] = &device.IO{Write: true, Off: int64(i * size), Buf: mem[i*size : (i+1)*size], Owner: i,
			Done: func(io *device.IO) { calls[io.Owner.(int)]++; wg.Done() }}
	}
	if err := s.Device.Submit(ios); err != nil {
		t.Fatal(err)
	}
	for i := n - 1; i >= 0; i-- {
		s.Device.Cancel(ios[i])
		s.Device.Cancel(ios[i])
	}
	wg.Wait()
	for _, io := range ios {
		s.Device.Cancel(io) // too late: no effect
	}
	for i, io := range ios {
		if calls[i] != 1 {
			t.Fatalf("Done of I/O %d was called %d times", i, calls[i])
		}
		if io.Ended.Before(io.Began) || io.Ended.IsZero() {
			t.Fatalf("I/O %d began at %v and ended at %v", i, io.Began, io.Ended)
		}
		var e *device.Error
		switch {
		case io.Err == nil:
			s.want(t, io.Off, io.Buf)
		case !errors.Is(io.Err, device.ErrCancelled) || !errors.As(io.Err, &e) || e.Off != io.Off:
			t.Fatalf("I/O %d: %v", i, io.Err)
		}
	}
	// The same IOs work again.
	if err := Do(s.Device, ios...); err != nil {
		t.Fatal(err)
	}
	s.want(t, 0, mem[:1<<20])
}

// testDoneSubmits runs chains of I/Os, each submitted by the one before, with
// more in flight than the engine's bound.
func testDoneSubmits(t *testing.T, s Subject) {
	const chains, links, size = 8, 100, 16 * device.Align
	mem := s.get(t, chains*size)
	defer s.Memory.Put(mem)
	s.put(t, 0, filled(chains*size, 1))
	var wg sync.WaitGroup
	wg.Add(chains)
	for c := range chains {
		left := links
		io := &device.IO{Off: int64(c * size), Buf: mem[c*size : (c+1)*size]}
		batch := []*device.IO{io}
		io.Done = func(io *device.IO) {
			left--
			if io.Err != nil || left == 0 {
				if io.Err != nil {
					t.Error(io.Err)
				}
				wg.Done()
				return
			}
			if err := s.Device.Submit(batch); err != nil {
				t.Error(err)
				wg.Done()
			}
		}
		if err := s.Device.Submit(batch); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	if !bytes.Equal(mem, filled(chains*size, 1)) {
		t.Fatal("read back differently")
	}
}

func testTimes(t *testing.T, s Subject) {
	mem := s.get(t, device.Align)
	defer s.Memory.Put(mem)
	before := time.Now()
	io := &device.IO{Write: true, Buf: mem, Owner: s}
	if err := Do(s.Device, io); err != nil {
		t.Fatal(err)
	}
	if io.Began.Before(before) || io.Ended.Before(io.Began) || time.Now().Before(io.Ended) {
		t.Fatalf("submitted after %v, began %v, ended %v", before, io.Began, io.Ended)
	}
}

func testSync(t *testing.T, s Subject) {
	data := filled(1<<20, 4)
	s.put(t, 0, data)
	if err := s.Device.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Device.Sync(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Sync with a cancelled context: %v", err)
	}
	s.want(t, 0, data)
}

func testCloseInFlight(t *testing.T, s Subject) {
	const n = 2000
	mem := s.get(t, n*device.Align)
	defer s.Memory.Put(mem)
	done := 0 // by one goroutine; Close tells that it has ended
	ios := make([]*device.IO, n)
	for i := range ios {
		ios[i] = &device.IO{Write: true, Off: int64(i * device.Align), Buf: mem[i*device.Align : (i+1)*device.Align],
			Done: func(*device.IO) { done++ }}
	}
	if err := s.Device.Submit(ios); err != nil {
		t.Fatal(err)
	}
	if err := s.Device.Close(); err != nil {
		t.Fatal(err)
	}
	if done != n {
		t.Fatalf("Close returned when %d of %d I/Os were done", done, n)
	}
	var e *device.Error
	if err := s.Device.Submit(ios[:1]); !errors.Is(err, device.ErrClosed) || !errors.As(err, &e) {
		t.Errorf("Submit after Close: %v", err)
	}
	if err := s.Device.Sync(context.Background()); !errors.Is(err, device.ErrClosed) {
		t.Errorf("Sync after Close: %v", err)
	}
	s.Device.Cancel(ios[0])
	if err := s.Device.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

// testSubmitsDuringClose closes while others submit: each batch is done or refused.
func testSubmitsDuringClose(t *testing.T, s Subject) {
	const workers = 4
	var wg sync.WaitGroup
	begun := make(chan struct{}, workers)
	for w := range workers {
		wg.Go(func() {
			mem, err := s.Memory.Get(context.Background(), 64<<10)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Memory.Put(mem)
			for i := 0; ; i++ {
				err := Do(s.Device, &device.IO{Write: true, Off: int64(w) << 20, Buf: mem})
				if i == 0 {
					begun <- struct{}{}
				}
				if errors.Is(err, device.ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range workers {
		<-begun
	}
	if err := s.Device.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// testNoAllocation reuses IOs and registered buffers.
func testNoAllocation(t *testing.T, s Subject) {
	if s.Allocates {
		t.Skip("this device may allocate")
	}
	const n = 512
	mem := s.get(t, n*device.Align)
	defer s.Memory.Put(mem)
	done := make(chan struct{}, 1)
	left := 0 // set before Submit, then the engine's goroutine's
	ios := make([]*device.IO, n)
	for i := range ios {
		at := i * device.Align
		ios[i] = &device.IO{Write: i%2 == 0, Off: int64(at), Buf: mem[at : at+device.Align], Done: func(io *device.IO) {
			if left--; left == 0 {
				done <- struct{}{}
			}
		}}
	}
	round := func() {
		left = n
		if err := s.Device.Submit(ios); err != nil {
			t.Fatal(err)
		}
		<-done
	}
	for range 3 {
		round() // until every list has its size
	}
	if got := testing.AllocsPerRun(10, round); got > 2 {
		t.Errorf("%v allocations for a batch of %d I/Os: not none each", got, n)
	}
}
