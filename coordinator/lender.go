package coordinator

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

// LenderOptions of a worker. Zero durations mean the defaults.
type LenderOptions struct {
	Units Units
	// TTL of leases; default 30s.
	TTL time.Duration
	// Grace is how long after a reclaim's deadline units are fenced; default 200ms.
	Grace time.Duration
	// Retry is the pause between repetitions of a Reclaim; default 1s.
	Retry time.Duration
	// RetryAfter is told to borrowers that are denied; default 250ms.
	RetryAfter time.Duration
	// Spare limits what may be lent to a borrower at this moment, beside what
	// Units can grant; nil: no limit. The worker's scale policy answers it.
	Spare func(owner uint32, w Wish) int
	// Quota is the most units that a borrower may hold; missing: no limit.
	Quota map[uint32]int
	// Weight is a borrower's part when units are divided between those that
	// want more than there are, at least 1; missing: 1.
	Weight map[uint32]int
	// Within is the time in which units have to come home that are asked back
	// for another borrower; 0: none ever are, and who comes first is served.
	Within time.Duration
	// Patience is how long a borrower waits that cannot go on with its share
	// of the units, until it gets a turn; default half of Within.
	Patience time.Duration
}

// Lender is the worker's side. Not safe for concurrent use: the caller holds
// the lock that guards Units. After every call it does the actions of Take,
// and looks whether units came home.
type Lender struct {
	opt      LenderOptions
	accounts []*account // by owner, ascending
	leases   uint64     // last lease ID
	reclaims uint64     // last reclaim ID
	fences   uint64     // last fence ID
	turn     turn
	actions  []Action
}

// account is what the lender knows of one borrower.
type account struct {
	owner    uint32
	up       bool
	version  uint64 // of its units; 1 before the first change
	answers  answers
	leases   map[uint64]*lease
	ends     ends              // of the leases
	leaseOf  map[uint32]*lease // by unit
	reclaims []*reclaim        // oldest first
	fenced   map[uint32]fenced // by unit
	wish     wish
}

// lease is one grant that has units left.
type lease struct {
	id uint64
	term
	// adopted: granted by an earlier process of this worker, and not yet
	// confirmed by the borrower.
	adopted bool
}

// reclaim is units asked back that have not come.
type reclaim struct {
	id       uint64
	want     int
	own      int // of want, what the worker itself needs; the rest is for other borrowers
	deadline time.Duration
	sent     time.Duration // last
}

// fenced is a unit that was taken without consent.
type fenced struct {
	old, now uint64 // epochs
	fence    uint64
	// past: only processes before the borrower's current one can have it.
	past bool
	// adopted: fenced by an earlier process of this worker.
	adopted bool
	// until is the end of its lease: a borrower that lives and never hears of
	// the fence stops by itself before. Not known of adopted units.
	until time.Duration
}

// NewLender makes a lender over a worker's units. Units that the book shows
// away already (the worker was restarted) are adopted: lent ones for one TTL,
// and fenced ones stay fenced until confirmed.
func NewLender(now time.Duration, o LenderOptions) *Lender {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.TTL, 30*time.Second)
	def(&o.Grace, 200*time.Millisecond)
	def(&o.Retry, time.Second)
	def(&o.RetryAfter, 250*time.Millisecond)
	def(&o.Patience, o.Within/2)
	l := &Lender{opt: o}
	for unit := range o.Units.Total() {
		row, err := o.Units.Unit(unit)
		if err != nil || row.State == elastic.Local {
			continue
		}
		l.adopt(now, uint32(unit), row)
	}
	for _, a := range l.accounts {
		l.unmark(a)
		l.report(a, func(fenced) bool { return true }, "found fenced at start")
	}
	return l
}

func (l *Lender) adopt(now time.Duration, unit uint32, row elastic.UnitRow) {
	a := l.account(row.Owner)
	if row.State == elastic.Fenced {
		a.fenced[unit] = fenced{old: row.Epoch - 1, now: row.Epoch, adopted: true, until: never}
		return
	}
	var ls *lease
	for _, ls = range a.leases { // one at most
	}
	if ls == nil {
		ls = l.newLease(a, now+l.opt.TTL)
		ls.adopted = true
	}
	ls.units++
	a.leaseOf[unit] = ls
}

