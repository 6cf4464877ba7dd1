package engine_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/reftest"
	"github.com/kvlend/kvlend/engine/safetensors"
)

// modelCase is one whole model to compare with the reference.
type modelCase struct {
	name     string
	g        reftest.Geometry
	attnBias bool
	mlpBias  bool
	changes  map[string]any // of config.json
}

func modelCases() []modelCase {
	llama := reftest.Geometry{ModelType: "llama", NumHiddenLayers: 3, HiddenSize: 48, NumAttentionHeads: 4, NumKeyValueHeads: 2,
		HeadDim: 16, VocabSize: 70, RMSNormEps: 1e-5, Rope: reftest.Rope{Theta: 10000}}
	qwen := llama
	qwen.ModelType, qwen.HeadDim, qwen.RMSNormEps, qwen.TieWordEmbeddings = "qwen3", 32, 1e-6, true
	scaled := func(g reftest.Geometry, r reftest.Rope) reftest.Geometry {
		r.Theta = 10000
		g.Rope = r
		return g
	}
	mha, mqa := llama, qwen
	mha.NumKeyValueHeads, mqa.NumKeyValueHeads = 4, 1
	return []modelCase{
		{name: "llama", g: llama},
		{name: "llama mha", g: mha, changes: map[string]any{"num_key_value_heads": nil}},
		{name: "llama biases", g: llama, attnBias: true, mlpBias: true},
		{name: "qwen3", g: qwen},
		{name: "qwen3 mqa, biases", g: mqa, attnBias: true},
		{name: "linear", g: scaled(llama, reftest.Rope{Type: "linear", Factor: 4}),
			changes: map[string]any{"rope_scaling": map[string]any{"type": "linear", "factor": 4}}},
		{name: "llama3", g: scaled(llama, reftest.Rope{Type: "llama3", Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositionEmbeddings: 64}),
			changes: map[string]any{"rope_scaling": map[string]any{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64}}},
		{name: "yarn", g: scaled(qwen, reftest.Rope{Type: "yarn", Factor: 4, OriginalMaxPositionEmbeddings: 128, BetaFast: 32, BetaSlow: 1}),
			changes: map[string]any{"rope_parameters": map[string]any{"rope_type": "yarn", "rope_theta": 10000, "factor": 4, "original_max_position_embeddings": 128}}},
	}
}

const testFFN = 80

// shapes are the tensors of a case, by the names of real checkpoints.
func (c *modelCase) shapes() map[string][]int {
	g, out := c.g, map[string][]int{}
	lin := func(name string, rows, cols int, bias bool) {
		out[name+".weight"] = []int{rows, cols}
		if bias {
			out[name+".bias"] = []int{rows}
		}
	}
	lin("model.embed_tokens", g.VocabSize, g.HiddenSize, false)
	out["model.norm.weight"] = []int{g.HiddenSize}
	if !g.TieWordEmbeddings {
		lin("lm_head", g.VocabSize, g.HiddenSize, false)
	}
	q, kv := g.NumAttentionHeads*g.HeadDim, g.NumKeyValueHeads*g.HeadDim
	for l := range g.NumHiddenLayers {
		p := fmt.Sprintf("model.layers.%d.", l)
		out[p+"input_layernorm.weight"] = []int{g.HiddenSize}
		out[p+"post_attention_layernorm.weight"] = []int{g.HiddenSize}
		if g.ModelType == "qwen3" {
			out[p+"self_attn.q_norm.weight"] = []int{g.HeadDim}
			out[p+"self_attn.k_norm.weight"] = []int{g.HeadDim}
		}
		lin(p+"self_attn.q_proj", q, g.HiddenSize, c.attnBias)
		lin(p+"self_attn.k_proj", kv, g.HiddenSize, c.attnBias)
		lin(p+"self_attn.v_proj", kv, g.HiddenSize, c.attnBias)
		lin(p+"self_attn.o_proj", g.HiddenSize, q, c.attnBias)
		lin(p+"mlp.gate_proj", testFFN, g.HiddenSize, c.mlpBias)
		lin(p+"mlp.up_proj", testFFN, g.HiddenSize, c.mlpBias)
		lin(p+"mlp.down_proj", g.HiddenSize, testFFN, c.mlpBias)
	}
	return out
}

