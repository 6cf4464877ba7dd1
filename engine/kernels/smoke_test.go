package kernels

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestAttentionMatchesFloat64(t *testing.T) {
	for _, dt := range []DType{F32, BF16} {
		l := KVLayout{BlockTokens: 32, KVHeads: 2, HeadDim: 80, DType: dt}
		rng := rand.New(rand.NewPCG(1, 2))
		const total, rows, heads = 600, 7, 4
		nb := (total + 31) / 32
		mem := make([]byte, int64(nb)*l.LayerBlockBytes())
		for i := range mem {
			mem[i] = 0xff
		}
		tab := make([]int64, nb)
		for i, p := range rng.Perm(nb) {
			tab[i] = int64(p) * l.LayerBlockBytes()
		}
		vec := func(n int) []float32 {
			v := make([]float32, n)
			for i := range v {
				v[i] = float32(rng.NormFloat64())
			}
			return v
		}
		d := l.HeadDim
		k, v := vec(total*2*d), vec(total*2*d)
		for i := range total {
			if err := WriteKV(mem, l, tab[i/32], i%32, k[i*2*d:][:2*d], v[i*2*d:][:2*d]); err != nil {
				t.Fatal(err)
			}
		}
		q := vec(rows * heads * d)
		r, err := New(Options{Threads: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		out := make([]float32, len(q))
		scale := float32(1 / math.Sqrt(float64(d)))
		if err := r.Attention(out, q, heads, scale, l, mem, []AttnSeq{{Rows: rows, Start: total - rows, Table: tab}}); err != nil {
			t.Fatal(err)
		}
		worst := 0.0
		for i := range rows {
			for h := range heads {
				n := total - rows + i + 1
				s := make([]float64, n)
				m, sum := math.Inf(-1), 0.0
				for j := range n {
					for e := range d {
						s[j] += float64(q[(i*heads+h)*d+e]) * float64(k[(j*2+h/2)*d+e])
					}
					s[j] *= float64(scale)
					m = max(m, s[j])
				}
				for j := range n {
					s[j] = math.Exp(s[j] - m)
					sum += s[j]
				}
				for e := range d {
					o := 0.0
					for j := range n {
						o += s[j] / sum * float64(v[(j*2+h/2)*d+e])
					}
					worst = max(worst, math.Abs(o-float64(out[(i*heads+h)*d+e])))
				}
			}
		}
		t.Log(dt, worst)
		if !(worst < 0.01) {
			t.Errorf("%v: off by %g", dt, worst)
		}
	}
}
