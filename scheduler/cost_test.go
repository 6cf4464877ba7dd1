package scheduler

import (
	"encoding/csv"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// truth is what steps really cost, in seconds.
type truth struct{ step, token, attended, key float64 }

func (c truth) of(w Work) float64 {
	return c.step + c.token*float64(w.Tokens) + c.attended*w.Attended + c.key*w.Keys
}

// prefill is the cost of [from, to) in chunks.
func (c truth) prefill(from, to, chunk int) (s float64) {
	for ; from < to; from += chunk {
		s += c.of(span(from, min(chunk, to-from)))
	}
	return s
}

func span(start, n int) (w Work) {
	w.Add(start, n)
	return w
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// mixed feeds m with decode steps, some with a prefill, and with some noise.
func mixed(m *CostModel, c truth, steps int, noise float64, rng *rand.Rand) {
	for i := range steps {
		var w Work
		for range 1 + rng.IntN(32) {
			w.Add(rng.IntN(30000), 1)
		}
		if i%3 == 0 {
			w.Add(rng.IntN(30000), 64+rng.IntN(1984))
		}
		m.Observe(w, seconds(c.of(w)*(1+noise*(2*rng.Float64()-1))))
	}
}

func TestCostModelLearns(t *testing.T) {
	for _, c := range []struct {
		name    string
		truth   truth
		noise   float64
		allowed float64 // relative error of an estimate
	}{
		{"exact", truth{5e-3, 80e-6, 2e-9, 1e-7}, 0, 1e-6},
		{"noisy", truth{5e-3, 80e-6, 2e-9, 1e-7}, 0.2, 0.1},
		{"no fixed cost", truth{0, 80e-6, 2e-9, 0}, 0.1, 0.05},
		{"no attention", truth{1e-3, 1e-3, 0, 0}, 0.1, 0.05},
		{"only attention", truth{0, 0, 3e-9, 0}, 0.1, 0.05},
		{"a slow engine", truth{0.2, 30e-3, 1e-6, 1e-5}, 0.1, 0.05},
		{"a fast one", truth{20e-6, 1e-6, 1e-12, 1e-10}, 0.1, 0.05},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := NewCostModel(2048)
			mixed(m, c.truth, 400, c.noise, rand.New(rand.NewPCG(1, 2)))
			for _, p := range [][2]int{{0, 100}, {0, 2048}, {0, 10000}, {8192, 8193}, {20000, 22048}, {1000, 9000}} {
				want, got := c.truth.prefill(p[0], p[1], 2048), m.Estimate(p[0], p[1]).Seconds()
				if math.Abs(got-want) > c.allowed*want+2e-9 {
					t.Errorf("%v: %v s, want %v; %+v", p, got, want, m.Stats())
				}
			}
		})
	}
}

// What a step costs changes, and the model follows; what decode says does not
// wear away what prefill said.
func TestCostModelForgets(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	m := NewCostModel(2048)
	before, after := truth{5e-3, 80e-6, 2e-9, 1e-8}, truth{10e-3, 160e-6, 4e-9, 2e-8}
	mixed(m, before, 400, 0.05, rng)
	for range 100000 {
		w := span(rng.IntN(3000), 1)
		w.Add(rng.IntN(3000), 1)
		m.Observe(w, seconds(before.of(w)))
	}
	check := func(c truth) {
		t.Helper()
		want := c.of(span(0, 2048))
		if got := m.Estimate(0, 2048).Seconds(); math.Abs(got-want) > 0.05*want {
			t.Errorf("%v s, want %v; %+v", got, want, m.Stats())
		}
	}
	check(before)
	mixed(m, after, 6000, 0.05, rng)
	check(after)
}

func TestCostModelOutliers(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	m := NewCostModel(2048)
	c := truth{5e-3, 80e-6, 2e-9, 1e-8}
	for range 40 {
		mixed(m, c, 20, 0.05, rng)
		m.Observe(span(0, 100), time.Minute) // a stopped process
	}
	want := c.of(span(0, 1000))
	if got := m.Estimate(0, 1000).Seconds(); math.Abs(got-want) > 0.1*want {
		t.Errorf("%v s, want %v; %+v", got, want, m.Stats())
	}
}

