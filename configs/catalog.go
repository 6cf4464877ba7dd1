package configs

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/kvlend/kvlend/elastic"
)

//go:embed catalog.json
var catalogJSON []byte

// CatalogModel is what the catalog knows of a model. Built-in models have only
// their KV geometry here; the engine knows the rest.
type CatalogModel struct {
	Layers       int      `json:"layers"`
	QHeads       int      `json:"q_heads"`
	KVHeads      int      `json:"kv_heads"`
	HeadDim      int      `json:"head_dim"`
	Hidden       int      `json:"hidden"`
	FFN          int      `json:"ffn"`
	Experts      *Experts `json:"experts,omitempty"` // nil: dense
	Vocab        int      `json:"vocab"`
	MaxContext   int      `json:"max_context"` // tokens
	Tied         bool     `json:"tied"`        // input and output embeddings are one
	Params       int64    `json:"params"`
	ActiveParams int64    `json:"active_params"` // read per token
	Note         string   `json:"note,omitempty"`
}

// Experts is a mixture of experts.
type Experts struct {
	Count  int `json:"count"`
	Active int `json:"active"` // per token
	FFN    int `json:"ffn"`    // of one expert
}

// Catalog returns the known models by source: "catalog:Qwen3-8B",
// "builtin:atlas".
func Catalog() map[string]CatalogModel {
	var models map[string]CatalogModel
	if err := json.Unmarshal(catalogJSON, &models); err != nil {
		panic("BUG: catalog.json: " + err.Error())
	}
	return models
}

// GeometryFunc finds the geometry of a model by Model.Source. Only Layers,
// KVHeads and HeadDim need to be set; the rest comes from the config.
type GeometryFunc func(source string) (elastic.Geometry, error)

// UnknownSourceError says that a GeometryFunc cannot know a source.
type UnknownSourceError struct {
	Source string
	Near   string // a known source that resembles it, or ""
}

func (e *UnknownSourceError) Error() string {
	if e.Near != "" {
		return fmt.Sprintf("no model %q, did you mean %q?", e.Source, e.Near)
	}
	return fmt.Sprintf("no model %q in the catalog", e.Source)
}

// CatalogGeometry is the GeometryFunc of the catalog's models, built-in ones
// included. Everything else is an *UnknownSourceError.
func CatalogGeometry(source string) (elastic.Geometry, error) {
	models := Catalog()
	m, ok := models[source]
	if !ok {
		known := slices.Sorted(maps.Keys(models))
		lower := make(map[string]string, len(known))
		for i, k := range known {
			known[i] = strings.ToLower(k)
			lower[known[i]] = k
		}
		return elastic.Geometry{}, &UnknownSourceError{source, lower[nearest(source, known)]}
	}
	return elastic.Geometry{Layers: m.Layers, KVHeads: m.KVHeads, HeadDim: m.HeadDim}, nil
}

// Geometry is the KV geometry of a model of this config, named as the model.
func (m *Model) Geometry(find GeometryFunc) (elastic.Geometry, error) {
	g, err := find(m.Source)
	if err != nil {
		return elastic.Geometry{}, err
	}
	g.Name = m.Name
	g.BlockTokens = m.BlockTokens
	g.ElemBytes = 2
	if m.KVDtype == "f32" {
		g.ElemBytes = 4
	}
	return g, g.Validate()
}

// UnitSpec is the unit of a worker, agreed with every master that may borrow
// from it: that of the policy, or a multiple of it where the arena would have more
// than elastic.MaxUnits. A worker that nobody borrows from has units of its own
// full blocks.
func (c *Config) UnitSpec(worker *Model, find GeometryFunc) (elastic.UnitSpec, error) {
	g, err := worker.Geometry(find)
	if err != nil {
		return elastic.UnitSpec{}, err
	}
	var masters []elastic.Geometry
	for _, m := range c.Masters(worker) {
		mg, err := m.Geometry(find)
		if err != nil {
			return elastic.UnitSpec{}, err
		}
		masters = append(masters, mg)
	}
	spec, err := elastic.NewUnitSpec(c.Lending.Unit.Policy, c.Lending.Unit.MaxWaste.Fraction(), g, masters...)
	if err != nil {
		return elastic.UnitSpec{}, err
	}
	return spec.Within(int64(worker.Arena), elastic.MaxUnits), nil
}

// Quota is how many of the units that a worker can lend a master may hold at
// once. A quota of less than a unit would be none at all.
func (w *Model) Quota(master string, lendable int) int {
	for _, s := range w.Shares {
		if s.Master == master {
			return min(lendable, max(1, int(float64(lendable)*s.Quota.Fraction())))
		}
	}
	return lendable
}

// Capacity is what a master can hold, with everything that its workers may
// lend it and without.
func (c *Config) Capacity(master *Model, find GeometryFunc) (elastic.Capacity, error) {
	g, err := master.Geometry(find)
	if err != nil {
		return elastic.Capacity{}, err
	}
	var lendable []int
	for _, w := range c.Workers(master) {
		spec, err := c.UnitSpec(w, find)
		if err != nil {
			return elastic.Capacity{}, err
		}
		units := w.Quota(master.Name, spec.Lendable(int64(w.Arena), int64(w.Floor)))
		lendable = append(lendable, spec.BlocksPer(g, units))
	}
	for _, d := range master.Overflow.Devices {
		// Disks hold what can be streamed, too. Nearly all of one is blocks.
		lendable = append(lendable, int(min(int64(d.Size)*15/16/g.FullBlockBytes(), math.MaxInt32)))
	}
	return elastic.NewCapacity(g, int64(master.Arena), lendable, master.LSC.Buffers)
}
