package coordinator

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

func TestFill(t *testing.T) {
	for _, c := range []struct {
		total                  int
		weights, demand, share []int
	}{
		{10, []int{1, 1}, []int{9, 9}, []int{5, 5}},
		{7, []int{1, 1}, []int{9, 9}, []int{3, 3}},
		{10, []int{1, 1}, []int{2, 9}, []int{2, 8}},
		{10, []int{1, 1}, []int{2, 3}, []int{2, 3}},
		{12, []int{1, 2, 1}, []int{9, 9, 9}, []int{3, 6, 3}},
		{12, []int{1, 4, 1}, []int{9, 4, 9}, []int{4, 4, 4}},
		{20, []int{1, 1, 1, 1}, []int{1, 4, 10, 10}, []int{1, 4, 7, 7}},
		{0, []int{1}, []int{4}, []int{0}},
	} {
		var list []*stake
		for i, w := range c.weights {
			list = append(list, &stake{weight: w, demand: c.demand[i]})
		}
		fill(list, c.total)
		for i, s := range list {
			if s.share != c.share[i] {
				t.Errorf("of %d with weights %v and demands %v, %d gets %d, want %d", c.total, c.weights, c.demand, i, s.share, c.share[i])
			}
		}
	}
	rapid.Check(t, testFill)
}

// testFill: nobody gets more than it demands, everything is given out that is
// wanted but for what rounding leaves, and nobody that lacks something has less
// than another, by weight and but for rounding.
func testFill(t *rapid.T) {
	total := rapid.IntRange(0, 100).Draw(t, "total")
	var list []*stake
	demand, sum := 0, 0
	for range rapid.IntRange(1, 6).Draw(t, "n") {
		s := &stake{weight: rapid.IntRange(1, 5).Draw(t, "weight"), demand: rapid.IntRange(0, 60).Draw(t, "demand")}
		list = append(list, s)
		demand += s.demand
	}
	fill(slices.Clone(list), total)
	for _, s := range list {
		sum += s.share
		if s.share < 0 || s.share > s.demand {
			t.Fatalf("%d of %d demanded", s.share, s.demand)
		}
		for _, o := range list {
			if s.share < s.demand && o.share*s.weight > (s.share+1)*o.weight {
				t.Fatalf("%d of weight %d lacks some, %d of weight %d has more", s.share, s.weight, o.share, o.weight)
			}
		}
	}
	if want := min(total, demand); sum > want || sum <= want-len(list) {
		t.Fatalf("%d given out, of %d with %d demanded", sum, total, demand)
	}
}

// market is a lender and borrowers that are only their messages.
type market struct {
	t     testing.TB
	l     *Lender
	units *elastic.Units
	now   time.Duration
	id    uint64
	asked map[uint32]int // units asked back that have not come, by borrower
}

func newMarket(t testing.TB, n, borrowers int, o LenderOptions) *market {
	m := &market{t: t, asked: map[uint32]int{}}
	m.units, _ = newUnits(t, n, 0, nil)
	o.Units, o.TTL, o.Within = m.units, 2*time.Hour, time.Hour // nothing ends, nothing is overdue
	if o.Patience == 0 {
		o.Patience = 500 * time.Millisecond
	}
	m.l = NewLender(0, o)
	for owner := range uint32(borrowers) {
		m.l.Up(0, owner)
	}
	return m
}

// say delivers a message and returns the answer to its sender.
func (m *market) say(owner uint32, msg wire.Message) (answer wire.Message) {
	m.t.Helper()
	if err := m.l.Receive(m.now, owner, msg); err != nil {
		m.t.Fatal(err)
	}
	for _, a := range m.l.Take() {
		s, ok := a.(Send)
		if !ok {
			continue // of a borrower that leaves
		}
		if s.To == owner && s.Message.Type() != wire.TypeReclaim {
			answer = s.Message
		}
	}
	for _, a := range m.l.accounts {
		m.asked[a.owner] = a.owed()
	}
	for _, err := range m.l.Check() {
		m.t.Error(err)
	}
	return answer
}

