package kernels

import (
	"encoding/binary"
	"math"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestPackRowRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dt := rapid.SampledFrom([]DType{F32, BF16, F16}).Draw(t, "dtype")
		n, k := rapid.IntRange(1, 150).Draw(t, "n"), rapid.IntRange(1, 40).Draw(t, "k")
		s := newSource(rapid.Uint64().Draw(t, "seed"), ordinary)
		v := s.vec(n * k)
		raw := make([]byte, n*k*dt.Size())
		for i, f := range v {
			switch dt {
			case F32:
				binary.LittleEndian.PutUint32(raw[4*i:], math.Float32bits(f))
			case BF16:
				b := bf16Round(f)
				binary.LittleEndian.PutUint16(raw[2*i:], b)
				v[i] = bf16Value(b)
			default:
				b := f16Round(f)
				binary.LittleEndian.PutUint16(raw[2*i:], b)
				v[i] = f16Value(b)
			}
		}
		w, err := Pack(dt, n, k, func(i int) []byte { return raw[i*k*dt.Size():] }, dt)
		if err != nil {
			t.Fatal(err)
		}
		if w.N() != n || w.K() != k || w.DType() != dt || w.Bytes() < int64(len(raw)) {
			t.Fatalf("matrix is %d x %d %v of %d bytes", w.N(), w.K(), w.DType(), w.Bytes())
		}
		got := make([]float32, k)
		for i := range n {
			w.Row(got, i)
			same(t, "row", got, v[i*k:][:k])
		}
	})
}

func TestPackErrors(t *testing.T) {
	row := func(int) []byte { return make([]byte, 8) }
	for _, c := range []struct {
		dt   DType
		n, k int
		src  DType
		want string
	}{
		{0, 1, 1, F32, "F32, BF16 and F16"},
		{F32, 1, 1, 9, "F32, BF16 and F16"},
		{F32, 0, 1, F32, "0 x 1"},
		{F32, 1, -1, F32, "1 x -1"},
		{F32, math.MaxInt, math.MaxInt, F32, "at most"},
		{BF16, 2, 3, F32, "row 0 has 8 bytes, want 12"},
	} {
		_, err := Pack(c.dt, c.n, c.k, row, c.src)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Pack(%v, %d, %d, %v): %v, want an error with %q", c.dt, c.n, c.k, c.src, err, c.want)
		}
	}
}

func TestKVRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := KVLayout{
			BlockTokens: 16 * rapid.IntRange(1, 3).Draw(t, "block tokens / 16"),
			KVHeads:     rapid.IntRange(1, 3).Draw(t, "kv heads"),
			HeadDim:     16 * rapid.IntRange(1, 9).Draw(t, "head dim / 16"),
			DType:       rapid.SampledFrom([]DType{F32, BF16}).Draw(t, "dtype"),
		}
		s := newSource(rapid.Uint64().Draw(t, "seed"), ordinary)
		// Exactly one block: a write outside it would panic, and slots that
		// share a byte would show below.
		mem := make([]byte, l.LayerBlockBytes())
		n := l.KVHeads * l.HeadDim
		ks, vs := s.vec(n*l.BlockTokens), s.vec(n*l.BlockTokens)
		for i := range ks {
			if l.DType == BF16 {
				ks[i], vs[i] = bf16Value(bf16Round(ks[i])), bf16Value(bf16Round(vs[i]))
			}
		}
		for slot := range l.BlockTokens {
			if err := WriteKV(mem, l, 0, slot, ks[slot*n:][:n], vs[slot*n:][:n]); err != nil {
				t.Fatal(err)
			}
		}
		k, v := make([]float32, n), make([]float32, n)
		for slot := range l.BlockTokens {
			if err := ReadKV(mem, l, 0, slot, k, v); err != nil {
				t.Fatal(err)
			}
			same(t, "K", k, ks[slot*n:][:n])
			same(t, "V", v, vs[slot*n:][:n])
		}
	})
}

// TestStoreKV compares with WriteKV token by token.
func TestStoreKV(t *testing.T) {
	for _, kind := range []int{ordinary, anything} {
		for _, dt := range []DType{BF16, F32} {
			testStoreKV(t, KVLayout{BlockTokens: 16, KVHeads: 2, HeadDim: 80, DType: dt}, newSource(3, kind))
		}
	}
}

func testStoreKV(t *testing.T, l KVLayout, s *source) {
	c := s.newCache(t, l, []AttnSeq{{Rows: 200, Start: 7}, {Rows: 1, Start: 40}, {Rows: 0}})
	n := l.KVHeads * l.HeadDim
	k, v := s.vec(201*n), s.vec(201*n)
	want := append([]byte(nil), c.mem...)
	row := 0
	for _, q := range c.seqs {
		for i := range q.Rows {
			pos := q.Start + i
			if err := WriteKV(want, l, q.Table[pos/16], pos%16, k[row*n:][:n], v[row*n:][:n]); err != nil {
				t.Fatal(err)
			}
			row++
		}
	}
	for name, r := range runners(t, 3) {
		mem := append([]byte(nil), c.mem...)
		if err := r.StoreKV(l, mem, c.seqs, k, v); err != nil {
			t.Fatal(err)
		}
		if string(mem) != string(want) {
			t.Errorf("%s: StoreKV and WriteKV differ for %v", name, l.DType)
		}
	}
}