func TestCostModelKnows(t *testing.T) {
	m := NewCostModel(128)
	if m.Known() || m.Estimate(0, 100) != 0 || m.Stats() != (CostStats{}) {
		t.Errorf("a new model: %+v", m.Stats())
	}
	for range 100 {
		m.Observe(span(50, 1), time.Millisecond)
	}
	if m.Known() || m.Estimate(0, 100) != 0 || m.Step(span(50, 1)).Round(time.Microsecond) != time.Millisecond {
		t.Errorf("steps of one size say nothing of others: %+v", m.Stats())
	}
	m.Observe(span(0, 64), 20*time.Millisecond)
	m.Observe(span(0, 64), 20*time.Millisecond)
	if !m.Known() || m.Estimate(0, 100) == 0 {
		t.Errorf("two sizes: %+v", m.Stats())
	}
	for _, span := range [][2]int{{5, 5}, {6, 5}, {-1, 5}} {
		if d := m.Estimate(span[0], span[1]); d != 0 {
			t.Errorf("%v: %v", span, d)
		}
	}
}

func TestCostModelRefusesNonsense(t *testing.T) {
	m := NewCostModel(128)
	for _, c := range []struct {
		w Work
		d time.Duration
	}{
		{Work{0, 0, 0}, 1}, {Work{-1, 0, 0}, 1}, {Work{1, -1, 0}, 1}, {Work{1, math.NaN(), 0}, 1}, {Work{1, math.Inf(1), 0}, 1},
		{Work{1, 0, -1}, 1}, {Work{1, 0, math.NaN()}, 1}, {Work{1, 0, 0}, 0}, {Work{1, 0, 0}, -1}, {Work{1, 0, 0}, 2 * time.Hour},
	} {
		if m.Observe(c.w, c.d) {
			t.Errorf("%+v was taken", c)
		}
	}
	if m.Stats().Steps != 0 {
		t.Errorf("%+v", m.Stats())
	}
}

// Whatever is measured, coefficients are finite and not negative, and more
// tokens never take less time.
func TestPropertyCostModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := NewCostModel(rapid.IntRange(1, 4096).Draw(rt, "chunk"))
		for range rapid.IntRange(0, 60).Draw(rt, "steps") {
			m.Observe(Work{rapid.IntRange(1, 1<<20).Draw(rt, "tokens"), rapid.Float64Range(0, 1e15).Draw(rt, "attended"), rapid.Float64Range(0, 1e9).Draw(rt, "keys")},
				time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(rt, "d")))
		}
		st := m.Stats()
		for _, v := range []float64{st.StepMS, st.TokenMS, st.AttendedMS, st.KeyMS} {
			if !(v >= 0) || math.IsInf(v, 0) {
				rt.Fatalf("%+v", st)
			}
		}
		from := rapid.IntRange(0, 1<<20).Draw(rt, "from")
		to := from + rapid.IntRange(0, 1<<20).Draw(rt, "n")
		if a, b := m.Estimate(from, to), m.Estimate(from, to+1); a < 0 || b < a {
			rt.Fatalf("[%d, %d): %v, one more: %v; %+v", from, to, a, b, st)
		}
	})
}

func BenchmarkCostModel(b *testing.B) {
	m := NewCostModel(2048)
	mixed(m, truth{5e-3, 80e-6, 2e-9, 1e-8}, 400, 0.1, rand.New(rand.NewPCG(1, 2)))
	for b.Loop() {
		m.Observe(Work{40, 40000, 40000}, 9*time.Millisecond)
		m.Estimate(0, 4096)
	}
}

// Steps of vLLM on a GPU while the load grows, each estimated from those before
// it.
func TestCostModelOnMeasuredSteps(t *testing.T) {
	f, err := os.Open("testdata/vllm_steps.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	rows = rows[1:]
	m := NewCostModel(2048)
	var errs []float64
	for i, row := range rows {
		var v [4]float64 // prompt, decoding, attended, ms
		for j := range v {
			if v[j], err = strconv.ParseFloat(row[j], 64); err != nil {
				t.Fatal(err)
			}
		}
		// Positions that the decoding ones attend to are keys that they have.
		w := Work{Tokens: int(v[0] + v[1]), Attended: v[2], Keys: v[2] - v[0]*(v[0]-1)/2 + v[0] + v[1]}
		if i >= 20 {
			errs = append(errs, math.Abs(m.Step(w).Seconds()*1e3/v[3]-1))
		}
		m.Observe(w, seconds(v[3]/1e3))
	}
	slices.Sort(errs)
	median, p90 := errs[len(errs)/2], errs[len(errs)*9/10]
	t.Logf("%d steps: relative error %.3f in the median, %.3f at P90; %+v", len(rows), median, p90, m.Stats())
	if median > 0.08 || p90 > 0.2 {
		t.Errorf("relative error %.3f in the median, %.3f at P90", median, p90)
	}
}
