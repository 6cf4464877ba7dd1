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
type truth struct{ step, token, attended float64 }

func (c truth) of(tokens int, attended float64) float64 {
	return c.step + c.token*float64(tokens) + c.attended*attended
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// mixed feeds m with decode and prefill steps, with some noise.
func mixed(m *CostModel, c truth, steps int, noise float64, rng *rand.Rand) {
	for i := range steps {
		tokens, start := 1+rng.IntN(32), rng.IntN(30000)
		attended := float64(tokens) * float64(start)
		if i%3 == 0 {
			tokens = 64 + rng.IntN(1984)
			attended = positions(start, tokens)
		}
		d := c.of(tokens, attended) * (1 + noise*(2*rng.Float64()-1))
		m.Observe(tokens, attended, seconds(d))
	}
}

func TestCostModelLearns(t *testing.T) {
	for _, c := range []struct {
		name    string
		truth   truth
		noise   float64
		allowed float64 // relative error of an estimate
	}{
		{"exact", truth{5e-3, 80e-6, 2e-9}, 0, 1e-6},
		{"noisy", truth{5e-3, 80e-6, 2e-9}, 0.2, 0.08},
		{"no fixed cost", truth{0, 80e-6, 2e-9}, 0.1, 0.05},
		{"no attention", truth{1e-3, 1e-3, 0}, 0.1, 0.05},
		{"only attention", truth{0, 0, 3e-9}, 0.1, 0.05},
		{"a slow engine", truth{0.2, 30e-3, 1e-6}, 0.1, 0.05},
		{"a fast one", truth{20e-6, 1e-6, 1e-12}, 0.1, 0.05},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := NewCostModel(2048)
			mixed(m, c.truth, 400, c.noise, rand.New(rand.NewPCG(1, 2)))
			for _, span := range [][2]int{{0, 100}, {0, 2048}, {0, 10000}, {8192, 8193}, {20000, 22048}} {
				n := span[1] - span[0]
				want := c.truth.of(n, positions(span[0], n)) + c.truth.step*float64((n-1)/2048)
				got := m.Estimate(span[0], span[1]).Seconds()
				if math.Abs(got-want) > c.allowed*want+2e-9 {
					t.Errorf("[%d, %d): %v s, want %v; %+v", span[0], span[1], got, want, m.Stats())
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
	before, after := truth{5e-3, 80e-6, 2e-9}, truth{10e-3, 160e-6, 4e-9}
	mixed(m, before, 400, 0.05, rng)
	for range 100000 {
		start := rng.IntN(3000)
		m.Observe(4, 4*float64(start), seconds(before.of(4, 4*float64(start))))
	}
	check := func(c truth) {
		t.Helper()
		want := c.of(2048, positions(0, 2048))
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
	c := truth{5e-3, 80e-6, 2e-9}
	for range 40 {
		mixed(m, c, 20, 0.05, rng)
		m.Observe(100, 100, time.Minute) // a stopped process
	}
	want := c.of(1000, positions(0, 1000))
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
		m.Observe(1, 50, time.Millisecond)
	}
	if m.Known() || m.Estimate(0, 100) != 0 || m.step(1, 50).Round(time.Microsecond) != time.Millisecond {
		t.Errorf("steps of one size say nothing of others: %+v", m.Stats())
	}
	m.Observe(64, 64*32, 20*time.Millisecond)
	m.Observe(64, 64*32, 20*time.Millisecond)
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
		tokens   int
		attended float64
		d        time.Duration
	}{
		{0, 0, 1}, {-1, 0, 1}, {1, -1, 1}, {1, math.NaN(), 1}, {1, math.Inf(1), 1}, {1, 0, 0}, {1, 0, -1}, {1, 0, 2 * time.Hour},
	} {
		if m.Observe(c.tokens, c.attended, c.d) {
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
			m.Observe(rapid.IntRange(1, 1<<20).Draw(rt, "tokens"), rapid.Float64Range(0, 1e15).Draw(rt, "attended"),
				time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(rt, "d")))
		}
		st := m.Stats()
		for _, v := range []float64{st.StepMS, st.TokenMS, st.AttendedMS} {
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
	mixed(m, truth{5e-3, 80e-6, 2e-9}, 400, 0.1, rand.New(rand.NewPCG(1, 2)))
	for b.Loop() {
		m.Observe(40, 40000, 9*time.Millisecond)
		m.Estimate(0, 4096)
	}
}

// Steps of vLLM on a GPU while the load grows, each estimated from those before
// it. The bound shows the limit of one coefficient for all attention: there,
// decode is bound by reading keys and prefill by multiplying them.
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
		tokens := int(v[0] + v[1])
		if i >= 20 {
			errs = append(errs, math.Abs(m.step(tokens, v[2]).Seconds()*1e3/v[3]-1))
		}
		m.Observe(tokens, v[2], seconds(v[3]/1e3))
	}
	slices.Sort(errs)
	median, p90 := errs[len(errs)/2], errs[len(errs)*9/10]
	t.Logf("%d steps: relative error %.3f in the median, %.3f at P90; %+v", len(rows), median, p90, m.Stats())
	if median > 0.2 || p90 > 0.3 {
		t.Errorf("relative error %.3f in the median, %.3f at P90", median, p90)
	}
}