func TestBadLayoutsAndTables(t *testing.T) {
	good := KVLayout{BlockTokens: 16, KVHeads: 2, HeadDim: 16, DType: F32}
	mem := make([]byte, 2*good.LayerBlockBytes())
	r, err := New(Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	x := make([]float32, 64*32)
	for what, c := range map[string]struct {
		l     KVLayout
		heads int
		scale float32
		seq   AttnSeq
	}{
		"BlockTokens is 8":          {KVLayout{8, 2, 16, F32}, 2, 1, AttnSeq{}},
		"KVHeads is 0":              {KVLayout{16, 0, 16, F32}, 2, 1, AttnSeq{}},
		"HeadDim is 24":             {KVLayout{16, 2, 24, F32}, 2, 1, AttnSeq{}},
		"DType is F16":              {KVLayout{16, 2, 16, F16}, 2, 1, AttnSeq{}},
		"3 query heads":             {good, 3, 1, AttnSeq{Rows: 1, Table: []int64{0}}},
		"scale is 0":                {good, 2, 0, AttnSeq{Rows: 1, Table: []int64{0}}},
		"table of 1 blocks, want 2": {good, 2, 1, AttnSeq{Rows: 2, Start: 15, Table: []int64{0}}},
		"layer block at byte -1":    {good, 2, 1, AttnSeq{Rows: 1, Table: []int64{-1}}},
		"entry 1: kernels: layer block at byte 4097": {good, 2, 1, AttnSeq{Rows: 2, Start: 15, Table: []int64{0, 4097}}},
		"Rows -1":                  {good, 2, 1, AttnSeq{Rows: -1}},
		"Start -1":                 {good, 2, 1, AttnSeq{Rows: 1, Start: -1, Table: []int64{0}}},
		"byte 9223372036854775807": {good, 2, 1, AttnSeq{Rows: 1, Table: []int64{math.MaxInt64}}},
	} {
		err := r.Attention(x, x, c.heads, c.scale, c.l, mem, []AttnSeq{c.seq})
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("Attention: %v, want an error with %q", err, what)
		}
	}
	if err := WriteKV(mem, good, 0, 16, x[:32], x[:32]); err == nil {
		t.Error("WriteKV to slot 16 of 16: no error")
	}
	if err := WriteKV(mem, good, 0, 0, x[:31], x[:32]); err == nil {
		t.Error("WriteKV of 31 elements: no error")
	}
	if err := ReadKV(mem, good, good.LayerBlockBytes()+1, 0, x[:32], x[:32]); err == nil {
		t.Error("ReadKV behind the end: no error")
	}
	if err := r.Attention(nil, nil, 2, 1, good, nil, nil); err != nil {
		t.Errorf("Attention of nothing: %v", err)
	}
}

// TestLayerBlockBytes: the geometry of Qwen3 and LWM.
func TestLayerBlockBytes(t *testing.T) {
	for _, c := range []struct {
		l    KVLayout
		want int64
	}{
		{KVLayout{16, 8, 128, BF16}, 64 << 10},
		{KVLayout{16, 32, 128, BF16}, 256 << 10},
	} {
		if got := c.l.LayerBlockBytes(); got != c.want {
			t.Errorf("%+v: %d bytes, want %d", c.l, got, c.want)
		}
	}
}

// TestFMAIsExact compares with arbitrary precision, also where two roundings
// differ from one.
func TestFMAIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSource(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(0, huge).Draw(t, "kind"))
		a, b, c := s.one(), s.one(), s.one()
		if rapid.Bool().Draw(t, "near a tie") {
			// c is half a last place of the product away from it.
			p := a * b
			c = (math.Nextafter32(p, 0)-p)/2 + c*0x1p-60
		}
		p := new(big.Float).SetPrec(2000).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)))
		p.Add(p, big.NewFloat(float64(c)))
		want, _ := p.Float32()
		if got := fma32(a, b, c); got != want {
			t.Fatalf("fma32(%x, %x, %x) = %x, want %x", a, b, c, got, want)
		}
		flushed := want
		if abs := new(big.Float).Abs(p); abs.Cmp(big.NewFloat(minNormal-0x1p-151)) < 0 {
			flushed = 0
		}
		if got := fmaFlush(a, b, c); got != flushed {
			t.Fatalf("fmaFlush(%x, %x, %x) = %x, want %x", a, b, c, got, flushed)
		}
	})
}

func TestHalfConversions(t *testing.T) {
	for h := range 1 << 16 {
		v := f16Value(uint16(h))
		if v != v {
			continue
		}
		if got := f16Round(v); got != uint16(h) {
			t.Fatalf("half %04x is %g, which rounds to %04x", h, v, got)
		}
		// The middle between two neighbours rounds to the even one.
		if next := f16Value(uint16(h + 1)); h&0x7fff < 0x7bff {
			want := uint16(h + h&1)
			if got := f16Round((v + next) / 2); got != want {
				t.Fatalf("middle of %04x and the next rounds to %04x, want %04x", h, got, want)
			}
		}
		b := uint16(h)
		if w := bf16Value(b); w == w && b&0x7f80 != 0 && bf16Round(w) != b {
			t.Fatalf("bf16 %04x is %g, which rounds to %04x", b, w, bf16Round(w))
		}
	}
}

func TestShortSlicesPanic(t *testing.T) {
	r, err := New(Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w := newSource(1, ordinary).pack(t, F32, 4, 4)
	x := make([]float32, 4)
	for what, f := range map[string]func(){
		"MatMul":  func() { r.MatMul(x[:3], x, 1, w) },
		"RMSNorm": func() { r.RMSNorm(x, x, x, 2, 4, 1e-6) },
		"Rope":    func() { r.Rope(x, 1, 1, 4, x[:1], x) },
		"SiLUMul": func() { r.SiLUMul(x, x[:3], x) },
		"Row":     func() { w.Row(x, 4) },
	} {
		func() {
			defer func() {
				if s, _ := recover().(string); !strings.HasPrefix(s, "BUG: ") {
					t.Errorf("%s with a short slice: panic %q, want BUG", what, s)
				}
			}()
			f()
		}()
	}
}
