package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvlend/kvlend/internal/trace"
)

var update = flag.Bool("update", false, "write the golden files")

func TestPercentile(t *testing.T) {
	for _, tc := range []struct {
		n, q int
		want float64
	}{{1, 1, 1}, {1, 99, 1}, {2, 50, 1}, {3, 50, 2}, {10, 90, 9}, {100, 99, 99}, {101, 99, 100}, {1000, 99, 990}, {50, 99, 50}, {100, 100, 100}} {
		v := make([]float64, tc.n)
		for i := range v {
			v[i] = float64(i + 1)
		}
		if got := Percentile(v, tc.q); got != tc.want {
			t.Errorf("P%d of 1..%d is %v, want %v", tc.q, tc.n, got, tc.want)
		}
	}
	// The definition: at least q percent are not above it, and it is the least such.
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SliceOfN(rapid.Float64Range(-5, 5), 1, 300).Draw(t, "values")
		q := rapid.IntRange(1, 100).Draw(t, "q")
		slices.Sort(v)
		p := Percentile(v, q)
		below, upTo := 0, 0
		for _, x := range v {
			if x < p {
				below++
			}
			if x <= p {
				upTo++
			}
		}
		if upTo*100 < q*len(v) || below*100 >= q*len(v) {
			t.Fatalf("P%d is %v: %d of %d are not above, %d below", q, p, upTo, len(v), below)
		}
	})
}

func TestMedian(t *testing.T) {
	for want, v := range map[float64][]float64{2: {3, 1, 2}, 2.5: {4, 1, 2, 3}, 7: {7}} {
		if got := Median(v); got != want {
			t.Errorf("the median of %v is %v, want %v", v, got, want)
		}
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("no values have a median")
	}
}

const msec = time.Millisecond

func TestSummarise(t *testing.T) {
	s := Summarise([]Sample{
		{Due: 10 * msec, Ready: 12 * msec, Sent: 13 * msec, First: 30 * msec, End: 50 * msec, Code: CodeOK, Prompt: 100, Output: 5, Cached: 64,
			Receipt: &Tiers{Local: 48, Host: 16, PredictedMS: 5, RecomputeMS: 4}},
		{Due: 20 * msec, Ready: 20 * msec, Sent: 20 * msec, First: 25 * msec, End: 25 * msec, Code: CodeOK, Prompt: 100, Output: 1},
		{Due: 20 * msec, Ready: 20 * msec, Sent: 22 * msec, End: 90 * msec, Code: "overloaded", Prompt: 7, Retries: 2},
	}, 2*time.Second)
	if s.Requests != 3 || s.OK != 2 || s.Errors["overloaded"] != 1 || s.Retries != 2 || s.PromptTokens != 200 || s.OutputTokens != 6 || s.CachedTokens != 64 {
		t.Errorf("counts %+v", s)
	}
	if s.TTFT != (Dist{N: 2, Mean: 12.5, P50: 5, P90: 20, P99: 20, Max: 20}) {
		t.Errorf("TTFT %+v: it counts from when a request was due", s.TTFT)
	}
	if s.TPOT != (Dist{N: 1, Mean: 5, P50: 5, P90: 5, P99: 5, Max: 5}) || s.E2E.P99 != 40 || s.Lag.N != 3 || s.Lag.Max != 2 {
		t.Errorf("per token %+v, whole %+v, lag %+v", s.TPOT, s.E2E, s.Lag)
	}
	if s.OutputPerSecond != 3 || s.RequestsPerSecond != 1 || s.Receipts != 1 || s.Tiers.Host != 16 || s.Slower != 1 {
		t.Errorf("rates and tiers %+v", s)
	}
	if s := Summarise(nil, 0); s.OK != 0 || s.TTFT.N != 0 {
		t.Errorf("nothing amounts to %+v", s)
	}
}

