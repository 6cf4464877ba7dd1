package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// benchCache is enough KV, in scattered blocks, that none of it stays in cache
// when rows is 1.
func benchCache(b *testing.B, l KVLayout, depth, rows int) (mem []byte, seqs []AttnSeq) {
	sets := 1
	if rows == 1 {
		sets = 32768 / depth
	}
	blocks := (depth + rows + 15) / 16
	mem = make([]byte, int64(sets*blocks)*l.LayerBlockBytes())
	for i := range mem {
		mem[i] = byte(i*7) & 0xbf // finite numbers
	}
	perm := rand.New(rand.NewPCG(1, 1)).Perm(sets * blocks)
	for i := range sets {
		s := AttnSeq{Rows: rows, Start: depth}
		for _, p := range perm[i*blocks : (i+1)*blocks] {
			s.Table = append(s.Table, int64(p)*l.LayerBlockBytes())
		}
		seqs = append(seqs, s)
	}
	return mem, seqs
}

func BenchmarkAttention(b *testing.B) {
	l := KVLayout{BlockTokens: 16, KVHeads: 8, HeadDim: 128, DType: BF16}
	const heads = 16
	for _, name := range []string{"avx512", "avx2"} {
		for _, c := range [][2]int{{512, 1}, {2048, 1}, {8192, 1}, {0, 512}, {2048, 512}} {
			b.Run(fmt.Sprintf("%s/depth=%d/rows=%d", name, c[0], c[1]), func(b *testing.B) {
				r, err := New(Options{ISA: name, Threads: 1})
				if err != nil {
					b.Skip(err)
				}
				defer r.Close()
				mem, seqs := benchCache(b, l, c[0], c[1])
				q := newSource(1, ordinary).vec(c[1] * heads * l.HeadDim)
				out := make([]float32, len(q))
				n, best := 0, math.Inf(1)
				for b.Loop() {
					t := time.Now()
					if err := r.Attention(out, q, heads, 0.09, l, mem, seqs[n%len(seqs):][:1]); err != nil {
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

func BenchmarkMatMul(b *testing.B) {
	const k, n, copies = 1024, 3072, 12
	s := newSource(1, ordinary)
	v := s.vec(n * k)
	for _, dt := range []DType{BF16, F32, F16} {
		var ws []*Matrix
		for range copies {
			ws = append(ws, packed(b, dt, n, k, v))
		}
		for _, name := range []string{"avx512", "avx2"} {
			for _, m := range []int{1, 4, 128, 512} {
				b.Run(fmt.Sprintf("%v/%s/m=%d", dt, name, m), func(b *testing.B) {
					r, err := New(Options{ISA: name, Threads: 1})
					if err != nil {
						b.Skip(err)
					}
					defer r.Close()
					x, y := s.vec(m*k), make([]float32, m*n)
					i, best := 0, math.Inf(1)
					for b.Loop() {
						t := time.Now()
						r.MatMul(y, x, m, ws[i%copies])
						best = min(best, time.Since(t).Seconds())
						i++
					}
					b.ReportMetric(float64(ws[0].Bytes())/best*1e-9, "bestGB/s")
					b.ReportMetric(2*float64(m)*n*k/best*1e-9, "bestGFLOP/s")
				})
			}
		}
	}
}

func BenchmarkPack(b *testing.B) {
	const k, n = 1024, 3072
	for _, c := range [][2]DType{{BF16, BF16}, {BF16, F32}, {F32, F32}, {F16, F16}} {
		b.Run(fmt.Sprintf("%v from %v", c[0], c[1]), func(b *testing.B) {
			raw := make([]byte, k*c[1].Size())
			b.SetBytes(n * k * int64(c[0].Size()))
			for b.Loop() {
				if _, err := Pack(c[0], n, k, func(int) []byte { return raw }, c[1]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
