package placement

import (
	"slices"
	"testing"
)

// What remains when more are a whole block behind than there are blocks, and
// when rounding leaves nobody to whom a block is due.
func TestDivideAtTheEdges(t *testing.T) {
	for _, c := range []struct {
		name    string
		weights []float64
		carried []float64
		n       int
		off     float64 // of what the carried sum to
		want    []int
	}{
		// Dues 1.5, 1.75, 1.5, -1.375, -1.375: the second has waited longest.
		{"three behind", []float64{2, 2, 2, 1, 1}, []float64{1, 1.25, 1, -1.625, -1.625}, 2, 0, []int{0, 1, 1, 0, 0}},
		// Dues 1.2, 1.2, 1.1, -1.5: in time, 0.2/4 is less than 0.1/1.
		{"by time", []float64{4, 2, 1, 1}, []float64{0.2, 0.7, 0.85, -1.75}, 2, 0, []int{0, 1, 1, 0}},
		{"nobody is due", []float64{1, 1}, []float64{0, 0}, 2, 2, []int{1, 1}},
		{"not taking part", []float64{0, 1}, []float64{0, 0}, 3, 3, []int{0, 3}},
	} {
		of := make([]share, len(c.weights))
		sum, carried := 0.0, c.off
		for i := range of {
			of[i] = share{weight: c.weights[i], carried: c.carried[i]}
			sum += c.weights[i]
			carried += c.carried[i]
		}
		divide(of, c.n, sum, carried, false)
		got := make([]int, len(of))
		for i := range of {
			got[i] = of[i].count
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
