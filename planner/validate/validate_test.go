package validate

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/planner/facts"
	"github.com/kvlend/kvlend/planner/perf"
	"pgregory.net/rapid"
)

// TestReport prints the comparisons and holds the models to their bars:
// Table 1 within 15 %, Fig. 1 within 5 points; of vLLM's logs, what was fitted
// and what is of the same server (a regression of the model would show here,
// a prediction for another one is reported as it comes).
func TestReport(t *testing.T) {
	if testing.Short() {
		t.Skip("long arithmetic in one goroutine, which the long tests do")
	}
	r, err := Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text.String())
	for _, m := range r.Misses() {
		t.Error(m)
	}
	for _, f := range r.VLLM.Fits {
		for _, row := range f.Rows {
			if row.Kind == "predicted" || strings.HasPrefix(f.From, "Qwen") {
				continue
			}
			for what, v := range map[string][2]float64{
				"P50 of TTFT":           {row.Modelled.TTFT50, row.Measured.TTFT50},
				"P99 of TTFT":           {row.Modelled.TTFT99, row.Measured.TTFT99},
				"P50 of time per token": {row.Modelled.TPOT50, row.Measured.TPOT50},
				"P99 of time per token": {row.Modelled.TPOT99, row.Measured.TPOT99},
			} {
				if e := v[0]/v[1] - 1; math.Abs(e) > 0.15 {
					t.Errorf("%s, %s: %s is off by %+.1f %%", row.Log, row.Kind, what, 100*e)
				}
			}
		}
	}
	all, err := deployments()
	if err != nil {
		t.Fatal(err)
	}
	again, err := all[0].row("fitted", r.VLLM.Fits[0].Calibration, 0)
	if err != nil || again != r.VLLM.Fits[0].Rows[0] {
		t.Errorf("the same replay has other figures: %+v, %+v, %v", again, r.VLLM.Fits[0].Rows[0], err)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

// TestMissesAreNamed: a model that is off does not pass unnoticed.
func TestMissesAreNamed(t *testing.T) {
	r := &Report{SwiftCache: &SwiftCache{
		Rows:    []Table1Row{{Workload: "a", Measured: 1, Fitted: 1.16}, {Workload: "b", Measured: 1, Fitted: 0.9}},
		Figure1: []Figure1Row{{History: 7, Share: 0.9, Measured: 0.84}},
	}, Figure7: &Figure7{
		Rows:   []Figure7Row{{Master: "m", Dataset: "d", Busy: 0.2, Lending: 1, Overlapped: 1, Sync: 2}, {Lending: 1, Overlapped: 2, Sync: 2}},
		Paper:  []Figure7Paper{{"d", 0.5, 0.6}},
		Median: []Figure7Median{{"d", [3]float64{0, 0.71, 1}, [3]float64{0, 0.41, 1}}},
	}}
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "4 bars") {
		t.Error(err)
	}
	if m := r.Misses(); len(m) != 4 || !strings.Contains(m[2], "m with d, busy 20 %: lending gains +0") || !strings.Contains(m[3], "synchronous host offload is 71 %, 11 points outside") || !strings.Contains(m[0], "a: off by +16.0") || !strings.Contains(m[1], "7 tokens: off by +6.0") {
		t.Errorf("%q", m)
	}
}

// TestFitLine: exact data give back what they were made of; bounds hold.
func TestFitLine(t *testing.T) {
	rows := make([]Table1Row, 4)
	peak := []float64{0.1, 0.5, 1, 9}
	for i := range rows {
		rows[i].Measured = peak[i]/0.8 + 0.02
	}
	for skip := -1; skip < 4; skip++ {
		if e, o := fitLine(peak, rows, skip); math.Abs(e-0.8) > 1e-9 || math.Abs(o-0.02) > 1e-9 {
			t.Errorf("without row %d: %g, %g", skip, e, o)
		}
	}
	for i := range rows {
		rows[i].Measured = peak[i] / 3
	}
	if e, o := fitLine(peak, rows, -1); e != 1 || o != 0 {
		t.Errorf("faster than the peak: %g, %g", e, o)
	}
}

func TestMinimise(t *testing.T) {
	x := minimise(func(x []float64) float64 { // Rosenbrock's valley
		return 1 + math.Pow(1-x[0], 2) + 100*math.Pow(x[1]-x[0]*x[0], 2)
	}, []float64{-1.2, 1}, []float64{0.5, 0.5}, 500)
	if math.Abs(x[0]-1) > 0.05 || math.Abs(x[1]-1) > 0.1 {
		t.Errorf("%g, want 1, 1", x)
	}
}

