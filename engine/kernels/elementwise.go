package kernels

import "math"

// rowUnit is the number of elements of element-wise work that is worth a unit
// of its own.
const rowUnit = 1 << 14

// eachRow runs f over ranges of rows of n elements each.
func (r *Runner) eachRow(rows, n int, f func(worker, first, last int)) {
	step := max(1, rowUnit/max(1, n))
	if rows <= step {
		f(0, 0, rows)
		return
	}
	r.pool.run((rows+step-1)/step, func(worker, i int) {
		f(worker, i*step, min(rows, (i+1)*step))
	})
}

// RMSNorm normalises rows of n elements: y = x / sqrt(mean(x^2) + eps) * weight
// with weight [n]. The sum of squares has 16 lanes (element i goes to lane
// i%16), which are then added pairwise. For a norm per head, rows is
// tokens*heads and n the head dimension. y and x may be the same slice.
func (r *Runner) RMSNorm(y, x, weight []float32, rows, n int, eps float32) {
	need("x", len(x), rows*n)
	need("y", len(y), rows*n)
	need("weight", len(weight), n)
	weight = weight[:n]
	r.eachRow(rows, n, func(worker, first, last int) {
		lanes := &r.workers[worker].lanes
		for i := first; i < last; i++ {
			row := x[i*n : (i+1)*n]
			clear(lanes[:])
			r.ops.sumSquares(lanes, row)
			mean := sumLanes(lanes) / float32(n)
			inv := 1 / float32(math.Sqrt(float64(mean+eps)))
			r.ops.scaleMul(y[i*n:(i+1)*n], row, weight, inv)
		}
	})
}

// Rope rotates x [rows][heads][d] in place, in the rotate-half convention of
// Hugging Face's Llama and Qwen: element i and i+d/2 of a head form a pair.
// cos and sin are [rows][d/2].
func (r *Runner) Rope(x []float32, rows, heads, d int, cos, sin []float32) {
	h := d / 2
	need("x", len(x), rows*heads*d)
	need("cos", len(cos), rows*h)
	need("sin", len(sin), rows*h)
	r.eachRow(rows, heads*d, func(_, first, last int) {
		for i := first; i < last; i++ {
			for j := range heads {
				o := (i*heads + j) * d
				r.ops.rope(x[o:o+d], cos[i*h:(i+1)*h], sin[i*h:(i+1)*h])
			}
		}
	})
}

// SiLUMul computes y = gate/(1+exp(-gate)) * up over equally long slices. y
// may be gate or up.
func (r *Runner) SiLUMul(y, gate, up []float32) {
	n := len(y)
	need("gate", len(gate), n)
	need("up", len(up), n)
	r.eachRow((n+rowUnit/4-1)/(rowUnit/4), rowUnit/4, func(_, first, last int) {
		a, b := first*(rowUnit/4), min(n, last*(rowUnit/4))
		r.ops.siluMul(y[a:b], gate[a:b], up[a:b])
	})
}

// Add computes y = y + x over the length of x.
func (r *Runner) Add(y, x []float32) {
	n := len(x)
	need("y", len(y), n)
	r.eachRow((n+rowUnit-1)/rowUnit, rowUnit, func(_, first, last int) {
		a, b := first*rowUnit, min(n, last*rowUnit)
		r.ops.add(y[a:b], x[a:b])
	})
}

// AddBias adds bias [n] to each row of y [rows][n].
func (r *Runner) AddBias(y, bias []float32, rows, n int) {
	need("y", len(y), rows*n)
	need("bias", len(bias), n)
	r.eachRow(rows, n, func(_, first, last int) {
		for i := first; i < last; i++ {
			r.ops.add(y[i*n:(i+1)*n], bias[:n])
		}
	})
}
