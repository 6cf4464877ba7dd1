package kernels

import "math"

// minNormal is the smallest normal float32, 2^-126.
const minNormal = 0x1p-126

// bf16Round rounds f to bfloat16, nearest even, denormals to signed zero and
// NaN to a quiet NaN, as VCVTNEPS2BF16 does.
func bf16Round(f float32) uint16 {
	b := math.Float32bits(f)
	switch e := b & 0x7f800000; {
	case e == 0:
		return uint16(b>>16) & 0x8000
	case b&0x7fffffff > 0x7f800000:
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// bf16Value widens b; denormals become signed zero.
func bf16Value(b uint16) float32 {
	if b&0x7f80 == 0 {
		b &= 0x8000
	}
	return math.Float32frombits(uint32(b) << 16)
}

// f16Value widens an IEEE half, as VCVTPH2PS does.
func f16Value(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h >> 10 & 0x1f)
	man := uint32(h & 0x3ff)
	switch exp {
	case 0:
		// A half denormal is man * 2^-24, exact in float32.
		v := math.Float32bits(float32(man) * 0x1p-24)
		return math.Float32frombits(v | sign)
	case 31:
		if man != 0 {
			man |= 0x200
		}
		return math.Float32frombits(sign | 0x7f800000 | man<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | man<<13)
}

// f16Round rounds f to an IEEE half, nearest even.
func f16Round(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	a := b & 0x7fffffff
	switch {
	case a > 0x7f800000:
		return sign | 0x7e00
	case a >= 0x477ff000: // rounds past 65504
		return sign | 0x7c00
	case a < 0x38800000: // below 2^-14: a half denormal
		// Adding 0.5 aligns the last place of the sum with 2^-24, so the
		// addition does the rounding.
		d := math.Float32bits(math.Float32frombits(a)+0.5) - math.Float32bits(0.5)
		return sign | uint16(d)
	}
	return sign | uint16((a-0x38000000+0xfff+a>>13&1)>>13)
}

// roundOdd adds p and c, both float32 products or sums held exactly in
// float64, and rounds the sum to odd: rounding the result once more to
// float32 then equals one rounding of the exact sum (Boldo and Melquiond,
// "Emulation of FMA and correctly rounded sums", 2008).
func roundOdd(p, c float64) float64 {
	s := p + c
	b := math.Float64bits(s)
	if b&1 == 1 || b&0x7ff0000000000000 == 0x7ff0000000000000 {
		return s
	}
	// TwoSum: e is exactly (p + c) - s.
	bb := s - p
	e := (p - (s - bb)) + (c - bb)
	switch {
	case e == 0:
		return s
	case (e > 0) == (s > 0):
		return math.Float64frombits(b + 1)
	}
	return math.Float64frombits(b - 1)
}

// fma32 is a*b + c with one rounding, denormals kept: VFMADD with the default
// control word.
func fma32(a, b, c float32) float32 {
	p := float64(a) * float64(b) // exact
	s := p + float64(c)
	// A second rounding can only go wrong when s lies exactly half way
	// between two float32, or where float32 has fewer bits.
	bits := math.Float64bits(s)
	if bits&0x1fffffff != 0x10000000 && bits>>52&0x7ff >= 1023-125 {
		return float32(s)
	}
	return float32(roundOdd(p, float64(c)))
}

// fmaFlush is a*b + c with one rounding, where denormal inputs count as zero
// and a denormal result is flushed to signed zero: what VDPBF16PS does for
// each of its two terms, and VFMADD with FTZ and DAZ set. The caller has
// flushed a and b already.
func fmaFlush(a, b, c float32) float32 {
	p := float64(a) * float64(b)
	s := p + float64(c)
	bits := math.Float64bits(s)
	if bits&0x1fffffff != 0x10000000 && bits>>52&0x7ff >= 1023-125 {
		return float32(s)
	}
	return flushRound(roundOdd(p, float64(c)))
}

// flushRound rounds v to float32 and flushes. Hardware decides whether a
// result is denormal after rounding to 24 bits, so values within half a last
// place below 2^-126 round up to it.
func flushRound(v float64) float32 {
	if a := math.Abs(v); a < minNormal {
		if a >= minNormal-0x1p-151 {
			return float32(math.Copysign(minNormal, v))
		}
		return float32(math.Copysign(0, v))
	}
	return float32(v)
}
