package agent

import (
	"slices"
	"testing"
	"time"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

// accountFor replays what was recorded: it must lead, step by step, to the
// state in which the units are.
func (p *pair) accountFor(t *testing.T) {
	t.Helper()
	p.house.mu.Lock()
	defer p.house.mu.Unlock()
	state := make([]elastic.State, p.house.units.Total())
	epoch := make([]uint64, len(state))
	step := func(e Event, from, to elastic.State) {
		for _, u := range e.Units {
			if state[u.Unit] != from || (from != elastic.Local && epoch[u.Unit] != u.Epoch) {
				t.Errorf("%s of unit %d at epoch %d: it was %s at epoch %d", e.Kind, u.Unit, u.Epoch, state[u.Unit], epoch[u.Unit])
			}
			state[u.Unit], epoch[u.Unit] = to, u.Epoch
			if to == elastic.Fenced {
				epoch[u.Unit]++
			}
		}
	}
	for _, e := range p.events {
		if e.Peer != "m" {
			t.Errorf("%s of %q", e.Kind, e.Peer)
		}
		switch e.Kind {
		case EventGrant:
			step(e, elastic.Local, elastic.Lent)
		case EventReturn:
			step(e, elastic.Lent, elastic.Local)
		case EventFence:
			step(e, elastic.Lent, elastic.Fenced)
		case EventConfirm:
			step(e, elastic.Fenced, elastic.Local)
		}
		if (e.Kind == EventFence || e.Kind == EventConfirm) && e.Reason == "" {
			t.Errorf("%s without a reason", e.Kind)
		}
	}
	for i, want := range state {
		row, err := p.house.units.Unit(i)
		if row.State == elastic.Reclaiming {
			row.State = elastic.Lent // which units are marked is not recorded
		}
		if err != nil || row.State != want {
			t.Errorf("unit %d is %s, the records say %s", i, row.State, want)
		}
	}
}

func (p *pair) kinds() []Kind {
	p.house.mu.Lock()
	defer p.house.mu.Unlock()
	var out []Kind
	for _, e := range p.events {
		out = append(out, e.Kind)
	}
	return out
}

func TestRecordsAndCounters(t *testing.T) {
	p := newPair(t, 30*time.Second)
	p.house.Locked(func() bool { p.spare = 0; return false })
	p.guest.agent.Want(coordinator.Wish{Units: 4})
	for within(t, p.guest.denied, "the lender's denial") == answerTime {
		// The link was not up yet.
	}
	p.house.Locked(func() bool { p.spare = 10; return false })
	p.guest.agent.Want(coordinator.Wish{Units: 4})
	within(t, p.guest.granted, "a grant")
	p.house.Locked(func() bool { p.lender.Need(1); return false })
	for p.house.away() > 3 {
		within(t, p.house.home, "a unit coming home")
	}
	p.guest.mu.Lock()
	p.guest.keep = 3
	p.guest.mu.Unlock()
	p.house.Locked(func() bool { p.lender.Need(3); return false })
	for p.house.away() > 0 {
		within(t, p.house.home, "a unit coming home")
	}
	want := []Kind{EventGrant, EventReclaim, EventReturn, EventReclaim, EventFence, EventConfirm}
	if got := p.kinds(); !slices.Equal(got, want) {
		t.Errorf("recorded %v, want %v", got, want)
	}
	if e := p.events[4]; e.PID != 77 || len(e.Units) != 3 || e.Units[0].Epoch == 0 {
		t.Errorf("fence %+v", e)
	}
	var lender, borrower wire.Status
	p.lender.Describe(&lender)
	p.guest.agent.Describe(&borrower)
	l, b := lender.Lending[0], borrower.Lending[0]
	if l.Peer != "m" || l.Granted != 4 || l.Returned != 1 || l.Denied == 0 || l.Reclaimed != 4 || l.Fenced != 3 || l.Confirmed != 3 {
		t.Errorf("lender %+v", l)
	}
	count := func(h wire.Latency) (n uint64) {
		for _, c := range h.Counts {
			n += c
		}
		return n
	}
	if count(l.ReclaimTime) == 0 || count(l.FenceTime) != 3 || count(b.GrantTime) != 1 {
		t.Errorf("times %+v, %+v", l, b)
	}
	if b.Peer != "w" || b.Granted != 4 || b.Denied == 0 || b.Fenced != 3 || b.Returned != 4 {
		t.Errorf("borrower %+v", b)
	}
	for _, st := range []wire.Status{lender, borrower} {
		if len(st.Links) != 1 || !st.Links[0].Up || st.Links[0].Reason != "" || st.Links[0].Connects != 1 {
			t.Errorf("links %+v", st.Links)
		}
	}
}

func TestInspect(t *testing.T) {
	p := newPair(t, 30*time.Second)
	p.guest.agent.Want(coordinator.Wish{Units: 2})
	within(t, p.guest.granted, "a grant")
	held := 0
	if !p.guest.agent.Inspect(func(m *coordinator.Borrower) { held = m.Held() }) || held != 2 {
		t.Errorf("%d units held, want 2", held)
	}
	p.lender.Inspect(func(m *coordinator.Lender) {
		for _, err := range m.Check() {
			t.Error(err)
		}
	})
}
