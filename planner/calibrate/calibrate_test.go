package calibrate

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/planner/perf"
	"github.com/kvlend/kvlend/planner/sim"
)

// synthetic is an engine that takes exactly what a model says.
type synthetic struct {
	model *perf.Engine
	conf  engine.Config
	steps int
}

func (s *synthetic) Config() *engine.Config { return &s.conf }
func (s *synthetic) KVLayout() kernels.KVLayout {
	return kernels.KVLayout{DType: kernels.BF16, BlockTokens: 16, KVHeads: s.conf.KVHeads, HeadDim: s.conf.HeadDim}
}

func (s *synthetic) Forward(_ context.Context, batch []engine.Sequence, kv engine.KV) (*engine.Output, error) {
	var w perf.Work
	for i := range batch {
		w.Add(perf.Seq{Start: batch[i].Start, New: len(batch[i].Tokens)})
	}
	if _, err := kv.Layer(0); err != nil {
		return nil, err
	}
	s.steps++
	<-time.After(s.model.Cost(w).Total()) // the bubble's clock
	return &engine.Output{}, nil
}

func newSynthetic(t *testing.T, cal perf.Calibration) *synthetic {
	conf, err := engine.BuiltinConfig("random-cedar")
	if err != nil {
		t.Fatal(err)
	}
	e, err := perf.NewEngine(perf.FromConfig(conf, 2, 2), perf.GPU{FLOPS: 3e11, MemoryBandwidth: 2e10}, cal)
	if err != nil {
		t.Fatal(err)
	}
	return &synthetic{model: e, conf: *conf}
}

// TestRecovers: of an engine that is what perf says, calibration finds what it is:
// it reckons steps of sizes that it never saw.
func TestRecovers(t *testing.T) {
	for name, cal := range map[string]perf.Calibration{
		"serial": {Linear: 1, Attention: 0.7, Weights: 0.8, KV: 0.9, Step: 200 * time.Microsecond, Seq: 20 * time.Microsecond, Serial: true},
		"roof":   {Linear: 0.9, Attention: 0.6, Weights: 1, KV: 0.4, Step: 500 * time.Microsecond, Seq: 10 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSynthetic(t, cal)
				samples, err := Measure(t.Context(), s, NewGrid(8192, 256, 8, 16, 1<<17), Options{})
				if err != nil {
					t.Fatal(err)
				}
				shape := s.model.Shape()
				gpu, got, res, err := perf.FitMachine("synthetic", samples, shape)
				if err != nil {
					t.Fatal(err)
				}
				if res.Max > 0.02 {
					t.Errorf("residuals up to %.3f of an engine without noise", res.Max)
				}
				fitted, err := perf.NewEngine(shape, gpu, got)
				if err != nil {
					t.Fatal(err)
				}
				for _, batch := range [][]perf.Seq{{{Start: 700, New: 200}}, {{Start: 3000, New: 1}, {Start: 100, New: 1}}, {{Start: 2000, New: 1}, {Start: 0, New: 99}}} {
					want, have := s.model.Step(batch).Total(), fitted.Step(batch).Total()
					if off := math.Abs(have.Seconds()/want.Seconds() - 1); off > 0.03 {
						t.Errorf("%v takes %s, reckoned %s", batch, want, have)
					}
				}
			})
		})
	}
}

// TestGrid: every batch can be computed with what the model may hold.
func TestGrid(t *testing.T) {
	for _, c := range [][5]int{{4096, 256, 8, 16, 1 << 20}, {2, 1, 1, 16, 100}, {100, 4096, 300, 64, 5000}, {1 << 20, 512, 8, 16, 9000}, {17, 16, 2, 16, 17}} {
		long, chunk, seqs, room := c[0], c[1], c[2], c[4]
		grid := NewGrid(long, chunk, seqs, c[3], room)
		if len(grid) == 0 {
			t.Errorf("%v: nothing to measure", c)
		}
		for _, batch := range grid {
			tokens := 0
			if len(batch) > seqs {
				t.Errorf("%v: %d sequences", c, len(batch))
			}
			for _, q := range batch {
				tokens += q.New
				if q.New < 1 || q.Start < 0 || q.Start+q.New > long {
					t.Errorf("%v: %d tokens at %d", c, q.New, q.Start)
				}
			}
			if tokens > max(chunk, len(batch)) {
				t.Errorf("%v: a step of %d tokens", c, tokens)
			}
		}
	}
}

