package coordinator

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

func TestFairSplit(t *testing.T) {
	for _, c := range []struct {
		want int
		have []int
		out  []int
	}{
		{0, nil, nil},
		{3, []int{4, 2}, []int{2, 1}},
		{1, []int{2, 5, 3}, []int{0, 1, 0}},
		{5, []int{5, 5}, []int{3, 2}},
		{9, []int{3, 2}, []int{3, 2}},
		{2, []int{0, 1, 1, 4}, []int{0, 0, 0, 2}},
		{4, []int{0, 0}, []int{0, 0}},
	} {
		if got := fairSplit(c.want, c.have); !slices.Equal(got, c.out) {
			t.Errorf("fairSplit(%d, %v) = %v, want %v", c.want, c.have, got, c.out)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		have := rapid.SliceOfN(rapid.IntRange(0, 1000), 1, 8).Draw(t, "have")
		want := rapid.IntRange(0, 5000).Draw(t, "want")
		total, sum := 0, 0
		for _, h := range have {
			total += h
		}
		for i, s := range fairSplit(want, have) {
			sum += s
			if s > have[i] || s < 0 || (want < total && (s < want*have[i]/total || s > want*have[i]/total+1)) {
				t.Fatalf("share %d is %d of %d", i, s, have[i])
			}
		}
		if sum != min(want, total) {
			t.Fatalf("shares add up to %d, want %d", sum, min(want, total))
		}
	})
}

// newBench makes a lender with one borrower, owner 0, that is connected.
func newBench(t testing.TB, n int) (*Lender, *elastic.Units) {
	u, _ := newUnits(t, n, 1, nil)
	l := NewLender(0, LenderOptions{Units: u, TTL: time.Minute})
	l.Up(0, 0)
	return l, u
}

// answer returns the only message that the lender sends.
func answer(t testing.TB, l *Lender, now time.Duration, m wire.Message) wire.Message {
	t.Helper()
	if err := l.Receive(now, 0, m); err != nil {
		t.Fatal(err)
	}
	acts := l.Take()
	if len(acts) != 1 {
		t.Fatalf("%T is answered with %+v", m, acts)
	}
	return acts[0].(Send).Message
}

func TestAnswersAreRememberedAndBounded(t *testing.T) {
	l, _ := newBench(t, 8)
	first := answer(t, l, 0, &wire.Borrow{ID: 1, Want: 2}).(*wire.Grant)
	if again := answer(t, l, 5, &wire.Borrow{ID: 1, Want: 2}); again != wire.Message(first) {
		t.Errorf("asked again: %+v, first %+v", again, first)
	}
	for id := uint64(2); id < 3*maxAnswers; id++ {
		answer(t, l, 0, &wire.Borrow{ID: id, Want: 8, Min: 8})
	}
	if err := l.Receive(0, 0, &wire.Borrow{ID: 1, Want: 2}); err != nil {
		t.Fatal(err)
	}
	if acts := l.Take(); len(acts) != 0 {
		t.Errorf("a request older than all answers was answered: %+v", acts)
	}
	for _, err := range l.Check() {
		t.Error(err)
	}
}

func TestQuotaAndSpare(t *testing.T) {
	u, _ := newUnits(t, 8, 1, nil)
	spare := 5
	l := NewLender(0, LenderOptions{Units: u, Quota: map[uint32]int{0: 4}, Spare: func(uint32, Wish) int { return spare }})
	l.Up(0, 0)
	if g := answer(t, l, 0, &wire.Borrow{ID: 1, Want: 7}).(*wire.Grant); len(g.Units) != 4 {
		t.Errorf("%d units granted, the quota is 4", len(g.Units))
	}
	if d := answer(t, l, 0, &wire.Borrow{ID: 2, Want: 1}).(*wire.Deny); d.Available != 0 || d.Reason == "" || d.RetryAfter == 0 {
		t.Errorf("denied with %+v", d)
	}
	spare = 2
	l.Up(0, 1)
	if err := l.Receive(0, 1, &wire.Borrow{ID: 1, Want: 3, Min: 3}); err != nil {
		t.Fatal(err)
	}
	if d := l.Take()[0].(Send).Message.(*wire.Deny); d.Available != 2 {
		t.Errorf("denied with %+v, 2 are available", d)
	}
}

