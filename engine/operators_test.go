package engine_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/reftest"
)

// TestOperatorsAgainstReference compares each operator that a pass uses, on
// each instruction set, with its float64 definition.
func TestOperatorsAgainstReference(t *testing.T) {
	for _, isa := range kernels.Available() {
		t.Run(isa, func(t *testing.T) {
			r, err := kernels.New(kernels.Options{ISA: isa})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			o := operators{r: r, rng: rand.New(rand.NewPCG(1, 1))}
			t.Run("MatMul", o.matMul)
			t.Run("RMSNorm", o.rmsNorm)
			t.Run("Rope", o.rope)
			t.Run("SiLUMul", o.siluMul)
			t.Run("Attention", o.attention)
		})
	}
}

type operators struct {
	r   *kernels.Runner
	rng *rand.Rand
}

// rows draws a matrix, as one slice for the kernels and as rows for the reference.
func (o *operators) rows(n, k int) ([]float32, [][]float64) {
	flat, rows := make([]float32, n*k), make([][]float64, n)
	for i := range flat {
		flat[i] = float32(o.rng.NormFloat64())
	}
	for i := range rows {
		rows[i] = widenRow(flat[i*k : (i+1)*k])
	}
	return flat, rows
}

func widenRow(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// requireClose compares a matrix with the reference's rows.
func requireClose(t *testing.T, got []float32, want [][]float64, limit float64) {
	t.Helper()
	n := len(want[0])
	rows := make([][]float32, len(want))
	for i := range rows {
		rows[i] = got[i*n : (i+1)*n]
	}
	if e := relativeError(rows, want); !(e < limit) {
		t.Errorf("relative error %.3g, want less than %g", e, limit)
	}
}

func (o *operators) matMul(t *testing.T) {
	for _, s := range [][3]int{{1, 70, 33}, {7, 64, 128}, {100, 130, 48}} {
		m, n, k := s[0], s[1], s[2]
		x, xr := o.rows(m, k)
		w, wr := o.rows(n, k)
		raw := make([]byte, 0, 4*len(w))
		for _, v := range w {
			raw, _ = appendElement(raw, "F32", v)
		}
		for dtype, limit := range map[kernels.DType]float64{kernels.F32: 1e-5, kernels.F16: 5e-3, kernels.BF16: 4e-2} {
			packed, err := kernels.Pack(dtype, n, k, func(i int) []byte { return raw[4*i*k : 4*(i+1)*k] }, kernels.F32)
			if err != nil {
				t.Fatal(err)
			}
			y := make([]float32, m*n)
			o.r.MatMul(y, x, m, packed)
			requireClose(t, y, reftest.Linear(xr, wr, nil), limit)
		}
	}
}

func (o *operators) rmsNorm(t *testing.T) {
	x, xr := o.rows(5, 50)
	w, wr := o.rows(1, 50)
	var want [][]float64
	for _, row := range xr {
		want = append(want, reftest.RMSNorm(row, wr[0], 1e-5))
	}
	o.r.RMSNorm(x, x, w, 5, 50, 1e-5)
	requireClose(t, x, want, 1e-6)
}

func (o *operators) rope(t *testing.T) {
	const rows, heads, d, start = 5, 3, 32, 70000
	x, xr := o.rows(rows*heads, d)
	freq, factor := engine.RopeConfig{Theta: 5e5}.InvFreq(d)
	var cos, sin []float32
	var want [][]float64
	for i := range rows {
		for _, f := range freq {
			s, c := math.Sincos(float64(start+i) * f)
			cos, sin = append(cos, float32(c*factor)), append(sin, float32(s*factor))
		}
		for h := range heads {
			want = append(want, reftest.Rope{Theta: 5e5}.Rotate(xr[i*heads+h], start+i))
		}
	}
	o.r.Rope(x, rows, heads, d, cos, sin)
	requireClose(t, x, want, 1e-6)
}

func (o *operators) siluMul(t *testing.T) {
	gate, gr := o.rows(1, 777)
	up, ur := o.rows(1, 777)
	for i := range gate {
		gate[i] *= 8
		gr[0][i] = reftest.SiLU(gr[0][i]*8) * ur[0][i]
	}
	y := make([]float32, len(gate))
	o.r.SiLUMul(y, gate, up)
	requireClose(t, y, gr, 1e-6)
}

func (o *operators) attention(t *testing.T) {
	const heads, kvHeads, d, n = 4, 2, 32, 300
	scale := 1 / math.Sqrt(d)
	q, qr := o.rows(n*heads, d)
	k, kr := o.rows(n*kvHeads, d)
	v, vr := o.rows(n*kvHeads, d)
	want := make([][]float64, n*heads)
	pick := func(rows [][]float64, of, h int) (out [][]float64) {
		for i := range n {
			out = append(out, rows[i*of+h])
		}
		return out
	}
	for h := range heads {
		head := reftest.Attention(pick(qr, heads, h), pick(kr, kvHeads, h/2), pick(vr, kvHeads, h/2), scale)
		for i := range head {
			want[i*heads+h] = head[i]
		}
	}
	for dtype, limit := range map[kernels.DType]float64{kernels.F32: 1e-5, kernels.BF16: 6e-2} {
		l := kernels.KVLayout{BlockTokens: 32, KVHeads: kvHeads, HeadDim: d, DType: dtype}
		table := make([]int64, (n+31)/32)
		for i := range table {
			table[i] = int64(len(table)-1-i) * l.LayerBlockBytes()
		}
		mem := make([]byte, int64(len(table))*l.LayerBlockBytes())
		seqs := []kernels.AttnSeq{{Rows: n, Table: table}}
		if err := o.r.StoreKV(l, mem, seqs, k, v); err != nil {
			t.Fatal(err)
		}
		out := make([]float32, n*heads*d)
		if err := o.r.Attention(out, q, heads, float32(scale), l, mem, seqs); err != nil {
			t.Fatal(err)
		}
		requireClose(t, out, want, limit)
	}
}
