package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/kvlend/kvlend/engine/safetensors"
	"github.com/kvlend/kvlend/engine/trained"
)

// The built-in models need no download. There are trained ones, which remember
// what they are told (package trained), and of each a twin with random weights
// and a byte-level vocabulary, of the same KV geometry: for tests and
// benchmarks that want text of any kind to have as many tokens as bytes. The
// geometries differ on purpose, in the size of a token's KV too: 4, 1.5 and
// 1.25 KiB in bf16.

// randomPrefix begins the names of the models with random weights.
const randomPrefix = "random-"

// randomModel is a geometry and a seed.
type randomModel struct {
	cfg  Config
	seed uint64
}

// randoms lists the built-in models with random weights.
func randoms() []randomModel {
	base := Config{NormEps: 1e-6, Vocab: byteVocab, BOS: []int32{idEndOfText}, EOS: []int32{idImEnd, idEndOfText}}
	atlas, birch, cedar := base, base, base

	atlas.Name, atlas.Arch, atlas.QKNorm, atlas.TiedEmbed = randomPrefix+"atlas", ArchQwen3, true, true
	atlas.Layers, atlas.Hidden, atlas.FFN = 8, 256, 768
	atlas.Heads, atlas.KVHeads, atlas.HeadDim = 8, 4, 32
	atlas.MaxContext, atlas.Rope.Theta = 32768, 1e6

	birch.Name, birch.Arch, birch.NormEps = randomPrefix+"birch", ArchLlama, 1e-5
	birch.Layers, birch.Hidden, birch.FFN = 6, 192, 512
	birch.Heads, birch.KVHeads, birch.HeadDim = 6, 2, 32
	birch.MaxContext, birch.Rope.Theta = 16384, 500000

	cedar.Name, cedar.Arch, cedar.QKNorm, cedar.TiedEmbed = randomPrefix+"cedar", ArchQwen3, true, true
	cedar.Layers, cedar.Hidden, cedar.FFN = 5, 256, 640
	cedar.Heads, cedar.KVHeads, cedar.HeadDim = 4, 1, 64
	cedar.MaxContext, cedar.Rope.Theta = 16384, 1e6

	return []randomModel{{atlas, 1}, {birch, 2}, {cedar, 3}}
}

// BuiltinNames lists the built-in models, trained ones first.
func BuiltinNames() []string {
	names := trained.Names()
	for _, r := range randoms() {
		names = append(names, r.cfg.Name)
	}
	return names
}

func unknownBuiltin(name string) error {
	return fmt.Errorf("no built-in model %q, want one of %s", name, strings.Join(BuiltinNames(), ", "))
}

func findRandom(name string) (*randomModel, error) {
	all := randoms()
	i := slices.IndexFunc(all, func(r randomModel) bool { return r.cfg.Name == name })
	if i < 0 {
		return nil, unknownBuiltin(name)
	}
	return &all[i], nil
}

// builtinPlace stands for a trained model's directory in errors.
func builtinPlace(name string) string { return "built-in model " + name }

// BuiltinConfig is a built-in's architecture, without building its weights:
// WeightsDigest and WeightBytes are empty.
func BuiltinConfig(name string) (*Config, error) {
	c, _, err := builtinConfig(name)
	return c, err
}

// BuiltinGeneration is what a built-in's generation_config.json says, or would
// say.
func BuiltinGeneration(name string) (GenerationDefaults, error) {
	_, g, err := builtinConfig(name)
	return g, err
}

func builtinConfig(name string) (*Config, GenerationDefaults, error) {
	if !trained.Has(name) {
		r, err := findRandom(name)
		if err != nil {
			return nil, GenerationDefaults{}, err
		}
		return &r.cfg, defaultGeneration(&r.cfg), nil
	}
	files, err := trained.Open(name)
	if err != nil {
		return nil, GenerationDefaults{}, err
	}
	c, g, err := loadConfig(builtinPlace(name), files)
	if err == nil {
		c.Name = name
	}
	return c, g, err
}

func defaultGeneration(c *Config) GenerationDefaults {
	sample, temperature, topP, topK := true, 0.7, 0.95, 40
	return GenerationDefaults{DoSample: &sample, Temperature: &temperature, TopP: &topP, TopK: &topK, EOS: c.EOS}
}

// Builtin builds a built-in model, in well under a second. Its weights and so
// its outputs are the same on every machine.
func Builtin(name string, opt Options) (*Model, error) {
	cfg, gen, err := builtinConfig(name)
	if err != nil {
		return nil, err
	}
	if !trained.Has(name) {
		r, err := findRandom(name)
		if err != nil {
			return nil, err
		}
		return build(cfg, gen, &generator{cfg, r.seed}, opt, nil)
	}
	files, err := trained.Open(name)
	if err != nil {
		return nil, err
	}
	data, err := fs.ReadFile(files, safetensors.SingleFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", builtinPlace(name), err)
	}
	tensors, err := safetensors.FromBytes(builtinPlace(name), data)
	if err != nil {
		return nil, err
	}
	m, err := fromCheckpoint(cfg, gen, checkpoint{tensors, builtinPlace(name)}, opt, nil)
	return m, errors.Join(err, tensors.Close())
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