// made is a result as a run would have it, of figures that never change.
func made() *Result {
	r := &Result{
		Trace: "conversation.jsonl.gz", Size: trace.Size{Sessions: 3, Turns: 40, PromptTokens: 9000, OutputTokens: 900, LongestTurn: 777},
		Cut: trace.Cut{Sessions: 1, Turns: 4}, Model: "atlas", Seed: 7, Prompts: map[string]string{"atlas": "dialogue"}, Timing: "when the trace has them",
		Notes: []string{"longest context 1024 tokens"},
		Checks: Checks{Answers: 155, Checked: 155, Distinct: 40, Repeated: 115, Reference: 16,
			ReferenceBy: "a plain engine (builtin:atlas, bf16)"},
	}
	for i, name := range []string{"local-only", "lending"} {
		c := Config{Name: name, Model: "atlas"}
		if i == 1 {
			c.Emulated, c.Links = true, []string{"gpu0<->gpu1 400MB/s, 5us"}
		}
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		for range 2 {
			c.Rounds = append(c.Rounds, round(rng, i))
		}
		r.Configs = append(r.Configs, c)
	}
	r.Fill()
	return r
}

func round(rng *rand.Rand, kind int) Round {
	var out Round
	for k := range 40 {
		due := time.Duration(k) * 100 * msec
		first := due + time.Duration((20+100*rng.ExpFloat64())/float64(1+kind)*float64(msec))
		s := Sample{Session: "s", Turn: k, Due: due, Ready: due, Sent: due + msec/10, First: first, End: first + 30*msec,
			Code: CodeOK, Prompt: 200, Output: 21, Cached: 100 * kind}
		if kind == 1 {
			s.Receipt = &Tiers{Local: 40, Borrowed: 60}
		}
		if k == 13 && kind == 0 {
			s.Code = "overloaded"
		}
		if k == 14 && kind == 1 {
			s.Sent += 900 * msec
		}
		out.Samples = append(out.Samples, s)
	}
	out.Wall = 4 * time.Second
	return out
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.WriteFile(path, got, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test -update writes it):\n%s", name, got)
	}
}

func TestGolden(t *testing.T) {
	r := made()
	wrong := made()
	wrong.Checks.Wrong, wrong.Checks.Problems = 1, []string{"lending, round 2, session s turn 3: tokens differ"}
	wrong.Problems = []string{"round 2: configuration lending: it ended"}
	foreign := made()
	foreign.Configs, foreign.Checks = foreign.Configs[:1], Checks{Answers: 78}
	foreign.Fill()
	for name, f := range map[string]func(io.Writer) error{
		"table.txt": r.WriteTable, "result.json": r.WriteJSON, "wrong.txt": wrong.WriteTable, "foreign.txt": foreign.WriteTable,
	} {
		var b bytes.Buffer
		if err := f(&b); err != nil {
			t.Fatal(err)
		}
		golden(t, name, b.Bytes())
	}
}

