package elastic

import (
	"errors"
	"testing"
)

// keeper can do without the blocks of some units.
type keeper struct {
	u      *Units
	units  []int
	broken bool // promises what it does not do
}

func (k *keeper) Vacatable() int { return len(k.units) }

func (k *keeper) Vacate(n int) {
	if k.broken {
		return
	}
	for _, unit := range k.units[:n] {
		if err := k.u.Space().Free(k.u.Space().BlocksIn(unit)); err != nil {
			panic(err)
		}
	}
	k.units = k.units[n:]
}

// TestGrantVacates: empty units go first, then as many as are needed of those
// that can be vacated, and the floor stands.
func TestGrantVacates(t *testing.T) {
	g := Geometry{Name: "w", Layers: 2, BlockTokens: 4, KVHeads: 1, HeadDim: 4, ElemBytes: 2}
	spec, err := NewUnitSpec(PolicyLCM, 0, g)
	if err != nil {
		t.Fatal(err)
	}
	table, err := FormatUnitTable(make([]byte, UnitTableBytes(6)), spec, 6*spec.Bytes, 0)
	if err != nil {
		t.Fatal(err)
	}
	u, err := NewUnits(UnitsOptions{Geometry: g, Spec: spec, Floor: spec.Bytes, Table: table})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.Space().Alloc(4 * spec.PerUnit["w"]); err != nil {
		t.Fatal(err)
	}
	if n := u.Grantable(); n != 2 {
		t.Fatalf("%d units can be lent, want the 2 empty ones", n)
	}
	k := &keeper{u: u}
	for unit := range 6 {
		if u.Space().UsedSlots(unit) > 0 {
			k.units = append(k.units, unit)
		}
	}
	u.SetVacator(k)
	if n := u.Grantable(); n != 5 {
		t.Fatalf("%d units can be lent, want 5: all above the floor", n)
	}
	for _, step := range []struct{ want, left int }{{1, 4}, {2, 3}, {9, 1}} {
		if _, err := u.Grant(1, 1, step.want, 1); err != nil {
			t.Fatal(err)
		}
		if len(k.units) != step.left {
			t.Fatalf("%d units with blocks are left after a grant of %d, want %d", len(k.units), step.want, step.left)
		}
		for _, err := range u.Check() {
			t.Error(err)
		}
	}
	if _, err := u.Grant(1, 1, 1, 1); !errors.Is(err, ErrNoUnits) {
		t.Fatalf("a grant below the floor: %v", err)
	}
}

// TestBrokenVacatorPanics: units with blocks are never lent.
func TestBrokenVacatorPanics(t *testing.T) {
	g := Geometry{Name: "w", Layers: 1, BlockTokens: 4, KVHeads: 1, HeadDim: 4, ElemBytes: 2}
	spec, err := NewUnitSpec(PolicyLCM, 0, g)
	if err != nil {
		t.Fatal(err)
	}
	table, err := FormatUnitTable(make([]byte, UnitTableBytes(1)), spec, spec.Bytes, 0)
	if err != nil {
		t.Fatal(err)
	}
	u, err := NewUnits(UnitsOptions{Geometry: g, Spec: spec, Table: table})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.Space().Alloc(1); err != nil {
		t.Fatal(err)
	}
	u.SetVacator(&keeper{u: u, units: []int{0}, broken: true})
	defer func() {
		if recover() == nil {
			t.Error("a unit with blocks was lent")
		}
	}()
	u.Grant(1, 1, 1, 1)
}
