package kernels

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func BenchmarkMatMul(b *testing.B) {
	const k, n, copies = 1024, 3072, 12
	rng := rand.New(rand.NewPCG(1, 1))
	v := make([]float32, n*k)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	for _, dt := range []DType{BF16, F32, F16} {
		var ws []*Matrix
		for range copies {
			ws = append(ws, packed(b, dt, n, k, v))
		}
		for _, name := range []string{"avx512", "avx2"} {
			for _, threads := range []int{1, 2} {
				for _, m := range []int{1, 4, 128, 512} {
					b.Run(fmt.Sprintf("%v/%s/threads=%d/m=%d", dt, name, threads, m), func(b *testing.B) {
						r, err := New(Options{ISA: name, Threads: threads})
						if err != nil {
							b.Fatal(err)
						}
						defer r.Close()
						x, y := make([]float32, m*k), make([]float32, m*n)
						copy(x, v)
						i := 0
						for b.Loop() {
							r.MatMul(y, x, m, ws[i%copies])
							i++
						}
						s := b.Elapsed().Seconds() / float64(i)
						b.ReportMetric(float64(ws[0].Bytes())/s*1e-9, "GB/s")
						b.ReportMetric(2*float64(m)*n*k/s*1e-9, "GFLOP/s")
					})
				}
			}
		}
	}
}
