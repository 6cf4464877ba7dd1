package scheduler

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

const (
	// costKeep is how much of a class's past stays with each new step: about
	// the last 64 steps of a class count.
	costKeep = 1 - 1.0/64
	// costClasses is one more than the largest class: bits.Len of a step's tokens.
	costClasses = 32
	// costSteps steps must have been seen before the model says anything.
	costSteps = 8
	// costFeatures is how many coefficients there are.
	costFeatures = 4
	twoSteps     = 1.5 // the least weight of two steps of a class, rounded down
)

// CostModel estimates how long a step takes from the steps measured so far:
//
//	duration = a + b*tokens + c*attended + d*keys
//
// with the new tokens of the step, the sum of their positions, which is how many
// keys they attend to, and the keys of all its sequences, which are read once
// each. Decode is bound by reading keys and prefill by multiplying them.
//
// It is recursive least squares in information form: sums of products of the
// features, with exponential forgetting, solved when asked. Two things differ
// from the textbook. Errors count relative to the step's duration, so a short
// step matters as much as a long one and an outlier is bounded. And it forgets
// per class of steps, by powers of two of their tokens, so that an hour of
// decode does not wear away what prefill costs. Coefficients are never
// negative: the best of the fifteen subsets of features whose coefficients are
// not is taken, which is exact non-negative least squares.
//
// Not safe for concurrent use.
type CostModel struct {
	chunk   int
	classes [costClasses]costSums
	steps   uint64
	coef    [costFeatures]float64
	stale   bool // coef is older than classes
}

// costSums are the sums of products of one class, each step divided by its
// duration in seconds; n is the weight of all steps.
type costSums struct {
	n  float64
	xx [costFeatures][costFeatures]float64 // upper triangle
	x  [costFeatures]float64
}

// CostStats is what a CostModel has learned.
type CostStats struct {
	Known bool
	Steps uint64 // measured
	// A step takes StepMS + TokenMS per token + AttendedMS per key that a token
	// attends to + KeyMS per key of its sequences, in milliseconds.
	StepMS, TokenMS, AttendedMS, KeyMS float64
}

// Work is what a step computes.
type Work struct {
	Tokens   int
	Attended float64 // sum of the tokens' positions
	Keys     float64 // sum of the sequences' lengths, new tokens included
}

// Add counts the positions [start, start+n) of another sequence.
func (w *Work) Add(start, n int) {
	w.Tokens += n
	w.Attended += float64(n) * (float64(start) + float64(n-1)/2)
	w.Keys += float64(start + n)
}

// NewCostModel returns a model that knows nothing. Prefills are estimated in
// steps of chunk tokens.
func NewCostModel(chunk int) *CostModel {
	if chunk < 1 {
		panic("BUG: a cost model without a chunk size")
	}
	return &CostModel{chunk: chunk}
}

// Observe takes in a measured step and reports whether it made sense.
func (m *CostModel) Observe(w Work, d time.Duration) bool {
	// The negated form refuses NaN too.
	if w.Tokens < 1 || d <= 0 || d > time.Hour || !(w.Attended >= 0 && w.Attended <= math.MaxInt64) || !(w.Keys >= 0 && w.Keys <= math.MaxInt64) {
		return false
	}
	r := 1 / d.Seconds()
	x := [costFeatures]float64{r, r * float64(w.Tokens), r * w.Attended, r * w.Keys}
	c := &m.classes[min(bits.Len(uint(w.Tokens)), costClasses-1)]
	c.n = c.n*costKeep + 1
	for i := range x {
		for j := i; j < len(x); j++ {
			c.xx[i][j] = c.xx[i][j]*costKeep + x[i]*x[j]
		}
		c.x[i] = c.x[i]*costKeep + x[i]
	}
	m.steps++
	m.stale = true
	return true
}

// Known reports whether estimates mean anything: costSteps steps were seen, and
// beside two small ones two of more than twice their tokens.
func (m *CostModel) Known() bool {
	least := slices.IndexFunc(m.classes[:], func(c costSums) bool { return c.n >= twoSteps })
	if m.steps < costSteps || least < 0 {
		return false
	}
	larger := 0.0
	for i := least + 2; i < costClasses; i++ {
		larger += m.classes[i].n
	}
	return larger >= twoSteps
}