// config is the case's config.json.
func (c *modelCase) config() map[string]any {
	g := c.g
	m := map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": g.ModelType,
		"num_hidden_layers": g.NumHiddenLayers, "hidden_size": g.HiddenSize, "intermediate_size": testFFN,
		"num_attention_heads": g.NumAttentionHeads, "num_key_value_heads": g.NumKeyValueHeads, "head_dim": g.HeadDim,
		"vocab_size": g.VocabSize, "max_position_embeddings": 512, "rms_norm_eps": g.RMSNormEps, "rope_theta": 10000,
		"tie_word_embeddings": g.TieWordEmbeddings, "attention_bias": c.attnBias, "mlp_bias": c.mlpBias,
	}
	if g.ModelType == "qwen3" {
		m["architectures"] = []string{"Qwen3ForCausalLM"}
	}
	maps.Copy(m, c.changes)
	return m
}

// write makes a model directory with random weights of a dtype, in the given
// number of shards, and returns the weights as they were stored.
func (c *modelCase) write(t testing.TB, dir string, dtype safetensors.DType, shards int) reftest.Weights {
	t.Helper()
	writeJSON(t, filepath.Join(dir, "config.json"), c.config())
	rng := rand.New(rand.NewPCG(1, uint64(len(c.name))))
	shapes, w := c.shapes(), reftest.Weights{}
	var tensors []safetensors.Tensor
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		x := safetensors.Tensor{Name: name, DType: dtype, Shape: shapes[name]}
		for range x.Elems() {
			v := rng.NormFloat64() * 0.15
			if strings.HasSuffix(name, "norm.weight") {
				v = 1 + v
			}
			var stored float64
			x.Data, stored = appendElement(x.Data, dtype, float32(v))
			w[name] = append(w[name], stored)
		}
		tensors = append(tensors, x)
	}
	writeShards(t, dir, tensors, shards)
	return w
}

func writeShards(t testing.TB, dir string, tensors []safetensors.Tensor, shards int) {
	t.Helper()
	if shards == 1 {
		if err := safetensors.Write(filepath.Join(dir, safetensors.SingleFile), tensors, nil); err != nil {
			t.Fatal(err)
		}
		return
	}
	index := map[string]string{}
	for i := range shards {
		var part []safetensors.Tensor
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, shards)
		for j := i; j < len(tensors); j += shards {
			part = append(part, tensors[j])
			index[tensors[j].Name] = name
		}
		if err := safetensors.Write(filepath.Join(dir, name), part, nil); err != nil {
			t.Fatal(err)
		}
	}
	writeJSON(t, filepath.Join(dir, safetensors.IndexFile), map[string]any{"weight_map": index})
}

func writeJSON(t testing.TB, path string, v any) {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// appendElement stores v, cut to the dtype's precision, and returns what it became.
func appendElement(data []byte, dtype safetensors.DType, v float32) ([]byte, float64) {
	switch dtype {
	case safetensors.BF16:
		b := math.Float32bits(v) >> 16
		return binary.LittleEndian.AppendUint16(data, uint16(b)), float64(math.Float32frombits(b << 16))
	case safetensors.F16:
		// multiples of 1/256 below 8 are exact halves
		x := math.Round(float64(v)*256) / 256
		return binary.LittleEndian.AppendUint16(data, exactHalf(x)), x
	}
	return binary.LittleEndian.AppendUint32(data, math.Float32bits(v)), float64(v)
}

// exactHalf is the IEEE half of a value that has one and is zero or at least 2^-14.
func exactHalf(x float64) uint16 {
	if x == 0 {
		return 0
	}
	b := math.Float64bits(x)
	return uint16(b>>63)<<15 | uint16(int(b>>52&0x7ff)-1023+15)<<10 | uint16(b>>42&0x3ff)
}

func randomTokens(seed uint64, n, vocab int) []int32 {
	rng := rand.New(rand.NewPCG(seed, 2))
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(rng.IntN(vocab))
	}
	return out
}

