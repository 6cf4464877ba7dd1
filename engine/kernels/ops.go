package kernels

// operand is the left side of a product in the form that an instruction set
// takes: bf16 pairs (half) or float32 (full, already rounded to bf16 where
// the other side is BF16).
type operand struct {
	full []float32
	half []uint16
}

// from is the operand without its first n elements.
func (o operand) from(n int) operand {
	if o.half != nil {
		return operand{half: o.half[n:]}
	}
	return operand{full: o.full[n:]}
}

// tileTokens is the number of tokens of one K or V tile: the lanes of one
// AVX-512 register.
const tileTokens = 16

// maxRows is the largest number of rows of one micro-kernel call.
const maxRows = 6

// ops is one implementation of the arithmetic. Slices are long enough for
// what a call says; ops do not check. Every implementation gives the same bits.
type ops interface {
	name() string
	// halfInputs says that BF16 products take operand.half.
	halfInputs() bool
	// round converts x for a product with BF16.
	round(dst operand, x []float32)

	// mul writes r rows (at most maxRows) of 64 outputs, y[i*ys:][:64], from
	// rows x[i*xs:][:k] and one panel of element type dt.
	mul(dt DType, r int, y []float32, ys int, x operand, xs int, panel []byte, k int)

	// scores writes r rows of 16 scores per K tile, s[i*ss:], from query rows
	// q[i*d:][:d]. tiles are byte offsets in mem; behind len(tiles) there are
	// entries to a multiple of four, which may be used but count for nothing,
	// and tilesAhead more, which may be fetched.
	scores(dt DType, r int, s []float32, ss int, q operand, mem []byte, tiles []int64, d int)
	// softmax turns the n scores s into p = exp(s*scale - m), the argument
	// rounded once, with m = max(s)*scale. It rounds p for products where round
	// is set, and returns m and the sum of p before rounding. Where n is odd it writes p[n] = 0. With a NaN among the scores
	// l is NaN, and with it every output of the query; m and p are then not
	// specified.
	softmax(p operand, s []float32, n int, scale float32, round bool) (m, l float32)
	// values adds to r rows o[i*d:][:d] the V rows of tokens [first, last),
	// both even, weighted by p[i*ps:]. Token t lies in tiles[t/16]; tilesAhead
	// entries behind the last one used may be fetched.
	values(dt DType, r int, o []float32, p operand, ps int, mem []byte, tiles []int64, first, last, d int)
	// exp is x = exp32(x).
	exp(x []float32)
	// merge is o = o*a + s*b, two products and a sum.
	merge(o, s []float32, a, b float32)
	// scale is o = o*a.
	scale(o []float32, a float32)

	// storeKey rounds one token's key to bf16 and stores it as token t of a K
	// tile.
	storeKey(tile []byte, t int, k []float32)
	// storeValuePair does so with the values of tokens t, even, and t+1.
	storeValuePair(tile []byte, t int, even, odd []float32)

	// sumSquares adds x[i]^2 to lanes[i%16] by FMA in order.
	sumSquares(lanes *[16]float32, x []float32)
	// scaleMul is y = (x*a)*w.
	scaleMul(y, x, w []float32, a float32)
	// rope rotates x[:d/2] and x[d/2:d].
	rope(x, cos, sin []float32)
	// siluMul is y = gate/(1+exp(-gate))*up.
	siluMul(y, gate, up []float32)
	// add is y = y + x.
	add(y, x []float32)
}
