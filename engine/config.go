package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvlend/kvlend/engine/kernels"
)

// The architectures, as Config.Arch has them.
const (
	ArchQwen3 = "qwen3"
	ArchLlama = "llama"
)

// The files of a model directory that this package reads.
const (
	configFile     = "config.json"
	generationFile = "generation_config.json"
)

// hfArch maps an entry of "architectures" to Config.Arch.
func hfArch(name string) (string, bool) {
	switch name {
	case "Qwen3ForCausalLM":
		return ArchQwen3, true
	case "LlamaForCausalLM":
		return ArchLlama, true
	}
	return "", false
}

const supportedArchs = "Qwen3ForCausalLM (Qwen3, dense) or LlamaForCausalLM (Llama 2, Llama 3.x, LWM)"

// GenerationDefaults are the sampling defaults of generation_config.json.
// Fields that the file leaves out are nil.
type GenerationDefaults struct {
	DoSample          *bool
	Temperature       *float64
	TopP              *float64
	TopK              *int
	MinP              *float64
	RepetitionPenalty *float64
	EOS               []int32
}

// LoadConfig reads and checks config.json and, if there is one,
// generation_config.json of a model directory. Weights are not touched:
// WeightsDigest and WeightBytes stay empty. Violations are *ConfigError, all
// of them joined.
func LoadConfig(dir string) (*Config, GenerationDefaults, error) {
	c, gen, err := loadConfig(dir, os.DirFS(dir))
	if err == nil {
		c.Name = filepath.Base(filepath.Clean(dir))
	}
	return c, gen, err
}

// loadConfig reads the configuration of a model's files; dir is their place,
// for errors. The config has no name.
func loadConfig(dir string, files fs.FS) (*Config, GenerationDefaults, error) {
	var gen GenerationDefaults
	data, err := fs.ReadFile(files, configFile)
	if err != nil {
		return nil, gen, fmt.Errorf("read the model's configuration in %s: %w", dir, err)
	}
	c, err := ParseConfig(filepath.Join(dir, configFile), data)
	if err != nil {
		return nil, gen, err
	}
	data, err = fs.ReadFile(files, generationFile)
	if errors.Is(err, fs.ErrNotExist) {
		return c, gen, nil
	}
	if err != nil {
		return nil, gen, fmt.Errorf("read the model's generation defaults in %s: %w", dir, err)
	}
	gen, err = parseGeneration(filepath.Join(dir, generationFile), data, c.Vocab)
	if err != nil {
		return nil, gen, err
	}
	for _, id := range gen.EOS {
		if !slices.Contains(c.EOS, id) {
			c.EOS = append(c.EOS, id)
		}
	}
	return c, gen, nil
}

// ParseConfig reads the text of a config.json; file is used in errors.
func ParseConfig(file string, data []byte) (*Config, error) {
	f, err := parseFields(file, data)
	if err != nil {
		return nil, err
	}
	c := &Config{Arch: parseArch(f)}
	if c.Arch == "" {
		return nil, f.err()
	}
	c.Layers = f.int("num_hidden_layers", required, 1, 1024)
	c.Hidden = f.int("hidden_size", required, 1, 1<<17)
	c.Heads = f.int("num_attention_heads", required, 1, 1024)
	c.FFN = f.int("intermediate_size", required, 1, 1<<20)
	c.Vocab = f.int("vocab_size", required, 1, 1<<24)
	c.KVHeads = f.int("num_key_value_heads", c.Heads, 1, 1024)
	c.NormEps = float32(f.float("rms_norm_eps", 1e-6, 0.1))
	c.TiedEmbed = f.bool("tie_word_embeddings", false)
	c.AttnBias = f.bool("attention_bias", false)
	defaultHeadDim, defaultContext := 128, 32768
	if c.Arch == ArchLlama {
		c.MLPBias = f.bool("mlp_bias", false)
		defaultHeadDim, defaultContext = c.Hidden/max(c.Heads, 1), 2048
	}
	c.QKNorm = c.Arch == ArchQwen3
	c.HeadDim = f.int("head_dim", defaultHeadDim, 1, 1024)
	positions := f.int("max_position_embeddings", defaultContext, 1, 1<<26)
	c.Rope, c.MaxContext = parseRope(f, positions)
	c.BOS, c.EOS = f.ids("bos_token_id", c.Vocab), f.ids("eos_token_id", c.Vocab)
	refuseUnsupported(f)
	if err := f.err(); err != nil {
		return nil, err
	}
	return c, c.validate(file)
}

// parseArch finds the architecture, from model_type where there is no list.
func parseArch(f *fields) string {
	raw, ok := f.get("architectures")
	if !ok {
		switch t := f.str("model_type", ""); t {
		case ArchQwen3, ArchLlama:
			return t
		default:
			f.bad("architectures", "missing", "%s", supportedArchs)
			return ""
		}
	}
	var names []string
	if err := json.Unmarshal(raw, &names); err != nil {
		f.bad("architectures", shorten(raw), "a list of names")
		return ""
	}
	for _, n := range names {
		if a, ok := hfArch(n); ok {
			return a
		}
	}
	f.bad("architectures", shorten(raw), "%s", supportedArchs)
	return ""
}

