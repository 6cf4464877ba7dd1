package device_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/overflow/device"
)

// BenchmarkRead reads at random offsets of a file that was really written:
// batches of a thousand I/Os, so many of them under way at a time. Per I/O it
// reports calls of io_uring_enter, and CPU seconds of the whole process per GB.
func BenchmarkRead(b *testing.B) {
	const size = 512 << 20
	e := engine(b, device.EngineOptions{InFlight: 256 << 20, Memory: 256 << 20, HugePages: true})
	full := file(b, e, size)
	path := full.Info().Path
	if err := full.Close(); err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20} {
		for _, depth := range []int{1, 8, 32, 64} {
			b.Run(fmt.Sprintf("%dKiB/depth%d", n>>10, depth), func(b *testing.B) {
				d, err := device.Open(context.Background(), e, device.Options{Name: "bench", Path: path, Depth: depth})
				if err != nil {
					b.Fatal(err)
				}
				defer d.Close()
				benchmarkRead(b, e, d, n, min(1000, (200<<20)/n))
			})
		}
	}
}

// BenchmarkDRAM is BenchmarkRead of a device in memory.
func BenchmarkDRAM(b *testing.B) {
	e := engine(b, device.EngineOptions{InFlight: 256 << 20, Memory: 256 << 20, HugePages: true})
	d, err := device.OpenDRAM(e, device.DRAMOptions{Name: "dram", Size: 512 << 20, HugePages: true})
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", n>>10), func(b *testing.B) {
			benchmarkRead(b, e, d, n, min(1000, (200<<20)/n))
		})
	}
}

// benchmarkRead reads b.N times n bytes, in batches.
func benchmarkRead(b *testing.B, e *device.Engine, d device.Device, n, batch int) {
	mem, err := e.Memory().Get(context.Background(), n*batch)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Memory().Put(mem)
	rnd := rand.New(rand.NewPCG(1, uint64(n)))
	done := make(chan struct{}, 1)
	left := 0
	ios := make([]*device.IO, batch)
	for i := range ios {
		ios[i] = &device.IO{Buf: mem[i*n : (i+1)*n], Done: func(io *device.IO) {
			if io.Err != nil {
				b.Error(io.Err)
			}
			if left--; left == 0 {
				done <- struct{}{}
			}
		}}
	}
	places := d.Info().Size / int64(n)
	before, cpu := e.Stats().Ring, cpuSeconds(b)
	b.SetBytes(int64(n))
	b.ReportAllocs()
	b.ResetTimer()
	for todo := b.N; todo > 0; {
		now := ios[:min(todo, batch)]
		for _, io := range now {
			io.Off = rnd.Int64N(places) * int64(n)
		}
		todo -= len(now)
		left = len(now)
		if err := d.Submit(now); err != nil {
			b.Fatal(err)
		}
		<-done
	}
	b.StopTimer()
	after := e.Stats().Ring
	b.ReportMetric(float64(after.Enters-before.Enters)/float64(b.N), "enters/op")
	b.ReportMetric((cpuSeconds(b)-cpu)/(float64(b.N)*float64(n)/1e9), "cpu-s/GB")
}

func cpuSeconds(b *testing.B) float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
