package device

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// TestRuns compares the allocator of pages with a map of pages.
func TestRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pages := rapid.Int32Range(1, 700).Draw(t, "pages")
		chunk := rapid.Int32Range(1, 700).Draw(t, "chunk")
		r := newRuns(pages, chunk)
		owner := make([]int, pages)
		taken := map[int32]int32{}
		var order []int32
		for step := range rapid.IntRange(1, 120).Draw(t, "steps") {
			if len(order) > 0 && rapid.Bool().Draw(t, "put") {
				i := rapid.IntRange(0, len(order)-1).Draw(t, "which")
				p := order[i]
				order = append(order[:i], order[i+1:]...)
				if r.taken(p) != taken[p] {
					t.Fatalf("run at %d has %d pages, not %d", p, r.taken(p), taken[p])
				}
				for j := range taken[p] {
					owner[p+j] = 0
				}
				delete(taken, p)
				r.put(p)
				continue
			}
			n := rapid.Int32Range(1, max(1, min(pages, chunk)/2)).Draw(t, "n")
			p := r.take(n)
			if p == noPage {
				if fits(owner, n, chunk) {
					t.Fatalf("no run of %d pages, though there is one", n)
				}
				continue
			}
			if p/chunk != (p+n-1)/chunk {
				t.Fatalf("run of %d pages at %d spans chunks of %d", n, p, chunk)
			}
			for j := range n {
				if owner[p+j] != 0 {
					t.Fatalf("page %d was given twice", p+j)
				}
				owner[p+j] = step + 1
			}
			taken[p] = n
			order = append(order, p)
		}
		for _, p := range order {
			r.put(p)
		}
		// All is one again.
		if r.free != pages || r.take(min(pages, chunk)) == noPage {
			t.Fatalf("after all was put back %d of %d pages are free, in pieces", r.free, pages)
		}
	})
}

func fits(owner []int, n, chunk int32) bool {
	run := int32(0)
	for p, o := range owner {
		if int32(p)%chunk == 0 {
			run = 0
		}
		if run++; o != 0 {
			run = 0
		}
		if run >= n {
			return true
		}
	}
	return false
}

func testArena(t *testing.T, n int64, region int) *arena {
	t.Helper()
	a, err := newArena(n, region, false)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestMemory(t *testing.T) {
	a := testArena(t, 64*Align, 32*Align)
	m, load := a.purpose("other"), a.purpose("other").For("load")
	b := load.TryGet(Align + 1)
	if len(b) != Align+1 || cap(b) != 2*Align || address(b)%Align != 0 {
		t.Fatalf("length %d, room %d, address %#x", len(b), cap(b), address(b))
	}
	if u := m.Usage()["load"]; u != (Usage{2 * Align, 2 * Align}) {
		t.Errorf("usage %+v", u)
	}
	for _, n := range []int{0, -1, 33 * Align} {
		if _, err := m.Get(context.Background(), n); !errors.Is(err, ErrTooLarge) {
			t.Errorf("a buffer of %d bytes: %v", n, err)
		}
	}
	if err := a.close(); err == nil || !bytes.Contains([]byte(err.Error()), []byte("load (8192 bytes)")) {
		t.Errorf("close with a buffer outside: %v", err)
	}
	load.Put(b[:5])
	if m.TryGet(Align) != nil {
		t.Error("a closed arena gave a buffer")
	}
	if _, err := m.Get(context.Background(), Align); !errors.Is(err, ErrClosed) {
		t.Errorf("Get of a closed arena: %v", err)
	}
}

func TestMemoryIsServedInTurn(t *testing.T) {
	a := testArena(t, 4*Align, 4*Align)
	m := a.purpose("x")
	all := m.TryGet(4 * Align)
	got := make(chan int, 2)
	var wg sync.WaitGroup
	waiting := func(n int) bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.waiters) == n
	}
	for i, n := range []int{4 * Align, Align} {
		wg.Go(func() {
			b, err := m.Get(context.Background(), n)
			if err != nil {
				t.Error(err)
			}
			got <- n
			m.Put(b)
		})
		for !waiting(i + 1) {
			runtime.Gosched() // it is on its way into the queue
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := m.Get(ctx, Align); !errors.Is(err, context.Canceled) || !waiting(2) {
		t.Errorf("Get with a cancelled context: %v", err)
	}
	m.Put(all)
	if n := <-got; n != 4*Align {
		t.Errorf("the later and smaller of two was served first")
	}
	wg.Wait()
	if err := a.close(); err != nil {
		t.Error(err)
	}
}

func TestMemoryPanicsOnStrangers(t *testing.T) {
	a := testArena(t, 8*Align, 8*Align)
	m := a.purpose("x")
	b := m.TryGet(2 * Align)
	for name, put := range map[string]func(){
		"a part":          func() { m.Put(b[Align:]) },
		"unaligned":       func() { m.Put(b[1:]) },
		"not the arena's": func() { m.Put(make([]byte, Align)) },
		"other purpose":   func() { m.For("y").Put(b) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was taken back", name)
				}
			}()
			put()
		}()
	}
}