// refuseUnsupported names settings that would change the arithmetic in ways
// that this engine does not compute.
func refuseUnsupported(f *fields) {
	if act := f.str("hidden_act", "silu"); act != "silu" {
		f.bad("hidden_act", fmt.Sprintf("%q", act), `"silu"`)
	}
	if f.bool("use_sliding_window", false) {
		f.bad("use_sliding_window", "true", "false; sliding-window attention is not supported")
	}
	if raw, ok := f.get("quantization_config"); ok {
		f.bad("quantization_config", shorten(raw), "no quantization; weights must be bf16, f16 or f32")
	}
	if x, ok := f.number("partial_rotary_factor", "1"); ok && x != 1 {
		f.bad("partial_rotary_factor", shorten(f.raw["partial_rotary_factor"]), "1")
	}
	raw, ok := f.get("layer_types")
	if !ok {
		return
	}
	var types []string
	if err := json.Unmarshal(raw, &types); err != nil {
		f.bad("layer_types", shorten(raw), "a list of strings")
	}
	for i, t := range types {
		if t != "full_attention" {
			f.bad(fmt.Sprintf("layer_types[%d]", i), fmt.Sprintf("%q", t), `"full_attention"`)
			break
		}
	}
}

// validate checks how fields relate to each other and to what the kernels take.
func (c *Config) validate(file string) error {
	var errs []error
	bad := func(field string, value any, want string, args ...any) {
		errs = append(errs, &ConfigError{file, field, fmt.Sprint(value), fmt.Sprintf(want, args...)})
	}
	if c.Arch != ArchQwen3 && c.Arch != ArchLlama {
		bad("architectures", fmt.Sprintf("%q", c.Arch), "%s", supportedArchs)
	}
	if c.KVHeads < 1 || c.Heads < 1 || c.Heads%c.KVHeads != 0 {
		bad("num_key_value_heads", c.KVHeads, "a divisor of num_attention_heads, %d", c.Heads)
	}
	if c.HeadDim < 16 || c.HeadDim > 512 || c.HeadDim%16 != 0 {
		bad("head_dim", c.HeadDim, "a multiple of 16 from 16 to 512")
	}
	if min(c.Layers, c.Hidden, c.FFN, c.Vocab, c.MaxContext) < 1 {
		bad("num_hidden_layers, hidden_size, intermediate_size, vocab_size, max_position_embeddings",
			[]int{c.Layers, c.Hidden, c.FFN, c.Vocab, c.MaxContext}, "at least 1 each")
	}
	return errors.Join(errs...)
}

func parseGeneration(file string, data []byte, vocab int) (GenerationDefaults, error) {
	var g GenerationDefaults
	f, err := parseFields(file, data)
	if err != nil {
		return g, err
	}
	if _, ok := f.get("do_sample"); ok {
		b := f.bool("do_sample", false)
		g.DoSample = &b
	}
	float := func(key string, lo, hi float64) *float64 {
		x, ok := f.number(key, "a number from %g to %g", lo, hi)
		if !ok {
			return nil
		}
		if x < lo || x > hi {
			f.bad(key, shorten(f.raw[key]), "a number from %g to %g", lo, hi)
		}
		return &x
	}
	g.Temperature = float("temperature", 0, 100)
	g.TopP = float("top_p", 0, 1)
	g.MinP = float("min_p", 0, 1)
	g.RepetitionPenalty = float("repetition_penalty", 0, 100)
	if _, ok := f.get("top_k"); ok {
		k := f.int("top_k", 0, -1, 1<<24)
		g.TopK = &k
	}
	g.EOS = f.ids("eos_token_id", vocab)
	return g, f.err()
}

// KVLayout is the layout of the model's KV cache for blocks of blockTokens
// tokens.
func (c *Config) KVLayout(blockTokens int, dtype kernels.DType) kernels.KVLayout {
	return kernels.KVLayout{BlockTokens: blockTokens, KVHeads: c.KVHeads, HeadDim: c.HeadDim, DType: dtype}
}

// hfName is the inverse of hfArch.
func (c *Config) hfName() string {
	if c.Arch == ArchLlama {
		return "LlamaForCausalLM"
	}
	return "Qwen3ForCausalLM"
}

// String is the geometry in one line.
func (c *Config) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, %d layers, hidden %d, heads %d/%d of %d, ffn %d, vocabulary %d, context %d",
		c.Name, c.Arch, c.Layers, c.Hidden, c.Heads, c.KVHeads, c.HeadDim, c.FFN, c.Vocab, c.MaxContext)
	if c.Rope.Scaling != "" {
		fmt.Fprintf(&b, ", rope %s x%g", c.Rope.Scaling, c.Rope.Factor)
	}
	return b.String()
}
