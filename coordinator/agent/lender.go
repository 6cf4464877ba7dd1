package agent

import (
	"fmt"
	"sync"
	"time"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/coordinator/session"
	"github.com/kvlend/kvlend/coordinator/transport"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

// Landlord is the owner of a Lender: the worker's cache, whose lock guards the
// units and the machine alike.
type Landlord interface {
	// Locked runs f under the lock; f says whether units came home.
	Locked(f func() (home bool))
}

// LenderConfig describes a worker's links to its borrowers.
type LenderConfig struct {
	Units    *elastic.Units
	Landlord Landlord
	// Spare limits what may be lent at this moment; called under the lock.
	Spare func(w coordinator.Wish) int
	// Lease is the time for which a grant holds, Deadline the time in which
	// units that are asked back should come.
	Lease, Deadline time.Duration
	// Quota is the most units that a borrower may hold, Weight its part when
	// there are fewer units than are wanted, both by owner index; missing: no
	// limit, and 1.
	Quota, Weight map[uint32]int
	// FirstCome leaves a borrower what it has, however long others wait.
	FirstCome bool
	// Stuck is told of a borrower that has not confirmed a fence for another
	// Deadline: somebody must make sure that it writes no more. Then Ended is
	// called. It must not block.
	Stuck func(borrower, reason string)
	// Replaced asks whether every process of a borrower before successor, its
	// present one, has ended; nil: nobody can be asked. If so Ended is called
	// with one of them, perhaps again. It must not block.
	Replaced func(borrower, reason string, successor int)
	// Record is told of every change of who may use units, under the
	// landlord's lock; nil: nobody is. It must not block.
	Record func(Event)
	Self   wire.Hello
	Log    Logger
}

// Lender is a worker's side of the links to all its borrowers.
type Lender struct {
	cfg     LenderConfig
	loop    loop
	closing sync.Once
	machine *coordinator.Lender // guarded by the landlord's lock
	book    *book               // what the machine changes; guarded by the same lock
	ledgers map[uint32]*ledger  // by owner index; guarded by the same lock
	peers   map[uint32]peer     // by owner index; guarded by the same lock
	// names and links go by owner index. Serve writes them while the loop waits.
	names map[uint32]string
	links map[uint32]*session.Link
	// pids are the borrowers' processes as their links last said, up whether
	// these are connected. By owner index; used on the loop only.
	pids map[uint32]int
	up   map[uint32]bool
}

// reconnect is what a link that is down gets, beyond the deadline, to come back.
const reconnect = 2 * time.Second

// peer is a borrower as records name it.
type peer struct {
	name string
	pid  int
}

// NewLender makes the machine. Open a link per borrower, then Start.
func NewLender(cfg LenderConfig) *Lender {
	l := &Lender{cfg: cfg, book: &book{Units: cfg.Units}, ledgers: map[uint32]*ledger{}, peers: map[uint32]peer{}, names: map[uint32]string{}, links: map[uint32]*session.Link{}, pids: map[uint32]int{}, up: map[uint32]bool{}}
	opt := coordinator.LenderOptions{
		Units: l.book, TTL: cfg.Lease, Quota: cfg.Quota, Weight: cfg.Weight, Within: cfg.Deadline,
		Spare: func(_ uint32, w coordinator.Wish) int { return cfg.Spare(w) },
	}
	if cfg.FirstCome {
		opt.Within = 0
	}
	l.machine = coordinator.NewLender(Now(), opt)
	l.loop.start(l.nextWake, func() { l.do(l.machine.Tick) })
	return l
}

func (l *Lender) nextWake() (at time.Duration, ok bool) {
	l.cfg.Landlord.Locked(func() bool {
		at, ok = l.machine.NextWake()
		return false
	})
	return at, ok
}

// Serve opens the link to a borrower, whose index in the unit table is owner.
func (l *Lender) Serve(name string, owner uint32, listener transport.Listener) error {
	self := l.cfg.Self
	self.UnitBytes, self.Units = l.cfg.Units.Spec().Bytes, l.cfg.Units.Total()
	l.cfg.Landlord.Locked(func() bool {
		l.peers[owner] = peer{name: name}
		l.adopted(name, owner)
		return false
	})
	opened := make(chan struct{})
	l.loop.post(func() { <-opened }) // nothing is handled before the link is known
	defer close(opened)
	link, err := session.Open(session.Options{
		Listener: listener, Self: self, PeerModel: name,
		OnMessage: func(m wire.Message) { l.post(func(now time.Duration) { l.receive(now, owner, m) }) },
		OnUp: func(hello wire.Hello) {
			l.post(func(now time.Duration) {
				l.pids[owner], l.up[owner] = hello.PID, true
				l.peers[owner] = peer{name, hello.PID}
				l.machine.Up(now, owner)
			})
		},
		OnDown: func(error) {
			l.post(func(now time.Duration) {
				l.up[owner] = false
				l.machine.Down(now, owner)
			})
		},
		OnPeerReset: func() {
			l.post(func(now time.Duration) { l.machine.PeerReset(now, owner) })
		},
		OnRefused: func(err error) { l.cfg.Log.Warn("borrower refused", "borrower", name, "reason", err) },
	})
	if err != nil {
		return fmt.Errorf("link to borrower %s: %w", name, err)
	}
	l.names[owner], l.links[owner] = name, link
	return nil
}

// Close ends the links and the agent. It may be repeated, but not be called
// under the landlord's lock.
func (l *Lender) Close() { l.closing.Do(l.close) }

func (l *Lender) close() {
	closed := make(chan struct{})
	l.loop.post(func() {
		links := make([]*session.Link, 0, len(l.links))
		for _, link := range l.links {
			links = append(links, link)
		}
		go func() {
			defer close(closed)
			for _, link := range links {
				link.Close()
			}
		}()
	})
	<-closed
	l.loop.stop()
}

// Need asks borrowers for units, in all. The caller holds the landlord's lock.
func (l *Lender) Need(units int) {
	coming := l.machine.Need(Now(), units, l.cfg.Deadline)
	l.cfg.Log.Debug("units asked back", "wanted", units, "coming", coming)
	l.act(l.taken(""))
}

func (l *Lender) receive(now time.Duration, owner uint32, m wire.Message) {
	if err := l.machine.Receive(now, owner, m); err != nil {
		l.cfg.Log.Warn("message of a borrower refused", "borrower", l.names[owner], "type", m.Type(), "reason", err)
	}
	if r, ok := m.(*wire.Released); ok {
		l.reclaimEnded(now, owner, r)
	}
}

func (l *Lender) post(f func(now time.Duration)) {
	l.loop.post(func() { l.do(f) })
}

// do calls the machine under the landlord's lock and does what it wants done.
func (l *Lender) do(f func(now time.Duration)) {
	l.cfg.Landlord.Locked(func() bool {
		before := l.cfg.Units.Away()
		f(Now())
		l.act(l.taken("its borrower is done with it"))
		after := l.cfg.Units.Away()
		switch {
		case after > before:
			l.cfg.Log.Info("units lent", "units", after-before, "away", after)
		case after < before:
			l.cfg.Log.Info("units came home", "units", before-after, "away", after)
		}
		return after < before
	})
}

// taken takes the machine's actions and records what it did.
func (l *Lender) taken(why string) []coordinator.Action {
	actions := l.machine.Take()
	l.record(Now(), actions, why)
	return actions
}

// act queues what the machine wants done: sending must not happen under the lock.
func (l *Lender) act(actions []coordinator.Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case coordinator.Send:
			l.loop.post(func() { l.send(a) })
		case coordinator.Fence:
			l.loop.post(func() { l.fenced(a) })
		}
	}
}

