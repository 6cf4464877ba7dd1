package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// loop emits body n times, unrolled by unroll: body(u) is the u-th step behind
// the pointers, and next(u) moves the pointers on by u steps. n is used up.
func (g *gen) loop(n reg.Register, unroll int, body, next func(u int)) {
	many, one, test, end := g.label("many"), g.label("one"), g.label("test"), g.label("end")
	if unroll > 1 {
		g.SUBQ(operand.U32(unroll), n)
		g.JLT(operand.LabelRef(test))
		g.Label(many)
		for u := range unroll {
			body(u)
		}
		next(unroll)
		g.SUBQ(operand.U32(unroll), n)
		g.JGE(operand.LabelRef(many))
		g.Label(test)
		g.ADDQ(operand.U32(unroll), n)
	}
	g.TESTQ(n, n)
	g.JLE(operand.LabelRef(end))
	g.Label(one)
	body(0)
	next(1)
	g.DECQ(n)
	g.JNZ(operand.LabelRef(one))
	g.Label(end)
}

// arg loads a parameter into a register.
func (g *gen) arg(name string) reg.GPVirtual {
	r := g.GP64()
	g.Load(g.Param(name), r)
	return r
}