// borrow asks for units and returns how many were granted, and the denial.
func (m *market) borrow(owner uint32, want, least int) (int, *wire.Deny) {
	m.t.Helper()
	m.id++
	switch a := m.say(owner, &wire.Borrow{ID: m.id, Want: want, Min: least}).(type) {
	case *wire.Grant:
		return len(a.Units), nil
	case *wire.Deny:
		return 0, a
	default:
		m.t.Fatalf("a Borrow is answered with %+v", a)
		return 0, nil
	}
}

// give returns n units of a borrower.
func (m *market) give(owner uint32, n int) {
	m.t.Helper()
	m.id++
	m.say(owner, &wire.Return{ID: m.id, Units: m.l.view(m.l.account(owner))[:n]})
}

func (m *market) held() []int {
	out := make([]int, len(m.l.accounts))
	for i, a := range m.l.accounts {
		out[i] = m.l.holds(a)
	}
	return out
}

// TestAskedOnce: who asks again and again has no more asked back than it lacks.
func TestAskedOnce(t *testing.T) {
	m := newMarket(t, 7, 3, LenderOptions{})
	m.borrow(0, 4, 0)
	m.borrow(1, 3, 0)
	for range 5 {
		_, d := m.borrow(2, 5, 0)
		if d == nil || d.RetryAfter != m.l.opt.RetryAfter/soon {
			t.Fatalf("denied with %+v although units are coming", d)
		}
		m.now += d.RetryAfter
	}
	if m.asked[0]+m.asked[1] != 2 {
		t.Errorf("asked back %v, a third of 7 is 2", m.asked)
	}
}

// TestOldestWishFirst: of two that lack some, the one that has waited longer
// gets what comes home; one that has its share gets none of it.
func TestOldestWishFirst(t *testing.T) {
	m := newMarket(t, 9, 3, LenderOptions{})
	m.borrow(0, 9, 0)
	m.borrow(2, 3, 0)
	m.now += time.Millisecond
	m.borrow(1, 3, 0)
	if m.asked[0] != 6 {
		t.Fatalf("asked back %v, want 6 of the first", m.asked)
	}
	m.give(0, 2)
	for _, owner := range []uint32{0, 1} {
		if n, d := m.borrow(owner, 3, 0); d == nil {
			t.Errorf("%d units go to borrower %d", n, owner)
		}
	}
	if n, _ := m.borrow(2, 3, 0); n != 2 {
		t.Errorf("%d units go to the one that waited longest, want 2", n)
	}
	m.give(0, 3)
	if n, _ := m.borrow(1, 3, 0); n != 2 {
		t.Errorf("%d units go to the second, want 2: one is still the first's", n)
	}
	// A wish that is not repeated lapses.
	m.now += m.l.wishLife()
	if n, _ := m.borrow(0, 3, 0); n != 1 {
		t.Errorf("%d units go to the only one that asks, want 1", n)
	}
}

func TestQuotaBoundsShare(t *testing.T) {
	m := newMarket(t, 10, 2, LenderOptions{Quota: map[uint32]int{1: 3}})
	m.borrow(0, 10, 0)
	m.borrow(1, 9, 0)
	if m.asked[0] != 3 {
		t.Errorf("asked back %v, the quota is 3", m.asked)
	}
	m.give(0, 3)
	if n, _ := m.borrow(1, 9, 0); n != 3 {
		t.Errorf("%d units granted, want 3", n)
	}
	if n, d := m.borrow(1, 1, 1); d == nil || d.Available != 0 {
		t.Errorf("%d units beyond the quota", n)
	}
	for range 100 {
		m.now += 100 * time.Millisecond
		m.borrow(1, 1, 1)
	}
	if m.asked[0] != 0 {
		t.Errorf("%d asked back for what is beyond a quota", m.asked[0])
	}
}

