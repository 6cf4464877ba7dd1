package perf

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/planner/facts"
	"pgregory.net/rapid"
)

func shapeOf(t testing.TB, model string) Shape {
	t.Helper()
	m, err := facts.LookupModel(model)
	if err != nil {
		t.Fatal(err)
	}
	return FromModel(m, 2, 2)
}

func gpuOf(t testing.TB, name string) GPU {
	t.Helper()
	g, err := facts.LookupGPU(name)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func engineOf(t testing.TB, model, gpu string, c Calibration) *Engine {
	t.Helper()
	e, err := NewEngine(shapeOf(t, model), gpuOf(t, gpu), c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestShapesAddUp: a shape's weights are those that the table gives the model.
func TestShapesAddUp(t *testing.T) {
	for _, m := range facts.Models() {
		s := FromModel(m, 2, 2)
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", m.Name, err)
			continue
		}
		embeddings := 2.0
		if m.Tied {
			embeddings = 1
		}
		experts := float64(max(1, s.Experts))
		got := float64(s.Layers)*(s.attentionWeights()+experts*s.expertWeights()) + embeddings*s.headWeights()
		// Norms, biases and attention sinks are not counted.
		if r := got / float64(m.Params); r < 0.995 || r > 1.0001 {
			t.Errorf("%s: %.4g weights, the table says %.4g", m.Name, got, float64(m.Params))
		}
		if got, want := s.KeyBytes()*float64(s.Layers), float64(m.Geometry(16, 2).TokenBytes()); got != want {
			t.Errorf("%s: KV of a token is %g bytes, want %g", m.Name, got, want)
		}
	}
}

func TestWorkOfASequence(t *testing.T) {
	for _, c := range []struct {
		s    Seq
		want Work
	}{
		{Seq{0, 1}, Work{1, 1, 1, 1}},
		{Seq{0, 4}, Work{1, 4, 10, 4}}, // 1+2+3+4
		{Seq{7, 1}, Work{1, 1, 8, 8}},
		{Seq{10, 3}, Work{1, 3, 11 + 12 + 13, 13}},
		{Seq{10, 0}, Work{}},
		{Seq{-3, 2}, Work{1, 2, 3, 2}},
	} {
		if got := Sum([]Seq{c.s}); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.s, got, c.want)
		}
	}
}

// TestChunksDoTheSamePairs: however a prompt is cut, its tokens attend to the
// same keys.
func TestChunksDoTheSamePairs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5000).Draw(t, "tokens")
		var w Work
		for at := 0; at < n; {
			k := rapid.IntRange(1, n-at).Draw(t, "chunk")
			w.Add(Seq{at, k})
			at += k
		}
		whole := Sum([]Seq{{0, n}})
		if w.Tokens != whole.Tokens || w.Pairs != whole.Pairs {
			t.Fatalf("chunks: %+v, whole: %+v", w, whole)
		}
	})
}

// TestKnownCosts works a step out by hand: Llama-3.1-8B on an H100 at its peaks.
func TestKnownCosts(t *testing.T) {
	ideal := Calibration{Linear: 1, Attention: 1, Weights: 1, KV: 1}
	e := engineOf(t, "Llama-3.1-8B", "H100-SXM", ideal)
	layer := 4096.0 * (2*32*128 + 2*8*128 + 3*14336) // weights
	for _, c := range []struct {
		name              string
		batch             []Seq
		layer, attn, head float64
	}{
		{"decode", []Seq{{999, 1}}, layer * 2 / 3.35e12, 1000 * 2 * 8 * 128 * 2 / 3.35e12, 4096 * 128256 * 2 / 3.35e12},
		{"prefill", []Seq{{0, 4096}}, 4096 * layer * 2 / 989e12, 4096 * 4097 / 2 * 4 * 32 * 128 / 989e12, 4096 * 128256 * 2 / 3.35e12},
	} {
		got := e.Step(c.batch)
		near := func(what string, d time.Duration, want float64) {
			if math.Abs(d.Seconds()-want) > 3e-9 {
				t.Errorf("%s: %s is %s, want %.9f s", c.name, what, d, want)
			}
		}
		near("attention", got.Attention, c.attn)
		near("layer", got.Layer, c.layer+c.attn)
		near("fixed", got.Fixed, c.head)
	}
	if got := e.Step(nil).Total(); got != 0 {
		t.Errorf("a step without sequences takes %s", got)
	}
}

var anyCalibration = rapid.Custom(func(t *rapid.T) Calibration {
	share := rapid.Float64Range(0.05, 1)
	d := func(name string, most time.Duration) time.Duration {
		return time.Duration(rapid.Int64Range(0, int64(most)).Draw(t, name))
	}
	return Calibration{
		Linear: share.Draw(t, "linear"), Attention: share.Draw(t, "attention"), Weights: share.Draw(t, "weights"), KV: share.Draw(t, "kv"),
		Step: d("step", 20*time.Millisecond), Layer: d("layer", time.Millisecond), Seq: d("seq", time.Millisecond), Token: d("token", 10*time.Microsecond),
		Serial: rapid.Bool().Draw(t, "serial"),
	}
})