// TestEngines measures a real engine, roughly.
func TestEngines(t *testing.T) {
	cfg := *configs.Default()
	cfg.Models = cfg.Models[2:3]
	cfg.Models[0].Role = configs.RoleLocal
	m, fits, err := Engines(t.Context(), &cfg, Options{Rounds: 3, Budget: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(fits) != 1 || len(m.Models) != 1 || len(fits[0].Samples) == 0 {
		t.Fatalf("%d fits, %d models", len(fits), len(m.Models))
	}
	if err := Validate(m); err != nil {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Rounds: 2}, {Rounds: 1001}, {Budget: -1}} {
		if _, err := Measure(t.Context(), nil, nil, o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

func TestParse(t *testing.T) {
	good := `{"models": {"builtin:random-atlas": {"flops": 1e11, "bandwidth": 1e10, "linear": 1, "attention": 0.5, "weights": 1, "kv": 1, "step_ns": 1000, "layer_ns": 0, "seq_ns": 0, "token_ns": 0}}, "copies": 1e10, "front": {"request_ns": 2000000, "token_ns": 1000}}`
	m, err := Parse([]byte(good))
	if err != nil || m.Front.Request != 2*time.Millisecond || m.Models["builtin:random-atlas"].FLOPS != 1e11 {
		t.Fatalf("%+v, %v", m, err)
	}
	for _, c := range []struct{ from, to, want string }{
		{`"linear": 1`, `"linear": 0`, "linear"},
		{`"flops": 1e11`, `"flops": 3`, `models["builtin:random-atlas"].flops`},
		{`"bandwidth": 1e10`, `"bandwidth": -1`, `models["builtin:random-atlas"].bandwidth`},
		{`"copies": 1e10`, `"copies": 1`, "copies"},
		{`"request_ns": 2000000`, `"request_ns": -1`, "request_ns"},
		{`"copies"`, `"copy"`, "copy"},
		{`}}`, `}} x`, "text after"},
		{`{"models"`, `["models"`, "machine"},
	} {
		text := good
		if c.to == `}} x` {
			text += " x"
		} else {
			text = strings.Replace(good, c.from, c.to, 1)
		}
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s instead of %s: %v, want an error that names %s", c.to, c.from, err, c.want)
		}
	}
}

// TestSlower: what takes twice as long takes twice as long.
func TestSlower(t *testing.T) {
	cfg := configs.Default()
	c := sim.Calibrated{FLOPS: 1e11, Bandwidth: 1e10, Calibration: perf.Calibration{Linear: 1, Attention: 0.5, Weights: 1, KV: 1, Step: time.Millisecond, Seq: time.Microsecond}}
	m := sim.Machine{Models: map[string]sim.Calibrated{cfg.Models[0].Source: c}}
	shape := perf.FromConfig(must(engine.BuiltinConfig("random-atlas")), 2, 2)
	at := func(m sim.Machine) time.Duration {
		c := m.Models[cfg.Models[0].Source]
		e := must(perf.NewEngine(shape, perf.GPU{FLOPS: c.FLOPS, MemoryBandwidth: c.Bandwidth}, c.Calibration))
		return e.Step([]perf.Seq{{Start: 100, New: 50}, {Start: 9, New: 1}}).Total()
	}
	if a, b := at(m), at(Slower(m, 2)); math.Abs(b.Seconds()/a.Seconds()-2) > 1e-4 {
		t.Errorf("%s and %s", a, b)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
