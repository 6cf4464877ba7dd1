package planner

import (
	"slices"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/configs"
)

func resolve(t *testing.T, cfg *configs.Config) *System {
	t.Helper()
	s, err := Resolve(cfg, configs.CatalogGeometry)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDefault pins what the built-in default promises: 256 blocks to borrow,
// 4.5 times the context.
func TestDefault(t *testing.T) {
	s := resolve(t, configs.Default())
	m := s.Model("atlas")
	tokens, alone := m.MaxTokens()
	if tokens != 4608 || alone != 1024 || m.Capacity.NLSC != 256 || m.Capacity.NRC != 32 {
		t.Errorf("atlas: %d tokens, %d alone, N_LSC %d, N_RC %d", tokens, alone, m.Capacity.NLSC, m.Capacity.NRC)
	}
	want := map[string]struct{ unit, k int }{"birch": {192 << 10, 96}, "cedar": {320 << 10, 160}}
	for _, l := range m.Lenders {
		w := want[l.Worker.Config.Name]
		if int(l.Worker.Unit.Bytes) != w.unit || l.Blocks != w.k {
			t.Errorf("%s: unit %d, K %d, want %+v", l.Worker.Config.Name, l.Worker.Unit.Bytes, l.Blocks, w)
		}
	}
	if got, want := m.AllocBytes(), m.Arena+int64(m.Config.MaxRunning)*m.Geometry.FullBlockBytes(); got != want {
		t.Errorf("allocation of atlas: %d, want %d (arena and tails)", got, want)
	}
}

// TestExamples: every example resolves, workers hold their own sequences, and
// lending never shortens a master's context.
func TestExamples(t *testing.T) {
	for _, name := range configs.ExampleNames() {
		text, err := configs.Example(name)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := configs.Parse(text, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range resolve(t, cfg).Models {
			tokens, alone := m.MaxTokens()
			if tokens < alone || alone <= 0 {
				t.Errorf("%s: %s holds %d tokens with lending, %d without", name, m.Config.Name, tokens, alone)
			}
			if m.Config.Role == configs.RoleWorker && (m.Units == 0 || m.Lendable > m.Units) {
				t.Errorf("%s: %s has %d units, %d lendable", name, m.Config.Name, m.Units, m.Lendable)
			}
		}
	}
}

func TestUnknownSourceNamesTheModel(t *testing.T) {
	cfg := *configs.Default()
	cfg.Models = append([]configs.Model(nil), cfg.Models...)
	cfg.Models[1].Source = "catalog:none"
	_, err := Resolve(&cfg, configs.CatalogGeometry)
	if err == nil || !strings.Contains(err.Error(), "models[1] (birch)") {
		t.Fatalf("error %v", err)
	}
}

// TestLendersByBandwidth: memory behind the fastest link is asked for first.
func TestLendersByBandwidth(t *testing.T) {
	const models = `
version: 1
devices: [{name: g0}, {name: g1}, {name: g2}, {name: g3}]
models:
  - {name: m, source: builtin:random-atlas, role: master, device: g0, arena: 4MiB}
  - {name: a, source: builtin:random-birch, role: worker, device: g1, arena: 4MiB}
  - {name: b, source: builtin:random-birch, role: worker, device: g2, arena: 4MiB}
  - {name: c, source: builtin:random-birch, role: worker, device: g3, arena: 4MiB}
  - {name: d, source: builtin:random-birch, role: worker, device: g2, arena: 4MiB}
  - {name: e, source: builtin:random-birch, role: worker, device: g0, arena: 4MiB}
`
	for links, want := range map[string]string{
		"": "e a b c d",
		"links: [{from: g0, to: g1, bandwidth: 1GB/s}, {from: g0, to: g2, bandwidth: 9GB/s}, {from: g3, to: g0, bandwidth: 4GB/s}]":                             "e b d c a",
		"links: [{from: g1, to: g0, bandwidth: 4GB/s, oneway: true}, {from: g0, to: g1, bandwidth: 9GB/s, oneway: true}, {from: g2, to: g0, bandwidth: 5GB/s}]": "e b d a c",
	} {
		cfg, err := configs.Parse([]byte(models+links), "x")
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, l := range resolve(t, cfg).Model("m").Lenders {
			names = append(names, l.Worker.Config.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q: asked in the order %s, want %s", links, got, want)
		}
	}
}

func TestShares(t *testing.T) {
	cfg, err := configs.Parse([]byte(`
version: 1
devices: [{name: g0}, {name: g1}]
models:
  - {name: m, source: builtin:random-atlas, role: master, device: g0, arena: 4MiB}
  - name: w
    source: builtin:random-birch
    role: worker
    device: g1
    arena: 6528KiB
    floor: 384KiB
    shares: [{master: n, weight: 3, quota: 50%}, {master: m, quota: 0.01%}]
  - {name: n, source: builtin:random-atlas, role: master, device: g0, arena: 4MiB}
`), "x")
	if err != nil {
		t.Fatal(err)
	}
	want := []Share{{Owner: 2, Weight: 3, Quota: 16}, {Owner: 0, Weight: 1, Quota: 1}} // of 32 units
	if got := resolve(t, cfg).Model("w").Shares; !slices.Equal(got, want) {
		t.Errorf("shares %+v, want %+v", got, want)
	}
}