func TestErr(t *testing.T) {
	if err := made().Err(); err != nil {
		t.Errorf("a good run gives %v", err)
	}
	for want, change := range map[string]func(*Result){
		"1 wrong answers":  func(r *Result) { r.Checks.Wrong, r.Checks.Problems = 1, []string{"session s"} },
		"it ended":         func(r *Result) { r.Problems = []string{"it ended"} },
		"answered none of": func(r *Result) { r.Configs[1].Rounds = nil; r.Fill() },
	} {
		r := made()
		change(r)
		if err := r.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestRatios(t *testing.T) {
	r := &Result{}
	for _, ttft := range [][]time.Duration{{10, 20, 60}, {5, 5, 90}} {
		var c Config
		for _, v := range ttft {
			c.Rounds = append(c.Rounds, Round{Samples: []Sample{{Code: CodeOK, First: v * msec, End: v * msec, Output: 1}}})
		}
		r.Configs = append(r.Configs, c)
	}
	r.Fill()
	if got := r.Ratios; len(got) != 1 || got[0].TTFT.P99 != 0.25 || got[0].TPOT.P99 != 0 {
		t.Errorf("ratios %+v: want 5/20 of the medians, and 0 where there is no figure", got)
	}
}

// TestModels: a model is compared with itself, and loads beside are told apart
// and not plotted.
func TestModels(t *testing.T) {
	r := made()
	for i := range r.Configs {
		c := r.Configs[i]
		c.Model = "birch"
		r.Configs = append(r.Configs, c)
	}
	r.Fill()
	if len(r.Ratios) != 2 || r.Ratios[1].Config != "lending: birch" || r.Ratios[1].Base != "local-only: birch" {
		t.Errorf("ratios %+v", r.Ratios)
	}
	var table, svg bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table.String(), "lending: birch (emulated links)") {
		t.Errorf("the table does not name the model:\n%s", &table)
	}
	if err := r.Plots()["ttft-p99"](&svg, "svg"); err != nil || strings.Contains(svg.String(), "birch") {
		t.Errorf("the plot shows the load beside, or fails: %v", err)
	}
}

func TestAddChecks(t *testing.T) {
	a := Checks{Answers: 1, Checked: 2, Distinct: 3, Repeated: 4, Reference: 5, ReferenceBy: "x", Wrong: 6, Problems: []string{"p"}}
	b := a
	b.ReferenceBy = "y"
	a.Add(&b)
	if a.Answers != 2 || a.Checked != 4 || a.Distinct != 6 || a.Repeated != 8 || a.Reference != 10 || a.ReferenceBy != "x and y" || a.Wrong != 12 || len(a.Problems) != 2 {
		t.Errorf("the sum is %+v", a)
	}
}

func TestSamples(t *testing.T) {
	var b bytes.Buffer
	if err := made().WriteSamples(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	var last struct {
		Config string
		Round  int
		Turn   int
		Due    int64 `json:"due_ns"`
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
		t.Fatal(err)
	}
	if len(lines) != 160 || last.Config != "lending" || last.Round != 2 || last.Turn != 39 || last.Due != 3_900_000_000 {
		t.Errorf("%d lines, the last is %+v", len(lines), last)
	}
}

func TestRoundTicks(t *testing.T) {
	for high, want := range map[float64]string{2750: "0 500 1000 1500 2000 2500 ", 0.9: "0 0.2 0.4 0.6 0.8 ", 105: "0 20 40 60 80 100 ", 1: "0 0.2 0.4 0.6 0.8 1 "} {
		got := ""
		for _, tick := range (roundTicks{}).Ticks(0, high) {
			got += tick.Label
		}
		if got != want {
			t.Errorf("up to %v: %q, want %q", high, got, want)
		}
	}
}

// TestInk: a configuration has one colour, whatever the speed of its links.
func TestInk(t *testing.T) {
	r := &Result{}
	for _, times := range []float64{1, 2} {
		for range 3 {
			r.Configs = append(r.Configs, Config{LinkTimes: times})
		}
	}
	for i := range 6 {
		if c, group := r.ink(i); c != palette[i%3] || group != i/3 {
			t.Errorf("configuration %d has %v in group %d", i, c, group)
		}
	}
}

func TestPlots(t *testing.T) {
	r := made()
	if len(r.Plots()) != 3 {
		t.Errorf("%d plots, want 3", len(r.Plots()))
	}
	for name, draw := range r.Plots() {
		var b bytes.Buffer
		if err := draw(&b, "svg"); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, want := range []string{"<svg", "local-only", "lending", "emulated links", "conversation.jsonl.gz", "</svg>"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s does not show %q", name, want)
			}
		}
		if err := draw(io.Discard, "bmp"); err == nil {
			t.Errorf("%s: the format bmp was accepted", name)
		}
		if err := (&Result{Model: "m", Configs: []Config{{Name: "x", Model: "m"}}}).Plots()[name](io.Discard, "svg"); err == nil {
			t.Errorf("%s: a plot of nothing was drawn", name)
		}
	}
}
