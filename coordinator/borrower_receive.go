package coordinator

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// Receive handles a message of the lender.
func (b *Borrower) Receive(now time.Duration, m wire.Message) error {
	b.Tick(now)
	switch m := m.(type) {
	case *wire.Grant:
		b.granted(now, m)
	case *wire.Deny:
		b.denied(now, m)
	case *wire.Reclaim:
		b.reclaim(now, m)
	case *wire.Released:
		b.released(now, m)
	case *wire.Renewed:
		b.renewed(now, m)
	case *wire.Sync:
		if m.Ask {
			return fmt.Errorf("sync of the lender with a question: %w", ErrUnexpected)
		}
		b.sync(now, m)
	default:
		return fmt.Errorf("%s of the lender: %w", m.Type(), ErrUnexpected)
	}
	b.Tick(now)
	return nil
}

// follows reports whether the replica shows everything up to, but not
// including, a change with this version. If it misses more, it asks.
func (b *Borrower) follows(now time.Duration, version uint64) bool {
	if b.version == 0 || version > b.version+1 {
		b.gap(now)
		return false
	}
	return version == b.version+1
}

// gap asks for the lender's view, if that is not under way.
func (b *Borrower) gap(now time.Duration) {
	if b.asked == nil {
		b.ask(now)
	}
}

// behind asks for the lender's view if a message without a change shows a
// version that the replica has not reached.
func (b *Borrower) behind(now time.Duration, version uint64) bool {
	if version > b.version {
		b.gap(now)
		return true
	}
	return false
}

func (b *Borrower) granted(now time.Duration, m *wire.Grant) {
	w := b.wanted
	mine := w != nil && w.id == m.ID
	switch {
	case b.version != 0 && m.Version <= b.version:
		// A Sync was faster. The units are in use already, or gone again.
	case !mine:
		// Of a request that was given up: the term is not known, but a Sync
		// tells of the units too.
		b.gap(now)
		return
	case !b.follows(now, m.Version):
		return // the request stays open until the gap is closed
	default:
		b.version = m.Version
		b.ttl = m.TTL
		b.use(m.Units, w.first+m.TTL)
	}
	if mine {
		b.wanted = nil
		if w.next.Units > 0 {
			b.Want(now, w.next)
		} else {
			b.Want(now, Wish{Units: w.target - w.Units, Keep: w.Keep}) // what was wanted meanwhile
		}
	}
}

func (b *Borrower) denied(now time.Duration, m *wire.Deny) {
	b.behind(now, m.Version)
	if b.wanted == nil || b.wanted.id != m.ID {
		return
	}
	next := b.wanted.next
	b.wanted = nil
	if next.Units > 0 {
		b.Want(now, next) // its answer counts
		return
	}
	b.do(Denied{Reason: m.Reason, Available: m.Available, RetryAfter: m.RetryAfter})
}

// reclaim notes what the lender wants back. Units on their way, which the
// lender had not seen at this version, count; so a repeated Reclaim asks the
// owner for no more than the first did.
func (b *Borrower) reclaim(now time.Duration, m *wire.Reclaim) {
	if m.Version < b.version || b.behind(now, m.Version) {
		return // stale, or too early; the lender repeats it
	}
	underWay, others := 0, 0
	for _, g := range b.gifts {
		for _, e := range g.units {
			if b.units[e].state == givenUp {
				underWay++
			}
		}
	}
	i := slices.IndexFunc(b.claims, func(c *claim) bool { return c.id == m.ID })
	if i < 0 {
		i = len(b.claims)
		b.claims = append(b.claims, &claim{id: m.ID})
	}
	for j, c := range b.claims {
		if j != i {
			others += c.owed
		}
	}
	c := b.claims[i]
	more := min(m.Want-underWay, b.held-others) - c.owed
	if more > 0 {
		c.owed += more
		b.do(Evacuate{Reclaim: c.id, N: more, Deadline: now + m.Deadline})
	}
	if c.owed == 0 {
		b.claims = slices.Delete(b.claims, i, i+1)
	}
}

// released takes the lender's acknowledgement of a gift.
func (b *Borrower) released(now time.Duration, m *wire.Released) {
	i := slices.IndexFunc(b.gifts, func(g *gift) bool {
		if m.Part != 0 {
			return g.id == m.Part
		}
		return g.id == m.ID && g.claim == 0
	})
	if i < 0 {
		b.behind(now, m.Version) // repeated
		return
	}
	// Until the replica has caught up, the units must not be forgotten: a view
	// from before they went back may still arrive. The gift is sent again.
	switch {
	case b.version != 0 && m.Version <= b.version:
	case len(m.Units) == 0:
		b.gap(now)
		return
	case !b.follows(now, m.Version):
		return
	default:
		b.version = m.Version
	}
	for _, e := range b.gifts[i].units {
		delete(b.units, e)
	}
	b.gifts = slices.Delete(b.gifts, i, i+1)
}

// renewed extends every lease, if the replica is what the lender renewed.
func (b *Borrower) renewed(now time.Duration, m *wire.Renewed) {
	i := slices.IndexFunc(b.renews, func(q question) bool { return q.id == m.ID })
	if i < 0 {
		b.behind(now, m.Version)
		return
	}
	first := b.renews[i].first
	b.renews = slices.Delete(b.renews, 0, i+1)
	if b.behind(now, m.Version) || m.Version < b.version {
		return
	}
	b.extend(first, m.TTL)
}

func (b *Borrower) extend(from, ttl time.Duration) {
	b.ttl = ttl
	b.ends.extend(from + ttl)
}

// sync makes the replica what the lender's view was.
func (b *Borrower) sync(now time.Duration, m *wire.Sync) {
	answer := b.asked != nil && b.asked.id == m.ID
	if m.Version < b.version || (b.version == 0 && !answer) {
		return // of the past
	}
	view := make(map[wire.UnitEpoch]struct{}, len(m.Units))
	var fresh []wire.UnitEpoch
	for _, e := range m.Units {
		view[e] = struct{}{}
		if b.units[e] == nil {
			fresh = append(fresh, e)
		}
	}
	if len(fresh) > 0 && !answer {
		b.gap(now) // their term is not known
		return
	}
	var gone []wire.UnitEpoch
	for e, u := range b.units {
		if _, ok := view[e]; !ok && u.state == inUse {
			gone = append(gone, e)
		}
	}
	b.lose(gone, "the lender took it back")
	b.version = m.Version
	b.disown(now, m.Fenced)
	if !answer {
		return
	}
	first := b.asked.first
	b.asked = nil
	b.extend(first, m.TTL)
	if len(fresh) > 0 {
		b.use(fresh, first+m.TTL)
	}
}

// disown returns units that were taken from this process before it heard that
// it had them. No older message can give them to it any more.
func (b *Borrower) disown(now time.Duration, fenced []wire.UnitEpoch) {
	var never []wire.UnitEpoch
	for _, e := range fenced {
		if b.units[e] == nil {
			b.units[e] = &unit{state: givenUp}
			never = append(never, e)
		}
	}
	if len(never) > 0 {
		b.give(now, &gift{units: never, done: true})
	}
}
