package configs

import (
	"math"
	"testing"
)

func TestDefault(t *testing.T) {
	c := Default()
	for _, w := range c.Warnings(CatalogGeometry) {
		t.Error(w)
	}
	m, _ := c.Model("atlas")
	capacity, err := c.Capacity(m, CatalogGeometry)
	if err != nil {
		t.Fatal(err)
	}
	if capacity.Tokens != 4608 || capacity.AloneTokens != 1024 || capacity.NLSC != 256 || capacity.NRC != 32 {
		t.Errorf("capacity of atlas: %+v", capacity)
	}
}

// TestExamples: every example is free of warnings and lends what it says.
func TestExamples(t *testing.T) {
	type want struct {
		units         map[string]Bytes
		master        string
		tokens, alone int
	}
	for name, w := range map[string]want{
		"default.yaml":          {map[string]Bytes{"birch": 192 << 10, "cedar": 320 << 10}, "atlas", 4608, 1024},
		"recall.yaml":           {map[string]Bytes{"birch": 192 << 10, "cedar": 320 << 10}, "atlas", 37824, 5120},
		"swiftcache-4xh20.yaml": {map[string]Bytes{"Qwen3-8B": 72 << 20, "Qwen3-14B": 40 << 20, "Qwen3-32B": 8 << 20}, "LWM-1M-Text", 407_040, 148_992},
		"h100-qwen3.yaml":       {map[string]Bytes{"qwen3-14b": 20 << 20, "qwen3-8b": 16 << 20, "qwen3-8b-short": 16 << 20}, "qwen3-32b", 538_816, 37_888},
	} {
		c, err := Parse(mustExample(name), name)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range c.Warnings(CatalogGeometry) {
			t.Error(v)
		}
		for model, bytes := range w.units {
			m, _ := c.Model(model)
			spec, err := c.UnitSpec(m, CatalogGeometry)
			if err != nil || Bytes(spec.Bytes) != bytes {
				t.Errorf("%s: unit of %s is %v (%v), want %v", name, model, Bytes(spec.Bytes), err, bytes)
			}
		}
		m, _ := c.Model(w.master)
		got, err := c.Capacity(m, CatalogGeometry)
		if err != nil || got.Tokens != w.tokens || got.AloneTokens != w.alone {
			t.Errorf("%s: %+v (%v), want %d tokens, %d alone", name, got, err, w.tokens, w.alone)
		}
		if got.NRC == 0 {
			continue
		}
		// SwiftCache Fig. 9: ratio = 1 + (L-1)/L * sum C_w / C_m while the
		// regular cache exists, up to rounding to whole blocks.
		g, err := m.Geometry(CatalogGeometry)
		if err != nil {
			t.Fatal(err)
		}
		layers := float64(g.Layers)
		ideal := 1 + float64(got.Buffers)*(layers/float64(got.Buffers)-1)/layers*float64(got.KWorkers)*layers/float64(got.KMaster)
		if ratio := float64(got.Tokens) / float64(got.AloneTokens); math.Abs(ratio-ideal) > 0.01 {
			t.Errorf("%s: lending multiplies the context by %.3f, Fig. 9 says %.3f", name, ratio, ideal)
		}
	}
}