// report makes one fence of those fenced units of a borrower that pick names.
func (l *Lender) report(a *account, pick func(fenced) bool, reason string) {
	fence := Fence{Owner: a.owner, ID: l.fences + 1, Reason: reason}
	for unit, f := range a.fenced {
		if !pick(f) {
			continue
		}
		f.fence = fence.ID
		a.fenced[unit] = f
		fence.Units = append(fence.Units, wire.UnitEpoch{Unit: unit, Epoch: f.old})
		fence.Live = fence.Live || !f.past
	}
	if len(fence.Units) > 0 {
		l.fences++
		sortUnits(fence.Units)
		l.do(fence)
	}
}

func (l *Lender) newLease(a *account, expiry time.Duration) *lease {
	l.leases++
	ls := &lease{id: l.leases, term: term{expiry: expiry}}
	a.leases[ls.id] = ls
	a.ends.add(&ls.term)
	return ls
}

// account finds or opens a borrower's account.
func (l *Lender) account(owner uint32) *account {
	i, ok := slices.BinarySearchFunc(l.accounts, owner, func(a *account, o uint32) int { return int(a.owner) - int(o) })
	if !ok {
		a := &account{
			owner: owner, version: 1,
			leases: map[uint64]*lease{}, leaseOf: map[uint32]*lease{}, fenced: map[uint32]fenced{},
		}
		l.accounts = slices.Insert(l.accounts, i, a)
	}
	return l.accounts[i]
}

func (l *Lender) do(a Action) { l.actions = append(l.actions, a) }

func (l *Lender) send(a *account, m wire.Message) {
	if a.up {
		l.do(Send{To: a.owner, Message: m})
	}
}

// Take returns the actions that are due and forgets them.
func (l *Lender) Take() []Action {
	t := l.actions
	l.actions = nil
	return t
}

// Version is the version of a borrower's units.
func (l *Lender) Version(owner uint32) uint64 { return l.account(owner).version }

// Up says that the link to a borrower is connected.
func (l *Lender) Up(now time.Duration, owner uint32) {
	l.account(owner).up = true
	for _, r := range l.account(owner).reclaims {
		l.sendReclaim(now, l.account(owner), r)
	}
	l.Tick(now)
}

// Down says that it is not. Leases go on until they end.
func (l *Lender) Down(now time.Duration, owner uint32) {
	l.account(owner).up = false
	l.Tick(now)
}

// PeerReset says that the borrower's process was replaced by a new one, which
// holds nothing: what the old one held is fenced.
func (l *Lender) PeerReset(now time.Duration, owner uint32) {
	a := l.account(owner)
	a.answers = answers{}
	l.forget(now, a)
	l.take(a, l.view(a))
	a.reclaims = nil
	for unit, f := range a.fenced {
		f.past = true
		a.fenced[unit] = f
	}
	l.report(a, func(fenced) bool { return true }, "the borrower's process was replaced")
	l.Tick(now)
}

// Receive handles a message of a borrower.
func (l *Lender) Receive(now time.Duration, owner uint32, m wire.Message) error {
	l.Tick(now)
	a := l.account(owner)
	switch m := m.(type) {
	case *wire.Borrow:
		l.borrow(now, a, m)
	case *wire.Return:
		taken := l.takeBack(a, m.Units)
		l.send(a, &wire.Released{ID: m.ID, Units: taken, Done: true, Version: a.version})
	case *wire.Released:
		l.released(a, m)
	case *wire.Renew:
		l.renew(now, a)
		l.send(a, &wire.Renewed{ID: m.ID, TTL: l.opt.TTL, Version: a.version})
	case *wire.Sync:
		if !m.Ask {
			return fmt.Errorf("sync of borrower %d without a question: %w", owner, ErrUnexpected)
		}
		if m.Version == 0 {
			l.claimed(a, m.Units)
		}
		l.renew(now, a)
		l.send(a, &wire.Sync{ID: m.ID, TTL: l.opt.TTL, Version: a.version, Units: l.view(a), Fenced: a.fencedView()})
	case *wire.Bye:
		l.forget(now, a)
		l.fenceAll(a, "the borrower left with units")
	default:
		return fmt.Errorf("%s of borrower %d: %w", m.Type(), owner, ErrUnexpected)
	}
	return nil
}

