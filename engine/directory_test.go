package engine_test

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/safetensors"
	"github.com/kvlend/kvlend/engine/tokenizer"
)

// TestWriteBuiltin writes each built-in and checks that the directory is the
// same model: configuration, digest and logits.
func TestWriteBuiltin(t *testing.T) {
	for _, name := range engine.BuiltinNames() {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), name)
			if err := engine.WriteBuiltin(dir, name, tokenizer.WriteByteLevel); err != nil {
				t.Fatal(err)
			}
			want, err := engine.Builtin(name, engine.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer want.Close()
			got := load(t, dir, engine.Options{})
			if d := cmp.Diff(want.Config(), got.Config()); d != "" {
				t.Errorf("configuration differs: %s", d)
			}
			if d := cmp.Diff(want.Generation(), got.Generation()); d != "" {
				t.Errorf("generation defaults differ: %s", d)
			}
			tokens := randomTokens(1, 20, 320)
			a, b := forwardAll(t, want, tokens), forwardAll(t, got, tokens)
			for i := range a {
				requireEqual(t, "row", b[i], a[i])
			}
			if _, err := tokenizer.Load(dir); err != nil {
				t.Errorf("the extra function's files: %v", err)
			}
			if err := engine.WriteBuiltin(dir, name); !errors.Is(err, fs.ErrExist) {
				t.Errorf("writing over a model: error %v, want fs.ErrExist", err)
			}
		})
	}
}

