package coordinator

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// BorrowerOptions of one link to a worker. Zero durations mean the defaults.
type BorrowerOptions struct {
	// Retry is the pause between repetitions of a request; default 1s.
	Retry time.Duration
}

// Borrower is the master's side of the link to one worker: a replica of which
// units it holds. Not safe for concurrent use. After every call its owner does
// the actions of Take.
type Borrower struct {
	opt     BorrowerOptions
	actions []Action

	up      bool
	version uint64 // of the lender's view that the replica shows; 0: none yet
	lastID  uint64

	units  map[wire.UnitEpoch]*unit
	held   int                // units in use
	terms  map[*term]struct{} // leases that have units in use
	ends   ends               // of the terms
	wanted *want              // a Borrow that was not answered
	asked  *question          // a Sync that was not answered
	renews []question         // Renews that were not answered, oldest first
	gifts  []*gift            // not acknowledged, oldest first
	claims []*claim           // reclaims of the lender, oldest first
	ttl    time.Duration      // of leases, as last heard
}

// unit is a unit that the owner uses, or has not Released, or whose release
// was not acknowledged.
type unit struct {
	state holding
	term  *term // of a unit in use
}

type holding uint8

const (
	inUse   holding = iota
	lost            // must not be used; the owner has not Released it yet
	givenUp         // the owner is done with it; part of a gift
)

// want is a request for units.
type want struct {
	id          uint64
	Wish                      // as sent
	target      int           // units as wanted by now, at least as sent
	next        Wish          // what to ask for after the answer, of more weight
	first, last time.Duration // sent
}

// question is a request that may be answered once; leases are counted from
// the first time it was sent.
type question struct {
	id          uint64
	first, last time.Duration
}

// gift is units on their way back: a Return, or a part of a reclaim.
type gift struct {
	id    uint64
	claim uint64 // the lender's reclaim; 0: a Return
	units []wire.UnitEpoch
	done  bool
	last  time.Duration
}

// claim is a reclaim that is not yet satisfied.
type claim struct {
	id   uint64
	owed int // units that the owner was asked to Release and did not
}

// maxRenews bounds the Renews whose answer still counts.
const maxRenews = 16

// NewBorrower makes a borrower that holds nothing.
func NewBorrower(o BorrowerOptions) *Borrower {
	if o.Retry <= 0 {
		o.Retry = time.Second
	}
	return &Borrower{opt: o, units: map[wire.UnitEpoch]*unit{}, terms: map[*term]struct{}{}}
}

func (b *Borrower) do(a Action) { b.actions = append(b.actions, a) }

func (b *Borrower) send(m wire.Message) {
	if b.up {
		b.do(Send{Message: m})
	}
}

func (b *Borrower) id() uint64 { b.lastID++; return b.lastID }

// Take returns the actions that are due and forgets them.
func (b *Borrower) Take() []Action {
	t := b.actions
	b.actions = nil
	return t
}

// Held is the number of units that may be used.
func (b *Borrower) Held() int { return b.held }

// Version is the version of the lender's view that the replica shows; 0 before
// the first.
func (b *Borrower) Version() uint64 { return b.version }

// Up says that the link is connected. Everything unanswered is sent again, and
// the replica is compared with the lender's view.
func (b *Borrower) Up(now time.Duration) {
	b.up = true
	// Answers to old questions would count the leases from long ago.
	b.asked, b.renews = nil, nil
	b.ask(now)
	if w := b.wanted; w != nil {
		if now-w.first > b.ttl/3 {
			w.id, w.first = b.id(), now // what the old one brought, the Sync tells
		}
		b.sendWant(now)
	}
	for _, g := range b.gifts {
		b.sendGift(now, g)
	}
	b.Tick(now)
}

// Down says that it is not. Units may be used until their leases end.
func (b *Borrower) Down(now time.Duration) {
	b.up = false
	b.Tick(now)
}

