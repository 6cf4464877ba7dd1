package coordinator

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

// Need asks for n units in all to come home before within has passed, for the
// worker itself. Units that were asked back before and have not come, and
// fenced ones, count; those that were to go to another borrower are the
// worker's now. It returns how many are on their way then; fewer than n when
// fewer are lent.
func (l *Lender) Need(now time.Duration, n int, within time.Duration) int {
	l.Tick(now)
	short := n - l.owedOwn() - l.fencedUnits()
	short -= l.takeOver(short, now+within)
	if short > 0 {
		free := make([]int, len(l.accounts))
		for i, a := range l.accounts {
			free[i] = l.holds(a) - a.owed()
		}
		for i, k := range fairSplit(short, free) {
			if k > 0 {
				l.reclaim(now, l.accounts[i], k, now+within).own = k
			}
		}
	}
	return l.owedOwn() + l.fencedUnits()
}

// takeOver makes up to n units that were asked back for other borrowers the
// worker's, and says how many.
func (l *Lender) takeOver(n int, deadline time.Duration) (taken int) {
	for _, a := range l.accounts {
		for _, r := range a.reclaims {
			if k := min(n-taken, r.want-r.own); k > 0 {
				r.own += k
				r.deadline = min(r.deadline, deadline)
				taken += k
			}
		}
	}
	return taken
}

// fairSplit divides want over holders in proportion to what they have, the
// largest remainders first, and of equal ones the largest holder. No share
// exceeds what its holder has.
func fairSplit(want int, have []int) []int {
	total := 0
	for _, h := range have {
		total += h
	}
	share := make([]int, len(have))
	if want >= total {
		copy(share, have)
		return share
	}
	left := want
	order := make([]int, len(have))
	rest := make([]int, len(have))
	for i, h := range have {
		share[i], rest[i], order[i] = want*h/total, want*h%total, i
		left -= share[i]
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if rest[a] != rest[b] {
			return rest[b] - rest[a]
		}
		return have[b] - have[a]
	})
	for _, i := range order[:left] {
		share[i]++
	}
	return share
}

// owed is how many units were asked back and have not come.
func (l *Lender) owed() int {
	n := 0
	for _, a := range l.accounts {
		n += a.owed()
	}
	return n
}

// owedOwn is how many of them the worker needs itself.
func (l *Lender) owedOwn() int {
	n := 0
	for _, a := range l.accounts {
		for _, r := range a.reclaims {
			n += r.own
		}
	}
	return n
}

func (a *account) owed() int {
	n := 0
	for _, r := range a.reclaims {
		n += r.want
	}
	return n
}

func (l *Lender) fencedUnits() int {
	n := 0
	for _, a := range l.accounts {
		n += len(a.fenced)
	}
	return n
}

// reclaim asks a borrower for n units. As many are marked in the table, so
// that everybody can see it; the borrower may return others.
func (l *Lender) reclaim(now time.Duration, a *account, n int, deadline time.Duration) *reclaim {
	l.reclaims++
	r := &reclaim{id: l.reclaims, want: n, deadline: deadline}
	a.reclaims = append(a.reclaims, r)
	marked := 0
	for e := range l.opt.Units.UnitsOf(a.owner, elastic.Lent) {
		if marked == n {
			break
		}
		if err := l.opt.Units.MarkReclaim(a.owner, e); err != nil {
			panic(fmt.Sprintf("BUG: lent unit %d cannot be reclaimed: %v", e.Unit, err))
		}
		marked++
	}
	l.sendReclaim(now, a, r)
	return r
}

func (l *Lender) sendReclaim(now time.Duration, a *account, r *reclaim) {
	r.sent = now
	l.send(a, &wire.Reclaim{ID: r.id, Want: r.want, Deadline: max(0, r.deadline-now), Version: a.version})
}

// released handles a borrower's part of a reclaim.
func (l *Lender) released(a *account, m *wire.Released) {
	taken := l.takeBack(a, m.Units)
	l.send(a, &wire.Released{ID: m.ID, Part: m.Part, Units: taken, Done: m.Done, Version: a.version})
}

// cameHome counts n units against what a borrower owes, oldest reclaim first,
// whichever way they came; the worker's part of it comes first.
func (l *Lender) cameHome(a *account, n int) {
	for len(a.reclaims) > 0 && n > 0 {
		r := a.reclaims[0]
		k := min(n, r.want)
		r.want -= k
		r.own = max(0, r.own-k)
		n -= k
		if r.want > 0 {
			break
		}
		a.reclaims = a.reclaims[1:]
	}
	l.unmark(a)
}

