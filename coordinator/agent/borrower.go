package agent

import (
	"sync"
	"time"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/coordinator/session"
	"github.com/kvlend/kvlend/coordinator/transport"
	"github.com/kvlend/kvlend/coordinator/wire"
)

// Tenant is the owner of a Borrower: it uses the units. Its methods are called
// on the agent's goroutine and may take the tenant's lock.
type Tenant interface {
	// Granted gives units to use.
	Granted(units []wire.UnitEpoch)
	// Denied ends a Want: asking again makes sense after retry, or for no more
	// than available.
	Denied(retry time.Duration, available int)
	// Retry says that the time after a Denied has passed.
	Retry()
	// Reclaim asks for units of the tenant's choice; they are given with
	// Release, and done says how many.
	Reclaim(units int, done func(returned int))
	// Lost says that units must not be used any more; the tenant Releases
	// them when none of its own copies touches them.
	Lost(units []wire.UnitEpoch)
}

// BorrowerConfig describes a master's link to one worker.
type BorrowerConfig struct {
	Worker string
	Dialer transport.Dialer
	Self   wire.Hello
	Tenant Tenant
	Log    Logger
}

// Borrower is a master's side of the link to one worker. Its methods do not
// block and are safe for concurrent use.
type Borrower struct {
	cfg     BorrowerConfig
	loop    loop
	machine *coordinator.Borrower // used on the loop only
	link    *session.Link
	closing sync.Once
	retry   *time.Timer        // used on the loop only
	wanted  time.Duration      // since when units are wanted; 0: none are. Used on the loop only
	stats   wire.LendingStatus // used on the loop only
	up      bool               // the link is; used on the loop only
	silence *time.Timer        // used on the loop only
	awaits  bool               // an answer, and the tenant has not been told that there is none; used on the loop only
}

// OpenBorrower starts the link. It does not wait for the worker.
func OpenBorrower(cfg BorrowerConfig) (*Borrower, error) {
	b := &Borrower{cfg: cfg, machine: coordinator.NewBorrower(coordinator.BorrowerOptions{})}
	b.loop.start(b.machine.NextWake, func() { b.do(b.machine.Tick) })
	opened := make(chan struct{})
	b.loop.post(func() { <-opened }) // nothing is handled before there is a link
	link, err := session.Open(session.Options{
		Dialer: cfg.Dialer, Self: cfg.Self, PeerModel: cfg.Worker,
		OnMessage: func(m wire.Message) {
			b.post(func(now time.Duration) {
				if err := b.machine.Receive(now, m); err != nil {
					cfg.Log.Warn("message of a lender refused", "lender", cfg.Worker, "type", m.Type(), "reason", err)
				}
			})
		},
		OnUp: func(wire.Hello) {
			b.post(func(now time.Duration) {
				b.up = true
				b.machine.Up(now)
			})
		},
		OnDown: func(error) {
			b.post(func(now time.Duration) {
				b.up = false
				b.machine.Down(now)
				b.unanswered()
			})
		},
		OnPeerReset: func() { b.post(b.machine.PeerReset) },
		OnRefused:   func(err error) { cfg.Log.Warn("lender refused", "lender", cfg.Worker, "reason", err) },
	})
	b.link = link
	close(opened)
	if err != nil {
		b.loop.stop()
		return nil, err
	}
	return b, nil
}

// Close ends the link and the agent. Units that are held stay lent until their
// leases end or the process does. It may be repeated, but the tenant must not
// call it from one of its methods that the agent calls.
func (b *Borrower) Close() { b.closing.Do(b.close) }

func (b *Borrower) close() {
	closed := make(chan struct{})
	b.loop.post(func() {
		for _, t := range []*time.Timer{b.retry, b.silence} {
			if t != nil {
				t.Stop()
			}
		}
		go func() {
			defer close(closed)
			b.link.Close()
		}()
	})
	<-closed
	b.loop.stop()
}

// Want asks for more units; asking again before the answer only raises the
// number. A tenant that cannot go on (nothing of its runs, and with fewer than
// Least of them nothing will) gets its turn at other borrowers' cost if its
// share of the lender's units does not suffice: so one that can go on must not
// say so.
func (b *Borrower) Want(w coordinator.Wish) {
	b.post(func(now time.Duration) {
		if b.wanted == 0 {
			b.wanted = now
		}
		b.await()
		b.machine.Want(now, w)
		if !b.up {
			b.unanswered()
		}
	})
}

