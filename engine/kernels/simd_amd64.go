package kernels

// A simd is an implementation in assembly. The kernels take whole registers
// of 16 elements; what is left over is done by ref, which gives the same bits.
type simd struct {
	ref
	title string
	// wide says that tiles have 64 outputs and any number of rows up to
	// maxRows. Otherwise tiles are one row of 64 or four rows of 16.
	wide bool

	half tileKernels[uint16]  // BF16 on the right, bf16 pairs on the left
	pair tileKernels[float32] // BF16 on the right, rounded float32 on the left
	full tileKernels[float32] // F32
	f16  mulKernels[float32]

	roundHalf   func(dst *uint16, x *float32, n int)
	roundFull   func(dst *float32, x *float32, n int)
	softmaxHalf func(p *uint16, s *float32, n int, scale float32) (m, l float32)
	softmaxPair func(p *float32, s *float32, n int, scale float32) (m, l float32)
	softmaxFull func(p *float32, s *float32, n int, scale float32) (m, l float32)

	// Optional: ref stores where these are nil.
	storeKeyN       func(tile *byte, k *float32, n int)
	storeValuePairN func(row *byte, even *float32, odd *float32, n int)

	expN        func(x *float32, n int)
	mergeN      func(o *float32, s *float32, n int, a, b float32)
	scaleN      func(y *float32, x *float32, n int, a float32)
	sumSquaresN func(lanes *float32, x *float32, n int)
	scaleMulN   func(y *float32, x *float32, w *float32, n int, a float32)
	ropeN       func(lo *float32, hi *float32, cos *float32, sin *float32, n int)
	siluMulN    func(y *float32, gate *float32, up *float32, n int)
	addN        func(y *float32, x *float32, n int)
}

// Kernels are indexed by their number of rows. Strides are in bytes.
type (
	mulKernels[T any]   [maxRows + 1]func(y *float32, ys int, x *T, xs int, w *byte, n int)
	scoreKernels[T any] [maxRows + 1]func(s *float32, ss int, q *T, qs int, mem *byte, tiles *int64, n, steps int)
	valueKernel[T any]  func(o *float32, os int, p *T, ps int, mem *byte, tiles *int64, n, off, stride int)
	valueKernels[T any] [maxRows + 1]valueKernel[T]
	tileKernels[T any]  struct {
		size      int // bytes of T
		mul       mulKernels[T]
		scores    scoreKernels[T]
		values64  valueKernels[T]
		values128 [4]valueKernel[T]
		values16  valueKernels[T]
	}
)

func (s *simd) name() string     { return s.title }
func (s *simd) halfInputs() bool { return s.wide }

// stepOf is the number of terms that one step of a product sums.
func stepOf(dt DType) int {
	if dt == BF16 {
		return 2
	}
	return 1
}

func (s *simd) mul(dt DType, r int, y []float32, ys int, x operand, xs int, panel []byte, k int) {
	n := k / stepOf(dt)
	switch {
	case dt == BF16 && s.wide:
		s.half.mul.run(s.wide, r, y, ys, x.half, xs, 2, panel, n, 64)
	case dt == BF16:
		s.pair.mul.run(s.wide, r, y, ys, x.full, xs, 4, panel, n, 64)
	case dt == F32:
		s.full.mul.run(s.wide, r, y, ys, x.full, xs, 4, panel, n, 64)
	default:
		s.f16.run(s.wide, r, y, ys, x.full, xs, 4, panel, n, 32)
	}
}

// run multiplies r rows with a panel. size is the bytes of T, col those of 16
// outputs in the panel.
func (f *mulKernels[T]) run(wide bool, r int, y []float32, ys int, x []T, xs, size int, panel []byte, n, col int) {
	if wide {
		f[r](&y[0], ys*4, &x[0], xs*size, &panel[0], n)
		return
	}
	i := 0
	for ; i+4 <= r; i += 4 {
		for c := range panelWidth / 16 {
			f[4](&y[i*ys+16*c], ys*4, &x[i*xs], xs*size, &panel[c*col], n)
		}
	}
	for ; i < r; i++ {
		f[1](&y[i*ys], ys*4, &x[i*xs], xs*size, &panel[0], n)
	}
}

