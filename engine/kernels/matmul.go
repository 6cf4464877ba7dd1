package kernels

// Blocking of products. None of it touches the order in which an element is
// summed: a call of the micro-kernel runs over all of k.
const (
	rowBlock     = 96      // rows of one unit of work, a multiple of maxRows
	inlineMACs   = 1 << 17 // below this a product is not worth a second thread
	unitBytesMin = 1 << 16 // weights of one unit of work at least
)

// MatMul computes y = x * W^T for m rows: x is [m][K] and y is [m][N], both
// without gaps; they must not overlap.
func (r *Runner) MatMul(y, x []float32, m int, w *Matrix) {
	need("x", len(x), m*w.k)
	need("y", len(y), m*w.n)
	if m < 1 {
		return
	}
	xs := w.k
	in := operand{full: x}
	if w.dt == BF16 {
		xs = w.depth()
		in = r.roundRows(x, m, w.k, xs)
	}
	panels := w.panels()
	group := max(1, unitBytesMin/max(1, w.panelBytes()))
	groups := (panels + group - 1) / group
	blocks := (m + rowBlock - 1) / rowBlock
	unit := func(worker, i int) {
		first := i / blocks * group
		row := i % blocks * rowBlock
		r.mulBlock(worker, y, in, xs, row, min(row+rowBlock, m), w, first, min(first+group, panels))
	}
	if m*w.k*w.n < inlineMACs {
		for i := range groups * blocks {
			unit(0, i)
		}
		return
	}
	r.pool.run(groups*blocks, unit)
}

// mulBlock computes rows [row, rowEnd) of the outputs of panels [first, last).
func (r *Runner) mulBlock(worker int, y []float32, in operand, xs, row, rowEnd int, w *Matrix, first, last int) {
	for p := first; p < last; p++ {
		col := p * panelWidth
		for i := row; i < rowEnd; i += maxRows {
			rows := min(maxRows, rowEnd-i)
			x := in.from(i * xs)
			if col+panelWidth <= w.n {
				r.ops.mul(w.dt, rows, y[i*w.n+col:], w.n, x, xs, w.panel(p), w.depth())
				continue
			}
			tmp := &r.workers[worker].tail
			r.ops.mul(w.dt, rows, tmp[:], panelWidth, x, xs, w.panel(p), w.depth())
			for j := range rows {
				copy(y[(i+j)*w.n+col:(i+j+1)*w.n], tmp[j*panelWidth:])
			}
		}
	}
}

// roundRows rounds m rows of k elements to bf16, padding each to xs with zeros.
func (r *Runner) roundRows(x []float32, m, k, xs int) operand {
	dst := r.operand(&r.inputs, m*xs)
	if k == xs {
		r.ops.round(dst, x[:m*k])
		return dst
	}
	for i := range m {
		row := dst.from(i * xs)
		r.ops.round(row, x[i*k:(i+1)*k])
		if row.half != nil {
			row.half[k] = 0
		} else {
			row.full[k] = 0
		}
	}
	return dst
}
