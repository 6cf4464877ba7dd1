// Package source turns the source of a model in the configuration (builtin:NAME,
// catalog:NAME or a Hugging Face directory) into its geometry, its engine, its
// tokenizer and its chat template.
package source

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/chat"
	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/tokenizer"
	"github.com/kvlend/kvlend/engine/trained"
)

// Geometry is the KV geometry of a source (a configs.GeometryFunc).
func Geometry(src string) (elastic.Geometry, error) {
	if strings.HasPrefix(src, configs.SourceBuiltin) || strings.HasPrefix(src, configs.SourceCatalog) {
		return configs.CatalogGeometry(src)
	}
	c, _, err := engine.LoadConfig(src)
	if err != nil {
		return elastic.Geometry{}, err
	}
	return elastic.Geometry{Layers: c.Layers, KVHeads: c.KVHeads, HeadDim: c.HeadDim}, nil
}

func config(m *configs.Model) (*engine.Config, engine.GenerationDefaults, error) {
	if name, ok := strings.CutPrefix(m.Source, configs.SourceBuiltin); ok {
		c, err := engine.BuiltinConfig(name)
		if err != nil {
			return nil, engine.GenerationDefaults{}, err
		}
		g, err := engine.BuiltinGeneration(name)
		return c, g, err
	}
	if !m.Servable() {
		return nil, engine.GenerationDefaults{}, fmt.Errorf("source %q is for planning only: it has no weights to serve", m.Source)
	}
	return engine.LoadConfig(m.Source)
}

// MaxContext is the longest context in tokens that a configured model was made
// for, whatever memory it has.
func MaxContext(m *configs.Model) (int, error) {
	c, _, err := config(m)
	if err != nil {
		return 0, err
	}
	return c.MaxContext, nil
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
	if _, _, err := config(m); err != nil {
		return nil, err
	}
	if name, ok := strings.CutPrefix(m.Source, configs.SourceBuiltin); ok {
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
	c, defaults, err := config(m)
	if err != nil {
		return nil, err
	}
	t := &Text{Config: c, Defaults: defaults}
	if name, ok := strings.CutPrefix(m.Source, configs.SourceBuiltin); ok {
		t.Template = chat.Builtin()
		t.Tokenizer, err = Tokenizer(name)
		return t, err
	}
	if t.Tokenizer, err = tokenizer.Load(m.Source); err != nil {
		return nil, err
	}
	t.Template, err = chat.Load(m.Source)
	return t, err
}

// Check looks for what would keep a configured model from being served: its
// configuration, the headers of its weights, its tokenizer and its chat template.
// The weights themselves are not read.
func Check(m *configs.Model) error {
	if _, err := LoadText(m); err != nil {
		return err
	}
	if strings.HasPrefix(m.Source, configs.SourceBuiltin) {
		return nil
	}
	_, err := engine.Inspect(m.Source)
	return err
}

// Tokenizer is the tokenizer of a built-in model.
func Tokenizer(name string) (*tokenizer.Tokenizer, error) {
	if !trained.Has(name) {
		return tokenizer.Builtin(), nil
	}
	files, err := trained.Open(name)
	if err != nil {
		return nil, err
	}
	data, err := fs.ReadFile(files, "tokenizer.json")
	if err != nil {
		return nil, err
	}
	return tokenizer.Parse(data)
}