func (s *simd) scores(dt DType, r int, to []float32, ss int, q operand, mem []byte, tiles []int64, d int) {
	switch {
	case dt == BF16 && s.wide:
		s.half.runScores(s.wide, r, to, ss, q.half, mem, tiles, d, d/2)
	case dt == BF16:
		s.pair.runScores(s.wide, r, to, ss, q.full, mem, tiles, d, d/2)
	default:
		s.full.runScores(s.wide, r, to, ss, q.full, mem, tiles, d, d)
	}
}

func (f *tileKernels[T]) runScores(wide bool, r int, to []float32, ss int, q []T, mem []byte, tiles []int64, d, steps int) {
	groups := (len(tiles) + 3) / 4
	if wide {
		f.scores[r](&to[0], ss*4, &q[0], d*f.size, &mem[0], &tiles[0], groups, steps)
		return
	}
	i := 0
	for ; i+4 <= r; i += 4 {
		f.scores[4](&to[i*ss], ss*4, &q[i*d], d*f.size, &mem[0], &tiles[0], len(tiles), steps)
	}
	for ; i < r; i++ {
		f.scores[1](&to[i*ss], ss*4, &q[i*d], d*f.size, &mem[0], &tiles[0], groups, steps)
	}
}

func (s *simd) values(dt DType, r int, o []float32, p operand, ps int, mem []byte, tiles []int64, first, last, d int) {
	// A call of the kernels starts at a tile's first token or stays in one tile.
	for first < last {
		end := last
		if first%tileTokens != 0 {
			end = min(last, (first/tileTokens+1)*tileTokens)
		}
		v := valueCall{dt: dt, wide: s.wide, r: r, o: o, ps: ps, mem: mem, tiles: tiles[first/tileTokens:], d: d,
			n: (end - first) / stepOf(dt), start: first % tileTokens}
		switch {
		case dt == BF16 && s.wide:
			s.half.runValues(&v, p.half[first:])
		case dt == BF16:
			s.pair.runValues(&v, p.full[first:])
		default:
			s.full.runValues(&v, p.full[first:])
		}
		first = end
	}
}

// valueCall is one call of the value kernels for all dimensions.
type valueCall struct {
	dt       DType
	wide     bool
	r        int
	o        []float32
	ps       int
	mem      []byte
	tiles    []int64
	d        int
	n, start int
}

func (f *tileKernels[T]) runValues(v *valueCall, p []T) {
	for c := 0; c < v.d; c += chunkDims {
		width := min(chunkDims, v.d-c)
		off := valueOffset(v.dt, v.d, c, v.start)
		call := func(k valueKernel[T], i, dim int) {
			k(&v.o[i*v.d+c+dim], v.d*4, &p[i*v.ps], v.ps*f.size, &v.mem[0], &v.tiles[0], v.n, off+4*dim, 4*width)
		}
		switch {
		case !v.wide:
			f.runNarrow(v.r, width, call)
		case width < chunkDims:
			for dim := 0; dim < width; dim += 16 {
				call(f.values16[v.r], 0, dim)
			}
		case v.d-c >= 2*chunkDims && v.r < len(f.values128):
			call(f.values128[v.r], 0, 0)
			c += chunkDims
		default:
			call(f.values64[v.r], 0, 0)
		}
	}
}

// runNarrow covers r rows of up to 64 dimensions.
func (f *tileKernels[T]) runNarrow(r, width int, call func(k valueKernel[T], row, dim int)) {
	i := 0
	for ; i+4 <= r; i += 4 {
		for dim := 0; dim < width; dim += 16 {
			call(f.values16[4], i, dim)
		}
	}
	for ; i < r; i++ {
		if width == chunkDims {
			call(f.values64[1], i, 0)
			continue
		}
		for dim := 0; dim < width; dim += 16 {
			call(f.values16[1], i, dim)
		}
	}
}