// claimed compares what this process adopted with what the borrower says it
// has. What the borrower does not know can only be in use by a process before
// it, or its grant was lost together with the worker's old process.
func (l *Lender) claimed(a *account, has []wire.UnitEpoch) {
	known := make(map[wire.UnitEpoch]struct{}, len(has))
	for _, e := range has {
		known[e] = struct{}{}
	}
	var strange []wire.UnitEpoch
	for _, e := range l.view(a) {
		if _, ok := known[e]; !ok && a.leaseOf[e.Unit].adopted {
			strange = append(strange, e)
		}
	}
	for _, ls := range a.leases {
		ls.adopted = false
	}
	l.take(a, strange)
	l.cameHome(a, len(strange))
	for _, e := range strange {
		f := a.fenced[e.Unit]
		f.adopted = true
		a.fenced[e.Unit] = f
	}
	for unit, f := range a.fenced {
		if _, ok := known[wire.UnitEpoch{Unit: unit, Epoch: f.old}]; f.adopted && !ok {
			f.past = true
		}
		a.fenced[unit] = f
	}
	l.report(a, func(f fenced) bool { return f.adopted && f.past }, "lent to a process that was replaced")
	for unit, f := range a.fenced {
		f.adopted = false
		a.fenced[unit] = f
	}
}

// fencedView lists what was taken from a borrower's current process.
func (a *account) fencedView() []wire.UnitEpoch {
	var units []wire.UnitEpoch
	for unit, f := range a.fenced {
		if !f.past {
			units = append(units, wire.UnitEpoch{Unit: unit, Epoch: f.old})
		}
	}
	sortUnits(units)
	return units
}

func (l *Lender) borrow(now time.Duration, a *account, m *wire.Borrow) {
	answer, known := a.answers.find(m.ID)
	if known {
		if answer != nil {
			l.send(a, answer)
		}
		return
	}
	answer = l.decide(now, a, m)
	a.answers.add(m.ID, answer)
	l.send(a, answer)
}

// decide grants or denies.
func (l *Lender) decide(now time.Duration, a *account, m *wire.Borrow) wire.Message {
	w := Wish{Units: m.Want, Least: m.Min, Keep: m.Keep}
	spare, why := l.spare(a, w)
	least := max(m.Min, 1)
	l.turnOver(now)
	if m.Keep {
		return l.decideKeep(now, a, m, spare, why)
	}
	l.wish(now, a, m.Want, m.Min)
	if l.sharing() && l.contested(now, a) {
		if free, _ := l.free(a, w); free > 0 {
			if left := max(0, free-l.reserved(now, a, free)); left < spare {
				spare, why = left, "others that have less wait for the rest"
			}
		}
	}
	if spare >= least {
		expiry := now + l.opt.TTL
		got, err := l.opt.Units.Grant(a.owner, least, min(m.Want, spare), expiry)
		if err == nil {
			g := l.grant(a, m.ID, got, expiry)
			l.granted(now, a, len(got))
			l.share(now, a)
			return g
		}
		why = err.Error()
	}
	again := l.opt.RetryAfter
	if l.share(now, a) {
		again /= soon
	}
	return &wire.Deny{
		ID: m.ID, Reason: wire.Clip(why, wire.MaxText), Available: max(spare, 0),
		RetryAfter: again, Version: a.version,
	}
}

// decideKeep answers a wish for memory for blocks that nobody uses: there must be
// some that nobody else waits for.
func (l *Lender) decideKeep(now time.Duration, a *account, m *wire.Borrow, spare int, why string) wire.Message {
	if l.contested(now, a) {
		spare, why = 0, "others need what is idle"
	}
	if spare >= max(m.Min, 1) {
		expiry := now + l.opt.TTL
		got, err := l.opt.Units.Grant(a.owner, max(m.Min, 1), min(m.Want, spare), expiry)
		if err == nil {
			return l.grant(a, m.ID, got, expiry)
		}
		why = err.Error()
	}
	return &wire.Deny{
		ID: m.ID, Reason: wire.Clip(why, wire.MaxText), Available: max(spare, 0),
		RetryAfter: l.opt.RetryAfter, Version: a.version,
	}
}

// soon divides the pause after a denial when units are on their way.
const soon = 10

// share has units asked back for a borrower that still wants some.
func (l *Lender) share(now time.Duration, a *account) (coming bool) {
	return l.sharing() && a.wish.want > 0 && l.owedOwn() == 0 && l.favour(now, a)
}

// grant notes units that were just lent to a borrower.
func (l *Lender) grant(a *account, id uint64, got []elastic.UnitEpoch, expiry time.Duration) *wire.Grant {
	ls := l.newLease(a, expiry)
	ls.units = len(got)
	units := make([]wire.UnitEpoch, len(got))
	for i, e := range got {
		units[i] = wire.UnitEpoch(e)
		a.leaseOf[e.Unit] = ls
	}
	a.version++
	return &wire.Grant{ID: id, Lease: ls.id, Units: units, TTL: l.opt.TTL, Version: a.version}
}

