package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
)

// selfCheck compares an implementation with the reference on random vectors:
// ordinary numbers, numbers whose products are about as small as float32 gets,
// and about as large. It takes a few milliseconds. A processor or emulator
// whose VDPBF16PS rounds differently must be found here, as everything above
// relies on equal bits.
func selfCheck(o ops) error {
	if _, ok := o.(ref); ok {
		return nil
	}
	for _, exp := range []int{0, -63, -68, 60} {
		c := checker{o: o, rng: rand.New(rand.NewPCG(1, uint64(exp))), exp: exp}
		c.products()
		c.attention()
		c.elementwise()
		if c.err != nil {
			return c.err
		}
	}
	return nil
}

type checker struct {
	o   ops
	rng *rand.Rand
	exp int // binary exponent of the numbers
	err error
}

func (c *checker) vec(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(math.Ldexp(c.rng.NormFloat64(), c.exp+c.rng.IntN(8)))
	}
	return v
}

// equal records the first difference.
func (c *checker) equal(what string, got, want []float32) {
	for i := range want {
		g, w := math.Float32bits(got[i]), math.Float32bits(want[i])
		if g != w && (got[i] == got[i] || want[i] == want[i]) && c.err == nil {
			c.err = fmt.Errorf("kernels: instruction set %q refused: %s gives bits %08x where the Go reference gives %08x", c.o.name(), what, g, w)
		}
	}
}

// operands rounds x for the implementation and for the reference.
func (c *checker) operands(x []float32) (mine, refs operand) {
	refs.full = make([]float32, len(x))
	ref{}.round(refs, x)
	if c.o.halfInputs() {
		mine.half = make([]uint16, len(x))
	} else {
		mine.full = make([]float32, len(x))
	}
	c.o.round(mine, x)
	c.equal("rounding to bf16", widen(mine), refs.full)
	return mine, refs
}

func widen(o operand) []float32 {
	if o.half == nil {
		return o.full
	}
	v := make([]float32, len(o.half))
	for i, h := range o.half {
		v[i] = bf16Value(h)
	}
	return v
}

func (c *checker) products() {
	const k = 14
	for _, dt := range []DType{BF16, F32, F16} {
		panel := make([]byte, k*panelWidth*dt.Size())
		w := &Matrix{dt: dt, n: panelWidth, k: k, data: panel}
		for n := range panelWidth {
			w.setFloats(n, c.vec(k))
		}
		x := c.vec(maxRows * k)
		mine, refs := operand{full: x}, operand{full: x}
		if dt == BF16 {
			mine, refs = c.operands(x)
		}
		for r := 1; r <= maxRows; r++ {
			got, want := make([]float32, r*panelWidth), make([]float32, r*panelWidth)
			c.o.mul(dt, r, got, panelWidth, mine, k, panel, k)
			ref{}.mul(dt, r, want, panelWidth, refs, k, panel, k)
			c.equal(fmt.Sprintf("product of %d rows with %v", r, dt), got, want)
		}
	}
}

func (c *checker) attention() {
	const d, tokens = 80, 21
	for _, dt := range []DType{BF16, F32} {
		l := KVLayout{BlockTokens: 32, KVHeads: 1, HeadDim: d, DType: dt}
		mem := make([]byte, l.LayerBlockBytes())
		for t := range l.BlockTokens {
			l.write(ref{}, mem, t, c.vec(d), c.vec(d))
		}
		kt := [segmentTiles + tilesAhead]int64{0, l.keyTile(0, tileTokens)}
		vt := [segmentTiles + tilesAhead]int64{l.halfBytes(), l.halfBytes() + kt[1]}
		x := c.vec(maxRows * d)
		mine, refs := operand{full: x}, operand{full: x}
		if dt == BF16 {
			mine, refs = c.operands(x)
		}
		for r := 1; r <= maxRows; r++ {
			what := fmt.Sprintf("attention of %d rows with %v", r, dt)
			got, want := make([]float32, maxRows*segmentTokens), make([]float32, maxRows*segmentTokens)
			c.o.scores(dt, r, got, segmentTokens, mine, mem, kt[:2], d)
			ref{}.scores(dt, r, want, segmentTokens, refs, mem, kt[:2], d)
			for i := range r {
				at := i * segmentTokens
				c.equal(what+": scores", got[at:at+2*tileTokens], want[at:at+2*tileTokens])
			}
			c.values(what, dt, r, want, mem, vt[:], d, tokens)
		}
	}
}

// values checks the softmax and the second product.
func (c *checker) values(what string, dt DType, r int, s []float32, mem []byte, tiles []int64, d, tokens int) {
	mine, refs := operand{full: make([]float32, len(s))}, operand{full: make([]float32, len(s))}
	if dt == BF16 && c.o.halfInputs() {
		mine = operand{half: make([]uint16, len(s))}
	}
	scale := float32(math.Ldexp(0.1, -2*c.exp))
	for i := range r {
		at := i * segmentTokens
		wm, wl := ref{}.softmax(refs.from(at), s[at:], tokens, scale, dt == BF16)
		gm, gl := c.o.softmax(mine.from(at), s[at:], tokens, scale, dt == BF16)
		c.equal(what+": sum of softmax", []float32{gl}, []float32{wl})
		if wl != wl {
			return // the rest is NaN one way or another
		}
		c.equal(what+": maximum", []float32{gm}, []float32{wm})
	}
	got, want := make([]float32, r*d), make([]float32, r*d)
	for _, span := range [][2]int{{0, tokens &^ 1}, {6, tokens + 1}} {
		c.o.values(dt, r, got, mine, segmentTokens, mem, tiles, span[0], span[1], d)
		ref{}.values(dt, r, want, refs, segmentTokens, mem, tiles, span[0], span[1], d)
		c.equal(what+": values", got, want)
	}
}

func (c *checker) elementwise() {
	const n = 53
	x, y, w := c.vec(n), c.vec(n), c.vec(n)
	run := func(what string, f func(o ops, out []float32)) {
		got, want := append([]float32(nil), x...), append([]float32(nil), x...)
		f(c.o, got)
		f(ref{}, want)
		c.equal(what, got, want)
	}
	run("exp", func(o ops, out []float32) { o.exp(out) })
	run("merging", func(o ops, out []float32) { o.merge(out, y, 0.3, 0.7) })
	run("scaling", func(o ops, out []float32) { o.scale(out, 0.3) })
	run("sum of squares", func(o ops, out []float32) { o.sumSquares((*[16]float32)(out), x) })
	run("normalising", func(o ops, out []float32) { o.scaleMul(out, y, w, 0.3) })
	run("rotating", func(o ops, out []float32) { o.rope(out[:n-1], y[:n/2], w[:n/2]) })
	run("SiLU", func(o ops, out []float32) { o.siluMul(out, y, w) })
	run("storing", func(o ops, out []float32) {
		const d = 48
		tile := make([]byte, 2*tileTokens*d)
		o.storeKey(tile, 3, x[:d])
		copyHalves(out, tile[6*64:])
		o.storeValuePair(tile, 6, x[:d], y[:d])
		copyHalves(out[n/2:], tile[3*4*d:])
	})
	run("adding", func(o ops, out []float32) { o.add(out, y) })
}

// copyHalves widens bf16 from b to all of out.
func copyHalves(out []float32, b []byte) {
	for i := range out {
		out[i] = bf16Value(binary.LittleEndian.Uint16(b[2*i:]))
	}
}
