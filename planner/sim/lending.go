package sim

import (
	"fmt"
	"time"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/coordinator/agent"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/worker"
)

const (
	// messageTime is how long a message of the lending protocol takes from process
	// to process (bench lending: a round trip over ZeroMQ is 80-140 microseconds).
	messageTime = 60 * time.Microsecond
	// answerTime is how long a master waits for an answer (package agent).
	answerTime = time.Second
)

// Control counts what the lending protocol does.
type Control struct {
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	Granted  uint64 `json:"granted_units"`
	Denied   uint64 `json:"denials"`
	Reclaims uint64 `json:"reclaims"`
	Asked    uint64 `json:"reclaimed_units"`
	Fenced   uint64 `json:"fenced_units"`
}

// borrower is a master's end of the protocol with one worker.
type borrower struct {
	p       *process
	machine *coordinator.Borrower
	tenant  agent.Tenant
	lender  *lender
	owner   uint32
	control *Control
	ticks   timer
	awaits  bool
	asks    uint64 // number of the present wait for an answer
	retries uint64 // number of the present wait after a denial
}

// Want implements master.Asker.
func (b *borrower) Want(w coordinator.Wish) {
	if !b.awaits {
		b.awaits = true
		b.asks++
		mine := b.asks
		b.p.at(b.p.t+answerTime, func() {
			if b.awaits && b.asks == mine {
				b.awaits = false
				b.denied(answerTime, 0)
			}
		})
	}
	b.post(func(now time.Duration) { b.machine.Want(now, w) })
}

// Release implements master.Asker.
func (b *borrower) Release(units []wire.UnitEpoch) {
	b.post(func(now time.Duration) { b.must(b.machine.Release(now, units)) })
}

// must refuses what a simulation without faults cannot produce.
func (b *borrower) must(err error) {
	if err != nil {
		panic(fmt.Sprintf("BUG: lending to %s: %v", b.p.model.Config.Name, err))
	}
}

// post has the machine called by itself: whoever asks may be in the middle of
// something.
func (b *borrower) post(f func(now time.Duration)) {
	b.p.at(b.p.t, func() { b.do(f) })
}

func (b *borrower) do(f func(now time.Duration)) {
	f(b.p.t)
	for actions := b.machine.Take(); len(actions) > 0; actions = b.machine.Take() {
		for _, a := range actions {
			b.act(a)
		}
	}
	at, ok := b.machine.NextWake()
	b.ticks.set(&b.p.clock, at, ok, func() { b.do(b.machine.Tick) })
}

func (b *borrower) act(a coordinator.Action) {
	switch a := a.(type) {
	case coordinator.Send:
		m := b.control.carry(a.Message)
		l := b.lender
		l.p.at(b.p.t+messageTime, func() {
			l.do(func(now time.Duration) { b.must(l.machine.Receive(now, b.owner, m)) })
		})
	case coordinator.Granted:
		b.awaits = false
		b.control.Granted += uint64(len(a.Units))
		b.p.idle(func() { b.tenant.Granted(a.Units) })
	case coordinator.Denied:
		b.awaits = false
		b.control.Denied++
		b.denied(a.RetryAfter, a.Available)
	case coordinator.Evacuate:
		b.control.Reclaims++
		b.control.Asked += uint64(a.N)
		b.p.idle(func() {
			b.tenant.Reclaim(a.N, func(returned int) {
				if returned < a.N {
					b.post(func(now time.Duration) { b.machine.CannotRelease(now, a.Reclaim) })
				}
			})
		})
	case coordinator.Lost:
		b.control.Fenced += uint64(len(a.Units))
		b.p.idle(func() { b.tenant.Lost(a.Units) })
	}
}

// denied tells the tenant, and that it may ask again later.
func (b *borrower) denied(retry time.Duration, available int) {
	b.p.idle(func() { b.tenant.Denied(retry, available) })
	b.retries++
	mine := b.retries
	b.p.at(b.p.t+retry, func() {
		if b.retries == mine {
			b.p.idle(b.tenant.Retry)
		}
	})
}

// carry counts a message and takes it over the wire.
func (c *Control) carry(m wire.Message) wire.Message {
	b, err := wire.Encode(m)
	if err == nil {
		c.Messages++
		c.Bytes += uint64(len(b))
		m, err = wire.Parse(b)
	}
	if err != nil {
		panic(fmt.Sprintf("BUG: message of the lending protocol: %v", err))
	}
	return m
}

// lender is a worker's end of the protocol.
type lender struct {
	p         *process
	machine   *coordinator.Lender
	cache     *worker.Cache
	deadline  time.Duration
	borrowers map[uint32]*borrower
	changed   func() // units have changed hands
	ticks     timer
	away      func() int
}

// need asks borrowers for units. The cache is locked.
func (l *lender) need(units int) {
	l.machine.Need(l.p.t, units, l.deadline)
	l.p.at(l.p.t, func() { l.do(func(time.Duration) {}) })
}

func (l *lender) do(f func(now time.Duration)) {
	l.cache.Locked(func() bool {
		before := l.away()
		f(l.p.t)
		l.act()
		return l.away() < before
	})
	l.changed()
	l.p.nudge()
	at, ok := l.machine.NextWake()
	l.ticks.set(&l.p.clock, at, ok, func() { l.do(l.machine.Tick) })
}

func (l *lender) act() {
	for _, a := range l.machine.Take() {
		// A fence ends by itself: no borrower of a simulation dies or hangs.
		if a, ok := a.(coordinator.Send); ok {
			b := l.borrowers[a.To]
			m := b.control.carry(a.Message)
			b.p.at(l.p.t+messageTime, func() {
				b.do(func(now time.Duration) { b.must(b.machine.Receive(now, m)) })
			})
		}
	}
}

// timer is a wait that may be moved.
type timer struct {
	at     time.Duration
	number uint64
	on     bool
}

func (t *timer) set(c *clock, at time.Duration, on bool, f func()) {
	if t.on == on && (!on || t.at == at) {
		return
	}
	t.number++
	t.at, t.on = at, on
	if !on {
		return
	}
	mine := t.number
	c.at(max(at, c.t), func() {
		if t.number == mine {
			t.on = false
			f()
		}
	})
}
