package agent

import (
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/coordinator/transport"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type quiet struct{}

func (quiet) Debug(string, ...any) {}
func (quiet) Info(string, ...any)  {}
func (quiet) Warn(string, ...any)  {}

// house is a Landlord: a lock over units.
type house struct {
	mu    sync.Mutex
	units *elastic.Units
	home  chan struct{} // a unit came home
}

func (h *house) Locked(f func() bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f() {
		select {
		case h.home <- struct{}{}:
		default:
		}
	}
}

func (h *house) away() (n int) {
	h.Locked(func() bool { n = h.units.Away(); return false })
	return n
}

// guest is a Tenant that holds what it is given and gives back what is asked.
type guest struct {
	agent   *Borrower
	mu      sync.Mutex
	held    []wire.UnitEpoch
	keep    int  // of a reclaim: units that it cannot part with
	dead    bool // confirms nothing
	granted chan int
	denied  chan time.Duration
	lost    chan int
	retry   chan struct{}
}

func (g *guest) Granted(units []wire.UnitEpoch) {
	g.mu.Lock()
	g.held = append(g.held, units...)
	g.mu.Unlock()
	g.granted <- len(units)
}
func (g *guest) Denied(d time.Duration, _ int) { g.denied <- d }
func (g *guest) Retry()                        { g.retry <- struct{}{} }
func (g *guest) Lost(units []wire.UnitEpoch) {
	if !g.dead {
		g.agent.Release(units)
	}
	g.lost <- len(units)
}
func (g *guest) Reclaim(n int, done func(int)) {
	g.mu.Lock()
	n = min(n, len(g.held)-g.keep)
	out := g.held[:n]
	g.held = g.held[n:]
	g.mu.Unlock()
	g.agent.Release(out)
	done(n)
}

type pair struct {
	house  *house
	lender *Lender
	guest  *guest
	spare  int     // guarded by house.mu
	events []Event // guarded by house.mu
	stuck  chan string
}

func newPair(t *testing.T, lease time.Duration) *pair {
	t.Helper()
	dir, err := transport.OpenDir(t.TempDir()+"/l", transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	geo := elastic.Geometry{Name: "w", Layers: 2, BlockTokens: 16, KVHeads: 1, HeadDim: 16, ElemBytes: 2}
	spec, err := elastic.NewUnitSpec(elastic.PolicyLCM, 0, geo)
	if err != nil {
		t.Fatal(err)
	}
	table, err := elastic.FormatUnitTable(make([]byte, elastic.UnitTableBytes(10)), spec, 10*spec.Bytes, 1)
	if err != nil {
		t.Fatal(err)
	}
	units, err := elastic.NewUnits(elastic.UnitsOptions{Geometry: geo, Spec: spec, Table: table})
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{house: &house{units: units, home: make(chan struct{}, 1)}, spare: 10, stuck: make(chan string, 1000)}
	p.lender = NewLender(LenderConfig{
		Units: units, Landlord: p.house, Spare: func(coordinator.Wish) int { return p.spare }, Lease: lease, Deadline: 300 * time.Millisecond,
		Stuck:  func(borrower, _ string) { p.stuck <- borrower },
		Record: func(e Event) { p.events = append(p.events, e) },
		Self:   wire.Hello{Model: "w", Role: "worker", ConfigHash: "c"}, Log: quiet{},
	})
	ln, err := dir.Listen("w", "m")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.lender.Serve("m", 0, ln); err != nil {
		t.Fatal(err)
	}
	g := &guest{granted: make(chan int, 1000), denied: make(chan time.Duration, 1000), lost: make(chan int, 1000), retry: make(chan struct{}, 1000)}
	p.guest = g
	d, err := dir.Dialer("w", "m")
	if err != nil {
		t.Fatal(err)
	}
	g.agent, err = OpenBorrower(BorrowerConfig{
		Worker: "w", Dialer: d, Tenant: g, Log: quiet{}, Self: wire.Hello{Model: "m", Role: "master", ConfigHash: "c", PID: 77},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			g.agent.Close()
			p.lender.Close()
		}
		for _, err := range units.Check() {
			t.Error(err)
		}
		p.accountFor(t)
	})
	return p
}

func within[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(10 * time.Second):
		t.Fatalf("%s did not happen", what)
		panic("unreachable")
	}
}

// TestBorrowReclaimReturn walks through the normal paths over real sockets.
func TestBorrowReclaimReturn(t *testing.T) {
	p := newPair(t, 30*time.Second)
	p.guest.agent.Want(coordinator.Wish{Units: 6})
	if n := within(t, p.guest.granted, "a grant"); n != 6 {
		t.Fatalf("%d units granted, want 6", n)
	}
	if n := p.house.away(); n != 6 {
		t.Fatalf("%d units away, want 6", n)
	}
	p.guest.mu.Lock()
	p.guest.keep = 1
	p.guest.mu.Unlock()
	p.house.Locked(func() bool { p.lender.Need(4); return false })
	for p.house.away() > 2 {
		within(t, p.house.home, "a unit coming home")
	}
	p.guest.mu.Lock()
	rest := p.guest.held
	p.guest.held = nil
	p.guest.mu.Unlock()
	p.guest.agent.Release(rest)
	for p.house.away() > 0 {
		within(t, p.house.home, "a unit coming home")
	}
	if p.lender.Version(0) < 3 {
		t.Errorf("version %d after a grant, a reclaim and a return", p.lender.Version(0))
	}
}