func TestRegions(t *testing.T) {
	a := testArena(t, 10*Align, 4*Align)
	a.registered = true
	if n := len(a.regions()); n != 3 {
		t.Fatalf("%d regions", n)
	}
	for _, c := range []struct{ from, to, want int }{{0, 4, 0}, {4, 5, 1}, {9, 10, 2}, {3, 5, -1}} {
		if got := a.regionOf(a.mem[c.from*Align : c.to*Align]); got != c.want {
			t.Errorf("pages %d to %d: region %d, want %d", c.from, c.to, got, c.want)
		}
	}
	if got := a.regionOf(make([]byte, Align)); got != -1 {
		t.Errorf("Go memory: region %d", got)
	}
	if err := a.close(); err != nil {
		t.Error(err)
	}
}

func TestParseNamespace(t *testing.T) {
	good := func(change func(b []byte)) []byte {
		b := make([]byte, identifySize)
		binary.LittleEndian.PutUint64(b, 1000)
		b[26] = 0x01 // format 1
		b[128+2] = 9
		b[132+2] = 12
		change(b)
		return b
	}
	for name, c := range map[string]struct {
		answer []byte
		size   int64
		shift  uint
	}{
		"4096":          {good(func([]byte) {}), 4096000, 12},
		"512":           {good(func(b []byte) { b[26] = 0x10 }), 512000, 9}, // bit 4 is of the metadata's place
		"high format":   {good(func(b []byte) { b[26] = 0x20; b[128+16*4+2] = 10 }), 1024000, 10},
		"metadata":      {good(func(b []byte) { b[132] = 8 }), 0, 0},
		"tiny blocks":   {good(func(b []byte) { b[134] = 8 }), 0, 0},
		"large blocks":  {good(func(b []byte) { b[134] = 13 }), 0, 0},
		"silly blocks":  {good(func(b []byte) { b[134] = 200 }), 0, 0},
		"empty":         {good(func(b []byte) { clear(b[:8]) }), 0, 0},
		"overflow":      {good(func(b []byte) { b[7] = 0xff }), 0, 0},
		"short answer":  {make([]byte, 100), 0, 0},
		"nothing in it": {make([]byte, identifySize), 0, 0},
	} {
		size, shift, err := parseNamespace(c.answer)
		if size != c.size || shift != c.shift || (err == nil) != (c.size > 0) {
			t.Errorf("%s: size %d, shift %d, %v", name, size, shift, err)
		}
	}
}

func FuzzParseNamespace(f *testing.F) {
	f.Add(make([]byte, identifySize))
	f.Fuzz(func(t *testing.T, b []byte) {
		size, shift, err := parseNamespace(b)
		if err == nil && (size <= 0 || shift < 9 || shift > 12 || size%(1<<shift) != 0) {
			t.Errorf("size %d, shift %d", size, shift)
		}
	})
}

