package elastic

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const self = 2 // the worker's owner index in the tests

func mustTable(t rapid.TB, spec UnitSpec, arena int64) *UnitTable {
	t.Helper()
	units, _ := spec.Divide(arena)
	table, err := FormatUnitTable(make([]byte, UnitTableBytes(units)), spec, arena, self)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func mustUnits(t rapid.TB, table *UnitTable, spec UnitSpec, floor int64) *Units {
	t.Helper()
	u, err := NewUnits(UnitsOptions{Geometry: birch, Spec: spec, Floor: floor, Table: table})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// unitsMachine drives Units, its blocks and two borrowers' replicas.
type unitsMachine struct {
	u     *Units
	live  []BlockID
	held  map[uint32]map[UnitEpoch]State // by borrower; FENCED under the new epoch
	stale []UnitEpoch                    // grants that are over
	now   time.Duration
}

func (m *unitsMachine) owner(t *rapid.T) uint32 {
	return rapid.SampledFrom([]uint32{0, 1, 9}).Draw(t, "owner")
}

// pick draws one of an owner's grants in one of the states.
func (m *unitsMachine) pick(t *rapid.T, owner uint32, states ...State) (UnitEpoch, bool) {
	var list []UnitEpoch
	for e, s := range m.held[owner] {
		if slices.Contains(states, s) {
			list = append(list, e)
		}
	}
	if len(list) == 0 {
		return UnitEpoch{}, false
	}
	slices.SortFunc(list, func(a, b UnitEpoch) int { return int(a.Unit) - int(b.Unit) })
	return list[rapid.IntRange(0, len(list)-1).Draw(t, "pick")], true
}

func (m *unitsMachine) Grant(t *rapid.T) {
	owner := m.owner(t)
	least, want := rapid.IntRange(0, 4).Draw(t, "least"), rapid.IntRange(0, 6).Draw(t, "want")
	can := m.u.Grantable()
	got, err := m.u.Grant(owner, least, want, m.now+time.Second)
	if min(want, can) < max(least, 1) {
		expectErr(t, err, ErrNoUnits)
		return
	}
	expectErr(t, err, nil)
	if len(got) != min(want, can) || m.u.Grantable() != can-len(got) {
		t.Fatalf("granted %d of %d wanted, %d possible", len(got), want, can)
	}
	for _, e := range got {
		m.held[owner][e] = Lent
		row := m.u.table.Row(int(e.Unit))
		if row.State != Lent || row.Owner != owner || row.Expiry != (m.now+time.Second).Truncate(time.Millisecond) {
			t.Fatalf("row of a grant at %v: %+v", m.now, row)
		}
	}
}

func (m *unitsMachine) Return(t *rapid.T) {
	owner := m.owner(t)
	e, ok := m.pick(t, owner, Lent, Reclaiming)
	if !ok {
		return
	}
	expectErr(t, m.u.Return(owner+1, e), ErrNotOwner)
	expectErr(t, m.u.Return(owner, e), nil)
	expectErr(t, m.u.Return(owner, e), ErrStaleEpoch)
	delete(m.held[owner], e)
	m.stale = append(m.stale, e)
}

func (m *unitsMachine) MarkReclaim(t *rapid.T) {
	owner := m.owner(t)
	if e, ok := m.pick(t, owner, Lent); ok {
		expectErr(t, m.u.MarkReclaim(owner, e), nil)
		expectErr(t, m.u.MarkReclaim(owner, e), ErrUnitState)
		m.held[owner][e] = Reclaiming
	}
}

func (m *unitsMachine) UnmarkReclaim(t *rapid.T) {
	owner := m.owner(t)
	if e, ok := m.pick(t, owner, Reclaiming); ok {
		expiry := m.u.table.Row(int(e.Unit)).Expiry
		expectErr(t, m.u.UnmarkReclaim(owner, e), nil)
		expectErr(t, m.u.UnmarkReclaim(owner, e), ErrUnitState)
		m.held[owner][e] = Lent
		if now := m.u.table.Row(int(e.Unit)).Expiry; now != expiry {
			t.Fatalf("the lease moved from %v to %v", expiry, now)
		}
	}
}

func (m *unitsMachine) Fence(t *rapid.T) {
	owner := m.owner(t)
	e, ok := m.pick(t, owner, Lent, Reclaiming)
	if !ok {
		return
	}
	epoch, err := m.u.Fence(owner, e)
	expectErr(t, err, nil)
	expectErr(t, m.u.Return(owner, e), ErrStaleEpoch)
	delete(m.held[owner], e)
	m.stale = append(m.stale, e)
	m.held[owner][UnitEpoch{e.Unit, epoch}] = Fenced
}

func (m *unitsMachine) Unfence(t *rapid.T) {
	owner := m.owner(t)
	e, ok := m.pick(t, owner, Fenced)
	if !ok {
		return
	}
	expectErr(t, m.u.Return(owner, e), ErrUnitState)
	expectErr(t, m.u.Unfence(owner, e), nil)
	delete(m.held[owner], e)
	m.stale = append(m.stale, e)
}

func (m *unitsMachine) Renew(t *rapid.T) {
	m.now += time.Duration(rapid.IntRange(0, 5000).Draw(t, "us")) * time.Microsecond
	owner := m.owner(t)
	if e, ok := m.pick(t, owner, Lent, Reclaiming); ok {
		expectErr(t, m.u.Renew(owner, e, m.now+time.Minute), nil)
		left := m.u.table.Remaining(int(e.Unit), m.now)
		if left > time.Minute || left <= time.Minute-time.Millisecond {
			t.Fatalf("a renewed lease has %v left", left)
		}
	}
}

func (m *unitsMachine) Blocks(t *rapid.T) {
	if n := rapid.IntRange(0, 30).Draw(t, "n"); n <= m.u.Space().FreeBlocks() {
		ids, err := m.u.Space().Alloc(n)
		expectErr(t, err, nil)
		m.live = append(m.live, ids...)
		return
	}
	k := len(m.live) / 2
	expectErr(t, m.u.Space().Free(m.live[k:]), nil)
	m.live = m.live[:k]
}

func (m *unitsMachine) Check(t *rapid.T) {
	for _, err := range slices.Concat(m.u.Check(), CheckTable(m.u.table, 0)) {
		t.Fatal(err)
	}
	away := 0
	for owner, held := range m.held {
		var list []UnitEpoch
		for e, s := range held {
			away++
			list = append(list, e)
			if use := m.u.table.MayUse(int(e.Unit), owner, e.Epoch); use != (s != Fenced) {
				t.Fatalf("unit %d, %s: MayUse is %t", e.Unit, s, use)
			}
		}
		for _, err := range CheckReplica(m.u.table, owner, list) {
			t.Fatal(err)
		}
		for s := Lent; s < numStates; s++ {
			n := 0
			for e := range m.u.UnitsOf(owner, s) {
				if held[e] != s {
					t.Fatalf("owner %d has unit %+v as %s", owner, e, s)
				}
				n++
			}
			if n != m.u.CountOf(owner, s) {
				t.Fatalf("owner %d has %d units %s, counted %d", owner, n, s, m.u.CountOf(owner, s))
			}
		}
	}
	if away != m.u.Away() || away > m.u.MaxLent() {
		t.Fatalf("%d units are away, counted %d, at most %d", away, m.u.Away(), m.u.MaxLent())
	}
	for _, e := range m.stale {
		for _, owner := range []uint32{0, 1, 9, self} {
			if m.u.table.MayUse(int(e.Unit), owner, e.Epoch) {
				t.Fatalf("owner %d may use %+v, which is over", owner, e)
			}
		}
	}
}

func TestUnits(t *testing.T) {
	for _, policy := range policies {
		t.Run(string(policy), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				spec := mustSpec(t, policy, birch, atlas)
				arena := int64(rapid.IntRange(1, 12).Draw(t, "units"))*spec.Bytes + rapid.Int64Range(0, spec.Bytes-1).Draw(t, "rest")
				floor := rapid.Int64Range(0, arena).Draw(t, "floor")
				m := &unitsMachine{
					u:    mustUnits(t, mustTable(t, spec, arena), spec, floor),
					held: map[uint32]map[UnitEpoch]State{0: {}, 1: {}, 9: {}},
				}
				t.Repeat(map[string]func(*rapid.T){
					"Grant": m.Grant, "Return": m.Return, "MarkReclaim": m.MarkReclaim, "UnmarkReclaim": m.UnmarkReclaim, "Fence": m.Fence, "Unfence": m.Unfence,
					"Renew": m.Renew, "Blocks": m.Blocks, "": m.Check,
				})
				m.restart(t, spec, floor)
			})
		})
	}
}