// TestNotConnectedIsNotAsked: what cannot be asked back is nobody's share.
func TestNotConnectedIsNotAsked(t *testing.T) {
	m := newMarket(t, 8, 3, LenderOptions{})
	m.borrow(0, 6, 0)
	m.borrow(1, 2, 0)
	m.l.Down(m.now, 0)
	m.borrow(2, 8, 0)
	if m.asked[0] != 0 || m.asked[1] != 1 {
		t.Errorf("asked back %v, want one of the only borrower that is there", m.asked)
	}
}

// TestFirstCome: without Within nobody gives anything for another.
func TestFirstCome(t *testing.T) {
	m := newMarket(t, 8, 2, LenderOptions{})
	m.l.opt.Within = 0
	m.borrow(0, 8, 0)
	for range 100 {
		if n, d := m.borrow(1, 4, 4); d == nil || d.RetryAfter != m.l.opt.RetryAfter {
			t.Fatalf("%d units granted, %+v", n, d)
		}
		m.now += 100 * time.Millisecond
	}
	if m.asked[0] != 0 {
		t.Errorf("asked back %v", m.asked)
	}
}

// TestTurnsGetLonger: two borrowers that need everything take turns, each twice
// as long as the one before, and anew once nobody waits.
func TestTurnsGetLonger(t *testing.T) {
	m := newMarket(t, 8, 2, LenderOptions{Patience: 100 * time.Millisecond})
	var long []time.Duration
	change, last := time.Duration(0), -1
	for len(long) < 11 {
		if m.now += 5 * time.Millisecond; m.now > 10*time.Minute {
			t.Fatalf("turns so far lasted %v", long)
		}
		for owner := range uint32(2) {
			held := m.held()[owner]
			if n := min(m.asked[owner], held); n > 0 {
				m.give(owner, n)
			} else if held < 8 {
				m.borrow(owner, 8-held, 8-held)
			}
			if m.held()[owner] == 8 && last != int(owner) {
				long = append(long, m.now-change)
				change, last = m.now, int(owner)
			}
		}
	}
	for i, d := range long[2:] { // the first came, the second waited
		want := min(100*time.Millisecond<<i, maxTenure*100*time.Millisecond)
		if d < want || d > want+50*time.Millisecond {
			t.Errorf("turn %d lasted %v, want %v: %v", i, d, want, long)
		}
	}
	holder := uint32(last)
	m.now += time.Minute
	m.borrow(1-holder, 8, 8)
	m.now += 150 * time.Millisecond
	m.borrow(1-holder, 8, 8)
	if m.l.turn.of != m.l.account(1-holder) || m.l.turn.long != 100*time.Millisecond {
		t.Errorf("after a long pause: %+v", m.l.turn)
	}
}

// TestTurnsGoRound: of several that cannot go on, each gets its turn before one
// gets a second, in the order in which they came; that one wants more than it
// needs makes no difference.
func TestTurnsGoRound(t *testing.T) {
	m := newMarket(t, 8, 3, LenderOptions{Patience: 100 * time.Millisecond})
	var order []uint32
	came := []uint32{2, 0, 1}
	for len(order) < 7 {
		if m.now += 5 * time.Millisecond; m.now > 10*time.Minute {
			t.Fatalf("turns so far: %v", order)
		}
		for i, owner := range came {
			held := m.held()[owner]
			switch n := min(m.asked[owner], held); {
			case m.now < time.Duration(10*i)*time.Millisecond: // not there yet
			case n > 0:
				m.give(owner, n)
			case held < 6:
				m.borrow(owner, 8-held, 6-held)
			}
			if m.held()[owner] >= 6 && (len(order) == 0 || order[len(order)-1] != owner) {
				order = append(order, owner)
			}
		}
	}
	if want := []uint32{2, 0, 1, 2, 0, 1, 2}; !slices.Equal(order, want) {
		t.Errorf("turns go to %v, want %v", order, want)
	}
}

