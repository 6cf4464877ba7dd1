package source

import (
	"strings"
	"testing"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/tokenizer"
)

// TestCatalogAgreesWithEngine: planning uses the catalog, serving the engine.
func TestCatalogAgreesWithEngine(t *testing.T) {
	for _, name := range engine.BuiltinNames() {
		c, err := engine.BuiltinConfig(name)
		if err != nil {
			t.Fatal(err)
		}
		g, err := Geometry(configs.SourceBuiltin + name)
		if err != nil {
			t.Fatal(err)
		}
		if g.Layers != c.Layers || g.KVHeads != c.KVHeads || g.HeadDim != c.HeadDim {
			t.Errorf("%s: catalog %+v, engine %d layers, %d KV heads of %d", name, g, c.Layers, c.KVHeads, c.HeadDim)
		}
	}
}

// TestDirectory: a directory that `kvlend model new` writes is served like
// the built-in it copies.
func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := engine.WriteBuiltin(dir, "random-birch", tokenizer.WriteByteLevel); err != nil {
		t.Fatal(err)
	}
	m := &configs.Model{Name: "b", Source: dir, BlockTokens: 16, KVDtype: "bf16"}
	text, err := LoadText(m)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := text.Tokenizer.Encode("héllo", tokenizer.EncodeOptions{})
	if err != nil || len(ids) != 6 {
		t.Errorf("tokens %v, %v", ids, err)
	}
	e, err := Engine(m)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	b, err := Engine(&configs.Model{Name: "b", Source: "builtin:random-birch", BlockTokens: 16, KVDtype: "bf16"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if e.Config().WeightsDigest != b.Config().WeightsDigest {
		t.Error("the directory's weights differ from the built-in's")
	}
}

func TestRefusals(t *testing.T) {
	for src, want := range map[string]string{
		"catalog:Qwen3-8B": "no weights to serve",
		"builtin:none":     "none",
		"/does/not/exist":  "config.json",
	} {
		m := &configs.Model{Name: "m", Source: src, BlockTokens: 16, KVDtype: "bf16"}
		if _, err := Engine(m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", src, err, want)
		}
	}
	if _, err := Engine(&configs.Model{Name: "m", Source: "builtin:random-atlas", BlockTokens: 16, KVDtype: "f16"}); err == nil {
		t.Error("f16 KV was accepted")
	}
}
