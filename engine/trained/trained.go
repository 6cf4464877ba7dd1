// Package trained holds the built-in models that remember what they were told:
// Hugging Face directories that tools/train made, embedded in the binary.
// README.md beside it says how each was made and what it can do.
package trained

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
)

//go:embed atlas birch cedar
var files embed.FS

// Names lists the models.
func Names() []string { return []string{"atlas", "birch", "cedar"} }

// Has reports whether there is a model of that name.
func Has(name string) bool { return slices.Contains(Names(), name) }

// Open is a model's Hugging Face directory: config.json,
// generation_config.json, model.safetensors, tokenizer.json and
// tokenizer_config.json.
func Open(name string) (fs.FS, error) {
	if !Has(name) {
		return nil, fmt.Errorf("no trained model %q, want one of %q", name, Names())
	}
	return fs.Sub(files, name)
}