// answerTime is how long an answer is waited for. Granting takes a millisecond.
const answerTime = time.Second

// await sees to it that a lender that is silent does not keep its tenant from
// asking others.
func (b *Borrower) await() {
	if b.awaits {
		return
	}
	b.awaits = true
	b.silence = time.AfterFunc(answerTime, func() {
		b.post(func(time.Duration) { b.unanswered() })
	})
}

// answered ends the wait for an answer.
func (b *Borrower) answered() {
	b.awaits = false
	if b.silence != nil {
		b.silence.Stop()
	}
}

// unanswered tells the tenant that for the time being nothing is to be had here.
// If the lender answers in the end all the same, what it grants is welcome.
func (b *Borrower) unanswered() {
	if b.awaits {
		b.answered()
		b.denied(answerTime, 0)
	}
}

func (b *Borrower) denied(retry time.Duration, available int) {
	b.cfg.Tenant.Denied(retry, available)
	if b.retry != nil {
		b.retry.Stop()
	}
	b.retry = time.AfterFunc(retry, b.cfg.Tenant.Retry)
}

// Release gives units back.
func (b *Borrower) Release(units []wire.UnitEpoch) {
	b.post(func(now time.Duration) {
		if err := b.machine.Release(now, units); err != nil {
			b.cfg.Log.Warn("release refused", "lender", b.cfg.Worker, "units", len(units), "reason", err)
			return
		}
		b.stats.Returned += uint64(len(units))
	})
}

// post queues a call of the machine and then does what it wants done.
func (b *Borrower) post(f func(now time.Duration)) {
	b.loop.post(func() { b.do(f) })
}

func (b *Borrower) do(f func(now time.Duration)) {
	f(Now())
	for actions := b.machine.Take(); len(actions) > 0; actions = b.machine.Take() {
		for _, a := range actions {
			b.act(a)
		}
	}
}

func (b *Borrower) act(a coordinator.Action) {
	log, name := b.cfg.Log, b.cfg.Worker
	switch a := a.(type) {
	case coordinator.Send:
		// Refused when the window is full; the machine repeats it.
		if err := b.link.TrySend(a.Message); err != nil {
			log.Debug("message not sent", "to", name, "type", a.Message.Type(), "reason", err)
		}
	case coordinator.Granted:
		log.Info("units borrowed", "from", name, "units", len(a.Units))
		b.stats.Granted += uint64(len(a.Units))
		b.answered()
		if b.wanted != 0 {
			b.stats.GrantTime.Observe((Now() - b.wanted).Seconds())
			b.wanted = 0
		}
		b.cfg.Tenant.Granted(a.Units)
	case coordinator.Denied:
		log.Debug("borrow denied", "by", name, "reason", a.Reason, "available", a.Available)
		b.stats.Denied++
		b.wanted = 0
		b.answered()
		b.denied(a.RetryAfter, a.Available)
	case coordinator.Evacuate:
		log.Info("units asked back", "by", name, "units", a.N)
		b.stats.Reclaimed += uint64(a.N)
		b.cfg.Tenant.Reclaim(a.N, func(returned int) {
			log.Info("units given back", "to", name, "units", returned)
			if returned < a.N {
				b.post(func(now time.Duration) { b.machine.CannotRelease(now, a.Reclaim) })
			}
		})
	case coordinator.Lost:
		log.Warn("units lost", "lender", name, "units", len(a.Units), "reason", a.Reason)
		b.stats.Fenced += uint64(len(a.Units))
		b.cfg.Tenant.Lost(a.Units)
	}
}

// Describe adds the link and the counters to a status. The caller must not hold
// the tenant's lock.
func (b *Borrower) Describe(st *wire.Status) {
	done := make(chan struct{})
	b.loop.post(func() {
		defer close(done)
		st.Links = append(st.Links, LinkStatus(b.cfg.Worker, b.link))
		s := b.stats
		s.Peer = b.cfg.Worker
		s.GrantTime = s.GrantTime.Clone()
		st.Lending = append(st.Lending, s)
	})
	b.loop.wait(done)
}
