package placement

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var names = []string{Bandwidth, Uniform, Single}

func parse(t interface{ Fatal(...any) }, name string) Policy {
	p, err := ParsePolicy(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const plenty = 1 << 40

// roomy are devices with these rates and more room than anybody needs.
func roomy(rates ...float64) []Device {
	out := make([]Device, len(rates))
	for i, r := range rates {
		out[i] = Device{Rate: r, Free: plenty, Slots: plenty}
	}
	return out
}

// counts are the blocks by device.
func counts(parts []Part, devices int) []int {
	out := make([]int, devices)
	for _, p := range parts {
		out[p.Device] += p.Count
	}
	return out
}

func sum(ns []int) (s int) {
	for _, n := range ns {
		s += n
	}
	return s
}

// algorithm1 is the paper's, in exact arithmetic: floor(p_i * n) each, the
// remainder one each to the largest p.
func algorithm1(rates []int64, n int) []int {
	total := new(big.Int)
	for _, r := range rates {
		total.Add(total, big.NewInt(r))
	}
	out, order := make([]int, len(rates)), make([]int, len(rates))
	for i, r := range rates {
		x := new(big.Int).Mul(big.NewInt(r), big.NewInt(int64(n)))
		out[i], order[i] = int(x.Quo(x, total).Int64()), i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(min(1, max(-1, rates[b]-rates[a]))) })
	for i := 0; sum(out) < n; i++ {
		out[order[i]]++
	}
	return out
}

func TestAlgorithm1(t *testing.T) {
	for _, c := range []struct {
		rates []float64
		n     int
		want  []int
	}{
		{[]float64{1, 1, 1, 1}, 8, []int{2, 2, 2, 2}},
		{[]float64{1, 2, 7}, 10, []int{1, 2, 7}},
		{[]float64{1, 2, 7}, 1000, []int{100, 200, 700}},
		// Shares 0.5, 0.3, 0.2 of 11 are 5.5, 3.3, 2.2.
		{[]float64{5, 3, 2}, 11, []int{6, 3, 2}},
		// 6.5, 3.9, 2.6: the remainder of 2 goes to the largest shares and not to
		// the largest fractions.
		{[]float64{5, 3, 2}, 13, []int{7, 4, 2}},
		{[]float64{2, 3, 5}, 13, []int{2, 4, 7}},
		// Ties go to the lower index.
		{[]float64{1, 1, 1}, 5, []int{2, 2, 1}},
		{[]float64{7e9, 3.5e9, 3.5e9}, 7, []int{4, 2, 1}},
		{[]float64{20e9, 6.8e9, 6.8e9, 3.2e9}, 4096, []int{2228, 757, 756, 356 - 1}},
		{[]float64{3e9}, 5, []int{5}},
	} {
		got := counts(parse(t, Bandwidth).Place(nil, roomy(c.rates...), c.n), len(c.rates))
		ints := make([]int64, len(c.rates))
		for i, r := range c.rates {
			ints[i] = int64(r)
		}
		if exact := algorithm1(ints, c.n); !slices.Equal(exact, c.want) && c.n != 4096 {
			t.Errorf("the reference for %v, %d blocks is %v, want %v", c.rates, c.n, exact, c.want)
		} else if !slices.Equal(got, exact) {
			t.Errorf("%v, %d blocks: %v, want %v", c.rates, c.n, got, exact)
		}
	}
}
