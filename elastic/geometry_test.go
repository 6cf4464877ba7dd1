package elastic

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// The models of SwiftCache Table 2, with B = 16 and fp16.
var (
	lwm      = Geometry{Name: "LWM", Layers: 32, BlockTokens: 16, KVHeads: 32, HeadDim: 128, ElemBytes: 2}
	qwen8B   = Geometry{Name: "Qwen3-8B", Layers: 36, BlockTokens: 16, KVHeads: 8, HeadDim: 128, ElemBytes: 2}
	qwen14B  = Geometry{Name: "Qwen3-14B", Layers: 40, BlockTokens: 16, KVHeads: 8, HeadDim: 128, ElemBytes: 2}
	qwen32B  = Geometry{Name: "Qwen3-32B", Layers: 64, BlockTokens: 16, KVHeads: 8, HeadDim: 128, ElemBytes: 2}
	atlas    = Geometry{Name: "atlas", Layers: 8, BlockTokens: 16, KVHeads: 4, HeadDim: 32, ElemBytes: 2}
	birch    = Geometry{Name: "birch", Layers: 6, BlockTokens: 16, KVHeads: 2, HeadDim: 32, ElemBytes: 2}
	cedar    = Geometry{Name: "cedar", Layers: 5, BlockTokens: 16, KVHeads: 1, HeadDim: 64, ElemBytes: 2}
	policies = Policies()
)

func TestTokenBytes(t *testing.T) {
	for _, c := range []struct {
		g               Geometry
		token, layerBlk int64
	}{
		{lwm, 512 << 10, 256 << 10}, {qwen8B, 144 << 10, 64 << 10},
		{qwen14B, 160 << 10, 64 << 10}, {qwen32B, 256 << 10, 64 << 10},
	} {
		if c.g.TokenBytes() != c.token || c.g.LayerBlockBytes() != c.layerBlk {
			t.Errorf("%s: %d bytes per token, layer block %d", c.g.Name, c.g.TokenBytes(), c.g.LayerBlockBytes())
		}
	}
}

// TestUnitVectors checks Eq. 8 and 9 on every pair of Table 2.
func TestUnitVectors(t *testing.T) {
	for _, c := range []struct {
		m, w       Geometry
		elems      int64
		meuM, meuI int
	}{
		{lwm, qwen8B, 18_874_368, 9, 32}, {lwm, qwen14B, 10_485_760, 5, 16},
		{lwm, qwen32B, 2_097_152, 1, 2}, {qwen8B, qwen14B, 5_898_240, 10, 9},
		{qwen8B, qwen32B, 9_437_184, 16, 9}, {qwen14B, qwen32B, 5_242_880, 8, 5},
	} {
		elems, err := LCM(c.m.BlockElems(), c.w.BlockElems())
		if err != nil || elems != c.elems {
			t.Errorf("%s, %s: LCM is %d elements (%v), want %d", c.m.Name, c.w.Name, elems, err, c.elems)
		}
		spec, err := NewUnitSpec(PolicyLCM, 0, c.w, c.m)
		if err != nil {
			t.Fatal(err)
		}
		if spec.Bytes != 2*2*c.elems || spec.PerUnit[c.m.Name] != c.meuM || spec.PerUnit[c.w.Name] != c.meuI || spec.Waste != 0 {
			t.Errorf("%s, %s: %+v, want MEU %d:%d", c.m.Name, c.w.Name, spec, c.meuM, c.meuI)
		}
	}
	all, err := NewUnitSpec(PolicyLCM, 0, qwen8B, lwm, qwen14B, qwen32B)
	if err != nil || all.Bytes != 360<<20 {
		t.Errorf("all four models: unit of %d bytes (%v), want 360 MiB", all.Bytes, err)
	}
	layers, err := NewUnitSpec(PolicyLayerLCM, 0, qwen8B, lwm, qwen14B, qwen32B)
	if err != nil || layers.Bytes != 256<<10 || layers.PerUnit["LWM"] != 1 || layers.PerUnit["Qwen3-8B"] != 4 {
		t.Errorf("layer-lcm: %+v (%v), want 256 KiB, 1:4", layers, err)
	}
}

