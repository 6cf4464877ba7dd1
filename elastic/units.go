package elastic

import (
	"errors"
	"fmt"
	"iter"
	"time"
)

// Errors of Units.
var (
	ErrNoUnits    = errors.New("not enough units can be lent")
	ErrStaleEpoch = errors.New("unit has changed hands since")
	ErrUnitState  = errors.New("unit is in another state")
	ErrNotOwner   = errors.New("unit belongs to another model")
)

// UnitsOptions describe the units of one worker.
type UnitsOptions struct {
	Geometry Geometry // the worker's
	Spec     UnitSpec
	Floor    int64 // bytes of the arena that are never lent
	// Table is the arena's unit table. Units that it shows as lent (by an
	// earlier process of this worker) start in that state.
	Table *UnitTable
	// OnChange, if not nil, is called when a unit is about to change hands: to
	// Lent before its borrower may use it, to Local before the worker's own
	// Space may hand it out (its last borrower may not use it any more then).
	// The table still shows the old state, so that a worker that dies
	// meanwhile finds the unit as it was, and calls OnChange again. It is
	// where a unit's memory is wiped; the caller of Grant, Return or Unfence
	// waits for it. It must not call Units.
	OnChange func(unit int, to State)
}

// Units is a worker's book on its own arena: the state, owner and epoch of
// every unit, and the worker's own blocks in the LOCAL ones and in the
// remainder. It is the only writer of the unit table. Granting, returning,
// marking and fencing a unit take constant time and move no data (OnChange may
// do both). Not safe for concurrent use (its Space included); the table may be read meanwhile.
type Units struct {
	table   *UnitTable
	spec    UnitSpec
	space   *BlockSpace
	maxAway int // units that may be away at once, by the floor
	changes func(unit int, to State)
	vacator Vacator // nil: every block is needed
	rows    []unitRow
	owners  []ownerUnits // by owner index
	counts  [numStates]int
}

// unitRow is the private copy of a table row: the shared one is not read back.
type unitRow struct {
	state      State
	owner      uint32
	epoch      uint64
	prev, next int32 // list of the owner's units in this state; not used when LOCAL
}

// ownerUnits are the units that a borrower has, by state.
type ownerUnits struct {
	heads  [numStates]int32
	counts [numStates]int
}

// NewUnits opens the book over a table.
func NewUnits(o UnitsOptions) (*Units, error) {
	if o.Table == nil {
		return nil, errors.New("units need a table")
	}
	if o.Spec.Bytes != o.Table.UnitBytes() {
		return nil, fmt.Errorf("the unit table has units of %d bytes, want %d: %w", o.Table.UnitBytes(), o.Spec.Bytes, ErrBadTable)
	}
	arena := o.Table.Arena()
	if o.Floor < 0 || o.Floor > arena {
		return nil, fmt.Errorf("floor is %d bytes, want 0 to %d (the arena)", o.Floor, arena)
	}
	space, err := NewBlockSpace(SpaceOptions{Geometry: o.Geometry, Spec: o.Spec, Arena: arena, Remainder: true})
	if err != nil {
		return nil, err
	}
	u := &Units{
		table: o.Table, spec: o.Spec, space: space,
		maxAway: o.Spec.Lendable(arena, o.Floor),
		changes: o.OnChange,
		rows:    make([]unitRow, o.Table.Units()),
	}
	// From the last to the first, so that low units are used first.
	for i := len(u.rows) - 1; i >= 0; i-- {
		if epoch := u.table.Row(i).Epoch; epoch > maxEpoch/2 {
			return nil, fmt.Errorf("unit %d has epoch %d, want at most %d: %w", i, epoch, uint64(maxEpoch/2), ErrBadTable)
		}
		u.adopt(i)
	}
	return u, nil
}

// adopt takes over one unit as the table shows it.
func (u *Units) adopt(unit int) {
	row := u.table.Row(unit)
	self := u.table.Worker()
	if (row.State == Local) != (row.Owner == self) || row.Epoch == 0 {
		// No writer of ours leaves such a row. Whoever the unit was lent to may
		// still use it, so it stays out of use until somebody says otherwise.
		row.State, row.Epoch = Fenced, row.Epoch+1
		u.table.setOwner(unit, row.State, row.Owner, row.Epoch)
	}
	u.rows[unit] = unitRow{state: row.State, owner: row.Owner, epoch: row.Epoch, prev: noSlot, next: noSlot}
	u.counts[row.State]++
	if row.State == Local {
		u.mustSpace(u.space.AddUnit(unit))
		return
	}
	u.link(unit)
}