// TestReturnOfPastUnits has a unit returned by a process that never had it.
func TestReturnOfPastUnits(t *testing.T) {
	l, u := newBench(t, 8)
	g := answer(t, l, 0, &wire.Borrow{ID: 1, Want: 2}).(*wire.Grant)
	l.Down(0, 0)
	l.PeerReset(0, 0)
	l.Up(0, 0)
	fence := l.Take()[0].(Fence)
	if fence.Live || len(fence.Units) != 2 {
		t.Errorf("fence %+v, want two units of a past process", fence)
	}
	answer(t, l, 0, &wire.Return{ID: 1, Units: g.Units})
	if n := u.Count(elastic.Fenced); n != 2 {
		t.Errorf("%d units are fenced, want 2: a process gave up what it never had", n)
	}
	l.ConfirmFence(0, 0, fence.ID-1)
	if n := u.Count(elastic.Fenced); n != 2 {
		t.Errorf("%d units are fenced, want 2: an earlier fence was confirmed", n)
	}
	l.ConfirmFence(0, 0, fence.ID)
	if n := u.Count(elastic.Local); n != 8 {
		t.Errorf("%d units are LOCAL, want 8", n)
	}
}

func TestBye(t *testing.T) {
	l, u := newBench(t, 8)
	answer(t, l, 0, &wire.Borrow{ID: 1, Want: 2})
	if err := l.Receive(0, 0, &wire.Bye{}); err != nil {
		t.Fatal(err)
	}
	if n := u.Count(elastic.Fenced); n != 2 {
		t.Errorf("%d units are fenced after a Bye with units, want 2", n)
	}
	b := NewBorrower(BorrowerOptions{})
	b.Up(0)
	b.Take()
	if err := b.Bye("done"); err != nil || b.Take()[0].(Send).Message.Type() != wire.TypeBye {
		t.Errorf("a borrower with nothing cannot leave: %v", err)
	}
}

// newHolding returns a borrower that uses n units at version 2.
func newHolding(t *testing.T, n int) (*Borrower, []wire.UnitEpoch) {
	t.Helper()
	b := NewBorrower(BorrowerOptions{})
	b.Up(0)
	ask := b.Take()[0].(Send).Message.(*wire.Sync)
	var units []wire.UnitEpoch
	for i := range n {
		units = append(units, wire.UnitEpoch{Unit: uint32(i), Epoch: 2})
	}
	receive(t, b, &wire.Sync{ID: ask.ID, Version: 2, Units: units, TTL: time.Minute})
	if b.Held() != n {
		t.Fatalf("holds %d units, want %d", b.Held(), n)
	}
	b.Take()
	return b, units
}

func receive(t *testing.T, b *Borrower, m wire.Message) {
	t.Helper()
	if err := b.Receive(0, m); err != nil {
		t.Fatal(err)
	}
	for _, err := range b.Check() {
		t.Error(err)
	}
}

// TestReclaimCountsWhatIsUnderWay has units returned while they are asked back.
func TestReclaimCountsWhatIsUnderWay(t *testing.T) {
	b, units := newHolding(t, 5)
	if err := b.Release(0, units[:2]); err != nil {
		t.Fatal(err)
	}
	b.Take()
	receive(t, b, &wire.Reclaim{ID: 1, Want: 3, Deadline: time.Second, Version: 2})
	if acts := b.Take(); len(acts) != 1 || acts[0].(Evacuate).N != 1 {
		t.Errorf("asked for %+v, want one unit: two are under way", acts)
	}
	receive(t, b, &wire.Reclaim{ID: 1, Want: 3, Deadline: time.Second, Version: 2})
	receive(t, b, &wire.Reclaim{ID: 2, Want: 9, Deadline: time.Second, Version: 1})
	if acts := b.Take(); len(acts) != 0 {
		t.Errorf("repeated or stale, and yet: %+v", acts)
	}
	receive(t, b, &wire.Reclaim{ID: 3, Want: 100, Deadline: time.Second, Version: 2})
	if acts := b.Take(); len(acts) != 1 || acts[0].(Evacuate).N != 2 {
		t.Errorf("asked for %+v, want the two units that are left", acts)
	}
}