// TestUnitMixedTypes uses a worker in f32: bytes are counted, not elements.
func TestUnitMixedTypes(t *testing.T) {
	w := Geometry{Name: "w", Layers: 3, BlockTokens: 16, KVHeads: 1, HeadDim: 16, ElemBytes: 4} // 6144 B
	m := Geometry{Name: "m", Layers: 3, BlockTokens: 16, KVHeads: 1, HeadDim: 16, ElemBytes: 2} // 3072 B
	spec, err := NewUnitSpec(PolicyLCM, 0, w, m)
	if err != nil || spec.Bytes != 6144 || spec.PerUnit["w"] != 1 || spec.PerUnit["m"] != 2 {
		t.Errorf("%+v, %v", spec, err)
	}
}

func TestCapacity(t *testing.T) {
	g := Geometry{Name: "m", Layers: 10, BlockTokens: 16, KVHeads: 1, HeadDim: 16, ElemBytes: 2}
	arena := 100 * g.LayerBlockBytes()
	for _, c := range []struct {
		name     string
		workers  []int
		buffers  int
		nlsc, rc int
	}{
		{"the paper's example", []int{9, 8}, 1, 17, 8},
		{"no workers", nil, 1, 0, 10},
		{"workers fill the arena", []int{60, 40}, 1, 100, 0},
		{"more than the arena", []int{90, 40}, 1, 100, 0},
		{"two buffers", []int{9, 8}, 2, 17, 6},
		{"two buffers, more than the arena", []int{90, 40}, 2, 50, 0},
	} {
		got, err := NewCapacity(g, arena+g.LayerBlockBytes()-1, c.workers, c.buffers)
		if err != nil {
			t.Fatal(err)
		}
		if got.KMaster != 100 || got.NLSC != c.nlsc || got.NRC != c.rc || got.Blocks != c.nlsc+c.rc || got.AloneBlocks != 10 || got.LSCSlots != c.nlsc*c.buffers {
			t.Errorf("%s: %+v, want N_LSC %d and N_RC %d", c.name, got, c.nlsc, c.rc)
		}
	}
	if _, err := NewCapacity(g, arena, nil, 3); err == nil {
		t.Error("three buffers were accepted")
	}
	if _, err := NewCapacity(g, arena, []int{-1}, 1); err == nil {
		t.Error("a negative worker was accepted")
	}
}

func TestWorkerBlocks(t *testing.T) {
	if k := lwm.FullBlocks(3*lwm.FullBlockBytes() + 1); k != 3 {
		t.Errorf("K_i is %d, want 3", k)
	}
	if k := lwm.FullBlocks(-5); k != 0 {
		t.Errorf("K_i of negative memory is %d", k)
	}
}

func TestUnitSpecRefusals(t *testing.T) {
	bad := Geometry{Name: "bad", Layers: 0, BlockTokens: 16, KVHeads: 1, HeadDim: 16, ElemBytes: 2}
	prime := func(name string, layers, tokens, heads, dim int) Geometry {
		return Geometry{Name: name, Layers: layers, BlockTokens: tokens, KVHeads: heads, HeadDim: dim, ElemBytes: 1}
	}
	// Products of large primes: their LCM does not fit.
	a := prime("a", 4093, 65521, 4091, 16381)
	b := prime("b", 4079, 65519, 4073, 16369)
	for name, f := range map[string]func() (UnitSpec, error){
		"geometry":       func() (UnitSpec, error) { return NewUnitSpec(PolicyLCM, 0, lwm, bad) },
		"policy":         func() (UnitSpec, error) { return NewUnitSpec("best", 0, lwm) },
		"same name":      func() (UnitSpec, error) { return NewUnitSpec(PolicyLCM, 0, lwm, lwm) },
		"waste of 1":     func() (UnitSpec, error) { return NewUnitSpec(PolicyPadded, 1, lwm) },
		"negative waste": func() (UnitSpec, error) { return NewUnitSpec(PolicyPadded, -0.1, lwm) },
		"waste NaN":      func() (UnitSpec, error) { return NewUnitSpec(PolicyPadded, math.NaN(), lwm) },
		"tiny waste":     func() (UnitSpec, error) { return NewUnitSpec(PolicyPadded, 1e-12, a, b) },
	} {
		if spec, err := f(); err == nil {
			t.Errorf("%s: accepted, %+v", name, spec)
		}
	}
	if _, err := NewUnitSpec(PolicyLCM, 0, a, b); !errors.Is(err, ErrOverflow) {
		t.Errorf("overflow: %v", err)
	}
}