// free is how many units may be lent now, and what limits it.
func (l *Lender) free(a *account, w Wish) (n int, why string) {
	if l.owedOwn() > 0 {
		return 0, "the worker needs its units itself"
	}
	spare := math.MaxInt
	if l.opt.Spare != nil {
		spare = max(l.opt.Spare(a.owner, w), 0) // may make some grantable
	}
	n, why = l.opt.Units.Grantable(), "no more units are idle"
	if spare < n {
		n, why = spare, "the worker keeps the rest for itself"
	}
	return n, why
}

// spare is how many units a borrower may be granted if nobody else waits, and
// what limits it.
func (l *Lender) spare(a *account, w Wish) (n int, why string) {
	n, why = l.free(a, w)
	if q, ok := l.opt.Quota[a.owner]; ok && q-l.holds(a) < n {
		n, why = q-l.holds(a), fmt.Sprintf("the borrower's quota is %d units", q)
	}
	return n, why
}

// holds is how many units a borrower has.
func (l *Lender) holds(a *account) int { return len(a.leaseOf) }

// takeBack makes units LOCAL that their borrower gives up, and returns those
// that were its to give. One that was fenced is home now, since the borrower
// itself says that it is done with it.
func (l *Lender) takeBack(a *account, units []wire.UnitEpoch) []wire.UnitEpoch {
	var taken []wire.UnitEpoch
	for _, e := range units {
		if f, ok := a.fenced[e.Unit]; ok && f.old == e.Epoch && !f.past {
			l.unfence(a, e.Unit, f)
			continue
		}
		if l.opt.Units.Return(a.owner, elastic.UnitEpoch(e)) != nil {
			continue // repeated, or not the borrower's
		}
		l.endLease(a, e.Unit)
		taken = append(taken, e)
	}
	if len(taken) > 0 {
		a.version++
		l.cameHome(a, len(taken))
	}
	return taken
}

func (l *Lender) endLease(a *account, unit uint32) {
	ls := a.leaseOf[unit]
	delete(a.leaseOf, unit)
	if ls.units--; ls.units == 0 {
		delete(a.leases, ls.id)
		a.ends.left()
	}
}

func (l *Lender) unfence(a *account, unit uint32, f fenced) {
	if err := l.opt.Units.Unfence(a.owner, elastic.UnitEpoch{Unit: unit, Epoch: f.now}); err != nil {
		panic(fmt.Sprintf("BUG: fenced unit %d cannot be taken home: %v", unit, err))
	}
	delete(a.fenced, unit)
}

func (l *Lender) renew(now time.Duration, a *account) {
	expiry := now + l.opt.TTL
	a.ends.extend(expiry)
	for _, s := range [...]elastic.State{elastic.Lent, elastic.Reclaiming} {
		for e := range l.opt.Units.UnitsOf(a.owner, s) {
			if err := l.opt.Units.Renew(a.owner, e, expiry); err != nil {
				panic(fmt.Sprintf("BUG: lent unit %d cannot be renewed: %v", e.Unit, err))
			}
		}
	}
}

// view lists what a borrower holds.
func (l *Lender) view(a *account) []wire.UnitEpoch {
	units := make([]wire.UnitEpoch, 0, len(a.leaseOf))
	for _, s := range [...]elastic.State{elastic.Lent, elastic.Reclaiming} {
		for e := range l.opt.Units.UnitsOf(a.owner, s) {
			units = append(units, wire.UnitEpoch(e))
		}
	}
	sortUnits(units)
	return units
}

// ConfirmFence says that the borrower can no longer write to any unit that was
// fenced under this ID or an earlier one: they go home.
func (l *Lender) ConfirmFence(now time.Duration, owner uint32, id uint64) {
	a := l.account(owner)
	for unit, f := range a.fenced {
		if f.fence <= id {
			l.unfence(a, unit, f)
		}
	}
	l.Tick(now)
}

// ConfirmPast says that every process that was this borrower before its current
// one has ended: what only those can have goes home. Fences of the current one
// stand, whatever their IDs.
func (l *Lender) ConfirmPast(now time.Duration, owner uint32) {
	a := l.account(owner)
	for unit, f := range a.fenced {
		if f.past {
			l.unfence(a, unit, f)
		}
	}
	l.Tick(now)
}

func sortUnits(u []wire.UnitEpoch) {
	slices.SortFunc(u, func(a, b wire.UnitEpoch) int { return int(a.Unit) - int(b.Unit) })
}