func TestReleaseRefuses(t *testing.T) {
	b, units := newHolding(t, 2)
	for name, bad := range map[string][]wire.UnitEpoch{
		"unknown":     {{Unit: 9, Epoch: 2}},
		"other epoch": {{Unit: 0, Epoch: 3}},
		"twice":       {units[0], units[0]},
		"partly":      {units[0], {Unit: 9, Epoch: 2}},
	} {
		if err := b.Release(0, bad); !errors.Is(err, ErrNotHeld) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b.Held() != 2 || len(b.Take()) != 0 {
		t.Errorf("a refused release changed something")
	}
	if err := b.Release(0, units); err != nil {
		t.Error(err)
	}
	if err := b.Release(0, units); !errors.Is(err, ErrNotHeld) {
		t.Errorf("released before: %v", err)
	}
	if err := b.Bye(""); err == nil {
		t.Error("bye although units are on their way back")
	}
}

func TestUnexpectedMessages(t *testing.T) {
	l, _ := newBench(t, 8)
	b := NewBorrower(BorrowerOptions{})
	for _, m := range []wire.Message{&wire.Grant{}, &wire.Reclaim{}, &wire.Sync{}, &wire.Submit{}} {
		if err := l.Receive(0, 0, m); !errors.Is(err, ErrUnexpected) {
			t.Errorf("a lender takes %s: %v", m.Type(), err)
		}
	}
	for _, m := range []wire.Message{&wire.Borrow{}, &wire.Return{}, &wire.Sync{Ask: true}, &wire.Submit{}} {
		if err := b.Receive(0, m); !errors.Is(err, ErrUnexpected) {
			t.Errorf("a borrower takes %s: %v", m.Type(), err)
		}
	}
}

// BenchmarkGrant borrows and returns one unit while others are lent: the cost
// must not depend on how many.
func BenchmarkGrant(b *testing.B) {
	for _, lent := range []int{0, 1000, 10000} {
		b.Run(fmt.Sprintf("lent=%d", lent), func(b *testing.B) {
			l, _ := newBench(b, lent+8)
			if lent > 0 {
				answer(b, l, 0, &wire.Borrow{ID: 1, Want: lent})
			}
			id := uint64(1)
			for b.Loop() {
				id++
				g := answer(b, l, 0, &wire.Borrow{ID: id, Want: 1}).(*wire.Grant)
				answer(b, l, 0, &wire.Return{ID: id, Units: g.Units})
			}
		})
	}
}

// BenchmarkRenew renews everything that a borrower holds, and BenchmarkSync
// shows it: both cost time per unit, and happen a few times per lease.
func BenchmarkRenew(b *testing.B) {
	for _, held := range []int{16, 256, 4096, 65536} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			l, _ := newBench(b, held+8)
			answer(b, l, 0, &wire.Borrow{ID: 1, Want: held})
			for b.Loop() {
				answer(b, l, 0, &wire.Renew{ID: 2})
			}
		})
	}
}

func BenchmarkSync(b *testing.B) {
	for _, held := range []int{16, 256, 4096} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			l, _ := newBench(b, held+8)
			answer(b, l, 0, &wire.Borrow{ID: 1, Want: held})
			for b.Loop() {
				answer(b, l, 0, &wire.Sync{Ask: true, ID: 2, Version: 2})
			}
		})
	}
}