func TestParseMaxIO(t *testing.T) {
	b := make([]byte, identifySize)
	for mdts, want := range map[byte]int64{0: 256 << 10, 1: 8 << 10, 5: 128 << 10, 6: 256 << 10, 7: 256 << 10, 255: 256 << 10} {
		b[77] = mdts
		if got := parseMaxIO(b); got != want {
			t.Errorf("MDTS %d: %d bytes, want %d", mdts, got, want)
		}
	}
}

func TestJudge(t *testing.T) {
	io := &IO{}
	buf := make([]byte, 2*Align)
	m := &nvmeMedium{}
	for _, c := range []struct {
		m     medium
		res   int32
		n     int
		again bool
		err   error
	}{
		{&fileMedium{}, Align, Align, false, nil},
		{&fileMedium{}, 0, 0, false, ErrGone},
		{&fileMedium{}, -int32(unix.EIO), 0, false, ErrIO},
		{&fileMedium{}, -int32(unix.ENOSPC), 0, false, ErrFull},
		{&fileMedium{}, -int32(unix.ENODEV), 0, false, ErrGone},
		{&fileMedium{}, -int32(unix.EROFS), 0, false, ErrReadOnly},
		{&fileMedium{}, -int32(unix.ECANCELED), 0, false, ErrCancelled},
		{&fileMedium{}, -int32(unix.EINTR), 0, true, ErrIO},
		{&fileMedium{}, -int32(unix.EAGAIN), 0, true, ErrIO},
		{m, 0, 2 * Align, false, nil},
		{m, -int32(unix.EINTR), 0, true, ErrIO},
		{m, -int32(unix.ENODEV), 0, false, ErrGone},
		{m, 0x281, 0, true, ErrIO},          // unrecovered read error
		{m, 0x4281, 0, false, ErrIO},        // and: do not retry
		{m, 0x4080, 0, false, ErrGone},      // LBA out of range
		{m, 0x4081, 0, false, ErrFull},      // capacity exceeded
		{m, 0x4182, 0, false, ErrReadOnly},  // write to a read-only range
		{m, 0x0007, 0, false, ErrCancelled}, // abort requested
	} {
		v := c.m.judge(&op{io: io, buf: buf}, c.res)
		if v.n != c.n || v.again != c.again || !errors.Is(v.err, c.err) || (c.err == nil) != (v.err == nil) {
			t.Errorf("%T, result %d: %+v", c.m, c.res, v)
		}
	}
	if v := (&fileMedium{}).judge(&op{sync: &syncOp{}}, 0); v.err != nil || v.n != 0 {
		t.Errorf("a sync: %+v", v)
	}
}

// TestResetsEndInFallback: after some interruptions the block device takes over.
func TestResetsEndInFallback(t *testing.T) {
	m := &nvmeMedium{block: &fileMedium{}, store: &store{}}
	o := &op{io: &IO{}, buf: make([]byte, Align)}
	for o.retries = 0; !m.fallen; o.retries++ {
		if v := m.judge(o, -int32(unix.EINTR)); !v.again || o.retries > maxRetries {
			t.Fatalf("try %d: %+v", o.retries, v)
		}
	}
	if o.retries != nvmeResets+1 || m.store.Info().Degraded == "" {
		t.Errorf("after %d tries, degraded %q", o.retries, m.store.Info().Degraded)
	}
	o.alt = true
	if v := m.judge(o, Align); v.n != Align {
		t.Errorf("by the block device: %+v", v)
	}
}

func TestBuckets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "latency"))
		b := bucket(d)
		if end := bucketEnd(b); d > end || float64(end-d) > 0.13*float64(d)+1 {
			t.Fatalf("%d ns is in bucket %d, which ends at %d", d, b, end)
		}
		if b > 0 && bucketEnd(b-1) >= d {
			t.Fatalf("%d ns is in bucket %d, though %d ends at %d", d, b, b-1, bucketEnd(b-1))
		}
	})
}

