package kernels

import "math"

// whole is the part of n that kernels of 16 elements take.
func whole(n int) int { return n &^ 15 }

func (s *simd) round(dst operand, x []float32) {
	n := whole(len(x))
	if n > 0 {
		if s.wide {
			s.roundHalf(&dst.half[0], &x[0], n)
		} else {
			s.roundFull(&dst.full[0], &x[0], n)
		}
	}
	if n < len(x) {
		s.ref.round(dst.from(n), x[n:])
	}
}

func (s *simd) softmax(p operand, sc []float32, n int, scale float32, round bool) (m, l float32) {
	// Scores of -Inf weigh nothing and are never the largest.
	end := (n + 15) &^ 15
	for i := n; i < end; i++ {
		sc[i] = float32(math.Inf(-1))
	}
	switch {
	case !round:
		return s.softmaxFull(&p.full[0], &sc[0], end, scale)
	case s.wide:
		return s.softmaxHalf(&p.half[0], &sc[0], end, scale)
	}
	return s.softmaxPair(&p.full[0], &sc[0], end, scale)
}

func (s *simd) storeKey(tile []byte, t int, k []float32) {
	n := len(k) &^ 31
	if s.storeKeyN == nil {
		n = 0
	}
	if n > 0 {
		s.storeKeyN(&tile[4*t], &k[0], n)
	}
	s.ref.storeKey(tile[n/2*tileTokens*4:], t, k[n:])
}

func (s *simd) storeValuePair(tile []byte, t int, even, odd []float32) {
	if s.storeValuePairN == nil {
		s.ref.storeValuePair(tile, t, even, odd)
		return
	}
	d := len(even)
	for c := 0; c < d; c += chunkDims {
		s.storeValuePairN(&tile[valueOffset(BF16, d, c, t)], &even[c], &odd[c], min(chunkDims, d-c))
	}
}

func (s *simd) exp(x []float32) {
	n := whole(len(x))
	if n > 0 {
		s.expN(&x[0], n)
	}
	s.ref.exp(x[n:])
}

func (s *simd) merge(o, op []float32, a, b float32) {
	n := whole(len(o))
	if n > 0 {
		s.mergeN(&o[0], &op[0], n, a, b)
	}
	s.ref.merge(o[n:], op[n:], a, b)
}

func (s *simd) scale(o []float32, a float32) {
	n := whole(len(o))
	if n > 0 {
		s.scaleN(&o[0], &o[0], n, a)
	}
	s.ref.scale(o[n:], a)
}

func (s *simd) sumSquares(lanes *[16]float32, x []float32) {
	n := whole(len(x))
	if n > 0 {
		s.sumSquaresN(&lanes[0], &x[0], n)
	}
	s.ref.sumSquares(lanes, x[n:])
}

func (s *simd) scaleMul(y, x, w []float32, a float32) {
	n := whole(len(y))
	if n > 0 {
		s.scaleMulN(&y[0], &x[0], &w[0], n, a)
	}
	s.ref.scaleMul(y[n:], x[n:], w[n:], a)
}

func (s *simd) rope(x, cos, sin []float32) {
	h := len(cos)
	n := whole(h)
	if n > 0 {
		s.ropeN(&x[0], &x[h], &cos[0], &sin[0], n)
	}
	ropePairs(x[n:h], x[h+n:2*h], cos[n:], sin[n:])
}

func (s *simd) siluMul(y, gate, up []float32) {
	n := whole(len(y))
	if n > 0 {
		s.siluMulN(&y[0], &gate[0], &up[0], n)
	}
	s.ref.siluMul(y[n:], gate[n:], up[n:])
}

func (s *simd) add(y, x []float32) {
	n := whole(len(x))
	if n > 0 {
		s.addN(&y[0], &x[0], n)
	}
	s.ref.add(y[n:], x[n:])
}
