package coordinator

import "github.com/kvlend/kvlend/coordinator/wire"

// Holdings lists the units that the owner has, in use or lost and not yet
// Released, and those that it gave up without the lender's acknowledgement.
// Both are in order of their numbers.
func (b *Borrower) Holdings() (known, parting []wire.UnitEpoch) {
	for e, u := range b.units {
		if u.state == givenUp {
			parting = append(parting, e)
		} else {
			known = append(known, e)
		}
	}
	sortUnits(known)
	sortUnits(parting)
	return known, parting
}
