package quantile

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// exact is the nearest rank.
func exact(sorted []float64, q float64) float64 {
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))*(1-1e-12)))-1)]
}

var quantiles = []float64{0, 0.001, 0.07, 0.5, 0.9, 0.99, 0.999, 1}

func TestErrorBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for name, draw := range map[string]func() float64{
		"uniform":     rng.Float64,
		"exponential": rng.ExpFloat64,
		"lognormal":   func() float64 { return math.Exp(5 * rng.NormFloat64()) },
		"nanoseconds": func() float64 { return float64(rng.Int64N(1 << 40)) },
		"two values":  func() float64 { return float64(1 + rng.IntN(2)*999) },
		"zeros":       func() float64 { return max(0, rng.NormFloat64()) },
	} {
		var s Sketch
		var all []float64
		for range 100_000 {
			v := draw()
			s.Add(v)
			all = append(all, v)
		}
		slices.Sort(all)
		for _, q := range quantiles {
			want, got := exact(all, q), s.Quantile(q)
			if math.Abs(got-want) > RelativeError*want+1e-15 {
				t.Errorf("%s: quantile %g is %g, want %g", name, q, got, want)
			}
		}
		if RelativeError > 0.005 {
			t.Error("the bound is more than half a percent")
		}
		if n := len(s.counts); n > 102*128 {
			t.Errorf("%s: %d buckets", name, n)
		}
	}
}

func TestErrorBoundProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(rapid.Float64Range(0, 1e15), 1, 300).Draw(t, "values")
		var s Sketch
		for _, v := range all {
			s.Add(v)
		}
		slices.Sort(all)
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		want, got := exact(all, q), s.Quantile(q)
		if math.Abs(got-want) > RelativeError*want+1e-12 {
			t.Fatalf("quantile %g is %g, want %g", q, got, want)
		}
	})
}

// TestMergeIsExact: parts in any order give the sketch of the whole.
func TestMergeIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Whole numbers, so that sums are exact in any order.
		parts := rapid.SliceOfN(rapid.SliceOf(rapid.Custom(func(t *rapid.T) float64 {
			return float64(rapid.Int64Range(0, 1<<40).Draw(t, "v"))
		})), 1, 5).Draw(t, "parts")
		var whole, merged, reversed Sketch
		for _, p := range parts {
			var s Sketch
			for _, v := range p {
				whole.Add(v)
				s.Add(v)
			}
			merged.Merge(&s)
		}
		for _, p := range slices.Backward(parts) {
			for _, v := range slices.Backward(p) {
				reversed.AddN(v, 1)
			}
		}
		if !reflect.DeepEqual(whole, merged) || !reflect.DeepEqual(whole, reversed) {
			t.Fatalf("whole %+v\nmerged %+v\nreversed %+v", whole, merged, reversed)
		}
	})
}

func TestEdges(t *testing.T) {
	var s Sketch
	if s.Quantile(0.5) != 0 || s.Mean() != 0 || s.Count() != 0 {
		t.Error("an empty sketch has values")
	}
	s.AddN(5, 0)
	s.Add(math.NaN())
	s.Add(-3)
	s.Add(math.Inf(1))
	s.Add(1e-300)
	if s.Count() != 4 || s.Min() != 0 || s.Max() != most || s.Quantile(0.75) != 0 || s.Quantile(1) != most {
		t.Errorf("%d values, min %g, max %g", s.Count(), s.Min(), s.Max())
	}
	n := uint64(0)
	s.Bins(func(low, high float64, k uint64) {
		if low > high {
			t.Errorf("bucket from %g to %g", low, high)
		}
		n += k
	})
	if n != 4 {
		t.Errorf("%d values in bins", n)
	}
	var one Sketch
	one.AddN(7, 1000)
	for _, q := range quantiles {
		if one.Quantile(q) != 7 {
			t.Errorf("quantile %g of a single value is %g", q, one.Quantile(q))
		}
	}
	if one.Sum() != 7000 || one.Mean() != 7 {
		t.Errorf("sum %g, mean %g", one.Sum(), one.Mean())
	}
}

// TestMemoryIsBounded: a long run stays as small as a short one, and adding
// does not allocate once the range is covered.
func TestMemoryIsBounded(t *testing.T) {
	var s Sketch
	s.Add(1e-6)
	s.Add(1e6)
	size := len(s.counts)
	v := 1e-6
	if n := testing.AllocsPerRun(10_000, func() {
		if v *= 1.001; v > 1e6 {
			v = 1e-6
		}
		s.Add(v)
	}); n != 0 {
		t.Errorf("%g allocations per value", n)
	}
	if len(s.counts) != size {
		t.Errorf("%d buckets, %d before", len(s.counts), size)
	}
}

func BenchmarkAdd(b *testing.B) {
	var s Sketch
	b.ReportAllocs()
	v := 1.0
	for b.Loop() {
		v = v*1.37 + 0.1
		if v > 1e9 {
			v = 1
		}
		s.Add(v)
	}
}
