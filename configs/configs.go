// Package configs is kvlend's configuration: the YAML schema, strict parsing,
// validation that reports every violation at once, defaults, example files and
// a JSON Schema for editors.
//
// A value carries its unit ("16GiB", "400GB/s", "60s", "5%"). Unknown and
// duplicate keys are refused with their line and the nearest valid key. The
// built-in default is an ordinary file, examples/default.yaml, which is
// embedded: what the program does without a file and what the file shows
// cannot drift apart.
package configs

import (
	"bytes"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"os"

	"github.com/zeebo/blake3"
	"go.yaml.in/yaml/v3"
)

//go:embed examples/*.yaml
var examples embed.FS

// DefaultName is the file name that messages about the built-in default show.
const DefaultName = "default.yaml"

// ExampleNames lists the embedded examples.
func ExampleNames() []string {
	return []string{DefaultName, "overflow.yaml", "recall.yaml", "serve-baselines.yaml", "swiftcache-4xh20.yaml", "h100-qwen3.yaml"}
}

// Example returns the text of an embedded example.
func Example(name string) ([]byte, error) {
	for _, n := range ExampleNames() {
		if n == name {
			return examples.ReadFile("examples/" + name)
		}
	}
	return nil, fmt.Errorf("no example %q, want one of %q", name, ExampleNames())
}

// Parse reads a configuration, fills in defaults and checks it. name is the
// file name for messages. Every violation is reported at once, as Errors.
// Geometry is checked for models whose source is in the catalog; see
// Config.CheckGeometry for the others.
func Parse(data []byte, name string) (*Config, error) {
	c := baseline()
	src, errs := decodeOnto(c, data, name)
	c.source = src
	if len(errs) == 0 {
		c.resolve()
	}
	// Cross-field checks on half-read values would report consequences of
	// what is already reported, so they run only on what decoded cleanly.
	if len(errs) == 0 {
		errs = c.check(CatalogGeometry)
	}
	if err := errs.sorted(); err != nil {
		return nil, err
	}
	return c, nil
}

// Load reads the file at path; "-" is standard input.
func Load(path string) (*Config, error) {
	if path == "-" {
		data, err := io.ReadAll(io.LimitReader(os.Stdin, maxInput+1))
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		return Parse(data, "stdin")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open config: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxInput+1))
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	return Parse(data, path)
}

// Default returns the built-in default.
func Default() *Config {
	c, err := Parse(mustExample(DefaultName), DefaultName)
	if err != nil {
		panic("BUG: the built-in default is invalid:\n" + err.Error())
	}
	return c
}

// baseline is the default's top-level sections without devices, links and models.
func baseline() *Config {
	c := new(Config)
	if _, errs := decodeOnto(c, mustExample(DefaultName), DefaultName); len(errs) > 0 {
		panic("BUG: the built-in default is invalid:\n" + errs.Error())
	}
	c.Devices, c.Links, c.Models = nil, nil, nil
	return c
}

func mustExample(name string) []byte {
	data, err := Example(name)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return data
}

// Marshal prints the resolved configuration, secrets included, as YAML that
// Parse accepts. Use Redacted before showing it to people.
func (c *Config) Marshal() ([]byte, error) {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(c); err != nil {
		return nil, fmt.Errorf("print config: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("print config: %w", err)
	}
	return out.Bytes(), nil
}

// Redacted returns a copy in which literal API keys are hidden. What it prints
// still parses.
func (c *Config) Redacted() *Config {
	r := *c
	r.Gateway.APIKeys = make([]APIKey, len(c.Gateway.APIKeys))
	for i, k := range c.Gateway.APIKeys {
		if k.Value != "" {
			k.Value = fmt.Sprintf("hidden-%d", i)
		}
		r.Gateway.APIKeys[i] = k
	}
	return &r
}

// Hash identifies the resolved configuration: blake3 in hex, of everything but
// the secrets. Processes that work together must have equal hashes.
func (c *Config) Hash() string {
	text, err := c.Redacted().Marshal()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	sum := blake3.Sum256(text)
	return hex.EncodeToString(sum[:])
}
