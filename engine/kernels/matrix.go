package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
)

// panelWidth is the number of outputs of one panel of a packed matrix: the
// lanes of four AVX-512 registers.
const panelWidth = 64

// Matrix is an immutable packed weight matrix with N outputs and K inputs. It
// may be shared by any number of Runners.
//
// Outputs are grouped in panels of 64; within a panel the inputs run slowest,
// so that a product streams a panel from front to back while each lane sums
// one output in the order of k:
//
//	BF16  [N/64][K/2][64][2]uint16
//	F16   [N/64][K][64]uint16
//	F32   [N/64][K][64]float32
//
// N and, for BF16, K are padded with zeros.
type Matrix struct {
	dt   DType
	n, k int
	data []byte
}

// Size returns the bytes of one element.
func (d DType) Size() int {
	switch d {
	case F32:
		return 4
	case BF16, F16:
		return 2
	}
	return 0
}

// String returns the name that safetensors uses.
func (d DType) String() string {
	switch d {
	case F32:
		return "F32"
	case BF16:
		return "BF16"
	case F16:
		return "F16"
	}
	return fmt.Sprintf("DType(%d)", uint8(d))
}

// maxElems bounds a matrix so that no size computation can overflow.
const maxElems = 1 << 40

// Pack builds a matrix with elements of type dt from n rows of k elements of
// type src, little-endian. row(i) returns row i, at least k*src.Size() bytes;
// it is called once per row, in order, and its result is not kept. BF16
// denormals become zero, as the arithmetic takes them as such. Narrowing
// conversions round to nearest even.
func Pack(dt DType, n, k int, row func(i int) []byte, src DType) (*Matrix, error) {
	if dt.Size() == 0 || src.Size() == 0 {
		return nil, fmt.Errorf("kernels: pack %v as %v: element types are F32, BF16 and F16", src, dt)
	}
	if n < 1 || k < 1 || int64(n) > maxElems/int64(k) {
		return nil, fmt.Errorf("kernels: matrix of %d x %d: want both at least 1 and at most %d elements", n, k, int64(maxElems))
	}
	w := &Matrix{dt: dt, n: n, k: k}
	w.data = alignedBytes(w.panels() * w.panelBytes())
	tmp := make([]float32, k)
	for i := range n {
		b := row(i)
		if len(b) < k*src.Size() {
			return nil, fmt.Errorf("kernels: row %d has %d bytes, want %d (%d of %v)", i, len(b), k*src.Size(), k, src)
		}
		w.setRow(i, b, src, tmp)
	}
	return w, nil
}

// N returns the number of outputs.
func (w *Matrix) N() int { return w.n }

// K returns the number of inputs.
func (w *Matrix) K() int { return w.k }

// DType returns the element type in memory.
func (w *Matrix) DType() DType { return w.dt }

// Bytes returns the memory the weights take, padding included.
func (w *Matrix) Bytes() int64 { return int64(len(w.data)) }

// Row writes row n, widened to float32, to dst[:K]: an embedding lookup.
func (w *Matrix) Row(dst []float32, n int) {
	if n < 0 || n >= w.n || len(dst) < w.k {
		panic(fmt.Sprintf("BUG: row %d of %d into %d elements, want %d", n, w.n, len(dst), w.k))
	}
	p := w.column(n)
	dst = dst[:w.k]
	switch w.dt {
	case F32:
		for k := range dst {
			dst[k] = math.Float32frombits(binary.LittleEndian.Uint32(p[k*panelWidth*4:]))
		}
	case BF16:
		for k := range dst {
			dst[k] = bf16Value(binary.LittleEndian.Uint16(p[k>>1*panelWidth*4+k&1*2:]))
		}
	default:
		for k := range dst {
			dst[k] = f16Value(binary.LittleEndian.Uint16(p[k*panelWidth*2:]))
		}
	}
}

// depth is K as stored: even for BF16.
func (w *Matrix) depth() int {
	if w.dt == BF16 {
		return (w.k + 1) &^ 1
	}
	return w.k
}

func (w *Matrix) panels() int     { return (w.n + panelWidth - 1) / panelWidth }
func (w *Matrix) panelBytes() int { return w.depth() * panelWidth * w.dt.Size() }

func (w *Matrix) panel(i int) []byte {
	s := w.panelBytes()
	return w.data[i*s : (i+1)*s : (i+1)*s]
}

// column is the panel of output n from that output's lane on.
func (w *Matrix) column(n int) []byte {
	size := w.dt.Size()
	if w.dt == BF16 {
		size = 4 // a lane holds a pair
	}
	return w.panel(n / panelWidth)[n%panelWidth*size:]
}

// setRow stores row n, k elements of type src. tmp has room for k.
func (w *Matrix) setRow(n int, b []byte, src DType, tmp []float32) {
	p := w.column(n)
	switch {
	case src == BF16 && w.dt == BF16:
		packPairs(p, b[:2*w.k])
	case src == F16 && w.dt == F16:
		for k := range w.k {
			binary.LittleEndian.PutUint16(p[k*panelWidth*2:], binary.LittleEndian.Uint16(b[2*k:]))
		}
	default:
		decode(tmp, b, src)
		w.setFloats(n, tmp)
	}
}

// packPairs stores bf16 elements two by two, denormals as zero.
func packPairs(p, b []byte) {
	at := func(i int) uint32 {
		h := binary.LittleEndian.Uint16(b[i:])
		if h&0x7f80 == 0 {
			h &= 0x8000
		}
		return uint32(h)
	}
	o := 0
	for i := 0; i+4 <= len(b); i += 4 {
		binary.LittleEndian.PutUint32(p[o:], at(i)|at(i+2)<<16)
		o += panelWidth * 4
	}
	if len(b)%4 != 0 {
		binary.LittleEndian.PutUint32(p[o:], at(len(b)-2))
	}
}

// decode widens little-endian elements to all of dst.
func decode(dst []float32, b []byte, src DType) {
	switch src {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = bf16Value(binary.LittleEndian.Uint16(b[2*i:]))
		}
	default:
		for i := range dst {
			dst[i] = f16Value(binary.LittleEndian.Uint16(b[2*i:]))
		}
	}
}

// setFloats stores row n, rounded to the matrix's element type.
func (w *Matrix) setFloats(n int, row []float32) {
	p := w.column(n)
	for k, v := range row {
		switch w.dt {
		case F32:
			binary.LittleEndian.PutUint32(p[k*panelWidth*4:], math.Float32bits(v))
		case BF16:
			binary.LittleEndian.PutUint16(p[k>>1*panelWidth*4+k&1*2:], bf16Round(v))
		default:
			binary.LittleEndian.PutUint16(p[k*panelWidth*2:], f16Round(v))
		}
	}
}