func anyBatch(t *rapid.T) []Seq {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Seq {
		return Seq{rapid.IntRange(0, 200_000).Draw(t, "start"), rapid.IntRange(1, 8192).Draw(t, "new")}
	}), 1, 40).Draw(t, "batch")
}

func anyEngine(t *rapid.T) *Engine {
	m := rapid.SampledFrom(facts.Models()).Draw(t, "model")
	g := rapid.SampledFrom(facts.GPUs()).Draw(t, "GPU")
	e, err := NewEngine(FromModel(m, 2, 2), g, anyCalibration.Draw(t, "calibration"))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestMoreTakesLonger: more tokens, longer contexts and more sequences are never faster.
func TestMoreTakesLonger(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e, batch := anyEngine(t), anyBatch(t)
		base := e.Step(batch)
		more := append([]Seq(nil), batch...)
		i := rapid.IntRange(0, len(batch)-1).Draw(t, "which")
		switch rapid.IntRange(0, 2).Draw(t, "how") {
		case 0:
			more[i].New++
		case 1:
			more[i].Start++
		default:
			more = append(more, more[i])
		}
		got := e.Step(more)
		if got.Layer < base.Layer || got.Attention < base.Attention || got.Fixed < base.Fixed || got.Total() < base.Total() {
			t.Fatalf("%v takes %+v, more work %v takes %+v", batch, base, more, got)
		}
	})
}

// TestNoFasterThanTheRoofline: nothing beats any single bound of the hardware.
func TestNoFasterThanTheRoofline(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.SampledFrom(facts.Models()).Draw(t, "model")
		g := rapid.SampledFrom(facts.GPUs()).Draw(t, "GPU")
		c := anyCalibration.Draw(t, "calibration")
		s := FromModel(m, 2, 2)
		e, err := NewEngine(s, g, c)
		if err != nil {
			t.Fatal(err)
		}
		batch := anyBatch(t)
		w, layers := Sum(batch), float64(s.Layers)
		got := e.Step(batch)
		total := got.Total().Seconds()
		for what, bound := range map[string]float64{
			"arithmetic of layers":  layers * float64(w.Tokens) * s.LayerFLOPs() / g.FLOPS / c.Linear,
			"attention":             layers * float64(w.Pairs) * s.PairFLOPs() / g.FLOPS / c.Attention,
			"all arithmetic":        (layers*(float64(w.Tokens)*s.LayerFLOPs()+float64(w.Pairs)*s.PairFLOPs()) + float64(w.Seqs)*s.HeadFLOPs()) / g.FLOPS,
			"weights":               (layers*s.LayerWeightBytes(w.Tokens) + s.HeadBytes()) / g.MemoryBandwidth / c.Weights,
			"KV":                    layers * float64(w.Keys) * s.KeyBytes() / g.MemoryBandwidth / c.KV,
			"overheads":             c.Step.Seconds() + layers*c.Layer.Seconds() + float64(w.Seqs)*c.Seq.Seconds() + float64(w.Tokens)*c.Token.Seconds(),
			"attention in layers":   layers * got.Attention.Seconds(),
			"a single layer by all": layers * got.Layer.Seconds(),
		} {
			if total < bound*(1-1e-9) {
				t.Fatalf("%s: %v takes %g s, its bound is %g s", what, batch, total, bound)
			}
		}
		if got != e.Cost(w) {
			t.Fatal("Step and Cost differ")
		}
	})
}

// TestExpertsRead: one token reads its experts, many read all of them.
func TestExpertsRead(t *testing.T) {
	s := shapeOf(t, "Qwen3-30B-A3B")
	if got := s.experts(1); math.Abs(got-8) > 1e-9 {
		t.Errorf("one token goes through %g experts, want 8", got)
	}
	if got := s.experts(100_000); math.Abs(got-128) > 1e-9 {
		t.Errorf("100,000 tokens go through %g experts, want 128", got)
	}
	if got := s.experts(16); got < 75 || got > 84 { // 128 * (1 - (15/16)^16) = 82.4
		t.Errorf("16 tokens go through %g experts, want about 82", got)
	}
}