// feed has a meter see n reads, depth of them at a time, each taking lat.
func feed(m *Meter, n, size, depth int, lat time.Duration) {
	at := time.Unix(1, 0)
	buf := make([]byte, size)
	for range n / depth {
		ios := make([]*IO, depth)
		for i := range ios {
			ios[i] = &IO{Buf: buf, Began: at}
			m.Began(ios[i])
		}
		at = at.Add(lat)
		for _, io := range ios {
			io.Ended = at
			m.Ended(io)
		}
	}
}

func TestMeter(t *testing.T) {
	m := NewMeter()
	feed(m, 4000, 64<<10, 4, time.Millisecond)
	s := m.Stats()
	want := 4 * 65536 / 1e-3
	if math.Abs(s.Read.Rate/want-1) > 0.01 || math.Abs(s.Read.Depth-4) > 0.01 || s.Read.Size != 65536 {
		t.Errorf("rate %g (want %g), depth %g, size %g", s.Read.Rate, want, s.Read.Depth, s.Read.Size)
	}
	if s.Read.IOs != 4000 || s.Read.Bytes != 4000*65536 || s.InFlight != 0 || s.MaxInFlight != 4 || s.Write.IOs != 0 {
		t.Errorf("%+v", s)
	}
	if s.Read.P50 != time.Millisecond || s.Read.Latency != time.Millisecond || s.Read.Max != time.Millisecond {
		t.Errorf("latencies %v, %v, %v", s.Read.P50, s.Read.Latency, s.Read.Max)
	}
	p := Profile{Read: Curve{{Size: 65536, Depth: 4, Rate: want}}}
	if r, drifted := m.Drifted(p); drifted || math.Abs(r-1) > 0.01 {
		t.Errorf("as measured: ratio %g, drifted %v", r, drifted)
	}
	p.Read[0].Rate = 2 * want
	if r, drifted := m.Drifted(p); !drifted || math.Abs(r-0.5) > 0.01 {
		t.Errorf("at half the rate: ratio %g, drifted %v", r, drifted)
	}
	if r, drifted := NewMeter().Drifted(p); drifted || r != 0 {
		t.Errorf("knowing nothing: ratio %g, drifted %v", r, drifted)
	}
	failed := &IO{Err: &Error{Err: ErrIO}}
	m.Began(failed)
	m.Ended(failed)
	failed.Err = ErrCancelled
	m.Began(failed)
	m.Ended(failed)
	if s := m.Stats(); s.Errors != 1 || s.Cancelled != 1 || s.Read.IOs != 4000 {
		t.Errorf("after a failure and a cancel: %+v", s)
	}
	if n := testing.AllocsPerRun(100, func() { m.Began(failed); m.Ended(failed) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCurve(t *testing.T) {
	c := Curve{{Size: 4096, Depth: 1, Rate: 100}, {Size: 4096, Depth: 16, Rate: 400}, {Size: 65536, Depth: 1, Rate: 1600}}
	for _, x := range []struct {
		size, depth int
		want        float64
	}{
		{4096, 1, 100}, {4096, 4, 200}, {4096, 16, 400}, {4096, 99, 400}, {1, 1, 100},
		{16384, 1, 400}, {65536, 1, 1600}, {65536, 16, 1600}, {1 << 20, 1, 1600}, {16384, 16, 800},
	} {
		if got := c.Rate(x.size, x.depth); math.Abs(got-x.want) > 1e-6*x.want {
			t.Errorf("rate of %d at depth %d: %g, want %g", x.size, x.depth, got, x.want)
		}
	}
	if (Curve{}).Rate(1, 1) != 0 {
		t.Error("an empty curve has a rate")
	}
	if r, d := c.Best(4096); r != 400 || d != 16 {
		t.Errorf("best %g at depth %d", r, d)
	}
	p := Profile{Device: "d", Kind: File, Taken: time.Unix(5, 0).UTC(), Read: c}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var q Profile
	if err := json.Unmarshal(text, &q); err != nil || q.Device != "d" || q.Read[1] != c[1] || !q.Taken.Equal(p.Taken) {
		t.Errorf("%s reads back as %+v, %v", text, q, err)
	}
}
