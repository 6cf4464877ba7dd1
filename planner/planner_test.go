package planner

import (
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