// restart opens the book again over the same table, as a new process of the
// worker would: nothing that was lent is forgotten.
func (m *unitsMachine) restart(t *rapid.T, spec UnitSpec, floor int64) {
	again := mustUnits(t, m.u.table, spec, floor)
	for _, err := range again.Check() {
		t.Fatal(err)
	}
	for s := Local; s < numStates; s++ {
		if again.Count(s) != m.u.Count(s) {
			t.Fatalf("after a restart %d units are %s, before %d", again.Count(s), s, m.u.Count(s))
		}
	}
	for owner, held := range m.held {
		for e, s := range held {
			row, err := again.Unit(int(e.Unit))
			if err != nil || row.State != s || row.Owner != owner || row.Epoch != e.Epoch {
				t.Fatalf("after a restart unit %+v is %+v, want %s of %d", e, row, s, owner)
			}
		}
	}
}

func TestUnitsRefusals(t *testing.T) {
	spec := mustSpec(t, PolicyLCM, birch, atlas)
	table := mustTable(t, spec, 4*spec.Bytes)
	other := spec
	other.Bytes *= 2
	for name, o := range map[string]UnitsOptions{
		"no table":       {Geometry: birch, Spec: spec},
		"other unit":     {Geometry: birch, Spec: other, Table: table},
		"negative floor": {Geometry: birch, Spec: spec, Table: table, Floor: -1},
		"huge floor":     {Geometry: birch, Spec: spec, Table: table, Floor: 5 * spec.Bytes},
	} {
		if _, err := NewUnits(o); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	u := mustUnits(t, table, spec, 0)
	checked(t, u.Check)
	for _, owner := range []uint32{self, MaxOwner + 1} {
		if _, err := u.Grant(owner, 1, 1, 0); err == nil {
			t.Errorf("a grant to owner %d was accepted", owner)
		}
	}
	expectErr(t, u.Return(0, UnitEpoch{Unit: 1 << 31, Epoch: 1}), ErrUnitUnknown)
	expectErr(t, u.Return(self, UnitEpoch{Unit: 0, Epoch: 1}), ErrUnitState)
	if _, err := u.Unit(4); err == nil {
		t.Error("a unit beyond the last was given")
	}
}

// TestAdoptDamage: rows that no writer leaves are fenced, not used.
func TestAdoptDamage(t *testing.T) {
	spec := mustSpec(t, PolicyLCM, birch, atlas)
	table := mustTable(t, spec, 4*spec.Bytes)
	table.setOwner(0, Local, 5, 3)
	table.setOwner(1, Lent, self, 3)
	table.setOwner(2, Local, self, 0)
	u := mustUnits(t, table, spec, 0)
	checked(t, u.Check)
	if u.Count(Fenced) != 3 || u.Count(Local) != 1 {
		t.Errorf("%d fenced, %d local", u.Count(Fenced), u.Count(Local))
	}
	expectErr(t, u.Unfence(5, UnitEpoch{Unit: 0, Epoch: 4}), nil)
	table = mustTable(t, spec, 4*spec.Bytes)
	table.setOwner(3, Local, self, maxEpoch)
	if _, err := NewUnits(UnitsOptions{Geometry: birch, Spec: spec, Table: table}); err == nil {
		t.Error("an epoch without successors was accepted")
	}
}

// TestCheckFinds sees the checkers find damage.
func TestCheckFinds(t *testing.T) {
	spec := mustSpec(t, PolicyLayerLCM, birch, atlas)
	for name, damage := range map[string]func(u *Units){
		"table":     func(u *Units) { u.table.setOwner(1, Lent, 7, 9) },
		"counter":   func(u *Units) { u.counts[Lent]++ },
		"owner":     func(u *Units) { u.rows[0].owner = 7 },
		"list":      func(u *Units) { u.owners[0].heads[Lent] = noSlot },
		"used":      func(u *Units) { u.space.used++ },
		"free":      func(u *Units) { u.space.freeSlots-- },
		"overlap":   func(u *Units) { u.space.blocks.places[1] = u.space.blocks.places[0] },
		"fill":      func(u *Units) { u.space.info[u.space.unitOf(u.space.blocks.places[0])].used++ },
		"fill bits": func(u *Units) { u.space.fill.bits[0] ^= 1 },
		"free list": func(u *Units) { u.space.info[firstPresent(u)].free = noSlot },
	} {
		u := mustUnits(t, mustTable(t, spec, 8*spec.Bytes), spec, 0)
		if _, err := u.Grant(0, 1, 1, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := u.Space().Alloc(1); err != nil {
			t.Fatal(err)
		}
		if errs := u.Check(); len(errs) > 0 {
			t.Fatal(errs)
		}
		if damage(u); len(u.Check()) == 0 {
			t.Errorf("%s: the checker finds nothing", name)
		}
	}
}

func firstPresent(u *Units) int {
	for i := range u.rows {
		if u.space.Has(i) && u.space.info[i].free != noSlot {
			return i
		}
	}
	return 0
}

func TestCheckReplicaFinds(t *testing.T) {
	spec := mustSpec(t, PolicyLCM, birch, atlas)
	u := mustUnits(t, mustTable(t, spec, 4*spec.Bytes), spec, 0)
	checked(t, u.Check)
	g, err := u.Grant(0, 1, 1, 0)
	expectErr(t, err, nil)
	for name, held := range map[string][]UnitEpoch{
		"newer":       {{g[0].Unit, g[0].Epoch + 1}},
		"twice":       {g[0], g[0]},
		"not granted": {{(g[0].Unit + 1) % 4, 1}},
		"no unit":     {{4, 1}},
	} {
		if len(CheckReplica(u.Table(), 0, held)) == 0 {
			t.Errorf("%s: nothing found", name)
		}
	}
	if len(CheckTable(u.Table(), 4*spec.Bytes)) == 0 {
		t.Error("a broken floor was not found")
	}
}

func BenchmarkGrantReturn(b *testing.B) {
	spec, err := NewUnitSpec(PolicyLCM, 0, qwen8B, lwm)
	if err != nil {
		b.Fatal(err)
	}
	const arena = 64 << 30
	n, _ := spec.Divide(arena)
	table, err := FormatUnitTable(make([]byte, UnitTableBytes(n)), spec, arena, self)
	if err != nil {
		b.Fatal(err)
	}
	u, err := NewUnits(UnitsOptions{Geometry: qwen8B, Spec: spec, Table: table})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		g, _ := u.Grant(0, 1, 1, time.Second)
		_ = u.Return(0, g[0])
	}
}
