package placement

import (
	"fmt"
	"testing"
)

// What placing costs beside the I/O: load% is its share of the time that the blocks take
// at 1.7 to 8.5 GB/s a device. Full blocks are what is placed, here of 36 layers of 64
// KiB; piece% is the share if each were 64 KiB only.
func BenchmarkPlace(b *testing.B) {
	const piece, block = 64 << 10, 36 * 64 << 10
	for _, name := range names {
		for _, n := range []int{2, 8, 32} {
			rates := make([]float64, n)
			for i := range rates {
				rates[i] = float64(1+i%5) * 1.7e9
			}
			devices := roomy(rates...)
			for _, run := range []int{1, 64, 4096} {
				b.Run(fmt.Sprintf("%s/devices=%d/blocks=%d", name, n, run), func(b *testing.B) {
					p := parse(b, name)
					parts := make([]Part, 0, n)
					b.ReportAllocs()
					for b.Loop() {
						parts = p.Place(parts[:0], devices, run)
					}
					perRun := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
					b.ReportMetric(perRun/float64(run), "ns/block")
					b.ReportMetric(100*perRun/float64(Finish(parts, devices, block).Nanoseconds()), "load%")
					b.ReportMetric(100*perRun/float64(Finish(parts, devices, piece).Nanoseconds()), "piece%")
				})
			}
		}
	}
}
