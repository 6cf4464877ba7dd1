package plan

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/planner/facts"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares output with a file under testdata.
func golden(t *testing.T, name string, write func(w io.Writer) error) {
	t.Helper()
	var out bytes.Buffer
	if err := write(&out); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("%s differs (-want +got); go test ./planner/plan -update writes it anew:\n%s", path, diff)
	}
}

func parse(t testing.TB, text string) *configs.Config {
	t.Helper()
	cfg, err := configs.Parse([]byte(text), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func mustPlan(t testing.TB, text string) *Plan {
	t.Helper()
	p, err := New(parse(t, text), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func example(t testing.TB, name string) string {
	t.Helper()
	text, err := configs.Example(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// ten finds a model of 10 layers, with layer blocks of 1,024 bytes.
func ten(string) (elastic.Geometry, error) {
	return elastic.Geometry{Layers: 10, KVHeads: 1, HeadDim: 16}, nil
}

// TestWorkedExample is the example of the paper's section 3.2: L = 10,
// K_master = 100, K = (9, 8).
func TestWorkedExample(t *testing.T) {
	cfg := parse(t, `
version: 1
devices: [{name: g0}, {name: g1}, {name: g2}]
models:
  - {name: m, source: ./m, role: master, device: g0, arena: 102400B}
  - {name: w1, source: ./w, role: worker, device: g1, arena: 92160B}
  - {name: w2, source: ./w, role: worker, device: g2, arena: 92160B, floor: 10240B}
`)
	p, err := New(cfg, Options{Find: ten, Shapes: func(string) (Shape, error) { return Shape{Layers: 10}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	m := p.Model("m")
	if m.LayerBlock != 1024 || m.FullBlock != 10240 {
		t.Fatalf("blocks of %d and %d bytes", m.LayerBlock, m.FullBlock)
	}
	r := m.Master
	if r.KMaster != 100 || r.KWorkers != 17 || r.NLSC != 17 || r.NRC != 8 || m.MaxTokens != 25*16 || r.Alone != 10*16 || r.Ratio != 2.5 {
		t.Errorf("%+v, %d tokens; want K_master 100, K 17, N_LSC 17, N_RC 8, 400 and 160 tokens", r, m.MaxTokens)
	}
	var k []int
	for _, pair := range p.Pairs {
		for _, q := range pair.Policies {
			k = append(k, q.K)
		}
	}
	if fmt.Sprint(k) != "[9 9 9 8 8 8]" {
		t.Errorf("K_i under the policies: %v", k)
	}
}

// TestPairVectors checks Eq. 6 to 9 and the units on every pair of Table 2, and
// all four models at once.
func TestPairVectors(t *testing.T) {
	pair := func(models ...string) string {
		text := "version: 1\ndevices: [{name: g0}, {name: g1}]\nmodels:\n"
		for i, m := range models {
			role, device := "master", "g0"
			if i == len(models)-1 {
				role, device = "worker", "g1"
			}
			text += fmt.Sprintf("  - {name: m%d, source: \"catalog:%s\", role: %s, device: %s, arena: 4GiB, kv_dtype: f16}\n", i, m, role, device)
		}
		return text
	}
	const lwm, q8, q14, q32 = "LWM-1M-Text", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B"
	for _, c := range []struct {
		m, w       string
		lcm        int64
		meuM, meuI int64
		layer      string // blocks of a layer-lcm unit
	}{
		{lwm, q8, 18_874_368, 9, 32, "1:4"}, {lwm, q14, 10_485_760, 5, 16, "1:4"}, {lwm, q32, 2_097_152, 1, 2, "1:4"},
		{q8, q14, 5_898_240, 10, 9, "1:1"}, {q8, q32, 9_437_184, 16, 9, "1:1"}, {q14, q32, 5_242_880, 8, 5, "1:1"},
	} {
		x := mustPlan(t, pair(c.m, c.w)).Pairs[0]
		if x.LCM != c.lcm || x.MEUm != c.meuM || x.MEUi != c.meuI || x.BEMaster*x.MEUm != x.LCM || x.BEWorker*x.MEUi != x.LCM {
			t.Errorf("%s, %s: %+v, want LCM %d and MEU %d:%d", c.m, c.w, x, c.lcm, c.meuM, c.meuI)
		}
		lcm, layer := x.Policies[0], x.Policies[1]
		if !lcm.Configured || lcm.Unit != 4*c.lcm || int64(lcm.MasterPer) != c.meuM || int64(lcm.WorkerPer) != c.meuI || lcm.Waste != 0 {
			t.Errorf("%s, %s under lcm: %+v", c.m, c.w, lcm)
		}
		if got := fmt.Sprintf("%d:%d", layer.MasterPer, layer.WorkerPer); got != c.layer || !layer.LayerBlocks || layer.Configured {
			t.Errorf("%s, %s under layer-lcm: %+v, want %s", c.m, c.w, layer, c.layer)
		}
	}
	all := mustPlan(t, pair(lwm, q14, q32, q8))
	for _, x := range all.Pairs {
		if x.Policies[0].Unit != 360<<20 || x.Policies[1].Unit != 256<<10 {
			t.Errorf("all four models: units of %d and %d bytes, want 360 MiB and 256 KiB", x.Policies[0].Unit, x.Policies[1].Unit)
		}
	}
	if !has(all, Warning, codeLCM, "lending.unit.policy", "lcm") {
		t.Errorf("no warning of a unit of 360 MiB: %v", all.Findings)
	}
}

// TestHideTokens: hiding 40,000 tokens at 200 GB/s behind the FFN on an H20
// takes these many new tokens.
func TestHideTokens(t *testing.T) {
	gpu, err := facts.LookupGPU("H20")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{"Qwen3-32B": 131, "Qwen3-14B": 193, "Qwen3-8B": 341, "LWM-1M-Text": 1524} {
		m, err := facts.LookupModel(name)
		if err != nil {
			t.Fatal(err)
		}
		load := 40_000 * float64(m.Geometry(1, 2).LayerBlockBytes()) / 200e9
		one := func(n float64) float64 { return computeTime(catalogShape(m), gpu, n, 40_000, 1) }
		two := func(n float64) float64 { return computeTime(catalogShape(m), gpu, n, 40_000, 2) }
		if low, high := one(want-0.5), one(want+0.5); low > load || high < load {
			t.Errorf("%s: %v tokens take %.3g s, one more %.3g s, a load %.3g s", name, want-0.5, low, high, load)
		}
		n, b := leastTokens(load, one), leastTokens(load, two)
		if one(float64(n)) < load || one(float64(n-1)) >= load || b >= n {
			t.Errorf("%s: %d tokens are not the least that hide a load; %d do with two buffers", name, n, b)
		}
	}
}

func TestActivations(t *testing.T) {
	m, err := facts.LookupModel("Qwen3-32B")
	if err != nil {
		t.Fatal(err)
	}
	// 2 bytes of 2 x 5,120 and 3 x 25,600 elements per token; logits in 32 bits.
	if got, want := catalogShape(m).ActivationBytes(8192, 64), int64(8192*2*(2*5120+3*25600)+64*151936*4); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}

func TestGolden(t *testing.T) {
	for _, name := range configs.ExampleNames() {
		p := mustPlan(t, example(t, name))
		golden(t, strings.TrimSuffix(name, ".yaml")+".txt", p.WriteText)
		// The baselines are made to have more to lend than the master can stream.
		if !p.Fits || p.Count(Warning) != 0 && name != "serve-baselines.yaml" {
			t.Errorf("%s: an example that does not fit, or has warnings: %v", name, p.Findings)
		}
	}
	golden(t, "default.json", mustPlan(t, example(t, configs.DefaultName)).WriteJSON)
}

// TestMemory adds up a GPU by hand.
func TestMemory(t *testing.T) {
	p := mustPlan(t, example(t, "swiftcache-4xh20.yaml"))
	d := p.Devices[0]
	const activations, tails = 8192*2*(2*4096+3*11008) + 64*32000*4, 64 * 8 << 20
	want := Device{
		Name: "gpu0", Kind: "H20", GPU: "H20", Memory: 96e9, Weights: 2 * 6738415616, Activations: activations, Reserve: 2 << 30,
		Tails: tails, Arenas: 291 << 28, Room: 96e9 - 2*6738415616 - activations - tails - 2<<30, Models: []string{"LWM-1M-Text"},
	}
	want.Left = want.Room - want.Arenas
	if diff := cmp.Diff(want, d); diff != "" {
		t.Errorf("-want +got: %s", diff)
	}
}

// TestPlotAndHTML: drawings are whole, and open offline.
func TestPlotAndHTML(t *testing.T) {
	cfg := parse(t, example(t, "h100-qwen3.yaml"))
	p := mustPlan(t, example(t, "h100-qwen3.yaml"))
	one, err := Sweep(cfg, axes(t, "policy=lcm,padded,layer-lcm"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	three, err := Sweep(cfg, axes(t, "buffers=1,2", "policy=lcm,layer-lcm", "share=10%,50%"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	outside := regexp.MustCompile(`(?i)(src|href)\s*=\s*"[^#]|url\(http`)
	for name, d := range map[string]interface {
		WritePlot(io.Writer, string) error
		WriteHTML(io.Writer) error
	}{"plan": p, "bars": one, "heatmaps": three} {
		var svg, page, png bytes.Buffer
		if err := d.WritePlot(&svg, "svg"); err != nil || !strings.Contains(svg.String(), "</svg>") {
			t.Errorf("%s: svg: %v", name, err)
		}
		if err := d.WriteHTML(&page); err != nil || !strings.Contains(page.String(), "<svg") || outside.MatchString(page.String()) {
			t.Errorf("%s: page: %v; needs something from outside: %q", name, err, outside.FindString(page.String()))
		}
		if err := d.WritePlot(&png, "png"); err != nil || !bytes.HasPrefix(png.Bytes(), []byte("\x89PNG")) {
			t.Errorf("%s: png: %v", name, err)
		}
		if err := d.WritePlot(io.Discard, "gif"); err == nil {
			t.Errorf("%s: drawn as gif", name)
		}
	}
	var page bytes.Buffer
	p.File = `<script>x</script>`
	if err := p.WriteHTML(&page); err != nil || strings.Contains(page.String(), "<script") {
		t.Errorf("a file's name became part of the page (%v)", err)
	}
}

// TestModelDirectory plans a model that only has a config.json.
func TestModelDirectory(t *testing.T) {
	dir := t.TempDir()
	const config = `{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128,
 "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 256,
 "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": true, "hidden_act": "silu"}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Shapes(dir)
	if err != nil {
		t.Fatal(err)
	}
	if s.Layers != 2 || s.MaxContext != 512 || s.WeightBytes < 2*256*64 {
		t.Errorf("%+v", s)
	}
	for _, source := range []string{"catalog:none", "builtin:none", filepath.Join(dir, "none")} {
		if s, err := Shapes(source); err == nil {
			t.Errorf("%s is %+v", source, s)
		}
	}
}

// TestJSON: the plan comes back as it was.
func TestJSON(t *testing.T) {
	p := mustPlan(t, example(t, configs.DefaultName))
	var out bytes.Buffer
	if err := p.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var back Plan
	dec := json.NewDecoder(&out)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&back); err != nil || back.Schema != Schema || len(back.Models) != 3 || back.Models[0].Master.NLSC != 256 {
		t.Errorf("%+v, %v", back, err)
	}
}