// TestUnitSpecProperties draws geometries and checks each policy against its
// definition, padded by brute force.
func TestUnitSpecProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		models := make([]Geometry, rapid.IntRange(1, 3).Draw(t, "models"))
		for i := range models {
			models[i] = Geometry{
				Name: string(rune('a' + i)), Layers: rapid.IntRange(1, 7).Draw(t, "layers"), BlockTokens: 1,
				KVHeads: rapid.IntRange(1, 5).Draw(t, "heads"), HeadDim: 1, ElemBytes: rapid.SampledFrom([]int{1, 2}).Draw(t, "elem"),
			}
		}
		policy := rapid.SampledFrom(policies).Draw(t, "policy")
		limit := rapid.SampledFrom([]float64{0, 0.02, 0.1, 0.3, 0.9}).Draw(t, "waste")
		spec, err := NewUnitSpec(policy, limit, models[0], models[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		ok := func(unit int64) bool {
			for _, g := range models {
				piece := spec.piece(g)
				if unit < piece || policy != PolicyPadded && unit%piece != 0 || waste(unit, piece) > limit && policy == PolicyPadded {
					return false
				}
			}
			return true
		}
		for unit := int64(1); unit < spec.Bytes; unit++ {
			if ok(unit) {
				t.Fatalf("%d bytes would do, got %d", unit, spec.Bytes)
			}
		}
		if !ok(spec.Bytes) {
			t.Fatalf("a unit of %d bytes does not do", spec.Bytes)
		}
		g := models[0]
		for n := range 40 {
			if units := spec.UnitsFor(g, n); spec.BlocksPer(g, units) < n || units > 0 && spec.BlocksPer(g, units-1) >= n {
				t.Fatalf("%d blocks in %d units", n, units)
			}
		}
	})
}

func TestDivideAndFloor(t *testing.T) {
	spec := UnitSpec{Bytes: 192 << 10}
	const arena = 6528 << 10
	if n, rest := spec.Divide(arena + 5); n != 34 || rest != 5 {
		t.Errorf("%d units, remainder %d", n, rest)
	}
	for _, c := range []struct {
		floor int64
		want  int
	}{{0, 34}, {384 << 10, 32}, {1, 33}, {arena, 0}, {arena + 1, 0}, {-7, 34}} {
		if n := spec.Lendable(arena, c.floor); n != c.want {
			t.Errorf("floor %d: %d lendable, want %d", c.floor, n, c.want)
		}
	}
}

func TestUnitsWithin(t *testing.T) {
	s := UnitSpec{Policy: PolicyLayerLCM, Bytes: 64 << 10, PerUnit: map[string]int{"m": 1, "w": 4}, Waste: 0.1}
	if got := s.Within(100<<20, MaxUnits); got.Bytes != s.Bytes {
		t.Errorf("an arena of few units: they have %d bytes, want %d", got.Bytes, s.Bytes)
	}
	const arena = 100 << 30
	got := s.Within(arena, MaxUnits)
	if n, _ := got.Divide(arena); n > MaxUnits || n < MaxUnits/2 {
		t.Errorf("%d units of %d bytes, want at most %d and few times less", n, got.Bytes, MaxUnits)
	}
	if k := int(got.Bytes / s.Bytes); got.Bytes%s.Bytes != 0 || got.PerUnit["m"] != k || got.PerUnit["w"] != 4*k || got.Waste != s.Waste {
		t.Errorf("%+v is no multiple of %+v", got, s)
	}
	if s.PerUnit["w"] != 4 {
		t.Error("the unit that was asked has changed")
	}
}
