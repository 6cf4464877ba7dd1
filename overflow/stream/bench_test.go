package stream_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/stream"
)

// instant is a device whose I/O takes no time and moves nothing.
type instant struct {
	info device.Info
	ios  int
}

func (d *instant) Info() device.Info { return d.info }
func (d *instant) Submit(ios []*device.IO) error {
	d.ios += len(ios)
	for _, io := range ios {
		io.Done(io)
	}
	return nil
}
func (d *instant) Cancel(*device.IO)          {}
func (d *instant) Sync(context.Context) error { return nil }
func (d *instant) Close() error               { return nil }

// slab is a Memory of equal buffers.
type slab struct{ free chan []byte }

func newSlab(n, size int) *slab {
	s := &slab{free: make(chan []byte, n)}
	for range n {
		s.free <- make([]byte, size)
	}
	return s
}

func (s *slab) TryGet(int) []byte {
	select {
	case b := <-s.free:
		return b
	default:
		return nil
	}
}
func (s *slab) Put(b []byte) { s.free <- b[:cap(b)] }

// heap is an arena of plain memory.
type heap struct{ b []byte }

func (h *heap) Name() string   { return "heap" }
func (h *heap) Device() string { return "gpu0" }
func (h *heap) Size() int64    { return int64(len(h.b)) }
func (h *heap) Bytes() []byte  { return h.b }
func (h *heap) Close() error   { return nil }

// bench is a stream on an instant device and a list of n pieces of size bytes
// that lie stride bytes apart on the device.
type bench struct {
	s      *stream.Stream
	dev    *instant
	pieces []nvlink.Copy
}

func newBench(t testing.TB, n int, size, stride int64, write bool) *bench {
	b := &bench{dev: &instant{info: device.Info{Name: "i", Size: int64(n) * stride}}}
	far, near := stream.NewArena(b.dev), &heap{make([]byte, int64(n)*size)}
	var err error
	b.s, err = stream.New(stream.Options{Memory: newSlab(64, 1<<20), Staging: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.s.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range int64(n) {
		p := nvlink.Copy{Dst: span(near, i*size, size), Src: span(far, i*stride, size)}
		if write {
			p.Dst, p.Src = p.Src, p.Dst
		}
		b.pieces = append(b.pieces, p)
	}
	return b
}

func (b *bench) run(t testing.TB) {
	if err := b.s.CopyBatch(b.pieces); err != nil {
		t.Fatal(err)
	}
	e, err := b.s.Record()
	if err != nil {
		t.Fatal(err)
	}
	<-e.Done()
}

// TestAllocations: a batch costs the event, whatever it holds.
func TestAllocations(t *testing.T) {
	for _, write := range []bool{false, true} {
		for _, stride := range []int64{page, 2 * page} { // joined, and an I/O each
			few, many := newBench(t, 1, 100, stride, write), newBench(t, 60, 100, stride, write)
			for range 20 {
				few.run(t)
				many.run(t)
			}
			a := testing.AllocsPerRun(50, func() { few.run(t) })
			b := testing.AllocsPerRun(50, func() { many.run(t) })
			if a > 3 || b > a {
				t.Errorf("write %v, stride %d: %v allocations for one piece, %v for 60", write, stride, a, b)
			}
		}
	}
}

// BenchmarkBatch is a batch from CopyBatch to its event. "raw" submits the same
// I/Os to the device and copies the same bytes.
func BenchmarkBatch(b *testing.B) {
	for _, c := range []struct {
		n            int
		size, stride int64
	}{{1, page, page}, {60, page, 2 * page}, {4096, page, page}, {4096, 512, page}, {512, 64 << 10, 64 << 10}} {
		name := fmt.Sprintf("%dx%d/stride%d", c.n, c.size, c.stride)
		b.Run(name+"/stream", func(b *testing.B) {
			w := newBench(b, c.n, c.size, c.stride, false)
			w.run(b)
			w.dev.ios = 0
			b.SetBytes(int64(c.n) * c.size)
			b.ReportAllocs()
			for b.Loop() {
				w.run(b)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*c.n), "ns/piece")
			b.ReportMetric(float64(c.n*b.N)/float64(w.dev.ios), "pieces/io")
		})
		b.Run(name+"/raw", func(b *testing.B) {
			w := newBench(b, c.n, c.size, c.stride, false)
			w.run(b)
			ios := make([]device.IO, w.dev.ios)
			list := make([]*device.IO, len(ios))
			buf := make([]byte, int64(c.n)*c.stride)
			for i := range ios {
				ios[i].Done = func(*device.IO) {}
				list[i] = &ios[i]
			}
			b.SetBytes(int64(c.n) * c.size)
			for b.Loop() {
				if err := w.dev.Submit(list); err != nil {
					b.Fatal(err)
				}
				for i := range w.pieces {
					s := &w.pieces[i]
					copy(s.Dst.Arena.Bytes()[s.Dst.Off:][:s.Dst.Len], buf[s.Src.Off:])
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*c.n), "ns/piece")
		})
	}
}

// BenchmarkPlan is CopyBatch of pieces that come in any order.
func BenchmarkPlan(b *testing.B) {
	w := newBench(b, 4096, page, page, false)
	for i := range w.pieces { // a fixed shuffle: 1031 and 4096 have no common divisor
		w.pieces[i].Src.Off = int64(i*1031%4096) * page
	}
	shuffled := slices.Clone(w.pieces)
	for b.Loop() {
		w.pieces = shuffled
		w.run(b)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*4096), "ns/piece")
}
