package roofline

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/kvlend/kvlend/engine/kernels"
)

// Result is one operator at one size.
type Result struct {
	Name    string
	Time    time.Duration // best of the runs
	Bytes   float64       // weights or KV read once
	Flops   float64
	OfRead  float64 // share of ReadAll, where memory is the limit, or 0
	OfPeak  float64 // share of DotAll (FloatAll without bf16), or 0
	Threads int
}

// String is one line of a report.
func (r Result) String() string {
	s := r.Time.Seconds()
	line := fmt.Sprintf("%-44s %9.3f ms", r.Name, s*1e3)
	if r.OfRead > 0 {
		line += fmt.Sprintf(" %7.1f GB/s = %3.0f %% of memory", r.Bytes/s*1e-9, 100*r.OfRead)
	}
	if r.OfPeak > 0 {
		line += fmt.Sprintf(" %7.1f GFLOP/s = %3.0f %% of peak", r.Flops/s*1e-9, 100*r.OfPeak)
	}
	return line
}

// rate fills in the shares. Decode is bound by memory, the rest by arithmetic.
func (r Result) rate(roof Roof, decode bool) Result {
	s := r.Time.Seconds()
	if decode {
		r.OfRead = r.Bytes / s / roof.ReadAll
		return r
	}
	peak := roof.DotAll
	if peak == 0 {
		peak = roof.FloatAll
	}
	r.OfPeak = r.Flops / s / peak
	return r
}

// shapes are the products of one layer of Qwen3-0.6B: inputs and outputs.
var shapes = []struct {
	name string
	k, n int
}{
	{"q", 1024, 2048}, {"o", 2048, 1024}, {"gate", 1024, 3072}, {"down", 3072, 1024},
}

// cold is how many bytes of weights or KV decode runs over in turn, so that
// none of it is still in cache.
const cold = 128 << 20

// MatMul measures products with bf16 weights in the shapes of Qwen3-0.6B for m
// rows.
func MatMul(k *kernels.Runner, roof Roof, m, runs int) ([]Result, error) {
	var out []Result
	for _, s := range shapes {
		rng := rand.New(rand.NewPCG(1, uint64(s.n)))
		row := make([]byte, 4*s.k)
		copies := 1
		if m < 16 {
			copies = cold / (2 * s.k * s.n)
		}
		ws := make([]*kernels.Matrix, copies)
		for i := range ws {
			w, err := kernels.Pack(kernels.BF16, s.n, s.k, func(int) []byte {
				for j := range s.k {
					binary.LittleEndian.PutUint32(row[4*j:], math.Float32bits(rng.Float32()-0.5))
				}
				return row
			}, kernels.F32)
			if err != nil {
				return nil, err
			}
			ws[i] = w
		}
		x, y := random(rng, m*s.k), make([]float32, m*s.n)
		t := Best(max(runs, copies), func(i int) { k.MatMul(y, x, m, ws[i%copies]) })
		r := Result{Name: fmt.Sprintf("matmul %s %dx%d, m=%d", s.name, s.k, s.n, m), Time: t, Threads: roof.Threads,
			Bytes: float64(ws[0].Bytes()), Flops: 2 * float64(m) * float64(s.k) * float64(s.n)}
		out = append(out, r.rate(roof, m < 16))
	}
	return out, nil
}

func random(rng *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	return v
}

// Attention measures attention of rows new tokens behind depth tokens, with
// the heads of Qwen3-0.6B (16 query heads, 8 KV heads of 128) and bf16 KV in
// blocks of 16 tokens that lie scattered in memory.
func Attention(k *kernels.Runner, roof Roof, depth, rows, runs int) (Result, error) {
	l := kernels.KVLayout{BlockTokens: 16, KVHeads: 8, HeadDim: 128, DType: kernels.BF16}
	const heads = 16
	rng := rand.New(rand.NewPCG(1, uint64(depth)))
	blocks := (depth + rows + 15) / 16
	sets := 1
	if rows == 1 {
		sets = max(1, int(cold/(int64(blocks)*l.LayerBlockBytes())))
	}
	mem := buffer(sets * blocks * int(l.LayerBlockBytes()))
	perm := rng.Perm(sets * blocks)
	kv := random(rng, 1024+l.KVHeads*l.HeadDim)
	seqs := make([]kernels.AttnSeq, sets)
	for i := range seqs {
		table := make([]int64, blocks)
		for j, b := range perm[i*blocks : (i+1)*blocks] {
			table[j] = int64(b) * l.LayerBlockBytes()
			for slot := range 16 {
				v := kv[(17*j+slot)%1024:][:l.KVHeads*l.HeadDim]
				if err := kernels.WriteKV(mem, l, table[j], slot, v, v); err != nil {
					return Result{}, err
				}
			}
		}
		seqs[i] = kernels.AttnSeq{Rows: rows, Start: depth, Table: table}
	}
	q := random(rng, rows*heads*l.HeadDim)
	o := make([]float32, len(q))
	var failed error
	t := Best(max(runs, sets), func(i int) {
		if err := k.Attention(o, q, heads, 0.088, l, mem, seqs[i%sets:i%sets+1]); err != nil {
			failed = err
		}
	})
	pairs := float64(rows)*float64(depth) + float64(rows)*float64(rows+1)/2
	r := Result{Name: fmt.Sprintf("attention depth %d, %d new tokens", depth, rows), Time: t, Threads: roof.Threads,
		Bytes: float64(depth+rows) * 2 * 8 * 128 * 2, Flops: 4 * heads * 128 * pairs}
	return r.rate(roof, rows == 1), failed
}

// Report measures the roof and the operators, and writes a line for each.
func Report(w io.Writer, opt kernels.Options, runs int) error {
	k, err := kernels.New(opt)
	if err != nil {
		return err
	}
	defer k.Close()
	roof := Measure(k.Threads())
	fmt.Fprintf(w, "%s, %d threads; read %.1f GB/s (one thread %.1f), float32 %.0f GFLOP/s (%.0f), bf16 %.0f GFLOP/s (%.0f)\n",
		k.Name(), k.Threads(), roof.ReadAll*1e-9, roof.ReadOne*1e-9, roof.FloatAll*1e-9, roof.FloatOne*1e-9, roof.DotAll*1e-9, roof.DotOne*1e-9)
	if roof.Threads > 1 && roof.FloatAll < 1.5*roof.FloatOne {
		fmt.Fprintln(w, "warning: other work kept the threads from running side by side; compare one thread instead")
	}
	for _, m := range []int{1, 4, 128, 512} {
		rs, err := MatMul(k, roof, m, runs)
		if err != nil {
			return err
		}
		for _, r := range rs {
			fmt.Fprintln(w, r)
		}
	}
	for _, c := range []struct{ depth, rows int }{
		{0, 512}, {2048, 512}, {8192, 512}, {512, 1}, {2048, 1}, {8192, 1},
	} {
		r, err := Attention(k, roof, c.depth, c.rows, runs)
		if err != nil {
			return err
		}
		fmt.Fprintln(w, r)
	}
	return nil
}
