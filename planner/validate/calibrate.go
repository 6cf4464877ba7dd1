package validate

import (
	"math"
	"slices"
)

// enough is the relative spread of a simplex that ends the search.
const enough = 1e-3

// minimise finds a local minimum by Nelder and Mead's simplex (Computer Journal
// 7, 1965), from a start with a step for each coordinate. Deterministic.
func minimise(f func([]float64) float64, start, step []float64, rounds int) []float64 {
	type vertex struct {
		x []float64
		y float64
	}
	n := len(start)
	at := func(x []float64) vertex { return vertex{x, f(x)} }
	simplex := []vertex{at(slices.Clone(start))}
	for i := range n {
		x := slices.Clone(start)
		x[i] += step[i]
		simplex = append(simplex, at(x))
	}
	// along is the point that lies t times as far beyond the others' centre as the worst.
	along := func(t float64) vertex {
		x := make([]float64, n)
		for i := range x {
			for _, v := range simplex[:n] {
				x[i] += v.x[i] / float64(n)
			}
			x[i] += t * (x[i] - simplex[n].x[i])
		}
		return at(x)
	}
	byValue := func(a, b vertex) int {
		switch {
		case a.y < b.y:
			return -1
		case a.y > b.y:
			return 1
		}
		return 0
	}
	for range rounds {
		slices.SortStableFunc(simplex, byValue)
		best, second, worst := simplex[0], simplex[n-1], simplex[n]
		if worst.y-best.y < enough*math.Abs(best.y) {
			break
		}
		r := along(1)
		switch {
		case r.y < best.y:
			if e := along(2); e.y < r.y {
				r = e
			}
		case r.y >= second.y:
			t := -0.5
			if r.y < worst.y {
				t = 0.5
			}
			if r = along(t); r.y >= worst.y {
				for i := 1; i <= n; i++ {
					for j := range n {
						simplex[i].x[j] = (simplex[i].x[j] + best.x[j]) / 2
					}
					simplex[i] = at(simplex[i].x)
				}
				continue
			}
		}
		simplex[n] = r
	}
	return slices.MinFunc(simplex, byValue).x
}
