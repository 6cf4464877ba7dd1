package kernels

import "math"

// Constants of exp32, shared with the assembly through tools/avo.
const (
	expLow   = -87 // exp32 is 0 below
	expHigh  = 88  // arguments are clamped to it
	expLog2e = 1.44269504088896341
	expLn2Hi = 0.693359375 // few bits: n*expLn2Hi is exact
	expLn2Lo = -2.12194440e-4
	expMagic = 12582912 // 1.5 * 2^23: adding it rounds to an integer
)

// expPoly are the coefficients, highest first, of the polynomial of Cephes'
// expf (Moshier) for exp(r), |r| <= ln(2)/2.
var expPoly = [8]float32{
	1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2,
	1.6666665459e-1, 5.0000001201e-1, 1, 1,
}

// exp32 is e^x by a fixed sequence of float32 operations, within 2 units in
// the last place for x in [-87, 88]; 0 below, e^88 above, NaN for NaN.
func exp32(x float32) float32 {
	if x < expLow {
		return 0
	}
	if x > expHigh {
		x = expHigh
	}
	if x != x {
		return x
	}
	t := fma32(x, expLog2e, expMagic)
	n := t - expMagic
	r := fma32(n, -expLn2Hi, x)
	r = fma32(n, -expLn2Lo, r)
	p := expPoly[0]
	for _, c := range expPoly[1:] {
		p = fma32(p, r, c)
	}
	return math.Float32frombits(math.Float32bits(p) + math.Float32bits(t)<<23)
}