func load(t testing.TB, dir string, opt engine.Options) *engine.Model {
	t.Helper()
	m, err := engine.Load(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// forwardAll computes the logits of every position in one pass.
func forwardAll(t testing.TB, m *engine.Model, tokens []int32) [][]float32 {
	t.Helper()
	out, err := m.Forward(context.Background(), []engine.Sequence{{Tokens: tokens, Logits: engine.AllLogits}}, engine.NewSimpleKV(m, len(tokens)))
	if err != nil {
		t.Fatal(err)
	}
	return cloneRows(out.Logits)
}

func cloneRows(rows [][]float32) [][]float32 {
	out := make([][]float32, len(rows))
	for i := range rows {
		out[i] = slices.Clone(rows[i])
	}
	return out
}

// relativeError is the largest difference over the root mean square of want.
func relativeError(got [][]float32, want [][]float64) float64 {
	var worst, squares float64
	n := 0
	for i := range want {
		for j := range want[i] {
			worst = math.Max(worst, math.Abs(float64(got[i][j])-want[i][j]))
			squares += want[i][j] * want[i][j]
			n++
		}
	}
	return worst / math.Sqrt(squares/float64(n))
}

// TestModelsAgainstReference compares whole models with the float64 reference.
// Tolerances are the largest error over the logits' root mean square. With f32
// or f16 weights and f32 KV only float32 rounding remains. With bf16,
// activations are rounded to 8 bits before each product, so errors of a few
// percent are the format's, not the code's.
func TestModelsAgainstReference(t *testing.T) {
	const n = 45
	for _, c := range modelCases() {
		for _, f := range []struct {
			dtype  safetensors.DType
			kv     kernels.DType
			shards int
			limit  float64
		}{
			{safetensors.F32, kernels.F32, 1, 2e-5},
			{safetensors.F16, kernels.F32, 2, 2e-5},
			{safetensors.F32, kernels.BF16, 1, 0.04},
			{safetensors.BF16, kernels.BF16, 3, 0.06},
		} {
			t.Run(fmt.Sprintf("%s/%s-%s", c.name, f.dtype, f.kv), func(t *testing.T) {
				dir := t.TempDir()
				w := c.write(t, dir, f.dtype, f.shards)
				m := load(t, dir, engine.Options{KVDType: f.kv})
				tokens := randomTokens(3, n, c.g.VocabSize)
				got, want := forwardAll(t, m, tokens), c.g.Logits(w, tokens)
				e := relativeError(got, want)
				if !(e < f.limit) {
					t.Errorf("relative error %.3g, want less than %g", e, f.limit)
				}
				t.Logf("relative error %.3g", e)
			})
		}
	}
}

// TestReferenceIsSensitive makes sure that the comparison would notice a
// mistake: a wrong geometry of the reference must not pass.
func TestReferenceIsSensitive(t *testing.T) {
	dir := t.TempDir()
	c := modelCases()[6] // llama3 scaling
	w := c.write(t, dir, safetensors.F32, 1)
	m := load(t, dir, engine.Options{KVDType: kernels.F32})
	tokens := randomTokens(3, 45, c.g.VocabSize)
	got := forwardAll(t, m, tokens)
	wrong := map[string]func(*reftest.Geometry){
		"theta":   func(g *reftest.Geometry) { g.Rope.Theta *= 1.01 },
		"scaling": func(g *reftest.Geometry) { g.Rope.Type = "" },
		"factor":  func(g *reftest.Geometry) { g.Rope.Factor = 7 },
		"eps":     func(g *reftest.Geometry) { g.RMSNormEps = 1e-3 },
	}
	for name, change := range wrong {
		g := c.g
		change(&g)
		if e := relativeError(got, g.Logits(w, tokens)); e < 2e-5 {
			t.Errorf("%s: relative error %g is within the tolerance", name, e)
		}
	}
}