func testEngine(t testing.TB) *perf.Engine {
	t.Helper()
	m, err := facts.LookupModel("Llama-3.1-8B")
	if err != nil {
		t.Fatal(err)
	}
	g, err := facts.LookupGPU("H100-SXM")
	if err != nil {
		t.Fatal(err)
	}
	e, err := perf.NewEngine(perf.FromModel(m, 2, 2), g, perf.DefaultCalibration())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestReplayOfOne works a single request out: its prompt in two chunks, then a
// step for each further token.
func TestReplayOfOne(t *testing.T) {
	e := testEngine(t)
	for _, ahead := range []bool{false, true} {
		out, preempted, err := Replay([]Request{{Input: 3000, Output: 3, Arrival: 5}}, Server{MaxSeqs: 4, MaxTokens: 2048, KVTokens: 1 << 14, Block: 16, Ahead: ahead}, e)
		if err != nil || preempted != 0 {
			t.Fatal(preempted, err)
		}
		step := func(start, n int) time.Duration { return e.Step([]perf.Seq{{Start: start, New: n}}).Total() }
		first := step(0, 2048) + step(2048, 952)
		rest := step(3000, 1) + step(3001, 1)
		if d := out[0].TTFT - first.Seconds(); math.Abs(d) > 1e-9 {
			t.Errorf("ahead %t: TTFT %g, want %s", ahead, out[0].TTFT, first)
		}
		if d := out[0].TPOT - rest.Seconds()/2; math.Abs(d) > 1e-9 {
			t.Errorf("ahead %t: time per token %g, want %s", ahead, out[0].TPOT, rest/2)
		}
	}
}

// TestReplayJoinsAStepLate: with steps put together ahead, who comes during a
// step misses the next one.
func TestReplayJoinsAStepLate(t *testing.T) {
	e := testEngine(t)
	log := []Request{{Input: 100, Output: 500}, {Input: 100, Output: 1, Arrival: 1}}
	s := Server{MaxSeqs: 4, MaxTokens: 2048, KVTokens: 1 << 14, Block: 16}
	soon, _, err := Replay(log, s, e)
	if err != nil {
		t.Fatal(err)
	}
	s.Ahead = true
	late, _, err := Replay(log, s, e)
	if err != nil {
		t.Fatal(err)
	}
	decode := e.Step([]perf.Seq{{Start: 300, New: 1}}).Total().Seconds()
	if d := late[1].TTFT - soon[1].TTFT; d < 0.9*decode || d > 1.1*decode {
		t.Errorf("ahead costs %g s, want a step of %g s", d, decode)
	}
}

// TestReplayServesAll: whatever the load and however scarce the memory, all
// requests are answered, none before its prompt could have been computed, and
// memory that is scarce only ever preempts.
func TestReplayServesAll(t *testing.T) {
	e := testEngine(t)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "requests")
		log := make([]Request, n)
		at, longest := 0.0, 0
		for i := range log {
			at += rapid.Float64Range(0, 0.2).Draw(t, "gap")
			log[i] = Request{Input: rapid.IntRange(1, 3000).Draw(t, "in"), Output: rapid.IntRange(1, 200).Draw(t, "out"), Arrival: at}
			longest = max(longest, log[i].Input+log[i].Output)
		}
		s := Server{
			MaxSeqs: rapid.IntRange(1, 40).Draw(t, "seqs"), MaxTokens: rapid.IntRange(64, 4096).Draw(t, "budget"),
			KVTokens: longest + 16 + rapid.IntRange(0, 6000).Draw(t, "KV"), Block: 16, Ahead: rapid.Bool().Draw(t, "ahead"),
		}
		out, preempted, err := Replay(log, s, e)
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range out {
			least := e.Step([]perf.Seq{{Start: 0, New: min(log[i].Input, s.MaxTokens)}}).Total().Seconds()
			if l.TTFT < least*(1-1e-9) {
				t.Fatalf("request %d has its first token after %g s, its prompt takes %g s", i, l.TTFT, least)
			}
			if one := e.Step([]perf.Seq{{Start: log[i].Input, New: 1}}).Total().Seconds(); log[i].Output > 1 && l.TPOT < one*(1-1e-9) {
				t.Fatalf("request %d has a token each %g s, a step takes %g s", i, l.TPOT, one)
			}
		}
		s.KVTokens = 1 << 22
		if _, p, err := Replay(log, s, e); err != nil || p > 0 || p > preempted {
			t.Fatalf("with plenty of memory: %d preempted, %v", p, err)
		}
	})
}

func TestReplayRefuses(t *testing.T) {
	e := testEngine(t)
	log := []Request{{Input: 100, Output: 100}}
	if _, _, err := Replay(log, Server{MaxSeqs: 1, MaxTokens: 1, Block: 16, KVTokens: 160}, e); err == nil || !strings.Contains(err.Error(), "200 tokens") {
		t.Errorf("a request that never fits: %v", err)
	}
	if _, _, err := Replay(log, Server{}, e); err == nil {
		t.Error("a server without anything")
	}
}

func TestParseLogNamesTheLine(t *testing.T) {
	const good = `{"request_id":"a","input_toks":5,"output_toks":2,"arrival_time":100,"queued_ts":10,"scheduled_ts":10,"first_token_ts":11,"last_token_ts":12}` + "\n"
	log, err := ParseLog(strings.NewReader(good))
	if err != nil || len(log) != 1 || log[0].FirstToken != 1 || log[0].Arrival != 0 {
		t.Fatal(log, err)
	}
	for text, want := range map[string]string{
		"":                                     "no requests",
		good + "{":                             "line 2",
		good + `{"input":1}`:                   "line 2",
		strings.Replace(good, ":5", ":0", 1):   "line 1: 0 input",
		good + good[:len(good)-4] + "9}\n":     "line 2: times",
		strings.Replace(good, ":11", ":9", 1):  "line 1: times",
		strings.Replace(good, "100", `"x"`, 1): "line 1",
	} {
		if _, err := ParseLog(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseLog(f *testing.F) {
	f.Add([]byte(`{"request_id":"a","input_toks":5,"output_toks":2,"arrival_time":100,"queued_ts":10,"scheduled_ts":10,"first_token_ts":11,"last_token_ts":12}`))
	e := testEngine(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		log, err := ParseLog(bytes.NewReader(text))
		if err != nil || len(log) > 50 {
			return
		}
		total := 0
		for _, q := range log {
			total += q.Input + q.Output
		}
		if total > 100_000 {
			return
		}
		if out, _, err := Replay(log, Server{MaxSeqs: 8, MaxTokens: 512, KVTokens: 1 << 20, Block: 16}, e); err != nil || len(out) != len(log) {
			t.Fatal(err)
		}
	})
}
