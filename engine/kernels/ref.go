package kernels

import (
	"encoding/binary"
	"math"
)

// ref is the arithmetic in plain Go: what the other implementations are
// compared with, and what runs where there is no other.
type ref struct{}

func (ref) name() string     { return "go" }
func (ref) halfInputs() bool { return false }

func (ref) round(dst operand, x []float32) {
	if dst.half != nil {
		for i, v := range x {
			dst.half[i] = bf16Round(v)
		}
		return
	}
	for i, v := range x {
		dst.full[i] = bf16Value(bf16Round(v))
	}
}

func (ref) mul(dt DType, r int, y []float32, ys int, x operand, xs int, panel []byte, k int) {
	for i := range r {
		acc := (*[panelWidth]float32)(y[i*ys:])
		clear(acc[:])
		row := x.full[i*xs:][:k]
		switch dt {
		case BF16:
			for j := 0; j < k; j += 2 {
				dotPairs(acc[:], row[j], row[j+1], panel[j*panelWidth*2:])
			}
		case F32:
			for j, v := range row {
				fmaRow(acc[:], v, panel[j*panelWidth*4:])
			}
		default:
			for j, v := range row {
				w := panel[j*panelWidth*2:][:panelWidth*2]
				for n := range acc {
					acc[n] = fma32(v, f16Value(binary.LittleEndian.Uint16(w[2*n:])), acc[n])
				}
			}
		}
	}
}

// dotPairs is one VDPBF16PS per lane: the odd element first.
func dotPairs(acc []float32, x0, x1 float32, w []byte) {
	w = w[:4*len(acc)]
	for n := range acc {
		u := binary.LittleEndian.Uint32(w[4*n:])
		a := fmaFlush(x1, bf16Value(uint16(u>>16)), flush(acc[n]))
		acc[n] = fmaFlush(x0, bf16Value(uint16(u)), a)
	}
}

func flush(f float32) float32 {
	if b := math.Float32bits(f); b&0x7f800000 == 0 {
		return math.Float32frombits(b & 0x80000000)
	}
	return f
}

func fmaRow(acc []float32, x float32, w []byte) {
	w = w[:4*len(acc)]
	for n := range acc {
		acc[n] = fma32(x, math.Float32frombits(binary.LittleEndian.Uint32(w[4*n:])), acc[n])
	}
}

func (ref) scores(dt DType, r int, s []float32, ss int, q operand, mem []byte, tiles []int64, d int) {
	for i := range r {
		row := q.full[i*d:][:d]
		for t, off := range tiles {
			acc := s[i*ss+t*tileTokens:][:tileTokens]
			clear(acc)
			k := mem[off:]
			if dt == BF16 {
				for j := 0; j < d; j += 2 {
					dotPairs(acc, row[j], row[j+1], k[j*tileTokens*2:])
				}
				continue
			}
			for j, v := range row {
				fmaRow(acc, v, k[j*tileTokens*4:])
			}
		}
	}
}

func (ref) softmax(p operand, s []float32, n int, scale float32, round bool) (m, l float32) {
	m = s[0]
	for _, v := range s[1:n] {
		if v > m || v != v {
			m = v
		}
	}
	m *= scale
	var lanes [16]float32
	for i, v := range s[:n] {
		e := exp32(fma32(v, scale, -m))
		lanes[i%16] += e
		if round {
			e = bf16Value(bf16Round(e))
		}
		p.full[i] = e
	}
	if n&1 == 1 {
		p.full[n] = 0
	}
	return m, sumLanes(&lanes)
}

// sumLanes adds lanes pairwise at distance 8, 4, 2, 1.
func sumLanes(l *[16]float32) float32 {
	for w := 8; w > 0; w /= 2 {
		for i := range w {
			l[i] += l[i+w]
		}
	}
	return l[0]
}

func (ref) values(dt DType, r int, o []float32, p operand, ps int, mem []byte, tiles []int64, first, last, d int) {
	for i := range r {
		for c := 0; c < d; c += chunkDims {
			acc := o[i*d+c : i*d+min(c+chunkDims, d)]
			for t := first; t < last; t += 2 {
				v := mem[tiles[t/tileTokens]:][valueOffset(dt, d, c, t%tileTokens):]
				x0, x1 := p.full[i*ps+t], p.full[i*ps+t+1]
				if dt == BF16 {
					dotPairs(acc, x0, x1, v)
					continue
				}
				fmaRow(acc, x0, v)
				fmaRow(acc, x1, v[4*len(acc):])
			}
		}
	}
}

func (ref) merge(o, s []float32, a, b float32) {
	for i := range o {
		o[i] = float32(o[i]*a) + float32(s[i]*b)
	}
}

func (ref) scale(o []float32, a float32) {
	for i := range o {
		o[i] *= a
	}
}

func (ref) storeKey(tile []byte, t int, k []float32) {
	for i := 0; i < len(k); i += 2 {
		u := uint32(bf16Round(k[i])) | uint32(bf16Round(k[i+1]))<<16
		binary.LittleEndian.PutUint32(tile[(i/2*tileTokens+t)*4:], u)
	}
}

func (ref) storeValuePair(tile []byte, t int, even, odd []float32) {
	d := len(even)
	for i, f := range even {
		o := valueOffset(BF16, d, i/chunkDims*chunkDims, t) + i%chunkDims*4
		binary.LittleEndian.PutUint32(tile[o:], uint32(bf16Round(f))|uint32(bf16Round(odd[i]))<<16)
	}
}

func (ref) exp(x []float32) {
	for i, v := range x {
		x[i] = exp32(v)
	}
}

func (ref) sumSquares(lanes *[16]float32, x []float32) {
	for i, v := range x {
		lanes[i%16] = fma32(v, v, lanes[i%16])
	}
}

func (ref) scaleMul(y, x, w []float32, a float32) {
	for i := range y {
		y[i] = float32(x[i]*a) * w[i]
	}
}

func (ref) rope(x, cos, sin []float32) {
	h := len(cos)
	ropePairs(x[:h], x[h:2*h], cos, sin)
}

func ropePairs(lo, hi, cos, sin []float32) {
	for i, c := range cos {
		a, b := lo[i], hi[i]
		lo[i] = float32(a*c) - float32(b*sin[i])
		hi[i] = float32(b*c) + float32(a*sin[i])
	}
}

func (ref) siluMul(y, gate, up []float32) {
	for i, g := range gate {
		y[i] = float32(g/(1+exp32(-g))) * up[i]
	}
}

func (ref) add(y, x []float32) {
	for i, v := range x {
		y[i] += v
	}
}
