package perf

import "math"

// normal holds the normal equations of a weighted least squares problem.
type normal struct {
	xx   [columns][columns]float64 // upper triangle
	xy   [columns]float64
	yy   float64
	size [columns]float64 // by which the columns were divided
}

// dependent is what is left of a unit column after the others, when it says
// nothing of its own: a thousandth of its length.
const dependent = 1e-6

func (n *normal) add(x [columns]float64, y, weight float64) {
	for i := range x {
		for j := i; j < columns; j++ {
			n.xx[i][j] += weight * x[i] * x[j]
		}
		n.xy[i] += weight * x[i] * y
	}
	n.yy += weight * y * y
}

// scale brings all columns to unit length, since their sizes differ by many
// orders.
func (n *normal) scale() {
	for i := range n.size {
		if n.size[i] = math.Sqrt(n.xx[i][i]); n.size[i] == 0 {
			n.size[i] = 1
		}
	}
	for i := range n.size {
		for j := i; j < columns; j++ {
			n.xx[i][j] /= n.size[i] * n.size[j]
		}
		n.xy[i] /= n.size[i]
	}
}

// order is that in which columns claim what several could explain: shares of
// the hardware first, since they carry over to other work, then overheads.
var order = [columns]int{colLinear, colWeights, colKV, colAttention, colStep, colSeq, colToken}

// independent finds the columns that are not combinations of earlier ones in
// that order: Gram-Schmidt, as a Cholesky decomposition.
func (n *normal) independent() (known [columns]bool) {
	var l [columns][columns]float64
	for a, i := range order {
		v := n.xx[i][i]
		for b := range a {
			j := order[b]
			if !known[j] {
				continue
			}
			w := n.xx[min(i, j)][max(i, j)]
			for k := range b {
				w -= l[a][k] * l[b][k]
			}
			l[a][b] = w / l[b][b]
			v -= l[a][b] * l[a][b]
		}
		if v > dependent {
			known[i] = true
			l[a][a] = math.Sqrt(v)
		}
	}
	return known
}

// over solves for the columns of a subset. It fails when a column is not known,
// or comes out negative.
func (n *normal) over(subset int, known *[columns]bool) (x [columns]float64, ok bool) {
	l, cols, ok := n.cholesky(subset, known)
	if !ok {
		return x, false
	}
	var y [columns]float64
	for a, i := range cols {
		v := n.xy[i]
		for b := range a {
			v -= l[a][b] * y[b]
		}
		y[a] = v / l[a][a]
	}
	for a := len(cols) - 1; a >= 0; a-- {
		v := y[a]
		for b := a + 1; b < len(cols); b++ {
			v -= l[b][a] * x[cols[b]]
		}
		if x[cols[a]] = v / l[a][a]; x[cols[a]] < 0 {
			return x, false
		}
	}
	return x, true
}

func (n *normal) cholesky(subset int, known *[columns]bool) (l [columns][columns]float64, cols []int, ok bool) {
	var list [columns]int
	count := 0
	for i := range columns {
		if subset&(1<<i) == 0 {
			continue
		}
		if !known[i] {
			return l, nil, false
		}
		list[count] = i
		count++
	}
	cols = list[:count]
	for a, i := range cols {
		for b, j := range cols[:a+1] {
			v := n.xx[min(i, j)][max(i, j)]
			for k := range b {
				v -= l[a][k] * l[b][k]
			}
			if a != b {
				l[a][b] = v / l[b][b]
				continue
			}
			if v <= dependent/16 {
				return l, nil, false
			}
			l[a][a] = math.Sqrt(v)
		}
	}
	return l, cols, true
}

// error is the sum of squares that a solution leaves.
func (n *normal) error(x *[columns]float64) float64 {
	e := n.yy
	for i := range x {
		e -= 2 * x[i] * n.xy[i]
		for j := range x {
			e += x[i] * x[j] * n.xx[min(i, j)][max(i, j)]
		}
	}
	return e
}

// errors sets the standard errors of the columns in use, given the variance of
// a sample: the diagonal of the inverse.
func (n *normal) errors(f *fitted, variance float64) {
	subset := 0
	for c := range columns {
		if f.known[c] && !f.atBound[c] {
			subset |= 1 << c
		}
	}
	l, cols, ok := n.cholesky(subset, &f.known)
	if !ok {
		return
	}
	for a, c := range cols {
		var y [columns]float64 // l y = unit vector a; |y|^2 is the inverse's diagonal
		sum := 0.0
		for b := a; b < len(cols); b++ {
			v := 0.0
			if b == a {
				v = 1
			}
			for k := a; k < b; k++ {
				v -= l[b][k] * y[k]
			}
			y[b] = v / l[b][b]
			sum += y[b] * y[b]
		}
		f.err[c] = math.Sqrt(variance * sum)
	}
}
