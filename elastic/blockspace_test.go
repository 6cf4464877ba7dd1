package elastic

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// checked runs a checker when the test ends.
func checked(t *testing.T, check func() []error) {
	t.Helper()
	t.Cleanup(func() {
		for _, err := range check() {
			t.Error(err)
		}
	})
}

func mustSpec(t rapid.TB, p Policy, w Geometry, masters ...Geometry) UnitSpec {
	t.Helper()
	spec, err := NewUnitSpec(p, 0.1, w, masters...)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func mustSpaceOf(t rapid.TB, g Geometry, spec UnitSpec, arena int64, remainder bool) *BlockSpace {
	t.Helper()
	s, err := NewBlockSpace(SpaceOptions{Geometry: g, Spec: spec, Arena: arena, Remainder: remainder})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// spaceMachine drives a BlockSpace against a model: a set of live blocks.
type spaceMachine struct {
	s     *BlockSpace
	arena int64
	live  []BlockID
	units map[int]bool // present: whether it is open
}

// open counts the units that take blocks.
func (m *spaceMachine) open() int {
	n := 0
	for _, open := range m.units {
		if open {
			n++
		}
	}
	return n
}

func (m *spaceMachine) has(u int) bool { _, ok := m.units[u]; return ok }

func (m *spaceMachine) CloseOrOpen(t *rapid.T) {
	u := rapid.IntRange(-1, m.s.units).Draw(t, "unit")
	shut := rapid.Bool().Draw(t, "close")
	free := m.s.FreeBlocks()
	if shut {
		m.s.CloseUnit(u)
	} else {
		m.s.OpenUnit(u)
	}
	if shut && m.s.FreeBlocks() > free || !shut && m.s.FreeBlocks() < free {
		t.Fatalf("free blocks went from %d to %d", free, m.s.FreeBlocks())
	}
	if m.has(u) {
		m.units[u] = !shut
	}
}

func (m *spaceMachine) AddUnit(t *rapid.T) {
	u := rapid.IntRange(-1, m.s.units).Draw(t, "unit")
	err := m.s.AddUnit(u)
	switch {
	case u < 0 || u >= m.s.units:
		expectErr(t, err, ErrUnitUnknown)
	case m.has(u):
		expectErr(t, err, ErrUnitPresent)
	default:
		expectErr(t, err, nil)
		m.units[u] = true
	}
}

func (m *spaceMachine) RemoveUnit(t *rapid.T) {
	u := rapid.IntRange(-1, m.s.units).Draw(t, "unit")
	inUse := false
	for _, id := range m.live {
		inUse = inUse || slices.Contains(m.s.UnitsOf(id), u)
	}
	err := m.s.RemoveUnit(u)
	switch {
	case !m.has(u):
		expectErr(t, err, ErrUnitUnknown)
	case inUse:
		expectErr(t, err, ErrUnitInUse)
	default:
		expectErr(t, err, nil)
		delete(m.units, u)
	}
}

func (m *spaceMachine) Alloc(t *rapid.T) {
	n := rapid.IntRange(-1, 12).Draw(t, "n")
	free := m.s.FreeBlocks()
	ids, err := m.s.Alloc(n)
	if n > free {
		expectErr(t, err, ErrNoBlocks)
		if len(ids) != 0 || m.s.FreeBlocks() != free {
			t.Fatal("a failed Alloc kept blocks")
		}
		return
	}
	expectErr(t, err, nil)
	if len(ids) != max(n, 0) {
		t.Fatalf("%d blocks, want %d", len(ids), n)
	}
	for _, id := range ids {
		if slices.Contains(m.live, id) {
			t.Fatalf("block %d is allocated twice", id)
		}
		for _, u := range m.s.UnitsOf(id) {
			if !m.units[u] {
				t.Fatalf("block %d went to unit %d, which is closed", id, u)
			}
		}
		m.live = append(m.live, id)
	}
}

func (m *spaceMachine) Free(t *rapid.T) {
	if len(m.live) == 0 {
		expectErr(t, m.s.Free([]BlockID{0, -1, 1 << 30}), ErrBadBlock)
		return
	}
	var ids []BlockID
	for range rapid.IntRange(1, min(6, len(m.live))).Draw(t, "n") {
		i := rapid.IntRange(0, len(m.live)-1).Draw(t, "i")
		ids = append(ids, m.live[i])
		m.live = slices.Delete(m.live, i, i+1)
	}
	expectErr(t, m.s.Free(ids), nil)
	expectErr(t, m.s.Free(ids[:1]), ErrBadBlock)
}

func (m *spaceMachine) Victims(t *rapid.T) {
	n := rapid.IntRange(0, 8).Draw(t, "n")
	got := m.s.Victims(n)
	if len(got) != min(n, m.open()) {
		t.Fatalf("%d victims of %d units, want %d", len(got), m.open(), n)
	}
	worst := -1
	for _, u := range got {
		if !m.units[u] || m.s.UsedSlots(u) < worst {
			t.Fatalf("victims %v are not in order", got)
		}
		worst = m.s.UsedSlots(u)
	}
	for u, open := range m.units {
		if open && !slices.Contains(got, u) && n <= m.open() && n > 0 && m.s.UsedSlots(u) < worst {
			t.Fatalf("unit %d is a better victim than %v", u, got)
		}
	}
}

func (m *spaceMachine) Check(t *rapid.T) {
	for _, err := range m.s.Check() {
		t.Fatal(err)
	}
	if m.s.UsedBlocks() != len(m.live) || m.s.Units() != len(m.units) {
		t.Fatalf("%d blocks in %d units, want %d in %d", m.s.UsedBlocks(), m.s.Units(), len(m.live), len(m.units))
	}
	empty := 0
	for u, open := range m.units {
		ids := m.s.BlocksIn(u)
		if (len(ids) == 0) != (m.s.UsedSlots(u) == 0) {
			t.Fatalf("unit %d: %d blocks in %d slots", u, len(ids), m.s.UsedSlots(u))
		}
		if len(ids) == 0 && open {
			empty++
		}
		for _, id := range ids {
			if !slices.Contains(m.s.UnitsOf(id), u) {
				t.Fatalf("block %d is in unit %d but not the other way round", id, u)
			}
		}
	}
	if u, ok := m.s.EmptyUnit(); m.s.EmptyUnits() != empty || ok != (empty > 0) || ok && m.s.UsedSlots(u) != 0 {
		t.Fatalf("%d units are empty, counted %d", empty, m.s.EmptyUnits())
	}
	for _, id := range m.live {
		for l := range m.s.geometry.Layers {
			if e := m.s.Extent(id, l); e.Off < 0 || e.Off+e.Len > m.arena || e.Len != m.s.geometry.LayerBlockBytes() {
				t.Fatalf("block %d, layer %d at %+v, arena %d", id, l, e, m.arena)
			}
			contiguous := m.s.spec.Policy != PolicyLayerLCM
			if e := m.s.Extent(id, l); contiguous && e.Off != m.s.Extent(id, 0).Off+int64(l)*e.Len {
				t.Fatalf("block %d is not contiguous", id)
			}
		}
	}
}

func expectErr(t rapid.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || (want == nil) != (err == nil) {
		t.Fatalf("error is %v, want %v", err, want)
	}
}

func TestBlockSpace(t *testing.T) {
	for _, policy := range policies {
		for _, g := range []Geometry{atlas, birch} {
			t.Run(string(policy)+"/"+g.Name, func(t *testing.T) {
				rapid.Check(t, func(t *rapid.T) {
					spec := mustSpec(t, policy, birch, atlas)
					arena := int64(rapid.IntRange(1, 9).Draw(t, "units"))*spec.Bytes + rapid.Int64Range(0, spec.Bytes-1).Draw(t, "rest")
					own := g.Name == birch.Name
					m := &spaceMachine{s: mustSpaceOf(t, g, spec, arena, own), arena: arena, units: map[int]bool{}}
					t.Repeat(map[string]func(*rapid.T){
						"AddUnit": m.AddUnit, "RemoveUnit": m.RemoveUnit, "CloseOrOpen": m.CloseOrOpen, "Alloc": m.Alloc, "Free": m.Free, "Victims": m.Victims, "": m.Check,
					})
				})
			})
		}
	}
}

// TestFullestFirst frees one block in every unit but one and sees that new
// blocks fill the fullest units while the empty one stays empty.
func TestFullestFirst(t *testing.T) {
	spec := mustSpec(t, PolicyLCM, birch, atlas) // 8 blocks of birch per unit
	s := mustSpaceOf(t, birch, spec, 4*spec.Bytes, true)
	checked(t, s.Check)
	for u := range 4 {
		expectErr(t, s.AddUnit(u), nil)
	}
	ids, err := s.Alloc(32)
	expectErr(t, err, nil)
	expectErr(t, s.Free(ids[0:8]), nil)  // one unit empty
	expectErr(t, s.Free(ids[8:13]), nil) // one with 3 used
	expectErr(t, s.Free(ids[16:17]), nil)
	before := s.UnitsOf(ids[31])
	got, err := s.Alloc(1)
	expectErr(t, err, nil)
	if u := s.UnitsOf(got[0])[0]; u == before[0] || s.UsedSlots(u) != 8 {
		t.Errorf("a block went to a unit with %d used", s.UsedSlots(u))
	}
	_, err = s.Alloc(5)
	expectErr(t, err, nil)
	if s.EmptyUnits() != 1 || s.FreeBlocks() != 8 {
		t.Errorf("%d units are empty, %d blocks are free", s.EmptyUnits(), s.FreeBlocks())
	}
}

// TestRemainderFirst: memory that can never be lent is used first.
func TestRemainderFirst(t *testing.T) {
	spec := mustSpec(t, PolicyLCM, birch, atlas)
	s := mustSpaceOf(t, birch, spec, spec.Bytes+3*birch.FullBlockBytes()+17, true)
	checked(t, s.Check)
	expectErr(t, s.AddUnit(0), nil)
	ids, err := s.Alloc(3)
	expectErr(t, err, nil)
	if s.EmptyUnits() != 1 || len(s.UnitsOf(ids[0])) != 0 || s.LayerUnit(ids[0], 0) != -1 {
		t.Error("the remainder was not used first")
	}
	if off := s.Extent(ids[0], 1).Off; off != spec.Bytes+birch.LayerBlockBytes() {
		t.Errorf("layer 1 of the first block of the remainder is at %d", off)
	}
}

// TestAllocsNothing: steady state allocation makes no garbage.
func TestAllocsNothing(t *testing.T) {
	for _, policy := range policies {
		spec := mustSpec(t, policy, birch, atlas)
		s := mustSpaceOf(t, birch, spec, 400*spec.Bytes, true)
		for u := range s.units {
			expectErr(t, s.AddUnit(u), nil)
		}
		ids := make([]BlockID, 0, 64)
		if n := testing.AllocsPerRun(100, func() {
			ids, _ = s.AppendAlloc(ids[:0], 16)
			_ = s.Free(ids)
		}); n != 0 {
			t.Errorf("%s: %v allocations per round", policy, n)
		}
	}
}

func TestNewBlockSpaceRefusals(t *testing.T) {
	spec := mustSpec(t, PolicyLCM, birch, atlas)
	for name, o := range map[string]SpaceOptions{
		"unknown model": {Geometry: cedar, Spec: spec, Arena: 1 << 20},
		"no spec":       {Geometry: birch, Arena: 1 << 20},
		"bad geometry":  {Geometry: Geometry{Name: "birch"}, Spec: spec, Arena: 1 << 20},
		"spec of another geometry": {Geometry: birch, Arena: 1 << 20,
			Spec: UnitSpec{Policy: PolicyLCM, Bytes: spec.Bytes, PerUnit: map[string]int{"birch": 9}}},
	} {
		if _, err := NewBlockSpace(o); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestExtentPanics(t *testing.T) {
	spec := mustSpec(t, PolicyLayerLCM, birch, atlas)
	s := mustSpaceOf(t, birch, spec, 1<<20, true)
	defer func() {
		if recover() == nil {
			t.Error("the extent of a free block was given")
		}
	}()
	s.Extent(0, 0)
}

func BenchmarkAllocFree(b *testing.B) {
	for _, policy := range policies {
		b.Run(string(policy), func(b *testing.B) {
			spec, err := NewUnitSpec(policy, 0.05, qwen8B, lwm)
			if err != nil {
				b.Fatal(err)
			}
			s, err := NewBlockSpace(SpaceOptions{Geometry: qwen8B, Spec: spec, Arena: 64 << 30, Remainder: true})
			if err != nil {
				b.Fatal(err)
			}
			for u := range s.units {
				if err := s.AddUnit(u); err != nil {
					b.Fatal(err)
				}
			}
			ids := make([]BlockID, 0, 16)
			for b.Loop() {
				ids, _ = s.AppendAlloc(ids[:0], 16)
				_ = s.Free(ids)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/32, "ns/block")
		})
	}
}
