package kernels

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// closeTo fails unless got is within tol of want, relative to scale.
func closeTo(t rapid.TB, what string, got []float32, want []float64, tol, scale float64) {
	t.Helper()
	for i, w := range want {
		if d := math.Abs(float64(got[i]) - w); !(d <= tol*scale) {
			t.Fatalf("%s: element %d is %g, want %g within %g", what, i, got[i], w, tol*scale)
		}
	}
}

// toleranceOf bounds the relative error of a product whose factors have been
// rounded for dt.
func toleranceOf(dt DType) float64 {
	switch dt {
	case BF16:
		return 0x1.02p-7
	case F16:
		return 0x1p-11
	}
	return 0x1p-20
}

func TestMatMulAgainstFloat64(t *testing.T) {
	all := runners(t, 2)
	rapid.Check(t, func(t *rapid.T) {
		dt := rapid.SampledFrom([]DType{F32, BF16, F16}).Draw(t, "dtype")
		m := rapid.IntRange(1, 9).Draw(t, "m")
		n := rapid.IntRange(1, 130).Draw(t, "n")
		k := rapid.IntRange(1, 300).Draw(t, "k")
		s := newSource(rapid.Uint64().Draw(t, "seed"), ordinary)
		v, x := s.vec(n*k), s.vec(m*k)
		w := packed(t, dt, n, k, v)
		want, sizes := make([]float64, m*n), make([]float64, m*n)
		for i := range m {
			for j := range n {
				for e := range k {
					p := float64(x[i*k+e]) * float64(v[j*k+e])
					want[i*n+j] += p
					sizes[i*n+j] += math.Abs(p)
				}
			}
		}
		for name, r := range all {
			got := make([]float32, m*n)
			r.MatMul(got, x, m, w)
			// Every term is off by the rounding of its factors, and by one
			// rounding for each sum it goes through.
			tol := toleranceOf(dt) + float64(k)*0x1p-23
			for i := range want {
				closeTo(t, name, got[i:i+1], want[i:i+1], tol, sizes[i])
			}
		}
	})
}

// attention64 is attention by its definition.
func attention64(c *cache, q []float32, heads int, scale float64) []float64 {
	d, kvh := c.l.HeadDim, c.l.KVHeads
	out := make([]float64, len(q))
	row, first := 0, 0
	for _, seq := range c.seqs {
		for i := range seq.Rows {
			for h := range heads {
				at := ((row+i)*heads + h) * d
				head := h / (heads / kvh)
				vector := func(v []float32, pos int) []float32 { return v[((first+pos)*kvh+head)*d:][:d] }
				s := make([]float64, seq.Start+i+1)
				m, sum := math.Inf(-1), 0.0
				for j := range s {
					for e, k := range vector(c.k, j) {
						s[j] += float64(q[at+e]) * float64(k) * scale
					}
					m = max(m, s[j])
				}
				for j := range s {
					s[j] = math.Exp(s[j] - m)
					sum += s[j]
				}
				for j := range s {
					for e, v := range vector(c.v, j) {
						out[at+e] += s[j] / sum * float64(v)
					}
				}
			}
		}
		row += seq.Rows
		first += seq.Start + seq.Rows
	}
	return out
}

func TestAttentionAgainstFloat64(t *testing.T) {
	all := runners(t, 2)
	rapid.Check(t, func(t *rapid.T) {
		l := KVLayout{
			BlockTokens: 16 * rapid.IntRange(1, 3).Draw(t, "block tokens / 16"),
			KVHeads:     rapid.IntRange(1, 2).Draw(t, "kv heads"),
			HeadDim:     16 * rapid.IntRange(1, 9).Draw(t, "head dim / 16"),
			DType:       rapid.SampledFrom([]DType{F32, BF16}).Draw(t, "dtype"),
		}
		heads := l.KVHeads * rapid.IntRange(1, 4).Draw(t, "group")
		s := newSource(rapid.Uint64().Draw(t, "seed"), ordinary)
		seqs := []AttnSeq{
			{Rows: rapid.IntRange(1, 4).Draw(t, "rows"), Start: rapid.IntRange(0, 700).Draw(t, "start")},
			{Rows: rapid.IntRange(1, 20).Draw(t, "rows 2")},
		}
		c := s.newCache(t, l, seqs)
		q := s.vec((seqs[0].Rows + seqs[1].Rows) * heads * l.HeadDim)
		scale := 1 / math.Sqrt(float64(l.HeadDim))
		want := attention64(c, q, heads, scale)
		for name, r := range all {
			got := make([]float32, len(q))
			if err := r.Attention(got, q, heads, float32(scale), l, c.mem, c.seqs); err != nil {
				t.Fatal(err)
			}
			// Values are at most about 5; scores of bf16 are off by up to
			// 2^-7 of their few units, and so are the weights.
			closeTo(t, name, got, want, 2*toleranceOf(l.DType), 5)
		}
	})
}

func TestElementwiseAgainstFloat64(t *testing.T) {
	for name, r := range runners(t, 2) {
		s := newSource(1, ordinary)
		const rows, n = 3, 118
		x, up, w := s.vec(rows*n), s.vec(rows*n), s.vec(n)
		got, want := make([]float32, rows*n), make([]float64, rows*n)

		r.RMSNorm(got, x, w, rows, n, 1e-5)
		for i := range rows {
			sum := 0.0
			for _, v := range x[i*n:][:n] {
				sum += float64(v) * float64(v)
			}
			for j := range n {
				want[i*n+j] = float64(x[i*n+j]) / math.Sqrt(sum/n+1e-5) * float64(w[j])
			}
		}
		closeTo(t, name+" RMSNorm", got, want, 1e-6, 5)

		r.SiLUMul(got, x, up)
		for i, v := range x {
			want[i] = float64(v) / (1 + math.Exp(-float64(v))) * float64(up[i])
		}
		closeTo(t, name+" SiLUMul", got, want, 1e-6, 5)

		const heads, d = 2, n / 2 / 2 * 2
		cos, sin := s.vec(rows*d/2), s.vec(rows*d/2)
		copy(got, x)
		r.Rope(got, rows, heads, d, cos, sin)
		for i := range rows * heads {
			for j := range d / 2 {
				a, b := float64(x[i*d+j]), float64(x[i*d+d/2+j])
				c, s := float64(cos[i/heads*d/2+j]), float64(sin[i/heads*d/2+j])
				want[i*d+j], want[i*d+d/2+j] = a*c-b*s, b*c+a*s
			}
		}
		closeTo(t, name+" Rope", got[:rows*heads*d], want[:rows*heads*d], 1e-6, 5)
	}
}

func TestExpWithinTwoUlp(t *testing.T) {
	worst := 0.0
	for x := float32(expLow); x <= expHigh; x += 0.00137 {
		want := math.Exp(float64(x))
		_, e := math.Frexp(want)
		worst = max(worst, math.Abs(float64(exp32(x))-want)/math.Ldexp(1, e-24))
	}
	if worst > 2 {
		t.Errorf("exp32 is off by %.2f units in the last place", worst)
	}
	inf := float32(math.Inf(1))
	for _, c := range [][2]float32{{0, 1}, {-inf, 0}, {-87.1, 0}, {inf, exp32(88)}, {1e30, exp32(88)}} {
		if got := exp32(c[0]); got != c[1] {
			t.Errorf("exp32(%g) = %g, want %g", c[0], got, c[1])
		}
	}
	if nan := exp32(float32(math.NaN())); nan == nan {
		t.Errorf("exp32(NaN) = %g", nan)
	}
}
