package coordinator

import (
	"cmp"
	"slices"
	"time"
)

// wish is what a borrower asked for and did not get. It counts for as long as
// the borrower goes on asking.
type wish struct {
	want, least int           // units, as in wire.Borrow; want is 0: there is none
	since       time.Duration // it has waited
	last        time.Duration // asked
}

// turn is memory that one borrower gets at others' cost, for a time, because it
// cannot go on with its share.
type turn struct {
	of    *account // nil: nobody
	goal  int      // units that it is to hold, or to keep
	met   bool
	until time.Duration
	// long is how long the borrower may keep the goal.
	long  time.Duration
	ended time.Duration // when the turn before did
}

// maxTenure bounds a turn, in times of the lender's patience. A turn is twice
// as long as the one right before it: however long a borrower's work takes,
// one of its turns is long enough.
const maxTenure = 64

// stake is a borrower's part when the units are divided.
type stake struct {
	a      *account
	held   int
	weight int
	demand int // what it has and wants
	least  int // of use, of what it wants; 0: it wants nothing that it can get
	// share is what it is entitled to. One that waits and has less gets more,
	// of those that have more; so nothing goes to and fro.
	share int
}

// lack is how many units it is entitled to and has not.
func (s *stake) lack() int { return max(0, s.share-s.held) }

// sharing reports whether units are asked back for other borrowers.
func (l *Lender) sharing() bool { return l.opt.Within > 0 }

// wishLife is how long a wish counts that is not repeated: longer than it takes
// to repeat one of which a message was lost.
func (l *Lender) wishLife() time.Duration { return l.opt.Retry + 4*l.opt.RetryAfter }

func (l *Lender) wishes(now time.Duration, a *account) bool {
	return a.wish.want > 0 && now < a.wish.last+l.wishLife()
}

// wish notes what a borrower asks for. That it cannot go on is something new,
// whatever it wished for before.
func (l *Lender) wish(now time.Duration, a *account, want, least int) {
	since := now
	if l.wishes(now, a) && (a.wish.least > 0 || least == 0) {
		since = a.wish.since
	}
	a.wish = wish{want: want, least: least, since: since, last: now}
}

// granted notes that a borrower got n of the units that it wished for.
func (l *Lender) granted(now time.Duration, a *account, n int) {
	a.wish.want -= n
	a.wish.least = max(0, a.wish.least-n)
	if t := &l.turn; t.of == a && !t.met && l.holds(a) >= t.goal {
		t.met, t.until = true, now+t.long
	}
}

// forget drops what is known of a borrower's wishes.
func (l *Lender) forget(now time.Duration, a *account) {
	a.wish = wish{}
	if l.turn.of == a {
		l.endTurn(now)
	}
}

func (l *Lender) endTurn(now time.Duration) {
	l.turn.of, l.turn.ended = nil, min(now, l.turn.until)
}

// contested reports whether anybody but a waits for units.
func (l *Lender) contested(now time.Duration, a *account) bool {
	return slices.ContainsFunc(l.accounts, func(o *account) bool { return o != a && l.wishes(now, o) })
}

// stakes lists the borrowers that have or want units, and how many units there
// are to divide. What a borrower has that is not connected cannot be asked
// back, so it is not divided.
func (l *Lender) stakes(now time.Duration, free int) (list []stake, total int) {
	total = free
	for _, a := range l.accounts {
		s := stake{a: a, held: l.holds(a), weight: 1}
		if !a.up {
			continue
		}
		if w, ok := l.opt.Weight[a.owner]; ok {
			s.weight = max(1, w)
		}
		s.demand = s.held
		if l.wishes(now, a) {
			s.demand, s.least = s.held+a.wish.want, max(1, a.wish.least)
		}
		if q, ok := l.opt.Quota[a.owner]; ok {
			s.demand = min(s.demand, q)
		}
		total += s.held
		if s.demand > 0 || s.held > 0 {
			list = append(list, s)
		}
	}
	return list, total
}