// unmark adjusts claims and marks to what a borrower still holds and owes.
func (l *Lender) unmark(a *account) {
	for over := a.owed() - l.holds(a); over > 0; {
		r := a.reclaims[len(a.reclaims)-1]
		k := min(over, r.want)
		r.want -= k
		r.own = min(r.own, r.want)
		over -= k
		if r.want == 0 {
			a.reclaims = a.reclaims[:len(a.reclaims)-1]
		}
	}
	u := l.opt.Units
	for e := range u.UnitsOf(a.owner, elastic.Reclaiming) {
		if u.CountOf(a.owner, elastic.Reclaiming) <= a.owed() {
			return
		}
		if err := u.UnmarkReclaim(a.owner, e); err != nil {
			panic(fmt.Sprintf("BUG: reclaimed unit %d cannot be left: %v", e.Unit, err))
		}
	}
}

// Tick does what is due by the clock: it fences what is overdue and repeats
// what was not answered. Calling it too often is harmless; NextWake says when.
func (l *Lender) Tick(now time.Duration) {
	for _, a := range l.accounts {
		l.expire(now, a)
		l.overdue(now, a)
		for _, r := range a.reclaims {
			if a.up && now >= r.sent+l.opt.Retry {
				l.sendReclaim(now, a, r)
			}
		}
	}
}

// expire fences the units of leases that have ended.
func (l *Lender) expire(now time.Duration, a *account) {
	if a.ends.first() > now {
		return
	}
	var units []wire.UnitEpoch
	for _, e := range l.view(a) {
		if a.leaseOf[e.Unit].expiry <= now {
			units = append(units, e)
		}
	}
	l.fence(a, units, len(units), "the lease ended")
}

// overdue takes what reclaims did not bring in time, marked units first.
func (l *Lender) overdue(now time.Duration, a *account) {
	n := 0
	a.reclaims = slices.DeleteFunc(a.reclaims, func(r *reclaim) bool {
		late := now >= r.deadline+l.opt.Grace
		if late {
			n += r.want
		}
		return late
	})
	if n == 0 {
		return
	}
	var units []wire.UnitEpoch
	for _, s := range [...]elastic.State{elastic.Reclaiming, elastic.Lent} {
		for e := range l.opt.Units.UnitsOf(a.owner, s) {
			if len(units) < n {
				units = append(units, wire.UnitEpoch(e))
			}
		}
	}
	sortUnits(units)
	l.fence(a, units, 0, "the borrower did not return them in time")
}

// fenceAll takes everything from a borrower.
func (l *Lender) fenceAll(a *account, reason string) {
	view := l.view(a)
	l.fence(a, view, len(view), reason)
}

// fence takes units from a borrower without its consent, and tells it. So many
// of them count against what it owes.
func (l *Lender) fence(a *account, units []wire.UnitEpoch, count int, reason string) {
	if len(units) == 0 {
		return
	}
	l.take(a, units)
	l.cameHome(a, count)
	l.report(a, func(f fenced) bool { return f.fence == 0 }, reason)
	l.send(a, &wire.Sync{Version: a.version, Units: l.view(a), Fenced: a.fencedView()})
}

// take fences units that are not yet reported.
func (l *Lender) take(a *account, units []wire.UnitEpoch) {
	for _, e := range units {
		epoch, err := l.opt.Units.Fence(a.owner, elastic.UnitEpoch(e))
		if err != nil {
			panic(fmt.Sprintf("BUG: lent unit %d cannot be fenced: %v", e.Unit, err))
		}
		a.fenced[e.Unit] = fenced{old: e.Epoch, now: epoch, until: a.leaseOf[e.Unit].expiry}
		l.endLease(a, e.Unit)
	}
	if len(units) > 0 {
		a.version++
	}
}

// NextWake is the time of the next Tick that has something to do; false when
// only a message or a call can change anything.
func (l *Lender) NextWake() (time.Duration, bool) {
	at := never
	for _, a := range l.accounts {
		at = min(at, a.ends.first())
		for _, r := range a.reclaims {
			at = min(at, r.deadline+l.opt.Grace)
			if a.up {
				at = min(at, r.sent+l.opt.Retry)
			}
		}
	}
	return at, at != never
}

// maxAnswers bounds the answers kept per borrower: far more than a borrower
// has requests under way (one).
const maxAnswers = 64

// answers are the last answers to Borrow, by request.
type answers struct {
	ids  []uint64 // oldest first
	kept map[uint64]wire.Message
	old  uint64 // the highest number that was forgotten
}

// find returns the answer that was given to a request. A request too old to be
// remembered is known, but has no answer.
func (s *answers) find(id uint64) (answer wire.Message, known bool) {
	if m, ok := s.kept[id]; ok {
		return m, true
	}
	return nil, id <= s.old
}

func (s *answers) add(id uint64, m wire.Message) {
	if s.kept == nil {
		s.kept = make(map[uint64]wire.Message, maxAnswers)
	}
	if len(s.ids) == maxAnswers {
		s.old = max(s.old, s.ids[0])
		delete(s.kept, s.ids[0])
		s.ids = slices.Delete(s.ids, 0, 1)
	}
	s.ids = append(s.ids, id)
	s.kept[id] = m
}
