package coordinator

import (
	"slices"
	"time"
)

// term is the end of a lease, shared by its units.
type term struct {
	expiry time.Duration
	units  int
}

// ends keeps terms in the order of their ends, so that the first is known at
// once however many there are. A term without units counts no more; it leaves
// the list when it comes to its head, or when there are many such.
type ends struct {
	list []*term // by expiry
	live int     // terms that have units
}

// add adds a term, which must get its units before the next call.
func (e *ends) add(t *term) {
	i := len(e.list)
	for i > 0 && e.list[i-1].expiry > t.expiry {
		i-- // rarely: new leases mostly end last
	}
	e.list = slices.Insert(e.list, i, t)
	e.live++
}

// left takes note that a term has no units any more.
func (e *ends) left() {
	e.live--
	if len(e.list) > 2*e.live+16 {
		e.list = slices.DeleteFunc(e.list, func(t *term) bool { return t.units == 0 })
	}
}

// first is the end of the term that ends first, never if there is none.
func (e *ends) first() time.Duration {
	for len(e.list) > 0 && e.list[0].units == 0 {
		e.list[0] = nil
		e.list = e.list[1:]
	}
	if len(e.list) == 0 {
		return never
	}
	return e.list[0].expiry
}

// extend makes every term last at least until then.
func (e *ends) extend(until time.Duration) {
	for _, t := range e.list { // those without units too, or the order breaks
		t.expiry = max(t.expiry, until)
	}
}
