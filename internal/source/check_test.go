package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/tokenizer"
)

// TestCheck: what keeps a model from being served is found without reading its
// weights.
func TestCheck(t *testing.T) {
	change := func(name string, f func(path string) error) func(dir string) error {
		return func(dir string) error { return f(filepath.Join(dir, name)) }
	}
	cut := func(path string) error { return os.Truncate(path, 100_000) }
	for name, tc := range map[string]struct {
		damage func(dir string) error
		want   string
	}{
		"complete":       {func(string) error { return nil }, ""},
		"weights cut":    {change("model.safetensors", cut), "model.safetensors"},
		"no weights":     {change("model.safetensors", os.Remove), "safetensors"},
		"no tokenizer":   {change("tokenizer.json", os.Remove), "tokenizer.json"},
		"tokenizer cut":  {change("tokenizer.json", func(p string) error { return os.Truncate(p, 1000) }), "tokenizer.json"},
		"no config":      {change("config.json", os.Remove), "config.json"},
		"a bad template": {change("tokenizer_config.json", func(p string) error { return os.WriteFile(p, []byte(`{"chat_template": "{% bad"}`), 0o600) }), "template"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "m")
			if err := engine.WriteBuiltin(dir, "cedar", tokenizer.WriteByteLevel); err != nil {
				t.Fatal(err)
			}
			if err := tc.damage(dir); err != nil {
				t.Fatal(err)
			}
			err := Check(&configs.Model{Name: "m", Source: dir})
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
	if err := Check(&configs.Model{Name: "m", Source: "builtin:atlas"}); err != nil {
		t.Error(err)
	}
	if err := Check(&configs.Model{Name: "m", Source: "catalog:Qwen3-4B"}); err == nil {
		t.Error("a shape without weights is no model")
	}
}
