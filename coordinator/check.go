package coordinator

import (
	"fmt"
	"slices"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

// findings collects what a checker finds.
type findings []error

func (f *findings) expect(ok bool, format string, args ...any) {
	if !ok {
		*f = append(*f, fmt.Errorf(format, args...))
	}
}

// Check verifies the lender's invariants from scratch, against the units.
func (l *Lender) Check() []error {
	var f findings
	perState := map[uint32]map[elastic.State]int{}
	for unit := range l.opt.Units.Total() {
		row, err := l.opt.Units.Unit(unit)
		f.expect(err == nil, "unit %d: %v", unit, err)
		if row.State == elastic.Local {
			continue
		}
		if perState[row.Owner] == nil {
			perState[row.Owner] = map[elastic.State]int{}
		}
		perState[row.Owner][row.State]++
		l.checkUnit(&f, uint32(unit), row)
	}
	for _, a := range l.accounts {
		n := perState[a.owner]
		away := n[elastic.Lent] + n[elastic.Reclaiming]
		f.expect(away == len(a.leaseOf), "borrower %d has %d units, leases for %d", a.owner, away, len(a.leaseOf))
		f.expect(n[elastic.Fenced] == len(a.fenced), "borrower %d has %d fenced units, noted %d", a.owner, n[elastic.Fenced], len(a.fenced))
		f.expect(a.owed() <= away, "borrower %d owes %d units and has %d", a.owner, a.owed(), away)
		f.expect(n[elastic.Reclaiming] <= a.owed(), "borrower %d has %d units marked and owes %d", a.owner, n[elastic.Reclaiming], a.owed())
		f.expect(len(a.answers.ids) == len(a.answers.kept) && len(a.answers.ids) <= maxAnswers,
			"borrower %d: %d answers in order, %d kept", a.owner, len(a.answers.ids), len(a.answers.kept))
		a.checkLeases(&f)
	}
	f.expect(slices.IsSortedFunc(l.accounts, func(a, b *account) int { return int(a.owner) - int(b.owner) }), "accounts are not in order")
	return f
}

func (l *Lender) checkUnit(f *findings, unit uint32, row elastic.UnitRow) {
	a := l.account(row.Owner)
	if row.State == elastic.Fenced {
		fu, ok := a.fenced[unit]
		f.expect(ok && fu.now == row.Epoch && fu.old < fu.now && fu.fence <= l.fences && fu.fence > 0,
			"fenced unit %d at epoch %d is noted as %+v", unit, row.Epoch, fu)
		return
	}
	f.expect(a.leaseOf[unit] != nil, "unit %d is %s without a lease", unit, row.State)
}

func (a *account) checkLeases(f *findings) {
	units := map[*lease]int{}
	for _, ls := range a.leaseOf {
		units[ls]++
	}
	f.expect(len(units) == len(a.leases), "borrower %d: %d leases have units, %d are noted", a.owner, len(units), len(a.leases))
	for ls, n := range units {
		f.expect(n == ls.units && a.leases[ls.id] == ls, "borrower %d: lease %d has %d units, counted %d", a.owner, ls.id, n, ls.units)
	}
	at := never
	for _, ls := range a.leases {
		at = min(at, ls.expiry)
	}
	f.expect(a.ends.first() == at && a.ends.live == len(a.leases), "borrower %d: the first of %d leases ends at %v, noted: %d, %v",
		a.owner, len(a.leases), at, a.ends.live, a.ends.first())
	for _, r := range a.reclaims {
		f.expect(r.want > 0 && r.own >= 0 && r.own <= r.want, "borrower %d: reclaim %d wants %d units, %d for the worker", a.owner, r.id, r.want, r.own)
	}
}

// Check verifies the borrower's invariants from scratch.
func (b *Borrower) Check() []error {
	var f findings
	used, terms := 0, map[*term]int{}
	for e, u := range b.units {
		f.expect((u.state == inUse) == (u.term != nil), "unit %d is in state %d with a term: %t", e.Unit, u.state, u.term != nil)
		if u.state == inUse {
			used++
			terms[u.term]++
		}
	}
	f.expect(used == b.held, "%d units in use, counted %d", used, b.held)
	f.expect(len(terms) == len(b.terms), "%d terms have units, %d are noted", len(terms), len(b.terms))
	at := never
	for t := range terms {
		at = min(at, t.expiry)
	}
	f.expect(b.ends.first() == at && b.ends.live == len(terms), "the first of %d terms ends at %v, noted: %d, %v", len(terms), at, b.ends.live, b.ends.first())
	for t, n := range terms {
		_, ok := b.terms[t]
		f.expect(ok && n == t.units, "a term has %d units, counted %d, noted %t", n, t.units, ok)
	}
	given := map[wire.UnitEpoch]bool{}
	for _, g := range b.gifts {
		for _, e := range g.units {
			f.expect(!given[e], "unit %d is on its way back twice", e.Unit)
			given[e] = true
			f.expect(b.units[e] != nil && b.units[e].state == givenUp, "unit %d is on its way back and in use", e.Unit)
		}
	}
	for e, u := range b.units {
		f.expect(u.state != givenUp || given[e], "unit %d was given up and is not on its way", e.Unit)
	}
	for _, c := range b.claims {
		f.expect(c.owed > 0, "reclaim %d asks for %d units", c.id, c.owed)
	}
	return f
}

// CheckPair verifies what must hold between a lender and its borrowers, by
// owner, at any moment, whatever is under way between them:
//
//   - each unit is counted once, and the counts add up to all units;
//   - a unit that a borrower may still write to (in use, or lost and not yet
//     released) is that borrower's for the lender, LENT or RECLAIMING under the
//     same epoch or FENCED under a later one: never LOCAL, never another's;
//   - a borrower stops using a unit before its lease ends for the lender;
//   - a replica is not newer than its owner, and one of the same version shows
//     the same units.
//
// Every borrower must be of the process that the lender last knew: units of a
// process that has ended are nobody's to write.
func CheckPair(l *Lender, borrowers map[uint32]*Borrower) []error {
	f := findings(l.Check())
	counts := map[elastic.State]int{}
	for unit := range l.opt.Units.Total() {
		row, err := l.opt.Units.Unit(unit)
		f.expect(err == nil, "unit %d: %v", unit, err)
		counts[row.State]++
	}
	sum := counts[elastic.Local] + counts[elastic.Lent] + counts[elastic.Reclaiming] + counts[elastic.Fenced]
	f.expect(sum == l.opt.Units.Total(), "units by state are %v, together not %d", counts, l.opt.Units.Total())
	writer := map[uint32]uint32{}
	for owner, b := range borrowers {
		f = append(f, b.Check()...)
		l.checkReplica(&f, owner, b)
		for e, u := range b.units {
			if u.state == givenUp {
				continue
			}
			other, dup := writer[e.Unit]
			f.expect(!dup, "unit %d may be written by borrowers %d and %d", e.Unit, owner, other)
			writer[e.Unit] = owner
			l.checkWriter(&f, owner, e, u)
		}
	}
	return f
}

func (l *Lender) checkWriter(f *findings, owner uint32, e wire.UnitEpoch, u *unit) {
	row, err := l.opt.Units.Unit(int(e.Unit))
	if err != nil {
		f.expect(false, "borrower %d holds unit %d: %v", owner, e.Unit, err)
		return
	}
	same := row.Epoch == e.Epoch && (row.State == elastic.Lent || row.State == elastic.Reclaiming)
	taken := row.Epoch > e.Epoch && row.State == elastic.Fenced
	f.expect(row.Owner == owner && (same || taken), "borrower %d may write to unit %d at epoch %d, which is %s of %d at epoch %d",
		owner, e.Unit, e.Epoch, row.State, row.Owner, row.Epoch)
	if u.state != inUse {
		return
	}
	a := l.account(owner)
	until := a.fenced[e.Unit].until
	if ls := a.leaseOf[e.Unit]; same && ls != nil {
		until = ls.expiry
	}
	f.expect(u.term.expiry <= until, "borrower %d uses unit %d until %v, its lease ends at %v", owner, e.Unit, u.term.expiry, until)
}

// checkReplica compares a replica with its owner when both are of one version.
func (l *Lender) checkReplica(f *findings, owner uint32, b *Borrower) {
	a := l.account(owner)
	f.expect(b.version <= a.version, "borrower %d shows version %d, the lender is at %d", owner, b.version, a.version)
	if b.version != a.version {
		return
	}
	for unit := range a.leaseOf {
		row, err := l.opt.Units.Unit(int(unit))
		e := wire.UnitEpoch{Unit: unit, Epoch: row.Epoch}
		f.expect(err == nil && b.units[e] != nil, "borrower %d at version %d does not know that it has unit %d", owner, b.version, unit)
	}
	for e, u := range b.units {
		f.expect(u.state != inUse || a.leaseOf[e.Unit] != nil, "borrower %d at version %d uses unit %d, which it does not have", owner, b.version, e.Unit)
	}
}