// PeerReset says that the worker's process was replaced. The new one knows
// from the unit table what is lent; what it asked for before, it has forgotten.
func (b *Borrower) PeerReset(now time.Duration) {
	b.version, b.asked, b.renews, b.claims = 0, nil, nil, nil
	for _, g := range b.gifts {
		g.claim = 0
	}
	// A part that says only "done" means nothing to the new process.
	b.gifts = slices.DeleteFunc(b.gifts, func(g *gift) bool { return len(g.units) == 0 })
	b.Tick(now)
}

// Want asks for more units. While a request is under way this only raises its
// number; one for blocks in use follows after one for blocks that are kept.
// Granted or Denied follows, when the link is up.
func (b *Borrower) Want(now time.Duration, w Wish) {
	b.Tick(now)
	if w.Units < 1 {
		return
	}
	w.Units = min(w.Units, wire.MaxUnits)
	w.Least = min(max(w.Least, 0), w.Units)
	switch open := b.wanted; {
	case open == nil:
		b.wanted = &want{id: b.id(), Wish: w, target: w.Units, first: now}
		b.sendWant(now)
	case open.Keep && !w.Keep:
		open.next.Units, open.next.Least = max(open.next.Units, w.Units), max(open.next.Least, w.Least)
	case open.Keep == w.Keep:
		open.target = max(open.target, w.Units)
	}
}

func (b *Borrower) sendWant(now time.Duration) {
	b.wanted.last = now
	b.send(&wire.Borrow{ID: b.wanted.id, Want: b.wanted.Units, Min: b.wanted.Least, Keep: b.wanted.Keep})
}

// ask asks for the lender's view, again if that was done before. A lender that
// was restarted is told what this process knows to hold.
func (b *Borrower) ask(now time.Duration) {
	if b.asked == nil {
		b.asked = &question{id: b.id(), first: now}
	}
	b.asked.last = now
	m := &wire.Sync{Ask: true, ID: b.asked.id, Version: b.version}
	if b.version == 0 {
		for e := range b.units {
			m.Units = append(m.Units, e)
		}
		sortUnits(m.Units)
	}
	b.send(m)
}

// Release gives units back: ones in use, which from here on must not be, and
// ones that were Lost. Those in use count for what the lender asked back. An
// error, ErrNotHeld, means that nothing was done.
func (b *Borrower) Release(now time.Duration, units []wire.UnitEpoch) error {
	seen := make(map[wire.UnitEpoch]struct{}, len(units))
	for _, e := range units {
		u := b.units[e]
		if _, dup := seen[e]; dup || u == nil || u.state == givenUp {
			return fmt.Errorf("release of unit %d at epoch %d: %w", e.Unit, e.Epoch, ErrNotHeld)
		}
		seen[e] = struct{}{}
	}
	var used, gone []wire.UnitEpoch
	for _, e := range units {
		if b.units[e].state == inUse {
			b.leave(b.units[e], givenUp)
			used = append(used, e)
		} else {
			b.units[e].state = givenUp
			gone = append(gone, e)
		}
	}
	for len(used) > 0 && len(b.claims) > 0 {
		c := b.claims[0]
		k := min(len(used), c.owed)
		c.owed -= k
		b.give(now, &gift{claim: c.id, units: used[:k:k], done: c.owed == 0})
		used = used[k:]
		if c.owed == 0 {
			b.claims = b.claims[1:]
		}
	}
	if gone = append(gone, used...); len(gone) > 0 {
		b.give(now, &gift{units: gone, done: true})
	}
	b.Tick(now)
	return nil
}

// CannotRelease says that no more units will come for a reclaim.
func (b *Borrower) CannotRelease(now time.Duration, reclaim uint64) {
	i := slices.IndexFunc(b.claims, func(c *claim) bool { return c.id == reclaim })
	if i >= 0 {
		b.claims = slices.Delete(b.claims, i, i+1)
		b.give(now, &gift{claim: reclaim, done: true})
	}
	b.Tick(now)
}

func (b *Borrower) give(now time.Duration, g *gift) {
	g.id = b.id()
	b.gifts = append(b.gifts, g)
	b.sendGift(now, g)
}

