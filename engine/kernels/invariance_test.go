package kernels

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// fast returns the two assembly implementations, or the reference where there
// is none, each with 1 and 3 threads.
func fast(t testing.TB) map[string]*Runner {
	m := map[string]*Runner{}
	for _, threads := range []int{1, 3} {
		for name, r := range runners(t, threads) {
			if name != "go" || len(detect()) == 1 {
				m[fmt.Sprint(name, " ", threads)] = r
			}
		}
	}
	return m
}

// TestMatMulIgnoresBatch: a row's result is the same alone, in any batch, and
// on any number of threads.
func TestMatMulIgnoresBatch(t *testing.T) {
	all := fast(t)
	rapid.Check(t, func(t *rapid.T) {
		dt := rapid.SampledFrom([]DType{F32, BF16, F16}).Draw(t, "dtype")
		m := rapid.IntRange(2, 120).Draw(t, "m")
		n := rapid.IntRange(1, 300).Draw(t, "n")
		k := rapid.IntRange(1, 200).Draw(t, "k")
		s := newSource(rapid.Uint64().Draw(t, "seed"), ordinary)
		w, x := s.pack(t, dt, n, k), s.vec(m*k)
		row := rapid.IntRange(0, m-1).Draw(t, "row")
		var want []float32
		for name, r := range all {
			whole, one := make([]float32, m*n), make([]float32, n)
			r.MatMul(whole, x, m, w)
			r.MatMul(one, x[row*k:][:k], 1, w)
			same(t, name+" alone", one, whole[row*n:][:n])
			if want != nil {
				same(t, name, whole, want)
			}
			want = whole
		}
	})
}

// TestAttentionIgnoresBatchAndChunks: the same queries in one call, one
// sequence at a time, and in random chunks of a prefill give equal bits.
func TestAttentionIgnoresBatchAndChunks(t *testing.T) {
	all := fast(t)
	rapid.Check(t, func(t *rapid.T) {
		l := KVLayout{
			BlockTokens: 16 * rapid.IntRange(1, 3).Draw(t, "block tokens / 16"),
			KVHeads:     rapid.IntRange(1, 2).Draw(t, "kv heads"),
			HeadDim:     16 * rapid.IntRange(1, 5).Draw(t, "head dim / 16"),
			DType:       rapid.SampledFrom([]DType{F32, BF16}).Draw(t, "dtype"),
		}
		heads := l.KVHeads * rapid.IntRange(1, 3).Draw(t, "group")
		s := newSource(rapid.Uint64().Draw(t, "seed"), ordinary)
		var seqs []AttnSeq
		for range rapid.IntRange(1, 3).Draw(t, "sequences") {
			seqs = append(seqs, AttnSeq{Rows: rapid.IntRange(1, 70).Draw(t, "rows"), Start: rapid.IntRange(0, 600).Draw(t, "start")})
		}
		c := s.newCache(t, l, seqs)
		w := heads * l.HeadDim
		rows := 0
		for _, q := range c.seqs {
			rows += q.Rows
		}
		q := s.vec(rows * w)
		chunk := rapid.IntRange(1, 30).Draw(t, "chunk")
		var want []float32
		for name, r := range all {
			whole, parts := make([]float32, len(q)), make([]float32, len(q))
			if err := r.Attention(whole, q, heads, 0.2, l, c.mem, c.seqs); err != nil {
				t.Fatal(err)
			}
			at := 0
			for _, seq := range c.seqs {
				for i := 0; i < seq.Rows; i += chunk {
					n := min(chunk, seq.Rows-i)
					part := []AttnSeq{{Rows: n, Start: seq.Start + i, Table: seq.Table}}
					if err := r.Attention(parts[at:], q[at:], heads, 0.2, l, c.mem, part); err != nil {
						t.Fatal(err)
					}
					at += n * w
				}
			}
			same(t, name+" in chunks", parts, whole)
			if want != nil {
				same(t, name, whole, want)
			}
			want = whole
		}
	})
}

// TestAttentionIgnoresBlocks: neither the block size nor where blocks lie
// matters.
func TestAttentionIgnoresBlocks(t *testing.T) {
	all := fast(t)
	for _, dt := range []DType{F32, BF16} {
		var want []float32
		for _, b := range []int{16, 32, 80, 1024} {
			l := KVLayout{BlockTokens: b, KVHeads: 2, HeadDim: 48, DType: dt}
			s := newSource(5, ordinary)
			q := s.vec(5 * 4 * 48)
			kv := newSource(6, ordinary)
			c := kv.newCache(t, l, []AttnSeq{{Rows: 5, Start: 900}})
			// The values must not depend on how blocks were shuffled.
			fixed := newSource(7, ordinary)
			for pos := range 905 {
				k, v := fixed.vec(96), fixed.vec(96)
				if err := WriteKV(c.mem, l, c.seqs[0].Table[pos/b], pos%b, k, v); err != nil {
					t.Fatal(err)
				}
			}
			for name, r := range all {
				got := make([]float32, len(q))
				if err := r.Attention(got, q, 4, 0.2, l, c.mem, c.seqs); err != nil {
					t.Fatal(err)
				}
				if want != nil {
					same(t, fmt.Sprintf("%s, blocks of %d", name, b), got, want)
				}
				want = got
			}
		}
	}
}

// TestLaterTokensDoNotLeak: what a later token of the same chunk holds, Inf and
// NaN included, changes no earlier row.
func TestLaterTokensDoNotLeak(t *testing.T) {
	all := fast(t)
	for _, dt := range []DType{F32, BF16} {
		for _, start := range []int{0, 11, 250} {
			l := KVLayout{BlockTokens: 16, KVHeads: 1, HeadDim: 80, DType: dt}
			const rows, heads = 9, 2
			s := newSource(4, ordinary)
			c := s.newCache(t, l, []AttnSeq{{Rows: rows, Start: start}})
			q := s.vec(rows * heads * l.HeadDim)
			for name, r := range all {
				want, got := make([]float32, len(q)), make([]float32, len(q))
				if err := r.Attention(want, q, heads, 0.1, l, c.mem, c.seqs); err != nil {
					t.Fatal(err)
				}
				mem := append([]byte(nil), c.mem...)
				for row := rows - 1; row > 0; row-- {
					bad := make([]float32, l.HeadDim)
					for i := range bad {
						bad[i] = float32(math.Inf(1 - 2*(i%2)))
					}
					pos := start + row
					if err := WriteKV(mem, l, c.seqs[0].Table[pos/16], pos%16, bad, bad); err != nil {
						t.Fatal(err)
					}
					if err := r.Attention(got, q, heads, 0.1, l, mem, c.seqs); err != nil {
						t.Fatal(err)
					}
					n := row * heads * l.HeadDim
					same(t, fmt.Sprintf("%s %v start %d, %d good rows", name, dt, start, row), got[:n], want[:n])
				}
			}
		}
	}
}
