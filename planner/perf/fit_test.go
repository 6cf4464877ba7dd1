package perf

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// mixed is a load in which every parameter shows: decode of few and many
// sequences over short and long contexts, prefills short and long, both together.
func mixed(rng *rand.Rand, n int) [][]Seq {
	out := make([][]Seq, n)
	for i := range out {
		for range 1 << rng.IntN(8) {
			out[i] = append(out[i], Seq{100 << rng.IntN(9), 1})
		}
		if i%3 == 0 {
			out[i] = append(out[i], Seq{rng.IntN(60_000), 1 + rng.IntN(8192)})
		}
		if i%7 == 0 {
			out[i] = []Seq{{0, 16 << rng.IntN(9)}}
		}
	}
	return out
}

func measure(e *Engine, batches [][]Seq, noise func(i int) float64) []Sample {
	var out []Sample
	for i, b := range batches {
		out = append(out, Sample{b, time.Duration(float64(e.Step(b).Total()) * noise(i))})
	}
	return out
}

var truth = Calibration{Linear: 0.62, Attention: 0.35, Weights: 0.85, KV: 0.55, Step: 3 * time.Millisecond, Seq: 25 * time.Microsecond, Token: 900}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.Abs(got/want-1) > within {
		t.Errorf("%s is %.4g, want %.4g within %.0f %%", what, got, want, 100*within)
	}
}

// TestFitFindsWhatWasThere: the parameters come back under noise and with steps
// that something interrupted.
func TestFitFindsWhatWasThere(t *testing.T) {
	for _, c := range []struct {
		model, gpu string
		noise      float64
		outliers   bool
		within     float64
	}{
		{"Qwen3-8B", "H20", 0, false, 0.01},
		{"Llama-3.1-70B", "H100-SXM", 0.03, false, 0.06},
		{"Qwen3-30B-A3B", "A100-80G-SXM", 0.02, false, 0.1},
		{"Qwen3-8B", "H100-SXM", 0.03, true, 0.1},
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		e := engineOf(t, c.model, c.gpu, truth)
		samples := measure(e, mixed(rng, 900), func(i int) float64 {
			f := 1 + c.noise*rng.NormFloat64()
			if c.outliers && i%20 == 0 {
				f *= 5
			}
			return f
		})
		got, r, err := Fit(samples, e.Shape(), gpuOf(t, c.gpu))
		if err != nil {
			t.Fatal(err)
		}
		what := c.model + " on " + c.gpu + ": "
		near(t, what+"linear", got.Linear, truth.Linear, c.within)
		near(t, what+"attention", got.Attention, truth.Attention, c.within)
		near(t, what+"weights", got.Weights, truth.Weights, c.within)
		near(t, what+"kv", got.KV, truth.KV, c.within)
		// Small parts of a step are known as well as the fit says.
		for name, want := range map[string]float64{"step_ns": truth.Step.Seconds(), "seq_ns": truth.Seq.Seconds(), "token_ns": truth.Token.Seconds()} {
			term := r.Terms[slices.IndexFunc(r.Terms, func(t Term) bool { return t.Name == name })]
			if name == "token_ns" && !term.Determined {
				continue // arithmetic explains it as well, within the noise
			}
			if off := math.Abs(term.Value - want); off > 4*term.Error*term.Value+0.01*want {
				t.Errorf("%s%s is %g +- %.0f %%, want %g", what, name, term.Value, 100*term.Error, want)
			}
		}
		t.Logf("%s%+v; mean error %.2f %%", what, got, 100*r.Mean)
		if u := r.Undetermined(); len(u) > 2 || len(u) == 0 || u[0].Name != "layer_ns" {
			t.Errorf("%sundetermined: %+v", what, u)
		}
		if again, _, _ := Fit(samples, e.Shape(), gpuOf(t, c.gpu)); again != got {
			t.Errorf("%sa second fit of the same samples differs", what)
		}
	}
}

