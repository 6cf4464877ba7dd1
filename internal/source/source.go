// Package source turns the source of a model in the configuration (builtin:NAME,
// catalog:NAME or a Hugging Face directory) into its geometry, its engine, its
// tokenizer and its chat template.
package source

import (
	"fmt"
	"strings"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/chat"
	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/tokenizer"
)

const (
	builtinPrefix = "builtin:"
	catalogPrefix = "catalog:"
)

// elemBytes is the size of an element of each KV type.
var elemBytes = map[string]int{"bf16": 2, "f16": 2, "f32": 4}

// Geometry is the KV geometry of a configured model (a planner.GeometryFunc).
func Geometry(m *configs.Model) (elastic.Geometry, error) {
	g := elastic.Geometry{Name: m.Name, BlockTokens: m.BlockTokens, ElemBytes: elemBytes[m.KVDtype]}
	if strings.HasPrefix(m.Source, catalogPrefix) {
		c, err := configs.CatalogGeometry(m.Source)
		g.Layers, g.KVHeads, g.HeadDim = c.Layers, c.KVHeads, c.HeadDim
		return g, err
	}
	c, err := config(m)
	if err != nil {
		return g, err
	}
	g.Layers, g.KVHeads, g.HeadDim = c.Layers, c.KVHeads, c.HeadDim
	return g, nil
}

func config(m *configs.Model) (*engine.Config, error) {
	if name, ok := strings.CutPrefix(m.Source, builtinPrefix); ok {
		return engine.BuiltinConfig(name)
	}
	if strings.HasPrefix(m.Source, catalogPrefix) {
		return nil, fmt.Errorf("source %q is for planning only: it has no weights to serve", m.Source)
	}
	return engine.LoadConfig(m.Source)
}

// Engine loads a configured model.
func Engine(m *configs.Model) (*engine.Model, error) {
	opt := engine.Options{Name: m.Name, Threads: m.Threads, BlockTokens: m.BlockTokens}
	switch m.KVDtype {
	case "bf16":
		opt.KVDType = kernels.BF16
	case "f32":
		opt.KVDType = kernels.F32
	default:
		return nil, fmt.Errorf("kv_dtype %q cannot be served, only bf16 and f32", m.KVDtype)
	}
	if _, err := config(m); err != nil {
		return nil, err
	}
	if name, ok := strings.CutPrefix(m.Source, builtinPrefix); ok {
		return engine.Builtin(name, opt)
	}
	return engine.Load(m.Source, opt)
}

// Text is what the gateway needs of a model: how its text becomes tokens.
type Text struct {
	Config    *engine.Config
	Defaults  engine.GenerationDefaults
	Tokenizer *tokenizer.Tokenizer
	Template  *chat.Template
}

// LoadText loads a model's tokenizer, chat template and defaults, not its weights.
func LoadText(m *configs.Model) (*Text, error) {
	c, err := config(m)
	if err != nil {
		return nil, err
	}
	t := &Text{Config: c}
	if strings.HasPrefix(m.Source, builtinPrefix) {
		t.Tokenizer, t.Template = tokenizer.Builtin(), chat.Builtin()
		return t, nil
	}
	if t.Tokenizer, err = tokenizer.Load(m.Source); err != nil {
		return nil, err
	}
	if t.Template, err = chat.Load(m.Source); err != nil {
		return nil, err
	}
	t.Defaults, err = engine.LoadGenerationDefaults(m.Source)
	return t, err
}
