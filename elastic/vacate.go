package elastic

import "fmt"

// Vacator is the owner of a worker's blocks, which keeps some for later that it
// can do without. Units calls it in Grantable and Grant, under the same lock.
type Vacator interface {
	// Vacatable is how many units hold blocks, and only such blocks.
	Vacatable() int
	// Vacate frees the blocks of n of these units, at most Vacatable.
	Vacate(n int)
}

// SetVacator makes the units that v can vacate grantable. It is called once,
// before anything is lent.
func (u *Units) SetVacator(v Vacator) { u.vacator = v }

// vacatable is how many units with blocks can be emptied.
func (u *Units) vacatable() int {
	if u.vacator == nil {
		return 0
	}
	return u.vacator.Vacatable()
}

// vacate sees to it that n units are empty, which Grantable has promised.
func (u *Units) vacate(n int) {
	if short := n - u.space.EmptyUnits(); short > 0 && u.vacator != nil {
		u.vacator.Vacate(short)
	}
	if left := u.space.EmptyUnits(); left < n {
		panic(fmt.Sprintf("BUG: %d units can be emptied and are not", n-left))
	}
}