func (b *Borrower) sendGift(now time.Duration, g *gift) {
	g.last = now
	if g.claim == 0 {
		b.send(&wire.Return{ID: g.id, Units: g.units})
		return
	}
	b.send(&wire.Released{ID: g.claim, Part: g.id, Units: g.units, Done: g.done, Version: b.version})
}

// use adds units to those in use.
func (b *Borrower) use(units []wire.UnitEpoch, expiry time.Duration) {
	t := &term{expiry: expiry, units: len(units)}
	b.terms[t] = struct{}{}
	b.ends.add(t)
	for _, e := range units {
		b.units[e] = &unit{state: inUse, term: t}
	}
	b.held += len(units)
	b.do(Granted{Units: units})
}

// leave ends the use of a unit.
func (b *Borrower) leave(u *unit, to holding) {
	u.state = to
	b.held--
	if u.term.units--; u.term.units == 0 {
		delete(b.terms, u.term)
		b.ends.left()
	}
	u.term = nil
}

// lose ends the use of units without the owner's consent.
func (b *Borrower) lose(units []wire.UnitEpoch, reason string) {
	if len(units) == 0 {
		return
	}
	sortUnits(units)
	for _, e := range units {
		b.leave(b.units[e], lost)
	}
	// They count for what the lender asked back, as they do there.
	for n := len(units); n > 0 && len(b.claims) > 0; {
		c := b.claims[0]
		k := min(n, c.owed)
		c.owed -= k
		n -= k
		if c.owed == 0 {
			b.claims = b.claims[1:]
		}
	}
	b.do(Lost{Units: units, Reason: reason})
}

// Tick does what is due by the clock. Calling it too often is harmless;
// NextWake says when.
func (b *Borrower) Tick(now time.Duration) {
	b.expire(now)
	if !b.up {
		return
	}
	if b.asked != nil && now >= b.asked.last+b.opt.Retry {
		b.ask(now)
	}
	if b.wanted != nil && now >= b.wanted.last+b.opt.Retry {
		b.sendWant(now)
	}
	for _, g := range b.gifts {
		if now >= g.last+b.opt.Retry {
			b.sendGift(now, g)
		}
	}
	if at, ok := b.renewAt(); ok && now >= at {
		if len(b.renews) == maxRenews {
			b.renews = slices.Delete(b.renews, 0, 1)
		}
		q := question{id: b.id(), first: now, last: now}
		b.renews = append(b.renews, q)
		b.send(&wire.Renew{ID: q.id})
	}
}

// expire loses the units of leases that have ended.
func (b *Borrower) expire(now time.Duration) {
	if b.ends.first() > now {
		return
	}
	var units []wire.UnitEpoch
	for e, u := range b.units {
		if u.state == inUse && u.term.expiry <= now {
			units = append(units, e)
		}
	}
	b.lose(units, "the lease ended")
}

// renewAt is when leases have to be renewed: with two thirds of their time
// left, so that there is time for several more attempts before one third is.
func (b *Borrower) renewAt() (time.Duration, bool) {
	if len(b.terms) == 0 {
		return 0, false
	}
	at := b.ends.first() - b.ttl*2/3
	if n := len(b.renews); n > 0 {
		at = max(at, b.renews[n-1].last+min(b.opt.Retry, b.ttl/12))
	}
	return at, true
}

// NextWake is the time of the next Tick that has something to do; false when
// only a message or a call can change anything.
func (b *Borrower) NextWake() (time.Duration, bool) {
	at := b.ends.first()
	if b.up {
		if b.asked != nil {
			at = min(at, b.asked.last+b.opt.Retry)
		}
		if b.wanted != nil {
			at = min(at, b.wanted.last+b.opt.Retry)
		}
		for _, g := range b.gifts {
			at = min(at, g.last+b.opt.Retry)
		}
		if r, ok := b.renewAt(); ok {
			at = min(at, r)
		}
	}
	return at, at != never
}

// Bye says that the owner leaves; it must hold nothing.
func (b *Borrower) Bye(reason string) error {
	if len(b.units) > 0 {
		return fmt.Errorf("bye: %d units not returned", len(b.units))
	}
	b.send(&wire.Bye{Reason: wire.Clip(reason, wire.MaxText)})
	return nil
}
