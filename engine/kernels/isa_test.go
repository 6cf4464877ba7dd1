package kernels

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func TestMatMulSameBitsOnEveryISA(t *testing.T) {
	all := runners(t, 2)
	rapid.Check(t, func(t *rapid.T) {
		dt := rapid.SampledFrom([]DType{F32, BF16, F16}).Draw(t, "dtype")
		m := rapid.IntRange(1, 20).Draw(t, "m")
		n := rapid.IntRange(1, 200).Draw(t, "n")
		k := rapid.IntRange(1, 150).Draw(t, "k")
		s := newSource(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(0, kinds-1).Draw(t, "kind"))
		w, x := s.pack(t, dt, n, k), s.vec(m*k)
		want := make([]float32, m*n)
		all["go"].MatMul(want, x, m, w)
		for name, r := range all {
			got := make([]float32, m*n)
			r.MatMul(got, x, m, w)
			same(t, name, got, want)
		}
	})
}

func TestAttentionSameBitsOnEveryISA(t *testing.T) {
	all := runners(t, 2)
	rapid.Check(t, func(t *rapid.T) {
		l := KVLayout{
			BlockTokens: 16 * rapid.IntRange(1, 5).Draw(t, "blocks of 16"),
			KVHeads:     rapid.IntRange(1, 3).Draw(t, "kv heads"),
			HeadDim:     16 * rapid.IntRange(1, 9).Draw(t, "head dim / 16"),
			DType:       rapid.SampledFrom([]DType{F32, BF16}).Draw(t, "dtype"),
		}
		heads := l.KVHeads * rapid.IntRange(1, 7).Draw(t, "group")
		kind := rapid.SampledFrom([]int{ordinary, ordinary, tiny, huge, anything}).Draw(t, "kind")
		s := newSource(rapid.Uint64().Draw(t, "seed"), kind)
		var seqs []AttnSeq
		rows := 0
		for range rapid.IntRange(1, 2).Draw(t, "sequences") {
			q := AttnSeq{Rows: rapid.IntRange(1, 12).Draw(t, "rows"), Start: rapid.IntRange(0, 600).Draw(t, "start")}
			rows += q.Rows
			seqs = append(seqs, q)
		}
		c := s.newCache(t, l, seqs)
		q := s.vec(rows * heads * l.HeadDim)
		want := make([]float32, len(q))
		if err := all["go"].Attention(want, q, heads, 0.125, l, c.mem, c.seqs); err != nil {
			t.Fatal(err)
		}
		for name, r := range all {
			got := make([]float32, len(q))
			if err := r.Attention(got, q, heads, 0.125, l, c.mem, c.seqs); err != nil {
				t.Fatal(err)
			}
			same(t, name, got, want)
		}
	})
}

func TestElementwiseSameBitsOnEveryISA(t *testing.T) {
	all := runners(t, 2)
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.IntRange(1, 5).Draw(t, "rows")
		n := rapid.IntRange(1, 100).Draw(t, "n")
		s := newSource(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(0, kinds-1).Draw(t, "kind"))
		x, y, z := s.vec(rows*n), s.vec(rows*n), s.vec(n)
		ops := map[string]func(r *Runner, out []float32){
			"RMSNorm": func(r *Runner, out []float32) { r.RMSNorm(out, x, z, rows, n, 1e-6) },
			"SiLUMul": func(r *Runner, out []float32) { r.SiLUMul(out, x, y) },
			"Add":     func(r *Runner, out []float32) { copy(out, y); r.Add(out, x) },
			"AddBias": func(r *Runner, out []float32) { copy(out, y); r.AddBias(out, z, rows, n) },
			"Rope": func(r *Runner, out []float32) {
				copy(out, x)
				h := n / 2
				r.Rope(out, rows, 1, 2*h, y[:rows*h], y[rows*n-rows*h:])
			},
		}
		for op, f := range ops {
			want := make([]float32, rows*n)
			f(all["go"], want)
			for name, r := range all {
				got := make([]float32, rows*n)
				f(r, got)
				same(t, fmt.Sprint(op, " ", name), got, want)
			}
		}
	})
}
