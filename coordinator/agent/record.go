package agent

import (
	"time"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/coordinator/session"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

// Kind names what happened to units.
type Kind string

// The kinds of events.
const (
	// EventAdopt: found lent or fenced when the worker's process began.
	EventAdopt Kind = "adopt"
	// EventGrant: lent, under these epochs.
	EventGrant Kind = "grant"
	// EventReturn: given back by their borrower, under these epochs.
	EventReturn Kind = "return"
	// EventReclaim: N units of the borrower's choice were asked back.
	EventReclaim Kind = "reclaim"
	// EventFence: taken without consent, from these epochs.
	EventFence Kind = "fence"
	// EventConfirm: fenced units came home, since it is certain that their
	// last borrower writes no more. The epochs are those of the fence.
	EventConfirm Kind = "confirm"
)

// Event is a change of who may use units.
type Event struct {
	Kind   Kind
	Peer   string // the borrower
	PID    int    // its process as last heard; 0: not known
	Units  []wire.UnitEpoch
	N      int // units that a reclaim asks for
	Reason string
}

// book is the worker's units with a note of every change that the machine makes.
type book struct {
	*elastic.Units
	changes []change
}

// change is units of one owner that changed hands in one way.
type change struct {
	kind  Kind
	owner uint32
	units []wire.UnitEpoch
}

func (b *book) note(kind Kind, owner uint32, units ...elastic.UnitEpoch) {
	n := len(b.changes)
	if n == 0 || b.changes[n-1].kind != kind || b.changes[n-1].owner != owner {
		b.changes = append(b.changes, change{kind: kind, owner: owner})
		n++
	}
	c := &b.changes[n-1]
	for _, u := range units {
		c.units = append(c.units, wire.UnitEpoch(u))
	}
}

// Grant implements coordinator.Units.
func (b *book) Grant(owner uint32, least, want int, expiry time.Duration) ([]elastic.UnitEpoch, error) {
	got, err := b.Units.Grant(owner, least, want, expiry)
	if err == nil {
		b.note(EventGrant, owner, got...)
	}
	return got, err
}

// Return implements coordinator.Units.
func (b *book) Return(owner uint32, e elastic.UnitEpoch) error {
	err := b.Units.Return(owner, e)
	if err == nil {
		b.note(EventReturn, owner, e)
	}
	return err
}

// Fence implements coordinator.Units.
func (b *book) Fence(owner uint32, e elastic.UnitEpoch) (uint64, error) {
	now, err := b.Units.Fence(owner, e)
	if err == nil {
		b.note(EventFence, owner, e)
	}
	return now, err
}

// Unfence implements coordinator.Units.
func (b *book) Unfence(owner uint32, e elastic.UnitEpoch) error {
	err := b.Units.Unfence(owner, e)
	if err == nil {
		b.note(EventConfirm, owner, e)
	}
	return err
}

// ledger counts and times what happens with one borrower.
type ledger struct {
	wire.LendingStatus
	reclaims map[uint64]time.Duration // asked for at, by reclaim
	fences   map[uint32]time.Duration // fenced at, by unit
	lastAsk  uint64                   // the latest reclaim that was noted
}

// maxPending bounds the reclaims whose end is waited for in a ledger; older
// ones are forgotten.
const maxPending = 1024

// ledger finds or opens a borrower's ledger. The landlord's lock is held.
func (l *Lender) ledger(owner uint32) *ledger {
	g := l.ledgers[owner]
	if g == nil {
		g = &ledger{reclaims: map[uint64]time.Duration{}, fences: map[uint32]time.Duration{}}
		l.ledgers[owner] = g
	}
	return g
}

// record books what the machine has done since the last time, before its
// actions are carried out. why is the reason of what no action explains. The
// landlord's lock is held.
func (l *Lender) record(now time.Duration, actions []coordinator.Action, why string) {
	reasons := map[uint32]string{}
	for _, a := range actions {
		switch a := a.(type) {
		case coordinator.Fence:
			reasons[a.Owner] = a.Reason
		case coordinator.Send:
			l.noteSend(now, a)
		}
	}
	for _, c := range l.book.changes {
		g := l.ledger(c.owner)
		n := uint64(len(c.units))
		ev := Event{Kind: c.kind, Units: c.units}
		switch c.kind {
		case EventGrant:
			g.Granted += n
		case EventReturn:
			g.Returned += n
		case EventFence:
			g.Fenced += n
			for _, u := range c.units {
				g.fences[u.Unit] = now
			}
			if ev.Reason = reasons[c.owner]; ev.Reason == "" {
				ev.Reason = why
			}
		case EventConfirm:
			g.Confirmed += n
			for _, u := range c.units {
				if at, ok := g.fences[u.Unit]; ok {
					g.FenceTime.Observe((now - at).Seconds())
					delete(g.fences, u.Unit)
				}
			}
			ev.Reason = why
		}
		l.emit(c.owner, ev)
	}
	l.book.changes = nil
}

// noteSend books what only messages show: refusals and wishes.
func (l *Lender) noteSend(now time.Duration, a coordinator.Send) {
	g := l.ledger(a.To)
	switch m := a.Message.(type) {
	case *wire.Deny:
		g.Denied++
	case *wire.Reclaim:
		if m.ID <= g.lastAsk {
			return // repeated
		}
		g.lastAsk = m.ID
		g.Reclaimed += uint64(m.Want)
		if len(g.reclaims) >= maxPending {
			clear(g.reclaims)
		}
		g.reclaims[m.ID] = now
		l.emit(a.To, Event{Kind: EventReclaim, N: m.Want, Reason: "wanted within " + m.Deadline.Round(time.Millisecond).String()})
	}
}

// reclaimEnded times a reclaim that its borrower says is done.
func (l *Lender) reclaimEnded(now time.Duration, owner uint32, m *wire.Released) {
	g := l.ledger(owner)
	if at, ok := g.reclaims[m.ID]; ok && m.Part != 0 && m.Done {
		g.ReclaimTime.Observe((now - at).Seconds())
		delete(g.reclaims, m.ID)
	}
}

// adopted records what was away when the process began.
func (l *Lender) adopted(name string, owner uint32) {
	for _, s := range [...]elastic.State{elastic.Lent, elastic.Reclaiming, elastic.Fenced} {
		ev := Event{Kind: EventAdopt, Peer: name, Reason: s.String()}
		for e := range l.cfg.Units.UnitsOf(owner, s) {
			ev.Units = append(ev.Units, wire.UnitEpoch(e))
		}
		if len(ev.Units) > 0 && l.cfg.Record != nil {
			l.cfg.Record(ev)
		}
	}
}

func (l *Lender) emit(owner uint32, ev Event) {
	if l.cfg.Record == nil {
		return
	}
	ev.Peer, ev.PID = l.peers[owner].name, l.peers[owner].pid
	l.cfg.Record(ev)
}

// Describe adds the lender's links and counters to a status.
func (l *Lender) Describe(st *wire.Status) {
	done := make(chan struct{})
	l.loop.post(func() {
		defer close(done)
		for owner, link := range l.links {
			st.Links = append(st.Links, LinkStatus(l.names[owner], link))
		}
		l.cfg.Landlord.Locked(func() bool {
			for owner, g := range l.ledgers {
				s := g.LendingStatus
				s.Peer = l.peers[owner].name
				s.GrantTime, s.ReclaimTime, s.FenceTime = s.GrantTime.Clone(), s.ReclaimTime.Clone(), s.FenceTime.Clone()
				st.Lending = append(st.Lending, s)
			}
			return false
		})
	})
	l.loop.wait(done)
}

// LinkStatus is a link's state as a status shows it.
func LinkStatus(peer string, link *session.Link) wire.LinkStatus {
	s := link.Status()
	out := wire.LinkStatus{
		Peer: peer, Up: s.Up, Refused: s.Refused != nil, Queued: s.Queued, Sent: s.Sent, Resent: s.Resent,
		Dropped: s.Dropped, Connects: s.Connects, Resets: s.Resets,
	}
	switch {
	case s.Refused != nil:
		out.Reason = wire.Clip(s.Refused.Error(), wire.MaxText)
	case s.Down != nil && !s.Up:
		out.Reason = wire.Clip(s.Down.Error(), wire.MaxText)
	}
	return out
}
