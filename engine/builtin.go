package engine

import (
	"fmt"
	"strings"
)

// builtin is a model that needs no download: a geometry and a seed.
type builtin struct {
	cfg  Config
	seed uint64
}

// builtins lists the built-in models. Their geometries differ on purpose, in
// the size of a token's KV too: 4, 1.5 and 1.25 KiB in bf16.
func builtins() []builtin {
	base := Config{NormEps: 1e-6, Vocab: byteVocab, BOS: []int32{idEndOfText}, EOS: []int32{idImEnd, idEndOfText}}
	atlas, birch, cedar := base, base, base

	atlas.Name, atlas.Arch, atlas.QKNorm, atlas.TiedEmbed = "atlas", ArchQwen3, true, true
	atlas.Layers, atlas.Hidden, atlas.FFN = 8, 256, 768
	atlas.Heads, atlas.KVHeads, atlas.HeadDim = 8, 4, 32
	atlas.MaxContext, atlas.Rope.Theta = 32768, 1e6

	birch.Name, birch.Arch, birch.NormEps = "birch", ArchLlama, 1e-5
	birch.Layers, birch.Hidden, birch.FFN = 6, 192, 512
	birch.Heads, birch.KVHeads, birch.HeadDim = 6, 2, 32
	birch.MaxContext, birch.Rope.Theta = 16384, 500000

	cedar.Name, cedar.Arch, cedar.QKNorm, cedar.TiedEmbed = "cedar", ArchQwen3, true, true
	cedar.Layers, cedar.Hidden, cedar.FFN = 5, 256, 640
	cedar.Heads, cedar.KVHeads, cedar.HeadDim = 4, 1, 64
	cedar.MaxContext, cedar.Rope.Theta = 16384, 1e6

	return []builtin{{atlas, 1}, {birch, 2}, {cedar, 3}}
}

// BuiltinNames lists the built-in models.
func BuiltinNames() []string {
	var names []string
	for _, b := range builtins() {
		names = append(names, b.cfg.Name)
	}
	return names
}

func findBuiltin(name string) (*builtin, error) {
	for _, b := range builtins() {
		if b.cfg.Name == name {
			b.cfg = *b.cfg.clone()
			return &b, nil
		}
	}
	return nil, fmt.Errorf("no built-in model %q, want one of %s", name, strings.Join(BuiltinNames(), ", "))
}

// BuiltinConfig is a built-in's architecture, without building its weights:
// WeightsDigest and WeightBytes are empty.
func BuiltinConfig(name string) (*Config, error) {
	b, err := findBuiltin(name)
	if err != nil {
		return nil, err
	}
	return &b.cfg, nil
}

// BuiltinGeneration is what a built-in's generation_config.json would say.
func BuiltinGeneration(name string) (GenerationDefaults, error) {
	b, err := findBuiltin(name)
	if err != nil {
		return GenerationDefaults{}, err
	}
	return defaultGeneration(&b.cfg), nil
}

func defaultGeneration(c *Config) GenerationDefaults {
	sample, temperature, topP, topK := true, 0.7, 0.95, 40
	return GenerationDefaults{DoSample: &sample, Temperature: &temperature, TopP: &topP, TopK: &topK, EOS: c.EOS}
}

// Builtin builds a built-in model, in well under a second. Its weights and so
// its outputs are the same on every machine.
func Builtin(name string, opt Options) (*Model, error) {
	b, err := findBuiltin(name)
	if err != nil {
		return nil, err
	}
	return build(&b.cfg, defaultGeneration(&b.cfg), &generator{&b.cfg, b.seed}, opt, nil)
}

// Random builds a model of any geometry with random bf16 weights, as the
// built-ins have: for benchmarks and tests. cfg is copied.
func Random(cfg *Config, seed uint64, opt Options) (*Model, error) {
	c := cfg.clone()
	if err := c.validate(c.Name); err != nil {
		return nil, err
	}
	return build(c, defaultGeneration(c), &generator{c, seed}, opt, nil)
}
