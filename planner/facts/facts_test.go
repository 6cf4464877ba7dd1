package facts

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/configs"
)

func TestGPUs(t *testing.T) {
	g, err := LookupGPU("h20")
	want := GPU{Name: "H20", Memory: 96e9, MemoryBandwidth: 4e12, FLOPS: 148e12, NVLink: 450e9, PCIe: "Gen5 x16", PCIeBandwidth: 16 * 3.938e9}
	if err != nil || g != want {
		t.Errorf("H20: %+v, %v, want %+v", g, err, want)
	}
	all := GPUs()
	if len(all) < 10 || !slices.IsSortedFunc(all, func(a, b GPU) int { return strings.Compare(a.Name, b.Name) }) {
		t.Errorf("%d GPUs, sorted by name? %v", len(all), all)
	}
	if l4, err := LookupGPU("L4"); err != nil || l4.NVLink != 0 {
		t.Errorf("L4: %+v, %v: it has no NVLink", l4, err)
	}
}

func TestModels(t *testing.T) {
	m, err := LookupModel("qwen3-30b-a3b")
	if err != nil || m.Experts == nil || *m.Experts != (Experts{128, 8, 768}) || m.WeightBytes(2) != 61064220672 {
		t.Errorf("Qwen3-30B-A3B: %+v, %v", m, err)
	}
	lwm, err := LookupModel("LWM-1M-Text")
	if g := lwm.Geometry(16, 2); err != nil || g.TokenBytes() != 512<<10 || g.Name != "LWM-1M-Text" || lwm.Experts != nil {
		t.Errorf("LWM: %+v, %v", g, err)
	}
}

// TestCatalogAgrees: configurations find the same shapes under catalog:NAME.
func TestCatalogAgrees(t *testing.T) {
	catalog := configs.Catalog()
	for _, m := range Models() {
		c, ok := catalog[configs.SourceCatalog+m.Name]
		got := configs.CatalogModel{
			Layers: m.Layers, QHeads: m.QHeads, KVHeads: m.KVHeads, HeadDim: m.HeadDim, Hidden: m.Hidden, FFN: m.FFN,
			Vocab: m.Vocab, MaxContext: m.MaxContext, Tied: m.Tied, Params: m.Params, ActiveParams: m.ActiveParams, Note: m.Note,
		}
		if e := m.Experts; e != nil && (c.Experts == nil || *c.Experts != configs.Experts(*e)) || (e == nil) != (c.Experts == nil) {
			t.Errorf("%s: experts %+v, the catalog says %+v", m.Name, e, c.Experts)
		}
		if c.Experts = nil; !ok || got != c {
			t.Errorf("%s: %+v, the catalog says %+v", m.Name, got, c)
		}
		delete(catalog, configs.SourceCatalog+m.Name)
	}
	for source := range catalog {
		if strings.HasPrefix(source, configs.SourceCatalog) {
			t.Errorf("%s is not in models.json", source)
		}
	}
}

func TestUnknownListsWhatIsKnown(t *testing.T) {
	_, err := LookupGPU("H2000")
	var u *UnknownError
	if !errors.As(err, &u) || u.Name != "H2000" || !strings.Contains(err.Error(), `no GPU "H2000"`) || !strings.Contains(err.Error(), "A100-80G-SXM, B200-SXM") {
		t.Errorf("error %v", err)
	}
	if _, err := LookupModel(""); err == nil || !strings.Contains(err.Error(), "Qwen3-8B") {
		t.Errorf("error %v", err)
	}
}

// TestDamagedTables: a wrong figure is refused with its name, value and range.
func TestDamagedTables(t *testing.T) {
	const goodGPU = `"mem_gb":96,"hbm_tbs":4,"bf16_dense_tflops":148,"nvlink_gbs_per_dir":450,"pcie":"Gen5 x16"`
	if all, err := parseGPUs([]byte(`{"x":{` + goodGPU + `}}`)); err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	for _, c := range []struct{ old, new, want string }{
		{`"mem_gb":96`, `"mem_gb":0`, "x: mem_gb is 0, want 1 to 10000"},
		{`"hbm_tbs":4`, `"hbm_tbs":-4`, "hbm_tbs is -4"},
		{`450`, `-1`, "nvlink_gbs_per_dir is -1, want 0 to"},
		{`Gen5 x16`, `Gen9 x16`, `pcie is "Gen9 x16", want a slot such as`},
		{`"pcie"`, `"pci"`, `unknown field "pci"`},
	} {
		_, err := parseGPUs([]byte(`{"x":{` + strings.Replace(goodGPU, c.old, c.new, 1) + `}}`))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s for %s: %v", c.new, c.old, err)
		}
	}
	for _, c := range []struct{ old, new, want string }{
		{`"layers": 32`, `"layers": 0`, "layers is 0, want 1 to"},
		{`"kv_bytes_per_token": 524288`, `"kv_bytes_per_token": 5`, "kv_bytes_per_token is 5, want 524288"},
		{`"weights_gib_fp16": 12.55`, `"weights_gib_fp16": 12.6`, "is 1260, want 1255"},
		{`"active": 6607077376`, `"active": 9907077376`, "active is"},
		{`"moe": null`, `"moe": [1]`, "moe is [1], want null"},
	} {
		text := strings.Replace(string(modelsJSON), c.old, c.new, 1)
		if _, err := parseModels([]byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s for %s: %v", c.new, c.old, err)
		}
	}
	if _, err := parseModels(append(slices.Clone(modelsJSON), "{}"...)); err == nil {
		t.Error("text after the table was accepted")
	}
}
