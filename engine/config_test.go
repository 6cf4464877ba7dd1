package engine

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// llamaConfig is a config.json with changes; a nil value removes a key.
func llamaConfig(t testing.TB, changes map[string]any) []byte {
	t.Helper()
	m := map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "hidden_size": 64, "intermediate_size": 96,
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
		"max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu",
	}
	maps.Copy(m, changes)
	for k, v := range changes {
		if v == nil {
			delete(m, k)
		}
	}
	out, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRopeGolden compares frequencies with values computed in Python from the
// published formulas of transformers' modeling_rope_utils.
func TestRopeGolden(t *testing.T) {
	raw, err := os.ReadFile("testdata/rope.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name       string         `json:"name"`
		Config     map[string]any `json:"config"`
		HeadDim    int            `json:"head_dim"`
		MaxContext int            `json:"max_context"`
		InvFreq    []float64      `json:"inv_freq"`
		Attention  float64        `json:"attention_factor"`
	}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			c.Config["head_dim"] = c.HeadDim
			cfg, err := ParseConfig("config.json", llamaConfig(t, c.Config))
			if err != nil {
				t.Fatal(err)
			}
			if cfg.MaxContext != c.MaxContext {
				t.Errorf("max context %d, want %d", cfg.MaxContext, c.MaxContext)
			}
			inv, att := cfg.Rope.InvFreq(c.HeadDim)
			if len(inv) != len(c.InvFreq) || math.Abs(att-c.Attention) > 1e-12 {
				t.Fatalf("%d frequencies and factor %v, want %d and %v", len(inv), att, len(c.InvFreq), c.Attention)
			}
			for i := range inv {
				if math.Abs(inv[i]-c.InvFreq[i]) > 1e-12*c.InvFreq[i] {
					t.Errorf("frequency %d is %v, want %v", i, inv[i], c.InvFreq[i])
				}
			}
		})
	}
}

func TestParseConfigDefaults(t *testing.T) {
	c, err := ParseConfig("f", llamaConfig(t, map[string]any{"num_key_value_heads": nil, "eos_token_id": []int{2, 3}, "bos_token_id": 1}))
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{Arch: "llama", Layers: 2, Hidden: 64, Heads: 4, KVHeads: 4, HeadDim: 16, FFN: 96, Vocab: 100,
		MaxContext: 128, NormEps: 1e-5, Rope: RopeConfig{Theta: 10000}, BOS: []int32{1}, EOS: []int32{2, 3}}
	if d := cmp.Diff(want, c); d != "" {
		t.Error(d)
	}
	c, err = ParseConfig("f", llamaConfig(t, map[string]any{"architectures": []string{"Other", "Qwen3ForCausalLM"}, "rms_norm_eps": nil,
		"tie_word_embeddings": true, "attention_bias": true, "head_dim": nil, "layer_types": []string{"full_attention", "full_attention"}}))
	if err != nil {
		t.Fatal(err)
	}
	if c.Arch != "qwen3" || !c.QKNorm || c.HeadDim != 128 || c.NormEps != 1e-6 || !c.TiedEmbed || !c.AttnBias {
		t.Errorf("got %+v", c)
	}
	if c, err = ParseConfig("f", llamaConfig(t, map[string]any{"architectures": nil, "model_type": "qwen3"})); err != nil || c.Arch != "qwen3" {
		t.Errorf("by model_type: %v, %v", c, err)
	}
}