func TestErrorsNameTheField(t *testing.T) {
	s, g, c := shapeOf(t, "Qwen3-8B"), gpuOf(t, "H20"), DefaultCalibration()
	for want, f := range map[string]func(s *Shape, g *GPU, c *Calibration){
		"layers is 0":            func(s *Shape, _ *GPU, _ *Calibration) { s.Layers = 0 },
		"FFN is -1":              func(s *Shape, _ *GPU, _ *Calibration) { s.FFN = -1 },
		"active experts is 9":    func(s *Shape, _ *GPU, _ *Calibration) { s.Experts, s.ActiveExperts, s.ExpertFFN = 8, 9, 1 },
		"bytes of a weight is 0": func(s *Shape, _ *GPU, _ *Calibration) { s.WeightBytes = 0 },
		"bytes of a KV element":  func(s *Shape, _ *GPU, _ *Calibration) { s.KVBytes = math.NaN() },
		"arithmetic in FLOP/s":   func(_ *Shape, g *GPU, _ *Calibration) { g.FLOPS = 0 },
		"memory bandwidth":       func(_ *Shape, g *GPU, _ *Calibration) { g.MemoryBandwidth = math.Inf(1) },
		"linear is 1.2":          func(_ *Shape, _ *GPU, c *Calibration) { c.Linear = 1.2 },
		"kv is 0":                func(_ *Shape, _ *GPU, c *Calibration) { c.KV = 0 },
		"step_ns is -1":          func(_ *Shape, _ *GPU, c *Calibration) { c.Step = -1 },
	} {
		s, g, c := s, g, c
		f(&s, &g, &c)
		if _, err := NewEngine(s, g, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestParseCalibration(t *testing.T) {
	const good = `{"linear":0.8,"attention":0.5,"weights":0.9,"kv":0.7,"step_ns":2000000,"layer_ns":0,"seq_ns":10000,"token_ns":0}`
	c, err := ParseCalibration([]byte(good))
	if err != nil || c.Step != 2*time.Millisecond || c.Linear != 0.8 {
		t.Fatal(c, err)
	}
	for text, want := range map[string]string{
		`{`:                    "calibration",
		`{"linaer":0.8}`:       "linaer",
		`{"linear":0.8}`:       "attention is 0",
		good + `{}`:            "text after",
		good[:10] + `"x"}`:     "calibration",
		`{"linear":1e400}`:     "calibration",
		`{"step_ns":1.5}`:      "step_ns",
		`[1]`:                  "calibration",
		`{"linear":2,"kv":-1}`: "linear is 2",
	} {
		if _, err := ParseCalibration([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseCalibration(f *testing.F) {
	f.Add([]byte(`{"linear":0.8,"attention":0.5,"weights":0.9,"kv":0.7,"step_ns":2000000}`))
	f.Add([]byte(`{}`))
	s, g := shapeOf(f, "Qwen3-8B"), gpuOf(f, "H20")
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := ParseCalibration(text)
		if err != nil {
			return
		}
		e, err := NewEngine(s, g, c)
		if err != nil {
			t.Fatalf("%s parses and is refused: %v", text, err)
		}
		if d := e.Step([]Seq{{1 << 20, 1 << 20}}).Total(); d <= 0 {
			t.Fatalf("%s: a step takes %s", text, d)
		}
	})
}

func TestHotCallsDoNotAllocate(t *testing.T) {
	dense, moe := engineOf(t, "Qwen3-8B", "H20", DefaultCalibration()), engineOf(t, "Qwen3-30B-A3B", "H20", DefaultCalibration())
	link, err := NVLink(gpuOf(t, "H20"))
	if err != nil {
		t.Fatal(err)
	}
	disk := profiled(t)
	batch := make([]Seq, 128)
	for i := range batch {
		batch[i] = Seq{i * 100, 1}
	}
	var sum time.Duration
	if n := testing.AllocsPerRun(100, func() {
		sum += dense.Step(batch).Total() + moe.Step(batch).Total()
		sum += link.Time(1<<30, 64<<10)
		sum += disk.Read(1<<28, 64<<10, 16) + disk.Write(1<<28, 5000, 3)
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

func BenchmarkCost(b *testing.B) {
	e := engineOf(b, "Qwen3-8B", "H20", DefaultCalibration())
	w := Work{128, 128, 128_000, 128_000}
	b.ReportAllocs()
	for b.Loop() {
		w.Keys++
		if e.Cost(w).Layer == 0 {
			b.Fatal("free")
		}
	}
}

func BenchmarkStep128(b *testing.B) {
	e := engineOf(b, "Qwen3-30B-A3B", "H20", DefaultCalibration())
	batch := make([]Seq, 128)
	for i := range batch {
		batch[i] = Seq{i * 100, 1}
	}
	b.ReportAllocs()
	for b.Loop() {
		if e.Step(batch).Layer == 0 {
			b.Fatal("free")
		}
	}
}

func BenchmarkLinkTime(b *testing.B) {
	l, err := NVLink(gpuOf(b, "H20"))
	if err != nil {
		b.Fatal(err)
	}
	n := int64(1)
	b.ReportAllocs()
	for b.Loop() {
		n = n*1103515245%67108859 + 1
		if l.Time(n, 65536) == 0 {
			b.Fatal("free")
		}
	}
}
