package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// genRoofline emits loops that do nothing but arithmetic or reading, for
// package bench/roofline.
func genRoofline(g *gen) {
	for _, v := range []vec{zmm, ymm} {
		g.vec = v
		peak(g, "FMA", "FMAs", func(a reg.VecPhysical) { g.VFMADD231PS(a, a, a) })
		if v.wide() {
			peak(g, "Dot", "VDPBF16PS", func(a reg.VecPhysical) { g.vdpbf16ps(a, a, a) })
		}
		read(g)
	}
}

// peak runs on independent accumulators: enough to hide the latency.
func peak(g *gen, name, what string, op func(reg.VecPhysical)) {
	n := len(g.vec.regs) * 3 / 4
	g.fn(name, "(n int)", "runs n rounds of "+what+", one on each accumulator.")
	count := g.arg("n")
	for _, a := range g.vec.regs[:n] {
		if g.vec.wide() {
			g.VPXORD(a, a, a)
		} else {
			g.VPXOR(a, a, a)
		}
	}
	l := g.label("loop")
	g.Label(l)
	for _, a := range g.vec.regs[:n] {
		op(a)
	}
	g.DECQ(count)
	g.JNZ(operand.LabelRef(l))
	g.done()
}

// read loads n bytes, a multiple of 256.
func read(g *gen) {
	g.fn("Read", "(p *byte, n int)", "reads n bytes, a multiple of 256.")
	p, n := g.arg("p"), g.arg("n")
	l := g.label("loop")
	g.Label(l)
	for o := 0; o < 256; o += 64 {
		g.PREFETCHT0(operand.Mem{Base: p, Disp: o + prefetchBytes})
	}
	for o := 0; o < 256; o += g.vec.bytes {
		g.VMOVUPS(operand.Mem{Base: p, Disp: o}, g.vec.regs[o/g.vec.bytes])
	}
	g.ADDQ(operand.U32(256), p)
	g.SUBQ(operand.U32(256), n)
	g.JNZ(operand.LabelRef(l))
	g.done()
}
