package main

import (
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// vec is a vector width.
type vec struct {
	prefix string
	bytes  int
	regs   []reg.VecPhysical
}

var (
	zmm = vec{"avx512", 64, []reg.VecPhysical{
		reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7,
		reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
		reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23,
		reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31,
	}}
	ymm = vec{"avx2", 32, []reg.VecPhysical{
		reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7,
		reg.Y8, reg.Y9, reg.Y10, reg.Y11, reg.Y12, reg.Y13, reg.Y14, reg.Y15,
	}}
)

func (v vec) wide() bool { return v.bytes == 64 }

// elem is the element type of the right side of a product.
type elem int

const (
	bf16 elem = iota
	f32
	f16
)

func (e elem) String() string { return [...]string{"BF16", "F32", "F16"}[e] }

// step is the number of terms summed at a time.
func (e elem) step() int {
	if e == bf16 {
		return 2
	}
	return 1
}

// rowBytes is what one step takes of a row of 16 outputs.
func (e elem) rowBytes() int {
	if e == f16 {
		return 32
	}
	return 64
}

// leftBytes is what one step takes of a row of the left side.
func (g *gen) leftBytes(e elem) int {
	if e == bf16 && !g.vec.wide() {
		return 8 // two float32
	}
	return 4
}

// leftType is the Go type of the left side's elements.
func (g *gen) leftType(e elem) string {
	if e == bf16 && g.vec.wide() {
		return "*uint16"
	}
	return "*float32"
}

// tile is a block of accumulators: rows of the left side times cols vectors
// of outputs.
type tile struct {
	*gen
	e          elem
	rows, cols int
}

// shapes are the tiles of an instruction set for 64 outputs: with 32
// registers any number of rows up to six; with 16 one row, or four rows of 16
// outputs at a time.
func (g *gen) shapes() [][2]int {
	if !g.vec.wide() {
		return [][2]int{{1, 8}, {4, 2}}
	}
	var s [][2]int
	for r := 1; r <= 6; r++ {
		s = append(s, [2]int{r, 4})
	}
	return s
}

func (t *tile) acc(i, j int) reg.VecPhysical { return t.vec.regs[i*t.cols+j] }

// spare is a register behind the accumulators.
func (t *tile) spare(i int) reg.VecPhysical { return t.vec.regs[t.spareBase()+i] }

func (t *tile) spareBase() int {
	if t.vec.wide() {
		return 24
	}
	return 8
}

func (t *tile) zero() {
	for i := range t.rows {
		for j := range t.cols {
			a := t.acc(i, j)
			if t.vec.wide() {
				t.VPXORD(a, a, a)
			} else {
				t.VPXOR(a, a, a)
			}
		}
	}
}

// rows addresses rows of a matrix: row i lies i*stride bytes behind base, and
// base3 is row 3, so that an index register reaches six rows.
type rows struct{ base, base3, stride reg.GPVirtual }

func (g *gen) newRows(n int, base, stride reg.GPVirtual) rows {
	r := rows{base: base, base3: base, stride: stride}
	if n > 3 {
		r.base3 = g.GP64()
		g.LEAQ(operand.Mem{Base: base, Index: stride, Scale: 2}, r.base3)
		g.ADDQ(stride, r.base3)
	}
	return r
}

func (r rows) at(i, disp int) operand.Mem {
	base := r.base
	if i >= 3 {
		base = r.base3
		i -= 3
	}
	if i == 0 {
		return operand.Mem{Base: base, Disp: disp}
	}
	return operand.Mem{Base: base, Index: r.stride, Scale: uint8(i), Disp: disp}
}

// advance moves all rows on by n bytes.
func (g *gen) advance(r rows, n int) {
	g.ADDQ(operand.U32(n), r.base)
	if r.base3 != r.base {
		g.ADDQ(operand.U32(n), r.base3)
	}
}

func (t *tile) store(y rows, cols int) {
	for i := range t.rows {
		for j := range cols {
			t.VMOVUPS(t.acc(i, j), y.at(i, j*t.vec.bytes))
		}
	}
}

func (t *tile) load(y rows, cols int) {
	for i := range t.rows {
		for j := range cols {
			t.VMOVUPS(y.at(i, j*t.vec.bytes), t.acc(i, j))
		}
	}
}

// maskReg holds 0xffff0000 in each lane for bf16 on AVX2.
func (t *tile) maskReg() reg.VecPhysical { return t.vec.regs[len(t.vec.regs)-1] }

// multiply emits one step: left is a row's element at a byte offset, right is
// the j-th vector of outputs.
func (t *tile) multiply(left rows, disp int, right func(j int) operand.Mem) {
	switch {
	case t.vec.wide():
		t.multiplyWide(left, disp, right)
	case t.e == bf16:
		t.multiplyPairs(left, disp, right)
	default:
		t.multiplyNarrow(left, disp, right)
	}
}

// multiplyWide takes four columns at a time: behind 24 accumulators there is
// room for four vectors and four broadcasts.
func (t *tile) multiplyWide(left rows, disp int, right func(j int) operand.Mem) {
	for from := 0; from < t.cols; from += 4 {
		cols := min(4, t.cols-from)
		for j := range cols {
			if t.e == f16 {
				t.VCVTPH2PS(right(from+j), t.spare(j))
			} else {
				t.VMOVUPS(right(from+j), t.spare(j))
			}
		}
		for i := range t.rows {
			x := t.spare(4 + i%4)
			t.VPBROADCASTD(left.at(i, disp), x)
			for j := range cols {
				if t.e == bf16 {
					t.vdpbf16ps(t.spare(j), x, t.acc(i, from+j))
				} else {
					t.VFMADD231PS(t.spare(j), x, t.acc(i, from+j))
				}
			}
		}
	}
}

// multiplyNarrow is multiplyWide with few registers.
func (t *tile) multiplyNarrow(left rows, disp int, right func(j int) operand.Mem) {
	vector := func(j int) reg.VecPhysical {
		w := t.spare(j % 4)
		if t.e == f16 {
			t.VCVTPH2PS(right(j), w)
		} else {
			t.VMOVUPS(right(j), w)
		}
		return w
	}
	if t.rows == 1 {
		x := t.spare(4)
		t.VBROADCASTSS(left.at(0, disp), x)
		for j := range t.cols {
			t.VFMADD231PS(vector(j), x, t.acc(0, j))
		}
		return
	}
	w := make([]reg.VecPhysical, t.cols)
	for j := range w {
		w[j] = vector(j)
	}
	for i := range t.rows {
		x := t.spare(4 + i%3)
		t.VBROADCASTSS(left.at(i, disp), x)
		for j := range t.cols {
			t.VFMADD231PS(w[j], x, t.acc(i, j))
		}
	}
}

// multiplyPairs is VDPBF16PS by two FMAs: odd elements first. The control
// word flushes denormals.
func (t *tile) multiplyPairs(left rows, disp int, right func(j int) operand.Mem) {
	unpack := func(j int, lo, hi reg.VecPhysical) {
		t.VMOVUPS(right(j), lo)
		t.VPAND(lo, t.maskReg(), hi)
		t.VPSLLD(operand.U8(16), lo, lo)
	}
	if t.rows == 1 {
		x0, x1 := t.spare(4), t.spare(5)
		t.VBROADCASTSS(left.at(0, disp+4), x1)
		t.VBROADCASTSS(left.at(0, disp), x0)
		for j := range t.cols {
			lo, hi := t.spare(j%2*2), t.spare(j%2*2+1)
			unpack(j, lo, hi)
			t.VFMADD231PS(hi, x1, t.acc(0, j))
			t.VFMADD231PS(lo, x0, t.acc(0, j))
		}
		return
	}
	for j := range t.cols {
		unpack(j, t.spare(2*j), t.spare(2*j+1))
	}
	for half := 1; half >= 0; half-- {
		for i := range t.rows {
			x := t.spare(4 + i%3)
			t.VBROADCASTSS(left.at(i, disp+4*half), x)
			for j := range t.cols {
				t.VFMADD231PS(t.spare(2*j+half), x, t.acc(i, j))
			}
		}
	}
}

// flushDenormals sets FTZ and DAZ for the rest of the function, with all
// exceptions masked and rounding to nearest even, and returns what puts the
// caller's control word back.
func (t *tile) flushDenormals() (restore func()) {
	if t.vec.wide() || t.e != bf16 {
		return func() {}
	}
	m := t.AllocLocal(8)
	was, now := m, m.Offset(4)
	t.STMXCSR(was)
	v := t.GP32()
	t.MOVL(operand.U32(0x9fc0), v)
	t.MOVL(v, now)
	t.LDMXCSR(now)
	t.MOVL(operand.U32(0xffff0000), v)
	x := t.maskReg().AsX()
	t.VMOVD(v, x)
	t.VPBROADCASTD(x, t.maskReg())
	return func() { t.LDMXCSR(was) }
}

// vdpbf16ps emits VDPBF16PS src2, src1, acc, which Go's assembler lacks.
func (g *gen) vdpbf16ps(src2, src1, acc reg.VecPhysical) {
	g.evex(0x52, acc, src1, src2, []operand.Op{src2, src1, acc})
}

// vcvtneps2bf16 emits VCVTNEPS2BF16 src, dst: a zmm to a ymm.
func (g *gen) vcvtneps2bf16(src, dst reg.VecPhysical) {
	g.evex(0x72, dst, nil, src, []operand.Op{src})
}

// evex emits EVEX.512.F3.0F38.W0 op dst, v, rm with registers only (Intel SDM
// volume 2, section 2.7). v is nil where the instruction has two operands.
func (g *gen) evex(op byte, dst, v, rm reg.VecPhysical, in []operand.Op) {
	d, r, n := byte(dst.ID().Index()), byte(rm.ID().Index()), byte(0)
	if v != nil {
		n = byte(v.ID().Index())
	}
	inv := func(x byte, bit, to uint) byte { return ^(x >> bit) & 1 << to }
	p1 := inv(d, 3, 7) | inv(r, 4, 6) | inv(r, 3, 5) | inv(d, 4, 4) | 0x02
	p2 := ^n&0xf<<3 | 0x04 | 0x02
	p3 := byte(0x40) | inv(n, 4, 3)
	modrm := 0xc0 | d&7<<3 | r&7
	long := uint32(0x62) | uint32(p1)<<8 | uint32(p2)<<16 | uint32(p3)<<24
	g.Instruction(&ir.Instruction{Opcode: "LONG", Operands: []operand.Op{operand.U32(long)},
		Inputs: in, Outputs: []operand.Op{dst}})
	g.Instruction(&ir.Instruction{Opcode: "WORD",
		Operands: []operand.Op{operand.U16(uint16(op) | uint16(modrm)<<8)}})
}
