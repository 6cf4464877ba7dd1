package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/kvlend/kvlend/engine/safetensors"
	"github.com/kvlend/kvlend/engine/trained"
)

// hfConfig is config.json as this package writes it.
type hfConfig struct {
	Architectures []string       `json:"architectures"`
	ModelType     string         `json:"model_type"`
	Layers        int            `json:"num_hidden_layers"`
	Hidden        int            `json:"hidden_size"`
	Heads         int            `json:"num_attention_heads"`
	KVHeads       int            `json:"num_key_value_heads"`
	HeadDim       int            `json:"head_dim"`
	FFN           int            `json:"intermediate_size"`
	Vocab         int            `json:"vocab_size"`
	MaxPositions  int            `json:"max_position_embeddings"`
	NormEps       float64        `json:"rms_norm_eps"`
	Theta         float64        `json:"rope_theta"`
	Scaling       map[string]any `json:"rope_scaling"`
	Tied          bool           `json:"tie_word_embeddings"`
	AttnBias      bool           `json:"attention_bias"`
	MLPBias       *bool          `json:"mlp_bias,omitempty"`
	Act           string         `json:"hidden_act"`
	DType         string         `json:"torch_dtype"`
	BOS           any            `json:"bos_token_id"`
	EOS           any            `json:"eos_token_id"`
}

// hfGeneration is generation_config.json as this package writes it.
type hfGeneration struct {
	DoSample          *bool    `json:"do_sample,omitempty"`
	Temperature       *float64 `json:"temperature,omitempty"`
	TopP              *float64 `json:"top_p,omitempty"`
	TopK              *int     `json:"top_k,omitempty"`
	MinP              *float64 `json:"min_p,omitempty"`
	RepetitionPenalty *float64 `json:"repetition_penalty,omitempty"`
	EOS               any      `json:"eos_token_id,omitempty"`
}

// WriteBuiltin writes a built-in model to dir, which is created, or must be
// empty: loading the directory gives a model with the built-in's digest. A
// trained model comes with its tokenizer; for others the extra functions run
// last, as those of WriteModel do.
func WriteBuiltin(dir, name string, extra ...func(dir string) error) error {
	if trained.Has(name) {
		files, err := trained.Open(name)
		if err != nil {
			return err
		}
		if err := makeEmptyDir(dir); err != nil {
			return err
		}
		return os.CopyFS(dir, files)
	}
	r, err := findRandom(name)
	if err != nil {
		return err
	}
	return WriteModel(dir, &r.cfg, r.seed, extra...)
}

// WriteModel writes an ordinary Hugging Face directory with random bf16
// weights: config.json, generation_config.json and model.safetensors. dir is
// created, or must be empty. The extra functions run last; they are for the
// files of other packages, such as the tokenizer's. After an error dir may
// hold a part of the files.
func WriteModel(dir string, cfg *Config, seed uint64, extra ...func(dir string) error) error {
	if err := cfg.validate(cfg.Name); err != nil {
		return err
	}
	if err := makeEmptyDir(dir); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(dir, configFile), cfg.hf()); err != nil {
		return err
	}
	g := defaultGeneration(cfg)
	gen := hfGeneration{g.DoSample, g.Temperature, g.TopP, g.TopK, g.MinP, g.RepetitionPenalty, oneOrMany(g.EOS)}
	if err := writeJSON(filepath.Join(dir, generationFile), gen); err != nil {
		return err
	}
	src, slots := &generator{cfg, seed}, new(weights).slots(cfg)
	tensors := make([]safetensors.Tensor, len(slots))
	byName := make(map[string]*slot, len(slots))
	for i := range slots {
		tensors[i] = safetensors.Tensor{Name: slots[i].name, DType: safetensors.BF16, Shape: slots[i].shape}
		byName[slots[i].name] = &slots[i]
	}
	err := safetensors.WriteFunc(filepath.Join(dir, safetensors.SingleFile), tensors, map[string]string{"format": "pt"},
		func(t *safetensors.Tensor) ([]byte, error) {
			made, err := src.tensor(byName[t.Name])
			if err != nil {
				return nil, err
			}
			return made.Data, nil
		})
	if err != nil {
		return err
	}
	for _, f := range extra {
		if err := f(dir); err != nil {
			return err
		}
	}
	return nil
}

// makeEmptyDir creates dir, or accepts an empty one.
func makeEmptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s: %w and is not empty (it has %s), want a new or an empty directory", dir, fs.ErrExist, entries[0].Name())
	}
	return nil
}

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return errors.Join(errors.New("BUG: unencodable configuration"), err)
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// hf is the config.json of c.
func (c *Config) hf() hfConfig {
	positions, scaling := c.Rope.hf(c.MaxContext)
	h := hfConfig{
		Architectures: []string{c.hfName()}, ModelType: c.Arch,
		Layers: c.Layers, Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
		FFN: c.FFN, Vocab: c.Vocab, MaxPositions: positions, NormEps: shortest(c.NormEps),
		Theta: c.Rope.Theta, Scaling: scaling, Tied: c.TiedEmbed, AttnBias: c.AttnBias,
		Act: "silu", DType: "bfloat16", BOS: oneOrMany(c.BOS), EOS: oneOrMany(c.EOS),
	}
	if c.Arch == ArchLlama {
		h.MLPBias = &c.MLPBias
	}
	return h
}

// hf is the inverse of parseRope.
func (r RopeConfig) hf(context int) (positions int, scaling map[string]any) {
	switch r.Scaling {
	case "linear":
		return int(float64(context) / r.Factor), map[string]any{"rope_type": "linear", "factor": r.Factor}
	case "llama3":
		return context, map[string]any{"rope_type": "llama3", "factor": r.Factor, "low_freq_factor": r.LowFreqFactor,
			"high_freq_factor": r.HighFreqFactor, "original_max_position_embeddings": r.Original}
	case "yarn":
		return context, map[string]any{"rope_type": "yarn", "factor": r.Factor, "original_max_position_embeddings": r.Original,
			"beta_fast": r.BetaFast, "beta_slow": r.BetaSlow, "attention_factor": r.AttentionFactor, "truncate": !r.NoTruncate}
	}
	return context, nil
}

// oneOrMany is how these files spell token ids: null, a number or a list.
func oneOrMany(ids []int32) any {
	switch len(ids) {
	case 0:
		return nil
	case 1:
		return ids[0]
	}
	return ids
}

// shortest is the float64 that prints as f does: 1e-6, not 9.99999997e-07.
func shortest(f float32) float64 {
	// What FormatFloat writes, ParseFloat reads.
	out, _ := strconv.ParseFloat(strconv.FormatFloat(float64(f), 'g', -1, 32), 64)
	return out
}
