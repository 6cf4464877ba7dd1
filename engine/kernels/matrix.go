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
	for i := range n {
		b := row(i)
		if len(b) < k*src.Size() {
			return nil, fmt.Errorf("kernels: row %d has %d bytes, want %d (%d of %v)", i, len(b), k*src.Size(), k, src)
		}
		w.setRow(i, b, src)
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
	p := w.panel(n / panelWidth)
	for k := range w.k {
		o := w.offset(n%panelWidth, k)
		switch w.dt {
		case F32:
			dst[k] = math.Float32frombits(binary.LittleEndian.Uint32(p[o:]))
		case BF16:
			dst[k] = bf16Value(binary.LittleEndian.Uint16(p[o:]))
		default:
			dst[k] = f16Value(binary.LittleEndian.Uint16(p[o:]))
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

// offset is where element (lane, k) lies in its panel.
func (w *Matrix) offset(lane, k int) int {
	switch w.dt {
	case F32:
		return (k*panelWidth + lane) * 4
	case BF16:
		return (k>>1*panelWidth+lane)*4 + k&1*2
	default:
		return (k*panelWidth + lane) * 2
	}
}

func (w *Matrix) setRow(n int, b []byte, src DType) {
	p, lane := w.panel(n/panelWidth), n%panelWidth
	for k := range w.k {
		o := w.offset(lane, k)
		if src == F16 && w.dt == F16 {
			binary.LittleEndian.PutUint16(p[o:], binary.LittleEndian.Uint16(b[2*k:]))
			continue
		}
		var v float32
		switch src {
		case F32:
			v = math.Float32frombits(binary.LittleEndian.Uint32(b[4*k:]))
		case BF16:
			v = bf16Value(binary.LittleEndian.Uint16(b[2*k:]))
		default:
			v = f16Value(binary.LittleEndian.Uint16(b[2*k:]))
		}
		w.put(p[o:], v)
	}
}

// put rounds v to the matrix's element type.
func (w *Matrix) put(b []byte, v float32) {
	switch w.dt {
	case F32:
		binary.LittleEndian.PutUint32(b, math.Float32bits(v))
	case BF16:
		binary.LittleEndian.PutUint16(b, bf16Round(v))
	default:
		binary.LittleEndian.PutUint16(b, f16Round(v))
	}
}

// setFloats stores row n.
func (w *Matrix) setFloats(n int, row []float32) {
	p := w.panel(n / panelWidth)
	for k, v := range row {
		w.put(p[w.offset(n%panelWidth, k):], v)
	}
}