// fenced watches over units that were taken without consent: they stay out of
// use until their borrower returns them or is known to have ended.
func (l *Lender) fenced(f coordinator.Fence) {
	name := l.names[f.Owner]
	l.cfg.Log.Warn("units taken without consent", "borrower", name, "units", len(f.Units), "reason", f.Reason)
	if pid := l.pids[f.Owner]; !f.Live && pid != 0 && l.cfg.Replaced != nil {
		// This process may not have lived when that one's end was told.
		l.cfg.Replaced(name, f.Reason, pid)
	}
	wait := l.cfg.Deadline
	if !l.up[f.Owner] {
		wait += reconnect // it may have answered a process of ours that died
	}
	time.AfterFunc(wait, func() {
		l.loop.post(func() {
			if l.stillFenced(f) {
				l.cfg.Stuck(name, f.Reason)
			}
		})
	})
}

// stillFenced reports whether any unit of a fence has not come home. Units that
// were fenced later have a time of their own.
func (l *Lender) stillFenced(f coordinator.Fence) (still bool) {
	l.cfg.Landlord.Locked(func() bool {
		for _, u := range f.Units {
			row, err := l.cfg.Units.Unit(int(u.Unit))
			still = still || err == nil && row.State == elastic.Fenced && row.Owner == f.Owner && row.Epoch == u.Epoch+1
		}
		return false
	})
	return still
}

// Ended says that a borrower's process has ended for certain: what it held goes
// home at once. If its successor is connected already, only what the dead
// process held is meant.
func (l *Lender) Ended(owner uint32, pid int) {
	l.post(func(now time.Duration) {
		const ended = "its borrower's process has ended"
		if known := l.pids[owner]; known != 0 && known != pid {
			l.machine.ConfirmPast(now, owner)
			l.act(l.taken(ended))
			return
		}
		// Fences everything: it is all of the past now.
		l.machine.PeerReset(now, owner)
		for _, a := range l.taken(ended) {
			if f, ok := a.(coordinator.Fence); !ok || f.Owner != owner {
				l.act([]coordinator.Action{a})
			}
		}
		l.machine.ConfirmPast(now, owner)
		l.act(l.taken(ended))
	})
}

func (l *Lender) send(a coordinator.Send) {
	link := l.links[a.To]
	if link == nil {
		return // the machine repeats what matters when the link is up
	}
	if err := link.TrySend(a.Message); err != nil {
		l.cfg.Log.Debug("message not sent", "to", l.names[a.To], "type", a.Message.Type(), "reason", err)
	}
}

// Version is the version of a borrower's units.
func (l *Lender) Version(owner uint32) (v uint64) {
	l.cfg.Landlord.Locked(func() bool {
		v = l.machine.Version(owner)
		return false
	})
	return v
}