// TestWriteModelRoundTrip covers what no built-in has.
func TestWriteModelRoundTrip(t *testing.T) {
	base := engine.Config{Arch: "llama", Layers: 2, Hidden: 32, Heads: 2, KVHeads: 1, HeadDim: 16, FFN: 48, Vocab: 300,
		MaxContext: 4096, NormEps: 1e-5, AttnBias: true, MLPBias: true}
	for _, r := range []engine.RopeConfig{
		{Theta: 10000},
		{Theta: 10000, Scaling: "linear", Factor: 4},
		{Theta: 10000, Scaling: "llama3", Factor: 8, Original: 512, LowFreqFactor: 1, HighFreqFactor: 4},
		{Theta: 10000, Scaling: "yarn", Factor: 4, Original: 1024, BetaFast: 32, BetaSlow: 1, AttentionFactor: 1.2, NoTruncate: true},
	} {
		c := base
		c.Rope = r
		dir := t.TempDir()
		c.Name = filepath.Base(dir)
		if err := engine.WriteModel(dir, &c, 9); err != nil {
			t.Fatal(err)
		}
		got, _, err := engine.LoadConfig(dir)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(&c, got); d != "" {
			t.Errorf("%q: %s", r.Scaling, d)
		}
		random, err := engine.Random(&c, 9, engine.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if want := load(t, dir, engine.Options{}).Config().WeightsDigest; random.Config().WeightsDigest != want {
			t.Errorf("%q: Random's digest differs from WriteModel's", r.Scaling)
		}
		random.Close()
	}
	bad := base
	bad.HeadDim = 20
	if err := engine.WriteModel(t.TempDir(), &bad, 1); err == nil || !strings.Contains(err.Error(), "head_dim") {
		t.Errorf("bad geometry: %v", err)
	}
}

func TestDigestSeesEverything(t *testing.T) {
	base := engine.Config{Name: "x", Arch: "llama", Layers: 1, Hidden: 32, Heads: 2, KVHeads: 1, HeadDim: 16, FFN: 48, Vocab: 30,
		MaxContext: 64, NormEps: 1e-5, Rope: engine.RopeConfig{Theta: 10000}}
	digest := func(change func(*engine.Config), seed uint64) string {
		c := base
		change(&c)
		m, err := engine.Random(&c, seed, engine.Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		return m.Config().WeightsDigest
	}
	want := digest(func(*engine.Config) {}, 1)
	if len(want) != 64 || digest(func(c *engine.Config) { c.Name, c.MaxContext, c.EOS = "y", 32, []int32{1} }, 1) != want {
		t.Error("the digest depends on a name, a length or a token id, or is not 32 bytes")
	}
	for name, change := range map[string]func(*engine.Config){
		"theta": func(c *engine.Config) { c.Rope.Theta++ }, "eps": func(c *engine.Config) { c.NormEps = 1e-6 },
		"scaling": func(c *engine.Config) { c.Rope.Scaling, c.Rope.Factor = "linear", 2 },
		"heads":   func(c *engine.Config) { c.Heads, c.HeadDim, c.KVHeads = 1, 32, 1 },
	} {
		if digest(change, 1) == want {
			t.Errorf("a change of %s left the digest", name)
		}
	}
	if digest(func(*engine.Config) {}, 2) == want {
		t.Error("other weights have the same digest")
	}
}

func TestInspect(t *testing.T) {
	dir := t.TempDir()
	c := modelCases()[0]
	c.write(t, dir, safetensors.BF16, 3)
	info, err := engine.Inspect(dir)
	if err != nil {
		t.Fatal(err)
	}
	var params int64
	for _, s := range c.shapes() {
		n := int64(1)
		for _, d := range s {
			n *= int64(d)
		}
		params += n
	}
	if info.Params != params || info.Config.Params() != params || info.CheckpointBytes != 2*params || info.Elements["BF16"] != params {
		t.Errorf("%d parameters (%d by geometry, %v by type), %d bytes, want %d", info.Params, info.Config.Params(), info.Elements, info.CheckpointBytes, params)
	}
	if len(info.Files) != 3 || info.Tensors != len(c.shapes()) || info.Architecture != "LlamaForCausalLM" || info.Ignored != nil {
		t.Errorf("got %+v", info)
	}
	if got := info.Config.KVBytesPerToken(kernels.BF16); got != 2*3*2*16*2 {
		t.Errorf("%d bytes of KV per token", got)
	}
}

// badDirectory is a model directory with something wrong.
type badDirectory struct {
	change func(map[string]safetensors.Tensor) // of the tensors
	config map[string]any                      // changes of config.json
	text   []string                            // what the error must name
}

func badDirectories() map[string]badDirectory {
	drop := func(name string) func(map[string]safetensors.Tensor) {
		return func(m map[string]safetensors.Tensor) { delete(m, name) }
	}
	return map[string]badDirectory{
		"missing tensor": {change: drop("model.layers.1.mlp.up_proj.weight"), text: []string{"model.layers.1.mlp.up_proj.weight", "missing"}},
		"missing head":   {change: drop("lm_head.weight"), text: []string{"lm_head.weight", "tie_word_embeddings"}},
		"wrong shape":    {config: map[string]any{"intermediate_size": 96}, text: []string{"mlp.", "[80 48]", "96"}},
		"wrong dtype": {change: func(m map[string]safetensors.Tensor) {
			x := m["model.norm.weight"]
			x.DType, x.Data = "F64", make([]byte, 8*48)
			m[x.Name] = x
		}, text: []string{"model.norm.weight", "F64", "BF16, F16 or F32"}},
		"unknown tensor": {change: func(m map[string]safetensors.Tensor) {
			m["model.layers.0.self_attn.q_proj.weight_scale"] = safetensors.Tensor{Name: "model.layers.0.self_attn.q_proj.weight_scale", DType: "F32"}
		}, text: []string{"weight_scale", "only tensors of a LlamaForCausalLM"}},
		"bias in the file only": {change: func(m map[string]safetensors.Tensor) {
			m["model.layers.0.self_attn.q_proj.bias"] = safetensors.Tensor{Name: "model.layers.0.self_attn.q_proj.bias", DType: "F32", Shape: []int{1}, Data: make([]byte, 4)}
		}, text: []string{"q_proj.bias"}},
		"bias in the config only": {config: map[string]any{"attention_bias": true}, text: []string{"_proj.bias", "missing"}},
		"fewer layers in file":    {config: map[string]any{"num_hidden_layers": 4}, text: []string{"model.layers.3.", "missing"}},
		"more layers in file":     {config: map[string]any{"num_hidden_layers": 2}, text: []string{"model.layers.2."}},
	}
}

func TestMalformedDirectories(t *testing.T) {
	source := t.TempDir()
	c := modelCases()[0]
	c.write(t, source, safetensors.F32, 1)
	files, err := safetensors.OpenDir(source)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	for name, bad := range badDirectories() {
		t.Run(name, func(t *testing.T) {
			dir, tensors := t.TempDir(), map[string]safetensors.Tensor{}
			for _, n := range files.Names() {
				x, _ := files.Tensor(n)
				tensors[n] = *x
			}
			if bad.change != nil {
				bad.change(tensors)
			}
			var list []safetensors.Tensor
			for _, x := range tensors {
				if x.Data == nil {
					x.Data = make([]byte, x.Elems()*x.DType.Size())
				}
				list = append(list, x)
			}
			writeShards(t, dir, list, 1)
			broken := c
			broken.changes = bad.config
			writeJSON(t, filepath.Join(dir, "config.json"), broken.config())
			_, loadErr := engine.Load(dir, engine.Options{})
			_, inspectErr := engine.Inspect(dir)
			_, verifyErr := engine.Verify(context.Background(), dir, engine.Options{})
			for what, err := range map[string]error{"Load": loadErr, "Inspect": inspectErr, "Verify": verifyErr} {
				var fe *safetensors.FormatError
				if !errors.As(err, &fe) || !strings.HasPrefix(fe.File, dir) {
					t.Errorf("%s: error %v, want a *safetensors.FormatError that names the file", what, err)
					continue
				}
				for _, s := range bad.text {
					if !strings.Contains(err.Error(), s) {
						t.Errorf("%s: %v does not name %q", what, err, s)
					}
				}
			}
		})
	}
}

// TestIgnoredTensors checks that leftovers of old and tied checkpoints do no harm.
func TestIgnoredTensors(t *testing.T) {
	dir := t.TempDir()
	c := modelCases()[3] // tied
	c.write(t, dir, safetensors.BF16, 1)
	files, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := []safetensors.Tensor{
		{Name: "lm_head.weight", DType: "BF16", Shape: []int{1}, Data: make([]byte, 2)},
		{Name: "model.layers.0.self_attn.rotary_emb.inv_freq", DType: "F32", Shape: []int{1}, Data: make([]byte, 4)},
	}
	for _, n := range files.Names() {
		x, _ := files.Tensor(n)
		y := *x
		y.Data = slices.Clone(x.Data)
		list = append(list, y)
	}
	if err := files.Close(); err != nil {
		t.Fatal(err)
	}
	want := load(t, dir, engine.Options{}).Config().WeightsDigest
	writeShards(t, dir, list, 1)
	if got := load(t, dir, engine.Options{}).Config().WeightsDigest; got != want {
		t.Error("ignored tensors changed the digest")
	}
	info, err := engine.Inspect(dir)
	if err != nil || len(info.Ignored) != 2 {
		t.Errorf("ignored %v, error %v", info, err)
	}
}

func TestVerify(t *testing.T) {
	dir := t.TempDir()
	c := modelCases()[3]
	c.write(t, dir, safetensors.F32, 1)
	v, err := engine.Verify(context.Background(), dir, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if v.Values != v.Config.Params() || v.Tokens != 20 || v.Config.WeightsDigest == "" {
		t.Errorf("got %+v", v)
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := engine.Verify(cancelled, dir, engine.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	path := filepath.Join(dir, safetensors.SingleFile)
	for _, poison := range []float32{float32(math.NaN()), float32(math.Inf(-1))} {
		poisonElement(t, path, "model.layers.1.self_attn.k_proj.weight", 3*48+5, poison)
		_, err = engine.Verify(context.Background(), dir, engine.Options{})
		var ve *engine.ValueError
		if !errors.As(err, &ve) || ve.Tensor.Name != "model.layers.1.self_attn.k_proj.weight" || !slices.Equal(ve.Index, []int{3, 5}) {
			t.Errorf("%v: error %v, want a *ValueError at [3 5]", poison, err)
		}
	}
}

// poisonElement overwrites one float32 of a checkpoint on disk.
func poisonElement(t *testing.T, path, tensor string, index int, v float32) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content, err := safetensors.Parse(path, raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range content.Tensors {
		if x.Name == tensor {
			one, _ := appendElement(nil, safetensors.F32, v)
			copy(x.Data[4*index:], one) // Data aliases raw
		}
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}