func TestParseConfigRefuses(t *testing.T) {
	scaling := func(m map[string]any) map[string]any { return map[string]any{"rope_scaling": m} }
	cases := map[string]struct {
		changes map[string]any
		field   string
		text    string
	}{
		"architecture":    {map[string]any{"architectures": []string{"GptOssForCausalLM"}}, "architectures", "Qwen3ForCausalLM"},
		"no architecture": {map[string]any{"architectures": nil}, "architectures", "LlamaForCausalLM"},
		"arch type":       {map[string]any{"architectures": 3}, "architectures", "a list"},
		"missing":         {map[string]any{"hidden_size": nil}, "hidden_size", "missing"},
		"zero":            {map[string]any{"num_hidden_layers": 0}, "num_hidden_layers", "from 1 to 1024"},
		"fraction":        {map[string]any{"num_attention_heads": 4.5}, "num_attention_heads", "4.5"},
		"string":          {map[string]any{"vocab_size": "100"}, "vocab_size", "an integer"},
		"huge":            {map[string]any{"intermediate_size": 1e12}, "intermediate_size", "1048576"},
		"gqa":             {map[string]any{"num_key_value_heads": 3}, "num_key_value_heads", "a divisor of num_attention_heads, 4"},
		"head dim":        {map[string]any{"head_dim": 24}, "head_dim", "a multiple of 16"},
		"eps":             {map[string]any{"rms_norm_eps": -1}, "rms_norm_eps", "above 0"},
		"act":             {map[string]any{"hidden_act": "gelu"}, "hidden_act", `"silu"`},
		"sliding":         {map[string]any{"use_sliding_window": true}, "use_sliding_window", "not supported"},
		"layer types":     {map[string]any{"layer_types": []string{"full_attention", "sliding_attention"}}, "layer_types[1]", "sliding_attention"},
		"quantized":       {map[string]any{"quantization_config": map[string]any{"bits": 4}}, "quantization_config", "bf16"},
		"partial rotary":  {map[string]any{"partial_rotary_factor": 0.5}, "partial_rotary_factor", "0.5"},
		"bool":            {map[string]any{"tie_word_embeddings": 1}, "tie_word_embeddings", "true or false"},
		"eos range":       {map[string]any{"eos_token_id": []int{2, 100}}, "eos_token_id", "0 to 99"},
		"eos type":        {map[string]any{"eos_token_id": "</s>"}, "eos_token_id", "a token id"},
		"rope type":       {scaling(map[string]any{"rope_type": "longrope"}), "rope_scaling.rope_type", "linear, llama3 or yarn"},
		"rope object":     {map[string]any{"rope_scaling": 4}, "rope_scaling", "an object"},
		"rope factor":     {scaling(map[string]any{"type": "linear"}), "rope_scaling.factor", "missing"},
		"rope llama3":     {scaling(map[string]any{"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1, "original_max_position_embeddings": 64}), "rope_scaling.high_freq_factor", "more than"},
		"rope yarn":       {scaling(map[string]any{"type": "yarn", "factor": 0}), "rope_scaling.factor", "above 0"},
		"rope theta 1":    {map[string]any{"rope_theta": 1}, "rope_theta", "above 1"},
		"rope small":      {scaling(map[string]any{"type": "linear", "factor": 0.5}), "rope_scaling.factor", "from 1"},
		"rope theta":      {map[string]any{"rope_parameters": map[string]any{"rope_theta": "big"}}, "rope_parameters.rope_theta", "a number"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := ParseConfig("dir/config.json", llamaConfig(t, c.changes))
			var ce *ConfigError
			if !errors.As(err, &ce) {
				t.Fatalf("error %v, want a *ConfigError", err)
			}
			if ce.Field != c.field || ce.File != "dir/config.json" || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, want field %s and text %q", err, c.field, c.text)
			}
		})
	}
}

func TestParseConfigReportsAll(t *testing.T) {
	_, err := ParseConfig("f", llamaConfig(t, map[string]any{"hidden_size": nil, "vocab_size": -1, "hidden_act": "relu"}))
	for _, field := range []string{"hidden_size", "vocab_size", "hidden_act"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
	for _, text := range []string{"", "[]", "null", "{", `"x"`} {
		if _, err := ParseConfig("f", []byte(text)); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func TestLoadConfigGeneration(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := LoadConfig(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("empty directory: %v", err)
	}
	write(configFile, string(llamaConfig(t, map[string]any{"eos_token_id": 7})))
	if c, g, err := LoadConfig(dir); err != nil || g.Temperature != nil || !cmp.Equal(c.EOS, []int32{7}) || c.Name != filepath.Base(dir) {
		t.Errorf("without generation_config.json: %+v %+v %v", c, g, err)
	}
	write(generationFile, `{"temperature":0.6,"top_p":0.95,"top_k":20,"repetition_penalty":1.05,"do_sample":true,"eos_token_id":[9,7]}`)
	c, g, err := LoadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	if *g.Temperature != 0.6 || *g.TopP != 0.95 || *g.TopK != 20 || *g.RepetitionPenalty != 1.05 || !*g.DoSample || g.MinP != nil {
		t.Errorf("defaults %+v", g)
	}
	if !cmp.Equal(c.EOS, []int32{7, 9}) {
		t.Errorf("eos %v, want 7 and 9", c.EOS)
	}
	for _, bad := range []string{`{"temperature":-1}`, `{"top_p":1.5}`, `{"top_k":2.5}`, `{"eos_token_id":100}`, `[]`, `{"do_sample":"yes"}`} {
		write(generationFile, bad)
		var ce *ConfigError
		if _, _, err := LoadConfig(dir); !errors.As(err, &ce) || !strings.HasSuffix(ce.File, generationFile) {
			t.Errorf("%s: error %v, want a *ConfigError of %s", bad, err, generationFile)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add(llamaConfig(f, nil))
	f.Add(llamaConfig(f, map[string]any{"rope_scaling": map[string]any{"type": "yarn", "factor": 4}}))
	f.Add(llamaConfig(f, map[string]any{"rope_parameters": map[string]any{"rope_type": "linear", "factor": 1e5, "rope_theta": 2}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig("f", data)
		if err != nil {
			return
		}
		if c.MaxContext < 1 || c.Heads%c.KVHeads != 0 || c.HeadDim%16 != 0 {
			t.Fatalf("accepted %+v", c)
		}
		inv, _ := c.Rope.InvFreq(c.HeadDim)
		for _, v := range inv {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Fatalf("frequency %v of %+v", v, c.Rope)
			}
		}
	})
}