func (u *Units) mustSpace(err error) {
	if err != nil {
		panic("BUG: units and blocks disagree: " + err.Error())
	}
}

// Space is where the worker's own blocks live: the LOCAL units and the
// remainder. Only Alloc, Free and queries are for others; Units adds and
// removes units.
func (u *Units) Space() *BlockSpace { return u.space }

// Table is the shared table.
func (u *Units) Table() *UnitTable { return u.table }

// Spec is the shape of the units.
func (u *Units) Spec() UnitSpec { return u.spec }

// Total is the number of units.
func (u *Units) Total() int { return len(u.rows) }

// Count is the number of units in a state, over all owners.
func (u *Units) Count(s State) int {
	if s >= numStates {
		return 0
	}
	return u.counts[s]
}

// CountOf is the number of a borrower's units in a state.
func (u *Units) CountOf(owner uint32, s State) int {
	if int(owner) >= len(u.owners) || s >= numStates {
		return 0
	}
	return u.owners[owner].counts[s]
}

// MaxLent is the number of units that may be away at once: the rest stays, so
// that the worker never has less than its floor.
func (u *Units) MaxLent() int { return u.maxAway }

// Away is the number of units that are not LOCAL.
func (u *Units) Away() int { return len(u.rows) - u.counts[Local] }

// Grantable is the number of units that Grant could lend now: without blocks
// or with such as the Vacator can do without, and above the floor.
func (u *Units) Grantable() int {
	return max(0, min(u.space.EmptyUnits()+u.vacatable(), u.maxAway-u.Away()))
}

// ScaleState is the worker as a ScalePolicy sees it.
func (u *Units) ScaleState() ScaleState {
	return ScaleState{
		Blocks:      u.space.TotalBlocks(),
		Used:        u.space.UsedBlocks(),
		BlockTokens: u.space.geometry.BlockTokens,
		MEU:         u.space.perUnit,
		Pieces:      u.space.perBlock,
		Lent:        u.Away(),
	}
}

// Unit returns the state of one unit, from the book rather than the table.
// Expiry is not set.
func (u *Units) Unit(unit int) (UnitRow, error) {
	if unit < 0 || unit >= len(u.rows) {
		return UnitRow{}, fmt.Errorf("unit %d, want 0 to %d: %w", unit, len(u.rows)-1, ErrUnitUnknown)
	}
	r := u.rows[unit]
	return UnitRow{State: r.state, Owner: r.owner, Epoch: r.epoch}, nil
}

// Grant lends up to want units to owner until expiry (CLOCK_BOOTTIME): units
// without blocks, beyond them those that the Vacator vacates, never below the
// floor. With fewer than least available (at least 1) nothing changes and the
// error is ErrNoUnits.
func (u *Units) Grant(owner uint32, least, want int, expiry time.Duration) ([]UnitEpoch, error) {
	if owner > MaxOwner || owner == u.table.Worker() {
		return nil, fmt.Errorf("grant to owner %d, want 0 to %d and not %d, the worker itself", owner, MaxOwner, u.table.Worker())
	}
	n := min(want, u.Grantable())
	if n < max(least, 1) {
		return nil, fmt.Errorf("%d units, %d can be lent: %w", max(least, 1), u.Grantable(), ErrNoUnits)
	}
	u.vacate(n)
	granted := make([]UnitEpoch, 0, n)
	for range n {
		unit, _ := u.space.EmptyUnit()
		u.mustSpace(u.space.RemoveUnit(unit))
		u.announce(unit, Lent)
		u.change(unit, Lent, owner, expiry)
		granted = append(granted, UnitEpoch{Unit: uint32(unit), Epoch: u.rows[unit].epoch})
	}
	return granted, nil
}

// held checks that the unit is owner's, under this epoch, in one of the states.
func (u *Units) held(owner uint32, e UnitEpoch, states ...State) error {
	if int64(e.Unit) >= int64(len(u.rows)) {
		return fmt.Errorf("unit %d, want 0 to %d: %w", e.Unit, len(u.rows)-1, ErrUnitUnknown)
	}
	r := &u.rows[e.Unit]
	switch {
	case r.epoch != e.Epoch:
		return fmt.Errorf("unit %d at epoch %d, now %d: %w", e.Unit, e.Epoch, r.epoch, ErrStaleEpoch)
	case r.owner != owner:
		return fmt.Errorf("unit %d of owner %d, not %d: %w", e.Unit, r.owner, owner, ErrNotOwner)
	}
	for _, s := range states {
		if r.state == s {
			return nil
		}
	}
	return fmt.Errorf("unit %d is %s, want %v: %w", e.Unit, r.state, states, ErrUnitState)
}

