package main

import (
	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// storeKey scatters one token's key over a K tile: pairs of dimensions lie a
// row of 16 tokens apart.
func storeKey(g *gen) {
	const row = 4 * tileTokens
	index := g.StaticGlobal("avx512KeyRows")
	g.DataAttributes(attr.RODATA | attr.NOPTR)
	for i := range 16 {
		g.AddDatum(4*i, operand.U32(row*i))
	}
	g.fn("StoreKey", "(tile *byte, k *float32, n int)",
		"rounds n dimensions, a multiple of 32, and stores them from tile on, one pair per 64 bytes.")
	tile, k, n := g.arg("tile"), g.arg("k"), g.arg("n")
	g.VMOVDQU32(index, reg.Z31)
	l := g.label("loop")
	g.Label(l)
	g.VMOVUPS(operand.Mem{Base: k}, reg.Z0)
	g.VMOVUPS(operand.Mem{Base: k, Disp: 64}, reg.Z1)
	g.vcvtneps2bf16(reg.Z0, reg.Z2)
	g.vcvtneps2bf16(reg.Z1, reg.Z3)
	g.VINSERTI64X4(operand.U8(1), reg.Y3, reg.Z2, reg.Z2)
	g.KXNORW(reg.K1, reg.K1, reg.K1)
	g.VPSCATTERDD(reg.Z2, reg.K1, operand.Mem{Base: tile, Index: reg.Z31, Scale: 1})
	g.ADDQ(operand.U32(128), k)
	g.ADDQ(operand.U32(16*row), tile)
	g.SUBQ(operand.U32(32), n)
	g.JNZ(operand.LabelRef(l))
	g.done()
}

// storeValuePair stores two tokens' values, which share the dwords of a V tile.
func storeValuePair(g *gen) {
	g.fn("StoreValuePair", "(row *byte, even *float32, odd *float32, n int)",
		"rounds n dimensions, a multiple of 16, of two tokens and interleaves them.")
	row, even, odd, n := g.arg("row"), g.arg("even"), g.arg("odd"), g.arg("n")
	g.loop16(n, []reg.GPVirtual{row, even, odd}, func() {
		g.VMOVUPS(operand.Mem{Base: even}, reg.Z0)
		g.VMOVUPS(operand.Mem{Base: odd}, reg.Z1)
		g.vcvtneps2bf16(reg.Z0, reg.Z2)
		g.vcvtneps2bf16(reg.Z1, reg.Z3)
		g.VPMOVZXWD(reg.Y2, reg.Z2)
		g.VPMOVZXWD(reg.Y3, reg.Z3)
		g.VPSLLD(operand.U8(16), reg.Z3, reg.Z3)
		g.VPORD(reg.Z2, reg.Z3, reg.Z3)
		g.VMOVDQU32(reg.Z3, operand.Mem{Base: row})
	})
	g.done()
}
