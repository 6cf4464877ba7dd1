package main

import (
	"math"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// genElementwise emits operators whose lengths n are multiples of 16.
func genElementwise(g *gen) {
	c := newConstants(g)
	genSoftmax(g, c, true)
	genSoftmax(g, c, false)
	genSiLUMul(g, c)
	genExp(g, c)
	genRound(g, c)
	genRope(g)
	genSumSquares(g)
	unary(g, "Add", "(y *float32, x *float32, n int)", "is y = y + x.", "", func(_ reg.Register, x, y reg.VecVirtual) {
		g.VADDPS(x, y, y)
	})
	unary(g, "Scale", "(y *float32, x *float32, n int, a float32)", "is y = x * a.", "a", func(a reg.Register, x, y reg.VecVirtual) {
		g.VMULPS(a, x, y)
	})
	genScaleMul(g)
	genMerge(g)
}

// each16 calls f with the byte offsets of the registers that hold 16 float32:
// one zmm or two ymm.
func (g *gen) each16(f func(o int)) {
	for o := 0; o < 64; o += g.vec.bytes {
		f(o)
	}
}

// v is a new vector register.
func (g *gen) v() reg.VecVirtual {
	if g.vec.wide() {
		return g.ZMM()
	}
	return g.YMM()
}

// loop16 runs body over n elements, 16 at a time, moving ptrs on.
func (g *gen) loop16(n reg.Register, ptrs []reg.GPVirtual, body func()) {
	l := g.label("loop")
	g.Label(l)
	body()
	for _, p := range ptrs {
		g.ADDQ(operand.U32(64), p)
	}
	g.SUBQ(operand.U32(16), n)
	g.JNZ(operand.LabelRef(l))
}

// scalar broadcasts a float32 parameter.
func (g *gen) scalar(name string) reg.VecVirtual {
	x, v := g.XMM(), g.v()
	g.Load(g.Param(name), x)
	g.VBROADCASTSS(x, v)
	return v
}

func (g *gen) zeroed() reg.VecVirtual {
	v := g.v()
	if g.vec.wide() {
		g.VPXORD(v, v, v)
	} else {
		g.VPXOR(v, v, v)
	}
	return v
}

func (g *gen) done() {
	g.VZEROUPPER()
	g.RET()
}

// constants are vectors of one float32 each.
type constants struct {
	g    *gen
	base operand.Mem
	at   map[string]int
}

func newConstants(g *gen) *constants {
	c := &constants{g: g, at: map[string]int{}}
	c.base = g.StaticGlobal(g.vec.prefix + "Constants")
	g.DataAttributes(attr.RODATA | attr.NOPTR)
	for _, k := range []struct {
		name string
		bits uint32
	}{
		// exp.go says where these come from.
		{"low", math.Float32bits(-87)}, {"high", math.Float32bits(88)},
		{"log2e", math.Float32bits(1.44269504088896341)}, {"magic", math.Float32bits(12582912)},
		{"-ln2hi", math.Float32bits(-0.693359375)}, {"-ln2lo", math.Float32bits(2.12194440e-4)},
		{"p0", math.Float32bits(1.9875691500e-4)}, {"p1", math.Float32bits(1.3981999507e-3)},
		{"p2", math.Float32bits(8.3334519073e-3)}, {"p3", math.Float32bits(4.1665795894e-2)},
		{"p4", math.Float32bits(1.6666665459e-1)}, {"p5", math.Float32bits(5.0000001201e-1)},
		{"one", math.Float32bits(1)},
		// rounding to bf16
		{"lsb", 1}, {"half", 0x7fff}, {"upper", 0xffff0000}, {"exponent", 0x7f800000},
		{"sign", 0x80000000}, {"quiet", 0x00400000}, {"-inf", 0xff800000},
	} {
		c.at[k.name] = len(c.at) * g.vec.bytes
		for o := range g.vec.bytes / 4 {
			g.AddDatum(c.at[k.name]+4*o, operand.U32(k.bits))
		}
	}
	return c
}

func (c *constants) get(name string) operand.Mem {
	o, ok := c.at[name]
	if !ok {
		panic("no constant " + name)
	}
	return c.base.Offset(o)
}

// exp replaces x by exp32(x); see exp.go.
func (c *constants) exp(x reg.VecVirtual) {
	g := c.g
	arg, t, n, p := g.v(), g.v(), g.v(), g.v()
	g.VMOVUPS(c.get("high"), arg)
	g.VMINPS(x, arg, arg) // a NaN in x stays
	g.VMOVUPS(c.get("magic"), t)
	g.VFMADD231PS(c.get("log2e"), arg, t)
	g.VSUBPS(c.get("magic"), t, n)
	r := g.v()
	g.VMOVAPS(arg, r)
	g.VFMADD231PS(c.get("-ln2hi"), n, r)
	g.VFMADD231PS(c.get("-ln2lo"), n, r)
	g.VMOVUPS(c.get("p0"), p)
	for _, k := range []string{"p1", "p2", "p3", "p4", "p5", "one", "one"} {
		g.VFMADD213PS(c.get(k), r, p)
	}
	// Zero where x < low; NaN is not.
	if g.vec.wide() {
		k := g.K()
		g.VCMPPS(operand.U8(0x05), c.get("low"), x, k)
		g.VSCALEFPS_Z(n, p, k, x)
		return
	}
	g.VPSLLD(operand.U8(23), t, t)
	g.VPADDD(t, p, p)
	// A NaN's payload may have upset the exponent: arg-arg is NaN again.
	g.VSUBPS(arg, arg, arg)
	g.VADDPS(arg, p, p)
	g.VCMPPS(operand.U8(0x01), c.get("low"), x, x)
	g.VANDNPS(p, x, x)
}

// genSoftmax emits p = exp(s*scale - m) with m = max(s)*scale, and the
// sum of p in 16 lanes.
func genSoftmax(g *gen, c *constants, round bool) {
	name, typ := "SoftmaxF32", "*float32"
	if round {
		name = "SoftmaxBF16"
		if g.vec.wide() {
			typ = "*uint16"
		}
	}
	g.fn(name, "(p "+typ+", s *float32, n int, scale float32) (m float32, l float32)",
		"is softmax without the division over n scores, a multiple of 16.")
	s, n := g.arg("s"), g.arg("n")
	scale := g.scalar("scale")
	m := g.v()
	g.VMOVUPS(c.get("-inf"), m)
	g.loop16(n, []reg.GPVirtual{s}, func() {
		g.each16(func(o int) {
			g.VMAXPS(operand.Mem{Base: s, Disp: o}, m, m)
		})
	})
	g.reduce(m, nil, func(a, b reg.VecVirtual) { g.VMAXPS(b, a, a) })
	g.VMULSS(scale.AsX(), m.AsX(), m.AsX())
	g.Store(m.AsX(), g.Return("m"))
	g.VBROADCASTSS(m.AsX(), m)
	var sums []reg.VecVirtual
	g.each16(func(int) { sums = append(sums, g.zeroed()) })
	g.Load(g.Param("s"), s)
	g.Load(g.Param("n"), n)
	p := g.arg("p")
	g.loop16(n, []reg.GPVirtual{s}, func() {
		g.each16(func(o int) {
			x := g.v()
			g.VMOVUPS(operand.Mem{Base: s, Disp: o}, x)
			g.VFMSUB213PS(m, scale, x) // x*scale - m
			c.exp(x)
			sum := sums[o/g.vec.bytes]
			g.VADDPS(x, sum, sum)
			g.storeProb(c, x, p, o, round)
		})
		if round && g.vec.wide() {
			g.ADDQ(operand.U32(32), p)
		} else {
			g.ADDQ(operand.U32(64), p)
		}
	})
	sum := sums[0]
	var hi reg.VecVirtual
	if len(sums) > 1 {
		hi = sums[1]
	}
	g.reduce(sum, hi, func(a, b reg.VecVirtual) { g.VADDPS(b, a, a) })
	g.Store(sum.AsX(), g.Return("l"))
	g.done()
}

func (g *gen) storeProb(c *constants, x reg.VecVirtual, p reg.Register, o int, round bool) {
	switch {
	case !round:
		g.VMOVUPS(x, operand.Mem{Base: p, Disp: o})
	case g.vec.wide():
		g.VMOVAPS(x, reg.Z31)
		g.vcvtneps2bf16(reg.Z31, reg.Z30)
		g.VMOVUPS(reg.Y30, operand.Mem{Base: p, Disp: o})
	default:
		g.roundNarrow(c, x)
		g.VMOVUPS(x, operand.Mem{Base: p, Disp: o})
	}
}

// reduce folds 16 lanes (two vectors on AVX2) pairwise at distance 8, 4, 2, 1
// into lane 0 of v.
func (g *gen) reduce(v, hi reg.VecVirtual, op func(a, b reg.VecVirtual)) {
	y := g.YMM()
	a := g.YMM()
	switch {
	case g.vec.wide():
		g.VEXTRACTF64X4(operand.U8(1), v, y)
		g.VMOVAPS(v.AsY(), a)
		op(a, y)
	case hi != nil:
		g.VMOVAPS(v, a)
		op(a, hi)
	default:
		g.VMOVAPS(v, a)
	}
	x := g.XMM()
	b := g.XMM()
	g.VEXTRACTF128(operand.U8(1), a, x)
	g.VMOVAPS(a.AsX(), b)
	op(b, x)
	g.VPERMILPS(operand.U8(0x0e), b, x) // lanes 2, 3
	op(b, x)
	g.VPERMILPS(operand.U8(0x01), b, x) // lane 1
	op(b, x)
	g.VMOVAPS(b, v.AsX())
}

// roundNarrow rounds x to bf16 and leaves it a float32: nearest even,
// denormals to zero, NaN quiet.
func (g *gen) roundNarrow(c *constants, x reg.VecVirtual) {
	t, nan, tiny := g.YMM(), g.YMM(), g.YMM()
	g.VCMPPS(operand.U8(0x03), x, x, nan)
	g.VPAND(c.get("exponent"), x, tiny)
	g.VPXOR(t, t, t)
	g.VPCMPEQD(t, tiny, tiny)
	g.VPSRLD(operand.U8(16), x, t)
	g.VPAND(c.get("lsb"), t, t)
	g.VPADDD(c.get("half"), t, t)
	g.VPADDD(x, t, t)
	q := g.YMM()
	g.VPOR(c.get("quiet"), x, q)
	g.VPBLENDVB(nan, q, t, t)
	g.VPAND(c.get("sign"), x, q)
	g.VPBLENDVB(tiny, q, t, t)
	g.VPAND(c.get("upper"), t, x)
}

func genRound(g *gen, c *constants) {
	typ := "*float32"
	if g.vec.wide() {
		typ = "*uint16"
	}
	g.fn("Round", "(dst "+typ+", x *float32, n int)", "rounds n elements to bf16.")
	d, x, n := g.arg("dst"), g.arg("x"), g.arg("n")
	g.loop16(n, []reg.GPVirtual{x}, func() {
		g.each16(func(o int) {
			if g.vec.wide() {
				g.VMOVUPS(operand.Mem{Base: x}, reg.Z31)
				g.vcvtneps2bf16(reg.Z31, reg.Z30)
				g.VMOVUPS(reg.Y30, operand.Mem{Base: d})
				g.ADDQ(operand.U32(32), d)
				return
			}
			v := g.v()
			g.VMOVUPS(operand.Mem{Base: x, Disp: o}, v)
			g.roundNarrow(c, v)
			g.VMOVUPS(v, operand.Mem{Base: d, Disp: o})
		})
		if !g.vec.wide() {
			g.ADDQ(operand.U32(64), d)
		}
	})
	g.done()
}

func genExp(g *gen, c *constants) {
	g.fn("Exp", "(x *float32, n int)", "is x = exp(x).")
	x, n := g.arg("x"), g.arg("n")
	g.loop16(n, []reg.GPVirtual{x}, func() {
		g.each16(func(o int) {
			v := g.v()
			g.VMOVUPS(operand.Mem{Base: x, Disp: o}, v)
			c.exp(v)
			g.VMOVUPS(v, operand.Mem{Base: x, Disp: o})
		})
	})
	g.done()
}

func genSiLUMul(g *gen, c *constants) {
	g.fn("SiLUMul", "(y *float32, gate *float32, up *float32, n int)", "is y = gate / (1 + exp(-gate)) * up.")
	y, gate, up, n := g.arg("y"), g.arg("gate"), g.arg("up"), g.arg("n")
	zero := g.zeroed()
	g.loop16(n, []reg.GPVirtual{y, gate, up}, func() {
		g.each16(func(o int) {
			v, e := g.v(), g.v()
			g.VMOVUPS(operand.Mem{Base: gate, Disp: o}, v)
			g.VSUBPS(v, zero, e)
			c.exp(e)
			g.VADDPS(c.get("one"), e, e)
			g.VDIVPS(e, v, v)
			g.VMULPS(operand.Mem{Base: up, Disp: o}, v, v)
			g.VMOVUPS(v, operand.Mem{Base: y, Disp: o})
		})
	})
	g.done()
}

func genRope(g *gen) {
	g.fn("Rope", "(lo *float32, hi *float32, cos *float32, sin *float32, n int)",
		"rotates n pairs: lo*cos - hi*sin, hi*cos + lo*sin.")
	lo, hi, cos, sin, n := g.arg("lo"), g.arg("hi"), g.arg("cos"), g.arg("sin"), g.arg("n")
	g.loop16(n, []reg.GPVirtual{lo, hi, cos, sin}, func() {
		g.each16(func(o int) {
			a, b, c, s, t, u := g.v(), g.v(), g.v(), g.v(), g.v(), g.v()
			g.VMOVUPS(operand.Mem{Base: lo, Disp: o}, a)
			g.VMOVUPS(operand.Mem{Base: hi, Disp: o}, b)
			g.VMOVUPS(operand.Mem{Base: cos, Disp: o}, c)
			g.VMOVUPS(operand.Mem{Base: sin, Disp: o}, s)
			g.VMULPS(c, a, t)
			g.VMULPS(s, b, u)
			g.VSUBPS(u, t, t)
			g.VMOVUPS(t, operand.Mem{Base: lo, Disp: o})
			g.VMULPS(c, b, t)
			g.VMULPS(s, a, u)
			g.VADDPS(u, t, t)
			g.VMOVUPS(t, operand.Mem{Base: hi, Disp: o})
		})
	})
	g.done()
}

func genSumSquares(g *gen) {
	g.fn("SumSquares", "(lanes *float32, x *float32, n int)", "adds x[i]^2 to lanes[i%16].")
	lanes, x, n := g.arg("lanes"), g.arg("x"), g.arg("n")
	var acc []reg.VecVirtual
	g.each16(func(o int) {
		v := g.v()
		g.VMOVUPS(operand.Mem{Base: lanes, Disp: o}, v)
		acc = append(acc, v)
	})
	g.loop16(n, []reg.GPVirtual{x}, func() {
		g.each16(func(o int) {
			v := g.v()
			g.VMOVUPS(operand.Mem{Base: x, Disp: o}, v)
			g.VFMADD231PS(v, v, acc[o/g.vec.bytes])
		})
	})
	g.each16(func(o int) { g.VMOVUPS(acc[o/g.vec.bytes], operand.Mem{Base: lanes, Disp: o}) })
	g.done()
}

// unary emits y = f(a, x, y).
func unary(g *gen, name, signature, doc, scalar string, f func(a reg.Register, x, y reg.VecVirtual)) {
	g.fn(name, signature, doc)
	y, x, n := g.arg("y"), g.arg("x"), g.arg("n")
	var a reg.VecVirtual
	if scalar != "" {
		a = g.scalar(scalar)
	}
	g.loop16(n, []reg.GPVirtual{y, x}, func() {
		g.each16(func(o int) {
			vx, vy := g.v(), g.v()
			g.VMOVUPS(operand.Mem{Base: x, Disp: o}, vx)
			if scalar == "" {
				g.VMOVUPS(operand.Mem{Base: y, Disp: o}, vy)
			}
			f(a, vx, vy)
			g.VMOVUPS(vy, operand.Mem{Base: y, Disp: o})
		})
	})
	g.done()
}

func genScaleMul(g *gen) {
	g.fn("ScaleMul", "(y *float32, x *float32, w *float32, n int, a float32)", "is y = (x * a) * w.")
	y, x, w, n := g.arg("y"), g.arg("x"), g.arg("w"), g.arg("n")
	a := g.scalar("a")
	g.loop16(n, []reg.GPVirtual{y, x, w}, func() {
		g.each16(func(o int) {
			v := g.v()
			g.VMULPS(operand.Mem{Base: x, Disp: o}, a, v)
			g.VMULPS(operand.Mem{Base: w, Disp: o}, v, v)
			g.VMOVUPS(v, operand.Mem{Base: y, Disp: o})
		})
	})
	g.done()
}

func genMerge(g *gen) {
	g.fn("Merge", "(o *float32, s *float32, n int, a float32, b float32)", "is o = o*a + s*b.")
	o, s, n := g.arg("o"), g.arg("s"), g.arg("n")
	a, b := g.scalar("a"), g.scalar("b")
	g.loop16(n, []reg.GPVirtual{o, s}, func() {
		g.each16(func(d int) {
			x, y := g.v(), g.v()
			g.VMULPS(operand.Mem{Base: o, Disp: d}, a, x)
			g.VMULPS(operand.Mem{Base: s, Disp: d}, b, y)
			g.VADDPS(y, x, x)
			g.VMOVUPS(x, operand.Mem{Base: o, Disp: d})
		})
	})
	g.done()
}