// divide works out every borrower's share: max-min fair by weight, nobody more
// than it demands. A wish counts only if its share brings what is of use to it.
func (l *Lender) divide(now time.Duration, free int) []stake {
	list, total := l.stakes(now, free)
	for {
		rest := total
		var open []*stake
		for i := range list {
			s := &list[i]
			if t := &l.turn; t.of == s.a {
				s.share, s.least = min(t.goal, total), 0
				if t.met {
					s.share = min(s.share, s.held)
				}
				rest -= s.share
			} else {
				open = append(open, s)
			}
		}
		fill(open, rest)
		var last *stake // the youngest wish that its share cannot meet
		for _, s := range open {
			if s.least > 0 && s.share-s.held < s.least && (last == nil || !before(s, last)) {
				last = s
			}
		}
		if last == nil {
			return list
		}
		last.demand, last.least = min(last.demand, last.held), 0
	}
}

// before orders stakes: who has waited longer is served first.
func before(s, o *stake) bool {
	return cmp.Or(cmp.Compare(s.a.wish.since, o.a.wish.since), cmp.Compare(s.a.owner, o.a.owner)) < 0
}

// fill divides total by weight, as water fills vessels: whoever demands less
// than its part leaves the rest to the others. Parts are rounded down.
func fill(open []*stake, total int) {
	for len(open) > 0 {
		weights, rest := 0, total
		for _, s := range open {
			weights += s.weight
		}
		thirsty := open[:0:0]
		for _, s := range open {
			if s.demand*weights <= total*s.weight {
				s.share = s.demand
				rest -= s.demand
			} else {
				thirsty = append(thirsty, s)
			}
		}
		if len(thirsty) == len(open) {
			for _, s := range open {
				s.share = total * s.weight / weights
			}
			return
		}
		open, total = thirsty, rest
	}
}

// reserved is how many of the free units a borrower may not have, since others
// wait for them that are entitled to them: all of them, if the borrower wants
// more than its share, and otherwise those that have waited longer.
func (l *Lender) reserved(now time.Duration, a *account, free int) int {
	list := l.divide(now, free)
	i := slices.IndexFunc(list, func(s stake) bool { return s.a == a })
	if i < 0 {
		return free
	}
	own, older, all := &list[i], 0, 0
	for j := range list {
		s := &list[j]
		if j == i {
			continue
		}
		all += s.lack()
		if l.turn.of == s.a || l.turn.of != a && before(s, own) {
			older += s.lack()
		}
	}
	return max(older, min(all, free-own.lack()))
}

// favour asks units back from borrowers that have more than their share, for
// those that wait and have less. It reports whether units are on their way.
func (l *Lender) favour(now time.Duration, a *account) bool {
	free, _ := l.free(a, Wish{Units: a.wish.want, Least: a.wish.least})
	l.nextTurn(now, free)
	list := l.divide(now, free)
	short := -free - l.owed()
	spare := make([]int, len(list))
	for i := range list {
		s := &list[i]
		short += s.lack()
		spare[i] = max(0, s.held-s.a.owed()-s.share)
	}
	for i, k := range fairSplit(max(0, short), spare) {
		if k > 0 {
			l.reclaim(now, list[i].a, k, now+l.opt.Within)
		}
	}
	return l.owed() > 0
}

// turnOver ends a turn whose time is over, or whose borrower is gone.
func (l *Lender) turnOver(now time.Duration) {
	t := &l.turn
	if t.of != nil && (now >= t.until || !t.met && !l.wishes(now, t.of) || !t.of.up) {
		l.endTurn(now)
	}
}

// nextTurn begins a turn, if there is none, when a borrower has waited for long
// that cannot go on and that no share will help.
func (l *Lender) nextTurn(now time.Duration, free int) {
	t := &l.turn
	if t.of != nil {
		return
	}
	var next *stake
	list := l.divide(now, free)
	_, total := l.stakes(now, free)
	for i := range list {
		s := &list[i]
		w := s.a.wish
		if !l.wishes(now, s.a) || w.least == 0 || s.least > 0 || now < w.since+l.opt.Patience || s.goal() > total {
			continue
		}
		if q, ok := l.opt.Quota[s.a.owner]; ok && s.goal() > q {
			continue
		}
		if next == nil || before(s, next) {
			next = s
		}
	}
	if next == nil {
		return
	}
	long := l.opt.Patience
	if t.long > 0 && now <= t.ended+t.long {
		long = min(2*t.long, maxTenure*l.opt.Patience)
	}
	*t = turn{of: next.a, goal: next.goal(), until: now + l.opt.Within + l.opt.Grace + long, long: long, ended: t.ended}
}

// goal is how many units a borrower must have to go on.
func (s *stake) goal() int { return s.held + s.a.wish.least }
