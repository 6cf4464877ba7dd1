package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
)

// genMul emits the micro-kernels of products with packed panels.
func genMul(g *gen) {
	for _, e := range []elem{bf16, f32, f16} {
		for _, s := range g.shapes() {
			mul(&tile{gen: g, e: e, rows: s[0], cols: s[1]})
		}
	}
}

// panelLanes is the number of outputs of a panel.
const panelLanes = 64

// prefetchBytes is how far ahead of its use a panel is fetched.
const prefetchBytes = 4096

func mul(t *tile) {
	t.fn(fmt.Sprintf("Mul%vx%d", t.e, t.rows),
		fmt.Sprintf("(y *float32, ys int, x %s, xs int, w *byte, n int)", t.leftType(t.e)),
		fmt.Sprintf("multiplies %d rows of x with %d lanes of a panel, n steps of k. Strides are in bytes.",
			t.rows, t.cols*t.vec.bytes/4))
	restore := t.flushDenormals()
	y, ys := t.arg("y"), t.arg("ys")
	x, xs := t.arg("x"), t.arg("xs")
	w, n := t.arg("w"), t.arg("n")
	left := t.newRows(t.rows, x, xs)
	t.zero()
	stride := t.e.rowBytes() * panelLanes / 16
	lanes := t.vec.bytes / 4
	step := func(u int) {
		t.multiply(left, u*t.leftBytes(t.e), func(j int) operand.Mem {
			return operand.Mem{Base: w, Disp: u*stride + j*lanes*t.e.rowBytes()/16}
		})
		if t.cols*lanes == panelLanes {
			for o := 0; o < stride; o += 64 {
				t.PREFETCHT0(operand.Mem{Base: w, Disp: u*stride + o + prefetchBytes})
			}
		}
	}
	t.loop(n, 4, step, func(u int) {
		t.ADDQ(operand.U32(u*stride), w)
		t.advance(left, u*t.leftBytes(t.e))
	})
	out := t.newRows(t.rows, y, ys)
	t.store(out, t.cols)
	restore()
	t.VZEROUPPER()
	t.RET()
}