func TestDenialIsFollowedByRetry(t *testing.T) {
	p := newPair(t, 30*time.Second)
	p.house.Locked(func() bool { p.spare = 0; return false })
	p.guest.agent.Want(coordinator.Wish{Units: 1})
	if d := within(t, p.guest.denied, "a denial"); d <= 0 {
		t.Errorf("retry after %s", d)
	}
	within(t, p.guest.retry, "the retry")
	p.house.Locked(func() bool { p.spare = 10; return false })
	p.guest.agent.Want(coordinator.Wish{Units: 1})
	within(t, p.guest.granted, "a grant")
}

// TestOverdueUnitsAreLost: a borrower that keeps what it was asked for loses
// it, and the worker gets it once the borrower confirms.
func TestOverdueUnitsAreLost(t *testing.T) {
	p := newPair(t, 30*time.Second)
	p.guest.agent.Want(coordinator.Wish{Units: 3})
	within(t, p.guest.granted, "a grant")
	p.guest.mu.Lock()
	p.guest.keep = 3
	p.guest.mu.Unlock()
	p.house.Locked(func() bool { p.lender.Need(3); return false })
	if n := within(t, p.guest.lost, "the loss"); n != 3 {
		t.Fatalf("%d units lost, want 3", n)
	}
	for p.house.away() > 0 {
		within(t, p.house.home, "a unit coming home")
	}
}

// TestLeasesAreRenewed: a lease much shorter than the test goes on as long as
// the borrower lives.
func TestLeasesAreRenewed(t *testing.T) {
	p := newPair(t, 800*time.Millisecond)
	p.guest.agent.Want(coordinator.Wish{Units: 2})
	within(t, p.guest.granted, "a grant")
	select {
	case n := <-p.guest.lost:
		t.Fatalf("%d units lost although the borrower renews", n)
	case <-time.After(2500 * time.Millisecond): // more than three leases
	}
	if n := p.house.away(); n != 2 {
		t.Fatalf("%d units away, want 2", n)
	}
}

// TestEndedProcess: what a dead borrower held is home at once.
func TestEndedProcess(t *testing.T) {
	p := newPair(t, 30*time.Second)
	p.guest.agent.Want(coordinator.Wish{Units: 5})
	within(t, p.guest.granted, "a grant")
	p.lender.Ended(0, 76) // an earlier process: nothing of the current one's
	p.lender.Ended(0, 77)
	for p.house.away() > 0 {
		within(t, p.house.home, "a unit coming home")
	}
}

// TestStuckBorrower: units of a borrower that confirms nothing stay out of use,
// somebody is told, and they are home when it is known to have ended.
func TestStuckBorrower(t *testing.T) {
	p := newPair(t, 30*time.Second)
	p.guest.agent.Want(coordinator.Wish{Units: 2})
	within(t, p.guest.granted, "a grant")
	p.guest.mu.Lock()
	p.guest.keep, p.guest.dead = 2, true
	p.guest.mu.Unlock()
	p.house.Locked(func() bool { p.lender.Need(2); return false })
	if who := within(t, p.stuck, "the report of a stuck borrower"); who != "m" {
		t.Errorf("%q is stuck, want m", who)
	}
	if n := p.house.away(); n != 2 {
		t.Fatalf("%d units away before the borrower has ended, want 2", n)
	}
	p.lender.Ended(0, 77)
	for p.house.away() > 0 {
		within(t, p.house.home, "a unit coming home")
	}
}

func TestCloseWithoutPeer(t *testing.T) {
	dir, err := transport.OpenDir(t.TempDir()+"/l", transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := dir.Dialer("nobody", "m")
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{denied: make(chan time.Duration, 1), retry: make(chan struct{}, 100)}
	b, err := OpenBorrower(BorrowerConfig{
		Worker: "nobody", Dialer: d, Tenant: g, Log: quiet{}, Self: wire.Hello{Model: "m", Role: "master"},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Want(coordinator.Wish{Units: 3})
	within(t, g.denied, "the news that nobody is there")
	b.Close()
	b.Close()
	if b.Inspect(func(*coordinator.Borrower) {}) {
		t.Error("a closed agent was inspected")
	}
	b.Describe(new(wire.Status)) // must not hang
}

// TestSilentLender: a tenant hears within a second that a lender gives no answer,
// so that it can ask others; the grant that comes in the end is welcome.
func TestSilentLender(t *testing.T) {
	p := newPair(t, 30*time.Second)
	p.guest.agent.Want(coordinator.Wish{Units: 1})
	within(t, p.guest.granted, "a grant")
	locked, unlock := make(chan struct{}), make(chan struct{})
	go p.house.Locked(func() bool { // the lender's loop waits for its landlord
		close(locked)
		<-unlock
		return false
	})
	<-locked
	p.guest.agent.Want(coordinator.Wish{Units: 2})
	if d := within(t, p.guest.denied, "the news that there is no answer"); d != answerTime {
		t.Errorf("asking again makes sense after %v, want %v", d, answerTime)
	}
	close(unlock)
	if n := within(t, p.guest.granted, "the late grant"); n != 2 {
		t.Errorf("%d units granted, want 2", n)
	}
}
