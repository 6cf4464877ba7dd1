package stream_test

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/shm"
	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/stream"
)

// realDevices opens a DRAM device and a file of n bytes each on one engine.
func realDevices(t testing.TB, n int64) (*device.Engine, []device.Device) {
	t.Helper()
	e, err := device.NewEngine(device.EngineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	dram, err := device.OpenDRAM(e, device.DRAMOptions{Name: "dram", Size: n})
	if err != nil {
		t.Fatal(err)
	}
	file, err := device.Open(context.Background(), e, device.Options{
		Name: "file", Path: filepath.Join(t.TempDir(), "f"), Size: n, Create: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return e, []device.Device{dram, file}
}

// TestRealDevices stores random pieces and loads them back elsewhere, by two
// streams that wait for each other.
func TestRealDevices(t *testing.T) {
	const size, n = 8 << 20, 400
	e, devs := realDevices(t, size)
	host, err := shm.Create("host", "gpu0", 2*size)
	if err != nil {
		t.Fatal(err)
	}
	var streams [2]*stream.Stream
	for i := range streams {
		o := stream.Options{Memory: e.Memory().For("stage"), MaxRead: 64 << 10, Staging: 1 << 20}
		if streams[i], err = stream.New(o); err != nil {
			t.Fatal(err)
		}
	}
	far := []*stream.Arena{stream.NewArena(devs[0]), stream.NewArena(devs[1])}
	mem := host.Bytes()
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range mem[:size] {
		mem[i] = byte(rng.Uint32())
	}
	var stores, loads []nvlink.Copy
	var at [2]int64
	for i := range int64(n) {
		d, l := i%2, 1+rng.Int64N(8*page)
		stores = append(stores, nvlink.Copy{Dst: span(far[d], at[d], l), Src: span(host, i*8*page%(size-8*page), l)})
		loads = append(loads, nvlink.Copy{Dst: span(host, size+i*5*page, min(l, 5*page)), Src: span(far[d], at[d], min(l, 5*page))})
		at[d] += (l + page - 1) / page * page
	}
	rng.Shuffle(n, func(i, k int) { loads[i], loads[k] = loads[k], loads[i] })
	const parts = 8
	for k := range parts {
		if err := streams[0].CopyBatch(stores[k*n/parts : (k+1)*n/parts]); err != nil {
			t.Fatal(err)
		}
	}
	ev, err := streams[0].Record()
	if err != nil {
		t.Fatal(err)
	}
	if err := streams[1].WaitEvent(ev); err != nil {
		t.Fatal(err)
	}
	for k := range parts {
		if err := streams[1].CopyBatch(loads[k*n/parts : (k+1)*n/parts]); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range streams {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range loads {
		l := &loads[i]
		k := (l.Dst.Off - size) / (5 * page)
		want := mem[stores[k].Src.Off:][:l.Dst.Len]
		if string(mem[l.Dst.Off:][:l.Dst.Len]) != string(want) {
			t.Fatalf("piece %d differs", k)
		}
	}
	for _, d := range devs {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := host.Close(); err != nil {
		t.Error(err)
	}
}

// BenchmarkDevices reads 16 MiB in layer blocks of 64 KiB, by a stream and, as
// "raw", by Submits of the same I/Os into the staging buffers alone.
func BenchmarkDevices(b *testing.B) {
	const size, m = 16 << 20, 64 << 10
	e, devs := realDevices(b, size)
	host := &heap{make([]byte, size)}
	for i, name := range []string{"dram", "file"} {
		b.Run(name+"/stream", func(b *testing.B) {
			s, err := stream.New(stream.Options{Memory: e.Memory().For("stage")})
			if err != nil {
				b.Fatal(err)
			}
			w := bench{s: s}
			far := stream.NewArena(devs[i])
			for at := int64(0); at < size; at += m {
				w.pieces = append(w.pieces, nvlink.Copy{Dst: span(host, at, m), Src: span(far, at, m)})
			}
			b.SetBytes(size)
			for b.Loop() {
				w.run(b)
			}
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
		})
		b.Run(name+"/raw", func(b *testing.B) {
			mem := e.Memory().For("raw")
			done := make(chan struct{}, size)
			var ios []*device.IO
			for at := int64(0); at < size; at += 1 << 20 {
				ios = append(ios, &device.IO{Off: at, Buf: mem.TryGet(1 << 20), Done: func(*device.IO) { done <- struct{}{} }})
			}
			b.SetBytes(size)
			for b.Loop() {
				if err := devs[i].Submit(ios); err != nil {
					b.Fatal(err)
				}
				for range ios {
					<-done
				}
			}
			for _, io := range ios {
				mem.Put(io.Buf)
			}
		})
	}
	for _, d := range devs {
		if err := d.Close(); err != nil {
			b.Error(err)
		}
	}
}
