package kernels

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
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

func BenchmarkAttention(b *testing.B) {
	l := KVLayout{BlockTokens: 16, KVHeads: 8, HeadDim: 128, DType: BF16}
	const heads = 16
	for _, name := range []string{"avx512", "avx2"} {
		for _, c := range [][2]int{{512, 1}, {2048, 1}, {8192, 1}, {0, 512}, {2048, 512}} {
			b.Run(fmt.Sprintf("%s/depth=%d/rows=%d", name, c[0], c[1]), func(b *testing.B) {
				r, err := New(Options{ISA: name, Threads: 1})
				if err != nil {
					b.Fatal(err)
				}
				defer r.Close()
				sets := 1
				if c[1] == 1 {
					sets = 32768 / c[0]
				}
				blocks := (c[0] + c[1] + 15) / 16
				mem := hugeMem(int64(sets*blocks) * l.LayerBlockBytes())
				for i := range mem {
					mem[i] = byte(i*7) & 0xbf
				}
				rng := rand.New(rand.NewPCG(1, 1))
				perm := rng.Perm(sets * blocks)
				tables := make([][]int64, sets)
				for i := range tables {
					for _, p := range perm[i*blocks : (i+1)*blocks] {
						tables[i] = append(tables[i], int64(p)*l.LayerBlockBytes())
					}
				}
				q := make([]float32, c[1]*heads*l.HeadDim)
				for i := range q {
					q[i] = float32(rng.NormFloat64())
				}
				out := make([]float32, len(q))
				n := 0
				best := 1e9
				for b.Loop() {
					t := time.Now()
					if err := r.Attention(out, q, heads, 0.09, l, mem, []AttnSeq{{Rows: c[1], Start: c[0], Table: tables[n%sets]}}); err != nil {
						b.Fatal(err)
					}
					best = min(best, time.Since(t).Seconds())
					n++
				}
				pairs := float64(c[1])*float64(c[0]) + float64(c[1]*(c[1]+1))/2
				b.ReportMetric(float64(c[0]+c[1])*4096/best*1e-9, "bestGB/s")
				b.ReportMetric(pairs*4*heads*128/best*1e-9, "bestGFLOP/s")
			})
		}
	}
}
