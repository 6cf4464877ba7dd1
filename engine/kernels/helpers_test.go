package kernels

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// runners returns one Runner per instruction set of this machine.
func runners(t testing.TB, threads int) map[string]*Runner {
	m := map[string]*Runner{}
	for _, o := range detect() {
		r, err := New(Options{ISA: o.name(), Threads: threads})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		m[o.name()] = r
	}
	return m
}

// same says whether two slices are equal to the bit, all NaN being equal.
func same(t rapid.TB, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		g, w := got[i], want[i]
		if math.Float32bits(g) != math.Float32bits(w) && (g == g || w == w) {
			t.Fatalf("%s: element %d of %d is %x (%g), want %x (%g)", what, i, len(got), math.Float32bits(g), g, math.Float32bits(w), w)
		}
	}
}

// source makes random float32 of a kind of magnitude.
type source struct {
	rng  *rand.Rand
	kind int
}

// kinds of magnitudes: ordinary, products around the smallest normal number,
// products that overflow, any bits at all.
const (
	ordinary = iota
	tiny
	huge
	anything
	kinds
)

func newSource(seed uint64, kind int) *source {
	return &source{rand.New(rand.NewPCG(seed, 7)), kind}
}

func (s *source) one() float32 {
	v := float32(s.rng.NormFloat64())
	switch s.kind {
	case tiny:
		return v * float32(math.Ldexp(1, -50-s.rng.IntN(90)))
	case huge:
		return v * float32(math.Ldexp(1, 40+s.rng.IntN(40)))
	case anything:
		return math.Float32frombits(s.rng.Uint32())
	}
	return v
}

func (s *source) vec(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = s.one()
	}
	return v
}

// pack makes a matrix of random elements.
func (s *source) pack(t rapid.TB, dt DType, n, k int) *Matrix {
	return packed(t, dt, n, k, s.vec(n*k))
}

func packed(t rapid.TB, dt DType, n, k int, v []float32) *Matrix {
	row := make([]byte, 4*k)
	w, err := Pack(dt, n, k, func(i int) []byte {
		for j := range k {
			binary.LittleEndian.PutUint32(row[4*j:], math.Float32bits(v[i*k+j]))
		}
		return row
	}, F32)
	if err != nil {
		t.Fatalf("Pack: %v", err)
	}
	return w
}

// cache is a KV cache of sequences in shuffled blocks, unwritten slots full of
// NaN.
type cache struct {
	l    KVLayout
	mem  []byte
	seqs []AttnSeq
	k, v []float32 // [sequence][position][KVHeads][D]
}

// newCache writes KV for seqs, whose tables it makes.
func (s *source) newCache(t rapid.TB, l KVLayout, seqs []AttnSeq) *cache {
	c := &cache{l: l}
	blocks := 0
	need := func(q AttnSeq) int { return (q.Start + q.Rows + l.BlockTokens - 1) / l.BlockTokens }
	for _, q := range seqs {
		blocks += need(q)
	}
	c.mem = make([]byte, int64(blocks)*l.LayerBlockBytes())
	for i := range c.mem {
		c.mem[i] = 0xff
	}
	perm := s.rng.Perm(blocks)
	for _, q := range seqs {
		n := need(q)
		q.Table = make([]int64, n)
		for i, b := range perm[:n] {
			q.Table[i] = int64(b) * l.LayerBlockBytes()
		}
		perm = perm[n:]
		w := l.KVHeads * l.HeadDim
		for pos := range q.Start + q.Rows {
			k, v := s.vec(w), s.vec(w)
			c.k, c.v = append(c.k, k...), append(c.v, v...)
			if err := WriteKV(c.mem, l, q.Table[pos/l.BlockTokens], pos%l.BlockTokens, k, v); err != nil {
				t.Fatalf("WriteKV: %v", err)
			}
		}
		c.seqs = append(c.seqs, q)
	}
	return c
}
