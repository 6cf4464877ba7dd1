package simcheck

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/bench/serve"
	"github.com/kvlend/kvlend/bench/serve/report"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/trace"
	"github.com/kvlend/kvlend/planner/perf"
	"github.com/kvlend/kvlend/planner/sim"
)

// machine is no machine in particular, but has all the models.
func machine() sim.Machine {
	c := sim.Calibrated{FLOPS: 2e11, Bandwidth: 2e10, Calibration: perf.Calibration{Linear: 1, Attention: 0.7, Weights: 1, KV: 0.8, Step: 300 * time.Microsecond}}
	return sim.Machine{
		Models: map[string]sim.Calibrated{"builtin:atlas": c, "builtin:birch": c, "builtin:cedar": c},
		Copies: 1e10, Front: sim.Front{Request: 2 * time.Millisecond},
	}
}

func load(t *testing.T) *trace.Trace {
	l := trace.DefaultSynthetic()
	l.Sessions, l.Rate, l.Turns, l.Think = 6, 10, 2, 50*time.Millisecond
	tr, err := l.Make()
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func systems(t *testing.T, names ...string) (out []serve.System) {
	for _, n := range names {
		s, err := serve.Baseline(n, configs.Default())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	return out
}

// TestRun compares on real processes: both sides answer everything, and every
// figure is there.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("starts whole systems, which the long tests do")
	}
	binary := filepath.Join(t.TempDir(), "kvlend")
	build := exec.Command("go", "build", "-o", binary, "github.com/kvlend/kvlend/cmd/kvlend")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	tr := load(t)
	r, err := Run(t.Context(), Options{Machine: machine(), Serve: serve.Options{Binary: binary, Systems: systems(t, "lending", "local-only"), Trace: tr, Verify: 2}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Measured.Err(); err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 2 {
		t.Fatalf("%d rows", len(r.Rows))
	}
	turns := tr.Size().Turns
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Simulated.Requests != turns || row.Measured.Requests != turns || row.Simulated.Failed+row.Measured.Failed != 0 || len(row.Rounds) != 1 {
			t.Errorf("%s: %d turns, simulated %+v, measured %+v, %d rounds", row.System, turns, row.Simulated, row.Measured, len(row.Rounds))
		}
		for _, p := range []Percentiles{row.Measured.TTFT, row.Simulated.TTFT, row.Measured.Token, row.Simulated.Token} {
			if !(p.P50 > 0 && p.P50 <= p.P90 && p.P90 <= p.P99) {
				t.Errorf("%s: percentiles %+v", row.System, p)
			}
		}
	}
	var text, raw bytes.Buffer
	if err := r.WriteTable(&text); err != nil || !strings.Contains(text.String(), "TTFT P90") || !strings.Contains(text.String(), "local-only") {
		t.Errorf("table: %v\n%s", err, text.String())
	}
	if err := r.WriteJSON(&raw); err != nil || !json.Valid(raw.Bytes()) {
		t.Errorf("JSON: %v", err)
	}
}

func TestRefuses(t *testing.T) {
	for name, o := range map[string]Options{
		"a running gateway": {Serve: serve.Options{URL: "http://127.0.0.1:1", Trace: load(t)}},
		"no systems":        {Serve: serve.Options{Trace: load(t)}},
		"no trace":          {Serve: serve.Options{Systems: systems(t, "lending")}},
		"steadier than can": {Serve: serve.Options{Systems: systems(t, "lending"), Trace: load(t)}, Steady: 0.5},
	} {
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestFill: medians of rounds on both sides, and how far rounds are apart.
func TestFill(t *testing.T) {
	dist := func(p float64) report.Summary {
		d := report.Dist{N: 1, P50: p, P90: 2 * p, P99: 3 * p}
		return report.Summary{TTFT: d, TPOT: d, Requests: 5, OK: 5, PromptTokens: 100, Receipts: 5, Tiers: report.Tiers{Local: 25, Borrowed: 50}}
	}
	c := report.Config{Name: "x", Model: "m", All: dist(0)}
	for _, p := range []float64{10, 30, 20} {
		c.Rounds = append(c.Rounds, report.Round{Summary: dist(p)})
	}
	r := Result{Measured: &serve.Result{Configs: []report.Config{c}}, Rows: []Row{{System: "x", Model: "m"}}}
	for _, p := range []float64{1, 5, 3} {
		r.Rows[0].rounds = append(r.Rows[0].rounds, Figures{Times: Times{TTFT: Percentiles{P50: p}}})
	}
	r.fill()
	row := r.Rows[0]
	if row.Measured.TTFT != (Percentiles{20, 40, 60}) || row.Simulated.TTFT.P50 != 3 || math.Abs(row.Spread.TTFT.P90-2) > 1e-9 {
		t.Errorf("%+v", row)
	}
	if row.Measured.Local != .25 || row.Measured.Borrowed != .5 || row.Measured.Computed != .25 {
		t.Errorf("shares %+v", row.Measured)
	}
	if off := Off(20, 3); math.Abs(off+0.85) > 1e-9 || !math.IsNaN(Off(0, 1)) {
		t.Errorf("off by %v", off)
	}
}

// TestOthers: this process's own work is not others'.
func TestOthers(t *testing.T) {
	o := newOthers()
	if s := o.share(); s < 0 || s > 1 {
		t.Errorf("a share of %v", s)
	}
	if busyTime() < ownTime() {
		t.Errorf("all processors were busy for %v, this process for %v", busyTime(), ownTime())
	}
}
