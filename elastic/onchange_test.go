package elastic

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestOnChange: the hook runs once per change of hands, while the table still
// shows the old state and before the new owner can have the unit.
func TestOnChange(t *testing.T) {
	spec, err := NewUnitSpec(PolicyLCM, 0, birch, atlas)
	if err != nil {
		t.Fatal(err)
	}
	arena := 4 * spec.Bytes
	table := mustTable(t, spec, arena)
	var u *Units
	var calls []string
	hook := func(unit int, to State) {
		row := table.Row(unit)
		if row.State == to {
			t.Errorf("unit %d is %s already", unit, to)
		}
		if u.Space().Has(unit) {
			t.Errorf("unit %d may be handed out by the worker on its way to %s", unit, to)
		}
		calls = append(calls, fmt.Sprintf("%d %s->%s", unit, row.State, to))
	}
	if u, err = NewUnits(UnitsOptions{Geometry: birch, Spec: spec, Table: table, OnChange: hook}); err != nil {
		t.Fatal(err)
	}
	got, err := u.Grant(1, 3, 3, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Return(1, got[0]); err != nil {
		t.Fatal(err)
	}
	if u.Return(1, got[0]) == nil {
		t.Error("returned twice")
	}
	if err := u.MarkReclaim(1, got[1]); err != nil {
		t.Fatal(err)
	}
	if err := u.Return(1, got[1]); err != nil {
		t.Fatal(err)
	}
	epoch, err := u.Fence(1, got[2])
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Unfence(1, UnitEpoch{got[2].Unit, epoch}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"0 LOCAL->LENT", "1 LOCAL->LENT", "2 LOCAL->LENT",
		"0 LENT->LOCAL", "1 RECLAIMING->LOCAL", "2 FENCED->LOCAL",
	}
	if !slices.Equal(calls, want) {
		t.Errorf("calls %q, want %q", calls, want)
	}
	for _, err := range u.Check() {
		t.Error(err)
	}
}