// Return takes back a unit that its borrower gives up, asked to or not. A
// second Return of the same grant is ErrStaleEpoch and changes nothing.
func (u *Units) Return(owner uint32, e UnitEpoch) error {
	if err := u.held(owner, e, Lent, Reclaiming); err != nil {
		return err
	}
	u.home(int(e.Unit))
	return nil
}

// MarkReclaim notes that a unit has been asked back. Its borrower may use it
// until it returns it or is fenced.
func (u *Units) MarkReclaim(owner uint32, e UnitEpoch) error {
	if err := u.held(owner, e, Lent); err != nil {
		return err
	}
	u.unlink(int(e.Unit))
	r := &u.rows[e.Unit]
	r.state = Reclaiming
	u.counts[Lent]--
	u.counts[Reclaiming]++
	u.link(int(e.Unit))
	u.table.setOwner(int(e.Unit), Reclaiming, owner, r.epoch)
	return nil
}

// Fence takes a unit from its borrower without consent: the epoch rises, so
// that nobody may use the unit any more. It returns the new epoch, under which
// Unfence frees it.
func (u *Units) Fence(owner uint32, e UnitEpoch) (uint64, error) {
	if err := u.held(owner, e, Lent, Reclaiming); err != nil {
		return 0, err
	}
	u.change(int(e.Unit), Fenced, owner, 0)
	return u.rows[e.Unit].epoch, nil
}

// Unfence makes a fenced unit LOCAL once it is certain that its last borrower
// can no longer write to it.
func (u *Units) Unfence(owner uint32, e UnitEpoch) error {
	if err := u.held(owner, e, Fenced); err != nil {
		return err
	}
	u.home(int(e.Unit))
	return nil
}

// Renew moves the end of a lease. The caller renews before the old end.
func (u *Units) Renew(owner uint32, e UnitEpoch, expiry time.Duration) error {
	if err := u.held(owner, e, Lent, Reclaiming); err != nil {
		return err
	}
	u.table.setExpiry(int(e.Unit), e.Epoch, expiry)
	return nil
}

// UnitsOf yields a borrower's units in a state, last granted first. The
// current unit may be returned, marked or fenced during the iteration.
func (u *Units) UnitsOf(owner uint32, s State) iter.Seq[UnitEpoch] {
	return func(yield func(UnitEpoch) bool) {
		if u.CountOf(owner, s) == 0 || s == Local {
			return
		}
		for i := u.owners[owner].heads[s]; i >= 0; {
			next := u.rows[i].next
			if !yield(UnitEpoch{Unit: uint32(i), Epoch: u.rows[i].epoch}) {
				return
			}
			i = next
		}
	}
}

// home makes a unit LOCAL and usable by the worker.
func (u *Units) home(unit int) {
	u.announce(unit, Local)
	u.change(unit, Local, u.table.Worker(), 0)
	u.mustSpace(u.space.AddUnit(unit))
}

func (u *Units) announce(unit int, to State) {
	if u.changes != nil {
		u.changes(unit, to)
	}
}

// change gives a unit a new owner or fences it, and raises its epoch.
func (u *Units) change(unit int, s State, owner uint32, expiry time.Duration) {
	r := &u.rows[unit]
	if r.state != Local {
		u.unlink(unit)
	}
	u.counts[r.state]--
	u.counts[s]++
	if r.epoch >= maxEpoch {
		panic("BUG: epochs of a unit are used up") // 2^48 changes
	}
	r.state, r.owner, r.epoch = s, owner, r.epoch+1
	if s != Local {
		u.link(unit)
	}
	if s == Lent {
		u.table.setExpiry(unit, r.epoch, expiry)
	}
	u.table.setOwner(unit, s, owner, r.epoch)
}

// link puts a unit at the head of its owner's list.
func (u *Units) link(unit int) {
	r := &u.rows[unit]
	for int(r.owner) >= len(u.owners) {
		u.owners = append(u.owners, ownerUnits{heads: [numStates]int32{noSlot, noSlot, noSlot, noSlot}})
	}
	o := &u.owners[r.owner]
	head := o.heads[r.state]
	r.prev, r.next = noSlot, head
	if head >= 0 {
		u.rows[head].prev = int32(unit)
	}
	o.heads[r.state] = int32(unit)
	o.counts[r.state]++
}

func (u *Units) unlink(unit int) {
	r := &u.rows[unit]
	o := &u.owners[r.owner]
	if r.prev >= 0 {
		u.rows[r.prev].next = r.next
	} else {
		o.heads[r.state] = r.next
	}
	if r.next >= 0 {
		u.rows[r.next].prev = r.prev
	}
	o.counts[r.state]--
}