// TestTurnEnds when its borrower leaves, is replaced, is cut off or gives up.
func TestTurnEnds(t *testing.T) {
	for name, leave := range map[string]func(m *market){
		"bye":      func(m *market) { m.say(1, &wire.Bye{}) },
		"replaced": func(m *market) { m.l.PeerReset(m.now, 1) },
		"cut off":  func(m *market) { m.l.Down(m.now, 1) },
		"gives up": func(m *market) { m.now += m.l.wishLife() },
	} {
		m := newMarket(t, 8, 2, LenderOptions{})
		m.borrow(0, 8, 0)
		for range 20 {
			m.borrow(1, 6, 6)
			m.now += 100 * time.Millisecond
		}
		if m.l.turn.of == nil || m.asked[0] != 6 {
			t.Fatalf("%s: no turn after 2s, asked back %v", name, m.asked)
		}
		m.give(0, 5)
		if n, _ := m.borrow(0, 2, 0); n != 0 {
			t.Errorf("%s: %d units that were kept for a turn are granted to another", name, n)
		}
		leave(m)
		m.borrow(0, 2, 0)
		if m.l.turn.of != nil {
			t.Errorf("%s: the turn goes on", name)
		}
		if n, _ := m.borrow(0, 2, 0); n == 0 && m.held()[0] == 3 {
			t.Errorf("%s: units are still kept", name)
		}
	}
}

// TestTurnKeepsWhatIsHeld: a turn protects what its borrower has, and keeps
// nothing for it that it has given back.
func TestTurnKeepsWhatIsHeld(t *testing.T) {
	m := newMarket(t, 8, 3, LenderOptions{Patience: time.Second})
	m.borrow(0, 8, 0)
	for m.held()[1] == 0 {
		m.now += 100 * time.Millisecond
		m.borrow(1, 6, 6)
		m.give(0, m.asked[0])
	}
	m.borrow(2, 8, 0)
	if m.asked[1] != 0 {
		t.Errorf("%d units are asked back during a turn", m.asked[1])
	}
	m.give(1, 4)
	m.borrow(0, 8, 0)
	if n, _ := m.borrow(2, 8, 0); n+m.held()[0] < 5 || m.held()[1] != 2 {
		t.Errorf("borrowers have %v of 8 units", m.held())
	}
}

// TestNobodyIsAskedBelowItsShare: whoever is asked for units keeps its part by
// weight, unless a turn takes it.
func TestNobodyIsAskedBelowItsShare(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n, borrowers := rapid.IntRange(4, 30).Draw(rt, "units"), rapid.IntRange(2, 4).Draw(rt, "borrowers")
		weight, weights := map[uint32]int{}, 0
		for owner := range uint32(borrowers) {
			weight[owner] = rapid.IntRange(1, 4).Draw(rt, "weight")
			weights += weight[owner]
		}
		m := newMarket(t, n, borrowers, LenderOptions{Weight: weight})
		for range 40 {
			m.now += time.Duration(rapid.IntRange(0, 800).Draw(rt, "pause")) * time.Millisecond
			owner := uint32(rapid.IntRange(0, borrowers-1).Draw(rt, "owner"))
			held, asked := m.held()[owner], m.asked[owner]
			if k := rapid.IntRange(0, held).Draw(rt, "give"); k > 0 && (asked > 0 || rapid.Bool().Draw(rt, "freely")) {
				m.give(owner, k)
				continue
			}
			before := []int{m.asked[0], m.asked[1], m.asked[2], m.asked[3]}
			m.borrow(owner, rapid.IntRange(1, n).Draw(rt, "want"), 0)
			for o := range borrowers {
				keeps := m.held()[o] - m.asked[uint32(o)]
				if part := n * weight[uint32(o)] / weights; m.asked[uint32(o)] > before[o] && keeps < part {
					rt.Fatalf("borrower %d has %v of %d units, is asked for %v; its part is %d", o, m.held(), n, m.asked, part)
				}
			}
		}
	})
}