// TestFitMachine: a machine without known peaks is predicted as well as one with.
func TestFitMachine(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	cpu := GPU{Name: "cpu", FLOPS: 4e11, MemoryBandwidth: 3.5e10}
	s := shapeOf(t, "Qwen3-0.6B")
	e, err := NewEngine(s, cpu, truth)
	if err != nil {
		t.Fatal(err)
	}
	samples := measure(e, mixed(rng, 600), func(int) float64 { return 1 + 0.02*rng.NormFloat64() })
	g, c, r, err := FitMachine("this", samples, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v %+v", g, c)
	f, err := NewEngine(s, g, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range mixed(rng, 200) {
		near(t, "a new step", f.Step(b).Total().Seconds(), e.Step(b).Total().Seconds(), 0.04)
	}
	near(t, "arithmetic", g.FLOPS*c.Linear, cpu.FLOPS*truth.Linear, 0.05)
	near(t, "bandwidth", g.MemoryBandwidth*c.KV, cpu.MemoryBandwidth*truth.KV, 0.05)
	for _, term := range r.Terms {
		if term.Name == "linear" {
			near(t, "the term's linear", term.Value, c.Linear, 1e-9)
		}
	}
}

// TestFitTellsSerialFromRoofline: whether reading overlaps arithmetic is found
// out, and the roofline is taken where both do.
func TestFitTellsSerialFromRoofline(t *testing.T) {
	s := shapeOf(t, "Qwen3-0.6B")
	for _, serial := range []bool{false, true} {
		c := truth
		c.Serial, c.KV, c.Weights = serial, 0.2, 0.3
		e, err := NewEngine(s, GPU{FLOPS: 4e11, MemoryBandwidth: 3.5e10}, c)
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(10, 11))
		samples := measure(e, mixed(rng, 400), func(int) float64 { return 1 + 0.02*rng.NormFloat64() })
		_, got, r, err := FitMachine("cpu", samples, s)
		if err != nil {
			t.Fatal(err)
		}
		if got.Serial != serial {
			t.Errorf("serial %t was taken for %t (mean error %.3f)", serial, got.Serial, r.Mean)
		}
	}
}

// TestFitSaysWhatItCannotKnow: decode alone says nothing of arithmetic; what is
// left free does not slow the samples down.
func TestFitSaysWhatItCannotKnow(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	e := engineOf(t, "Qwen3-8B", "H100-SXM", truth)
	var decode [][]Seq
	for range 300 {
		var b []Seq
		for range 1 + rng.IntN(30) {
			b = append(b, Seq{rng.IntN(30_000), 1})
		}
		decode = append(decode, b)
	}
	samples := measure(e, decode, func(int) float64 { return 1 + 0.01*rng.NormFloat64() })
	c, r, err := Fit(samples, e.Shape(), gpuOf(t, "H100-SXM"))
	if err != nil {
		t.Fatal(err)
	}
	undetermined := map[string]string{}
	for _, u := range r.Undetermined() {
		undetermined[u.Name] = u.Note
	}
	for _, name := range []string{"linear", "attention", "layer_ns"} {
		if undetermined[name] == "" {
			t.Errorf("%s counts as determined: %+v", name, r.Terms)
		}
	}
	if undetermined["kv"] != "" {
		t.Errorf("kv: %s", undetermined["kv"])
	}
	t.Logf("%+v\n%+v", c, undetermined)
	near(t, "kv", c.KV, truth.KV, 0.05)
	if r.P90 > 0.03 {
		t.Errorf("90th percentile of errors is %.3f: what is free disturbs", r.P90)
	}
}

func TestFitRefusesNonsense(t *testing.T) {
	s, g := shapeOf(t, "Qwen3-8B"), gpuOf(t, "H20")
	good := Sample{[]Seq{{0, 1}}, time.Millisecond}
	with := func(bad Sample) []Sample {
		out := make([]Sample, 10)
		for i := range out {
			out[i] = good
		}
		out[7] = bad
		return out
	}
	for want, samples := range map[string][]Sample{
		"at least 8":          {good},
		"samples[7].Batch[0]": with(Sample{[]Seq{{-1, 1}}, 1}),
		"samples[7] has 0":    with(Sample{nil, 1}),
		"takes 0s":            with(Sample{good.Batch, 0}),
	} {
		if _, _, err := Fit(samples, s, g); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, _, err := Fit(with(good), s, GPU{}); err == nil {
		t.Error("a GPU without figures is accepted")
	}
	if _, _, err := Fit(with(good), Shape{}, g); err == nil {
		t.Error("a model without a shape is accepted")
	}
}

// TestFitOfOneKindOfStep: nothing can be told apart, but the step is predicted.
func TestFitOfOneKindOfStep(t *testing.T) {
	s, g := shapeOf(t, "Qwen3-8B"), gpuOf(t, "H20")
	batch := []Seq{{500, 1}, {900, 1}}
	samples := make([]Sample, 20)
	for i := range samples {
		samples[i] = Sample{batch, 9 * time.Millisecond}
	}
	c, r, err := Fit(samples, s, g)
	if err != nil {
		t.Fatal(err)
	}
	e, err := NewEngine(s, g, c)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "the step", e.Step(batch).Total().Seconds(), 0.009, 1e-5) // layers round up to nanoseconds
	if len(r.Undetermined()) < 5 {
		t.Errorf("only these count as undetermined: %+v", r.Undetermined())
	}
}

// TestFitMachineOfDecodeAlone: what no sample shows makes no calibration
// impossible, whether bounds overlap or add up, and decode is predicted.
func TestFitMachineOfDecodeAlone(t *testing.T) {
	s := shapeOf(t, "Qwen3-0.6B")
	for _, serial := range []bool{false, true} {
		for _, c := range []Calibration{truth, {Linear: 1, Attention: 1, Weights: 1, KV: 0.001}, {Linear: 0.01, Attention: 1, Weights: 0.01, KV: 1, Step: time.Second}} {
			c.Serial = serial
			e, err := NewEngine(s, GPU{FLOPS: 4e11, MemoryBandwidth: 3.5e10}, c)
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(8, 9))
			var batches [][]Seq
			for range 100 {
				var b []Seq
				for range 1 + rng.IntN(8) {
					b = append(b, Seq{rng.IntN(20_000), 1})
				}
				batches = append(batches, b)
			}
			samples := measure(e, batches, func(int) float64 { return 1 + 0.01*rng.NormFloat64() })
			g, got, _, err := FitMachine("cpu", samples, s)
			if err != nil {
				t.Fatalf("serial %t, %+v: %v", serial, c, err)
			}
			f, err := NewEngine(s, g, got)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range batches[:20] {
				near(t, "a step", f.Step(b).Total().Seconds(), e.Step(b).Total().Seconds(), 0.05)
			}
		}
	}
}

// TestPeakOfExtremes: shares of a common peak stay within what a calibration
// may have, and a column that nothing showed takes the other's.
func TestPeakOfExtremes(t *testing.T) {
	f := fitted{}
	f.x[colLinear], f.x[colAttention] = leastTime, 1000
	f.known[colLinear], f.known[colAttention] = true, true
	peak := f.peak(colLinear, colAttention)
	for _, c := range []int{colLinear, colAttention} {
		if share := f.share(c) / peak; share < leastShare || share > 1 {
			t.Errorf("column %d has a share of %g", c, share)
		}
	}
	f.x[colWeights], f.x[colKV] = leastTime, 4
	f.known[colKV] = true
	if peak := f.peak(colWeights, colKV); peak != 0.25 || f.share(colWeights) != 0.25 {
		t.Errorf("peak %g, weights %g: want those of the column that is known", peak, f.share(colWeights))
	}
}
