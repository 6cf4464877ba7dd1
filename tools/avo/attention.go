package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// tileTokens is the number of tokens of a K or V tile.
const tileTokens = 16

// genAttention emits the two products of attention.
func genAttention(g *gen) {
	if g.vec.wide() {
		storeKey(g)
		storeValuePair(g)
	}
	for _, e := range []elem{bf16, f32} {
		for _, s := range g.shapes() {
			scores(&tile{gen: g, e: e, rows: s[0], cols: s[1]})
			values(&tile{gen: g, e: e, rows: s[0], cols: s[1]})
		}
		narrow := 16 * 4 / g.vec.bytes
		for _, s := range g.shapes() {
			if s[1] != narrow {
				values(&tile{gen: g, e: e, rows: s[0], cols: narrow})
			}
			if g.vec.wide() && s[0] <= 3 {
				values(&tile{gen: g, e: e, rows: s[0], cols: 8})
			}
		}
	}
}

func scores(t *tile) {
	perTile := tileTokens * 4 / t.vec.bytes
	tiles := t.cols / perTile
	t.fn(fmt.Sprintf("Scores%vx%d", t.e, t.rows),
		fmt.Sprintf("(s *float32, ss int, q %s, qs int, mem *byte, tiles *int64, n int, steps int)", t.leftType(t.e)),
		fmt.Sprintf("multiplies %d queries with n times %d K tiles. Strides are in bytes.", t.rows, tiles))
	restore := t.flushDenormals()
	qs, list := t.arg("qs"), t.arg("tiles")
	group := t.label("group")
	t.Label(group)
	k := make([]reg.GPVirtual, tiles)
	for i := range k {
		k[i] = t.GP64()
		t.MOVQ(operand.Mem{Base: list, Disp: 8 * i}, k[i])
		t.addParam("mem", k[i])
	}
	t.ADDQ(operand.U32(8*tiles), list)
	// The list goes on behind the last group, see attention.go.
	var ahead []reg.GPVirtual
	if t.streams() {
		ahead = make([]reg.GPVirtual, tiles)
		for i := range ahead {
			ahead[i] = t.GP64()
			t.MOVQ(operand.Mem{Base: list, Disp: 8 * i}, ahead[i])
			t.addParam("mem", ahead[i])
			t.SUBQ(k[i], ahead[i])
		}
	}
	left := t.newRows(t.rows, t.arg("q"), qs)
	t.zero()
	steps := t.arg("steps")
	stride := t.e.rowBytes()
	t.loop(steps, 4, func(u int) {
		t.multiply(left, u*t.leftBytes(t.e), func(j int) operand.Mem {
			return operand.Mem{Base: k[j/perTile], Disp: u*stride + j%perTile*t.vec.bytes}
		})
		for i, a := range ahead {
			t.PREFETCHT0(operand.Mem{Base: k[i], Index: a, Scale: 1, Disp: u * stride})
		}
	}, func(u int) {
		for i := range k {
			t.ADDQ(operand.U32(u*stride), k[i])
		}
		t.advance(left, u*t.leftBytes(t.e))
	})
	t.store(t.newRows(t.rows, t.arg("s"), t.arg("ss")), t.cols)
	t.bumpParam("s", t.cols*t.vec.bytes)
	t.decParam("n")
	t.JNZ(operand.LabelRef(group))
	restore()
	t.VZEROUPPER()
	t.RET()
}

// addParam adds a parameter to r without taking a register for it.
func (g *gen) addParam(name string, r reg.Register) {
	b, err := g.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	g.ADDQ(b.Addr, r)
}

// decParam takes one off a parameter in place and sets the flags.
func (g *gen) decParam(name string) {
	b, err := g.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	g.DECQ(b.Addr)
}

// streams says whether a tile prefetches: few rows leave time between loads
// from memory.
func (t *tile) streams() bool { return t.rows <= 3 }

// bumpParam adds n to a parameter in place.
func (g *gen) bumpParam(name string, n int) {
	b, err := g.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	g.ADDQ(operand.U32(n), b.Addr)
}

const (
	chunkDims  = 64
	tilesAhead = 2 // how far ahead of their use V tiles are fetched
)

// valueDisp is where byte o of a row of dimensions lies: chunks of 64
// dimensions follow each other.
func (t *tile) valueDisp(o int) int {
	const row = 4 * chunkDims
	return o/row*(tileTokens/t.e.step()*row) + o%row
}

func values(t *tile) {
	dims := t.cols * t.vec.bytes / 4
	t.fn(fmt.Sprintf("Values%vx%dd%d", t.e, t.rows, dims),
		fmt.Sprintf("(o *float32, os int, p %s, ps int, mem *byte, tiles *int64, n int, off int, stride int)", t.leftType(t.e)),
		fmt.Sprintf("adds n steps of tokens to %d rows of %d dimensions, %d steps per tile from byte off on, stride bytes apart.",
			t.rows, dims, tileTokens/t.e.step()))
	restore := t.flushDenormals()
	list, n, stride := t.arg("tiles"), t.arg("n"), t.arg("stride")
	p, ps := t.arg("p"), t.arg("ps")
	left := t.newRows(t.rows, p, ps)
	o, os := t.arg("o"), t.arg("os")
	out := t.newRows(t.rows, o, os)
	t.load(out, t.cols)
	next := t.label("tile")
	t.Label(next)
	v, ahead := t.GP64(), t.GP64()
	load := func(disp int, r reg.GPVirtual) {
		t.MOVQ(operand.Mem{Base: list, Disp: disp}, r)
		t.addParam("mem", r)
		t.addParam("off", r)
	}
	load(0, v)
	prefetch := t.streams() && dims >= chunkDims
	if prefetch {
		load(8*tilesAhead, ahead)
		t.SUBQ(v, ahead)
	}
	t.ADDQ(operand.U32(8), list)
	// count = min(n, steps per tile)
	count := t.GP64()
	t.MOVQ(operand.U32(tileTokens/t.e.step()), count)
	t.CMPQ(n, count)
	t.CMOVQLT(n, count)
	t.SUBQ(count, n)
	t.loop(count, 1, func(int) {
		t.multiply(left, 0, func(j int) operand.Mem {
			return operand.Mem{Base: v, Disp: t.valueDisp(j * t.vec.bytes)}
		})
		for o := 0; prefetch && o < t.cols*t.vec.bytes; o += 64 {
			t.PREFETCHT0(operand.Mem{Base: v, Index: ahead, Scale: 1, Disp: t.valueDisp(o)})
		}
	}, func(int) {
		t.ADDQ(stride, v)
		t.advance(left, t.leftBytes(t.e))
	})
	t.TESTQ(n, n)
	t.JNZ(operand.LabelRef(next))
	t.store(out, t.cols)
	restore()
	t.VZEROUPPER()
	t.RET()
}