// Estimate is how long prefilling the positions [from, to) takes, in as few
// steps as possible and with nobody else in them. 0: not known yet.
func (m *CostModel) Estimate(from, to int) time.Duration {
	if from < 0 || to <= from || !m.Known() {
		return 0
	}
	var w Work
	w.Add(from, to-from)
	steps := (w.Tokens + m.chunk - 1) / m.chunk
	// Each step reads what there is at its end; w has the last one's.
	w.Keys += float64(steps-1) * (float64(from) + float64(m.chunk)*float64(steps)/2)
	return m.predict(steps, w)
}

// Step estimates one step like those that were seen; 0: not known yet. It need
// not be Known, since it does not leap from decode to prefill.
func (m *CostModel) Step(w Work) time.Duration {
	if w.Tokens == 0 || m.steps < costSteps {
		return 0
	}
	return m.predict(1, w)
}

func (m *CostModel) predict(steps int, w Work) time.Duration {
	m.solve()
	s := m.coef[0]*float64(steps) + m.coef[1]*float64(w.Tokens) + m.coef[2]*w.Attended + m.coef[3]*w.Keys
	return time.Duration(min(s, time.Hour.Seconds()*1e4) * float64(time.Second))
}

// Stats returns what the model has learned.
func (m *CostModel) Stats() CostStats {
	m.solve()
	return CostStats{Known: m.Known(), Steps: m.steps, StepMS: m.coef[0] * 1e3, TokenMS: m.coef[1] * 1e3, AttendedMS: m.coef[2] * 1e3, KeyMS: m.coef[3] * 1e3}
}

// solve brings coef up to date. Features are scaled to unit length first, so
// that their sizes, which differ by many orders, do not matter.
func (m *CostModel) solve() {
	if !m.stale {
		return
	}
	m.stale = false
	var sum costSums
	for i := range m.classes {
		sum.add(&m.classes[i])
	}
	var scale [costFeatures]float64
	for i := range scale {
		if scale[i] = math.Sqrt(sum.xx[i][i]); scale[i] == 0 {
			scale[i] = 1
		}
	}
	for i := range scale {
		for j := i; j < len(scale); j++ {
			sum.xx[i][j] /= scale[i] * scale[j]
		}
		sum.x[i] /= scale[i]
	}
	m.coef = sum.nonNegative()
	for i := range scale {
		m.coef[i] /= scale[i]
	}
}

func (c *costSums) add(o *costSums) {
	c.n += o.n
	for i := range c.x {
		for j := i; j < len(c.x); j++ {
			c.xx[i][j] += o.xx[i][j]
		}
		c.x[i] += o.x[i]
	}
}

// nonNegative is the best solution without negative coefficients. Since the
// problem is convex, it is the unconstrained solution over the features that it
// uses; there are few enough subsets to try all.
func (c *costSums) nonNegative() (best [costFeatures]float64) {
	least := c.n // the error of no features at all
	for subset := 1; subset < 1<<costFeatures; subset++ {
		x, ok := c.over(subset)
		if !ok {
			continue
		}
		e := c.n // at a solution over a subset the error is n - x*b
		for i := range x {
			e -= x[i] * c.x[i]
		}
		if e < least {
			best, least = x, e
		}
	}
	return best
}

// over solves the normal equations over a subset of the features by Cholesky
// decomposition. It fails if they depend on each other, or if a coefficient is
// negative.
func (c *costSums) over(subset int) (x [costFeatures]float64, ok bool) {
	const dependent = 1e-9 // of a unit feature, what is left after the others
	var l [costFeatures][costFeatures]float64
	var y [costFeatures]float64
	has := func(i int) bool { return subset&(1<<i) != 0 }
	for i := range x {
		if !has(i) {
			continue
		}
		y[i] = c.x[i]
		for j := range i + 1 {
			if !has(j) {
				continue
			}
			v := c.xx[j][i]
			for k := range j {
				v -= l[i][k] * l[j][k]
			}
			if j < i {
				l[i][j] = v / l[j][j]
				y[i] -= l[i][j] * y[j]
				continue
			}
			if v < dependent {
				return x, false
			}
			l[i][i] = math.Sqrt(v)
			y[i] /= l[i][i]
		}
	}
	for i := len(x) - 1; i >= 0; i-- {
		if !has(i) {
			continue
		}
		v := y[i]
		for k := i + 1; k < len(x); k++ {
			v -= l[k][i] * x[k]
		}
		if x[i] = v / l[i][i]; x[i] < 0 {
			return x, false
		}
	}
	return x, true
}
