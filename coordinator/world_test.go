package coordinator

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

var (
	histories = flag.Int("histories", 2000, "random histories to run")
	seedFlag  = flag.Uint64("seed", 0, "run only the history of this seed, with a trace")
)

const worker = 7 // the worker's owner index in the tests

var birch = elastic.Geometry{Name: "birch", Layers: 2, BlockTokens: 16, KVHeads: 1, HeadDim: 8, ElemBytes: 2}

// newUnits makes a worker's book of n units, one block each, over table
// memory that may be a restarted worker's.
func newUnits(t testing.TB, n, floor int, mem []byte) (*elastic.Units, []byte) {
	t.Helper()
	borrower := birch
	borrower.Name = "atlas"
	spec, err := elastic.NewUnitSpec(elastic.PolicyLCM, 0, birch, borrower)
	if err != nil {
		t.Fatal(err)
	}
	var table *elastic.UnitTable
	if mem == nil {
		mem = make([]byte, elastic.UnitTableBytes(n))
		table, err = elastic.FormatUnitTable(mem, spec, int64(n)*spec.Bytes, worker)
	} else {
		table, err = elastic.OpenUnitTable(mem)
	}
	if err != nil {
		t.Fatal(err)
	}
	u, err := elastic.NewUnits(elastic.UnitsOptions{Geometry: birch, Spec: spec, Floor: int64(floor) * spec.Bytes, Table: table})
	if err != nil {
		t.Fatal(err)
	}
	return u, mem
}

// master is a borrower and the cache that owns it.
type master struct {
	owner uint32
	b     *Borrower
	use   []wire.UnitEpoch // may be used
	lost  []wire.UnitEpoch // lost, still being written to
	asked []Evacuate       // not yet answered
	told  int              // answers to Want
	up    bool
}

// letter is a message on its way.
type letter struct {
	at     time.Duration
	n      int
	owner  uint32
	toHome bool // to the lender
	bytes  []byte
}

// pending is a fence and the process that was the borrower at the time.
type pending struct {
	Fence
	m *master
}

// world is one worker, some masters, a network and a supervisor, all driven
// by one random source: a seed decides everything.
type world struct {
	t       testing.TB
	rng     *rand.Rand
	now     time.Duration
	units   *elastic.Units
	mem     []byte
	opt     LenderOptions
	lender  *Lender
	masters map[uint32]*master
	zombies []*master // replaced processes that may still write
	fences  []pending // that the supervisor has not handled
	air     []letter
	sent    int
	blocks  []elastic.BlockID // of the worker itself
	loss    float64
	trace   func(format string, args ...any)
}

func newWorld(t testing.TB, seed uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), masters: map[uint32]*master{}, trace: func(string, ...any) {}}
	w.units, w.mem = newUnits(t, 12, 1, nil)
	w.opt = LenderOptions{TTL: 5 * time.Second, Quota: map[uint32]int{2: 5}}
	if w.rng.IntN(4) > 0 { // else first come, first served
		w.opt.Within, w.opt.Patience = time.Second, 500*time.Millisecond
		w.opt.Weight = map[uint32]int{1: 1 + w.rng.IntN(3)}
	}
	w.loss = []float64{0, 0.2, 0.6}[w.rng.IntN(3)]
	w.startLender()
	for owner := range uint32(3) {
		w.masters[owner] = &master{owner: owner, b: NewBorrower(BorrowerOptions{})}
	}
	return w
}

func (w *world) startLender() {
	w.opt.Units = w.units
	w.lender = NewLender(w.now, w.opt)
}

// post puts a message into the air; faults apply.
func (w *world) post(owner uint32, toHome bool, m wire.Message) {
	b, err := wire.Encode(m)
	if err != nil {
		w.t.Fatalf("%s cannot be sent: %v", m.Type(), err)
	}
	copies := 1
	if w.rng.Float64() < w.loss {
		copies = w.rng.IntN(3)
	}
	for range copies {
		w.sent++
		delay := time.Millisecond
		if w.loss > 0 {
			delay = time.Duration(w.rng.Int64N(int64(300 * time.Millisecond)))
		}
		w.air = append(w.air, letter{at: w.now + delay, n: w.sent, owner: owner, toHome: toHome, bytes: b})
	}
}

// settle does all actions that are due.
func (w *world) settle() {
	for _, a := range w.lender.Take() {
		switch a := a.(type) {
		case Send:
			w.post(a.To, false, a.Message)
		case Fence:
			w.trace("fence %+v", a)
			w.fences = append(w.fences, pending{a, w.masters[a.Owner]})
		default:
			w.t.Fatalf("a lender wants %T", a)
		}
	}
	for _, m := range w.sorted() {
		for _, a := range m.b.Take() {
			m.do(w, a)
		}
	}
}

func (m *master) do(w *world, a Action) {
	switch a := a.(type) {
	case Send:
		w.post(m.owner, true, a.Message)
	case Granted:
		w.trace("%d granted %v", m.owner, a.Units)
		m.use = append(m.use, a.Units...)
		m.told++
	case Lost:
		w.trace("%d lost %v: %s", m.owner, a.Units, a.Reason)
		m.use = slices.DeleteFunc(m.use, func(e wire.UnitEpoch) bool { return slices.Contains(a.Units, e) })
		m.lost = append(m.lost, a.Units...)
	case Evacuate:
		w.trace("%d evacuate %+v", m.owner, a)
		m.asked = append(m.asked, a)
	case Denied:
		w.trace("%d denied: %s", m.owner, a.Reason)
		m.told++
	default:
		w.t.Fatalf("a borrower wants %T", a)
	}
}

func (w *world) sorted() []*master {
	ms := make([]*master, 0, len(w.masters))
	for _, m := range w.masters {
		ms = append(ms, m)
	}
	slices.SortFunc(ms, func(a, b *master) int { return cmp.Compare(a.owner, b.owner) })
	return ms
}

// check verifies everything that must hold at any moment.
func (w *world) check() {
	borrowers := map[uint32]*Borrower{}
	for _, m := range w.masters {
		borrowers[m.owner] = m.b
		for _, e := range m.use {
			if u := m.b.units[e]; u == nil || u.state != inUse {
				w.t.Fatalf("master %d uses unit %d, its borrower says %+v", m.owner, e.Unit, u)
			}
		}
		if len(m.use) != m.b.Held() {
			w.t.Fatalf("master %d uses %d units, its borrower counts %d", m.owner, len(m.use), m.b.Held())
		}
	}
	errs := append(CheckPair(w.lender, borrowers), w.units.Check()...)
	var f findings
	for _, z := range w.zombies {
		for e, u := range z.b.units {
			if u.state != givenUp {
				w.lender.checkWriter(&f, z.owner, e, &unit{state: lost})
			}
		}
	}
	if errs = append(errs, f...); len(errs) > 0 {
		w.t.Fatalf("after %v: %v", w.now, errors.Join(errs...))
	}
}

// step moves to the next thing that happens within d, or by d.
func (w *world) step(d time.Duration) {
	until := w.now + d
	next := until
	consider := func(at time.Duration, ok bool) {
		if ok {
			next = min(next, max(at, w.now))
		}
	}
	consider(w.lender.NextWake())
	for _, m := range w.sorted() {
		consider(m.b.NextWake())
	}
	slices.SortFunc(w.air, func(a, b letter) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.n, b.n)) })
	if len(w.air) > 0 && w.air[0].at <= next {
		l := w.air[0]
		w.air = w.air[1:]
		w.now = max(w.now, l.at)
		w.deliver(l)
	} else {
		w.now = next
		w.lender.Tick(w.now)
		for _, m := range w.sorted() {
			m.b.Tick(w.now)
		}
	}
	w.settle()
}

func (w *world) deliver(l letter) {
	m, err := wire.Parse(l.bytes)
	if err != nil {
		w.t.Fatal(err)
	}
	w.trace("%v: to home %t, %d: %T %+v", w.now, l.toHome, l.owner, m, m)
	if l.toHome {
		err = w.lender.Receive(w.now, l.owner, m)
	} else {
		err = w.masters[l.owner].b.Receive(w.now, m)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) connect(m *master) {
	if !m.up {
		m.up = true
		w.lender.Up(w.now, m.owner)
		m.b.Up(w.now)
	}
}

// disconnect loses what is under way. The session would keep it for later,
// which is the easier case.
func (w *world) disconnect(m *master) {
	if m.up {
		m.up = false
		w.lender.Down(w.now, m.owner)
		m.b.Down(w.now)
		w.air = slices.DeleteFunc(w.air, func(l letter) bool { return l.owner == m.owner })
	}
}

// replace starts a new process for a master. The old one may go on writing.
func (w *world) replace(m *master) {
	w.trace("%v: master %d is replaced", w.now, m.owner)
	w.disconnect(m)
	w.zombies = append(w.zombies, m)
	fresh := &master{owner: m.owner, b: NewBorrower(BorrowerOptions{})}
	w.masters[m.owner] = fresh
	w.lender.PeerReset(w.now, m.owner)
	w.settle()
}

// restartWorker starts a new process for the worker, over the same table.
func (w *world) restartWorker() {
	w.trace("%v: the worker is restarted", w.now)
	for _, m := range w.sorted() {
		w.disconnect(m)
		m.b.PeerReset(w.now)
	}
	w.settle()
	w.blocks, w.fences, w.air = nil, nil, nil
	w.units, _ = newUnits(w.t, 0, 1, w.mem)
	w.startLender()
	w.settle()
}

// supervise handles the oldest fence: the processes that may write are ended.
func (w *world) supervise() {
	if len(w.fences) == 0 {
		return
	}
	f := w.fences[0]
	w.fences = w.fences[1:]
	if f.Live && w.masters[f.Owner] == f.m {
		w.replace(f.m)
	}
	w.zombies = slices.DeleteFunc(w.zombies, func(z *master) bool { return z.owner == f.Owner })
	w.trace("%v: fence %d is confirmed", w.now, f.ID)
	w.lender.ConfirmFence(w.now, f.Owner, f.ID)
}

// release gives back k units that a master uses.
func (m *master) release(w *world, k int) {
	k = min(k, len(m.use))
	if k == 0 {
		return
	}
	w.rng.Shuffle(len(m.use), func(i, j int) { m.use[i], m.use[j] = m.use[j], m.use[i] })
	give := slices.Clone(m.use[:k])
	m.use = m.use[k:]
	if err := m.b.Release(w.now, give); err != nil {
		w.t.Fatal(err)
	}
}

// evacuate answers the oldest request for units.
func (m *master) evacuate(w *world) {
	if len(m.asked) == 0 {
		return
	}
	a := m.asked[0]
	m.asked = m.asked[1:]
	n := w.rng.IntN(a.N + 1)
	m.release(w, n)
	if n < a.N {
		m.b.CannotRelease(w.now, a.Reclaim)
	}
}

// quiesce ends all writing to units that were lost.
func (m *master) quiesce(w *world) {
	gone := m.lost
	m.lost = nil
	if err := m.b.Release(w.now, gone); err != nil {
		w.t.Fatal(err)
	}
}

// random does one thing of anybody's choice.
func (w *world) random() {
	m := w.masters[uint32(w.rng.IntN(len(w.masters)))]
	switch w.rng.IntN(22) {
	case 0, 1, 2:
		w.connect(m)
	case 3:
		w.disconnect(m)
	case 4, 5, 6, 7:
		n := 1 + w.rng.IntN(6)
		m.b.Want(w.now, Wish{Units: n, Least: w.rng.IntN(n + 1)})
	case 8, 9:
		m.release(w, w.rng.IntN(4))
	case 10, 11, 12, 13:
		m.evacuate(w)
	case 14, 15:
		m.quiesce(w)
	case 16, 17:
		w.lender.Need(w.now, 1+w.rng.IntN(6), time.Duration(w.rng.IntN(2000))*time.Millisecond)
	case 18:
		if got, err := w.units.Space().Alloc(1 + w.rng.IntN(3)); err == nil {
			w.blocks = append(w.blocks, got...)
		}
	case 19:
		if err := w.units.Space().Free(w.blocks); err != nil {
			w.t.Fatal(err)
		}
		w.blocks = nil
	case 20:
		w.supervise()
	case 21:
		switch w.rng.IntN(4) {
		case 0:
			w.replace(m)
		case 1:
			w.restartWorker()
		}
	}
	w.settle()
}

// finish heals everything, and requires that every question is answered and
// that all units come home.
func (w *world) finish() {
	w.loss = 0
	for round := range 20 {
		for _, m := range w.sorted() {
			w.connect(m)
			m.release(w, len(m.use))
			m.quiesce(w)
			m.asked = nil
		}
		// Whoever lives returns what was fenced; for the others somebody has
		// to confirm that they are dead.
		w.fences = slices.DeleteFunc(w.fences, func(f pending) bool { return f.Live && w.masters[f.Owner] == f.m })
		for len(w.fences) > 0 {
			w.supervise()
		}
		if round == 10 {
			for _, m := range w.sorted() {
				m.told = 0
				m.b.Want(w.now, Wish{Units: 1, Least: 1})
			}
		}
		w.settle()
		for until := w.now + 3*time.Second; w.now < until; {
			w.step(until - w.now)
			w.check()
		}
	}
	if n := w.units.Count(elastic.Local); n != w.units.Total() {
		w.t.Fatalf("%d of %d units came home", n, w.units.Total())
	}
	if n := w.lender.owed(); n != 0 {
		w.t.Fatalf("%d units are still asked back", n)
	}
	for _, m := range w.sorted() {
		if m.told == 0 {
			w.t.Fatalf("master %d got no answer to Want", m.owner)
		}
		if m.b.Version() != w.lender.Version(m.owner) || len(m.b.units) > 0 || len(m.b.gifts) > 0 || m.b.wanted != nil || m.b.asked != nil {
			w.t.Fatalf("master %d did not come to rest: %+v, the lender is at version %d", m.owner, m.b, w.lender.Version(m.owner))
		}
	}
}

// rival is a master that wants units for as long as it has fewer than its aim,
// and returns at once what it is asked for.
type rival struct {
	*master
	aim   int
	stuck bool // it cannot go on with fewer
	most  int  // that it has had
}

func (r *rival) play(w *world) {
	for len(r.asked) > 0 {
		a := r.asked[0]
		r.asked = r.asked[1:]
		r.release(w, a.N)
	}
	r.quiesce(w)
	r.most = max(r.most, len(r.use))
	if n := r.aim - len(r.use); n > 0 && r.stuck {
		r.b.Want(w.now, Wish{Units: n, Least: n})
	} else {
		r.b.Want(w.now, Wish{Units: n, Least: 0})
	}
	w.settle()
}

// rivalry lets two masters compete for all that can be lent, until done says
// that it is decided.
func (w *world) rivalry(limit time.Duration, a, b *rival, done func() bool) {
	for until := w.now + limit; !done(); {
		if w.now >= until {
			w.t.Fatalf("after %v master %d has %d units of %d and had %d, master %d %d of %d and had %d; weights %v", limit,
				a.owner, len(a.use), a.aim, a.most, b.owner, len(b.use), b.aim, b.most, w.opt.Weight)
		}
		a.play(w)
		b.play(w)
		for slice := w.now + 25*time.Millisecond; w.now < slice; {
			w.step(slice - w.now)
		}
		w.check()
	}
}

// compete runs after finish: nothing is lent, nothing is lost any more.
func (w *world) compete() {
	if err := w.units.Space().Free(w.blocks); err != nil {
		w.t.Fatal(err)
	}
	w.blocks = nil
	n, weight := w.units.Grantable(), max(1, w.opt.Weight[1])
	share := n * weight / (weight + 1)
	// One has everything, the other gets its share at once; all of it goes to
	// one that says that it cannot go on with less.
	a, b := &rival{master: w.masters[0], aim: n}, &rival{master: w.masters[1], aim: share, stuck: w.rng.IntN(2) == 0}
	w.rivalry(2*time.Second, a, b, func() bool { return a.most == n || len(a.use) > 0 && len(b.use) == share })
	w.rivalry(w.opt.Within, a, b, func() bool { return len(b.use) == share && len(a.use) == n-share })
	// Nothing goes to and fro then.
	version := w.lender.Version(0) + w.lender.Version(1)
	quiet := w.now + 4*time.Second
	w.rivalry(5*time.Second, a, b, func() bool { return w.now >= quiet })
	if v := w.lender.Version(0) + w.lender.Version(1); v != version {
		w.t.Fatalf("%d changes after each had its share", v-version)
	}
	// Both need more than there is for both: neither waits for ever.
	a.aim, b.aim, a.stuck, b.stuck = n, n-1, true, true
	a.most, b.most = 0, 0
	w.rivalry(30*time.Second, a, b, func() bool { return a.most >= a.aim && b.most >= b.aim })
}

func runHistory(t testing.TB, seed uint64, trace bool) {
	w := newWorld(t, seed)
	if trace {
		w.trace = t.Logf
	}
	for range 120 {
		w.random()
		w.check()
		for until := w.now + time.Duration(w.rng.Int64N(int64(400*time.Millisecond))); w.now < until; {
			w.step(until - w.now)
			w.check()
		}
	}
	w.finish()
	if w.opt.Within > 0 && w.rng.IntN(8) == 0 {
		w.compete()
	}
}

// TestHistories runs random histories of borrowing, returning, reclaiming,
// disconnecting, crashing and fencing over a network that loses, repeats and
// reorders, and checks every invariant after every step. A failing seed is
// replayed with go test -run TestHistories -seed=N -v.
func TestHistories(t *testing.T) {
	if *seedFlag != 0 {
		runHistory(t, *seedFlag, true)
		return
	}
	n := *histories / slowdown
	if testing.Short() {
		n /= 10
	}
	shards := runtime.GOMAXPROCS(0)
	for shard := range shards {
		t.Run(fmt.Sprintf("shard=%d", shard), func(t *testing.T) {
			t.Parallel()
			for seed := 1 + shard; seed <= n; seed += shards {
				if !t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { runHistory(t, uint64(seed), false) }) {
					t.Fatalf("replay it with -run TestHistories -seed=%d -v", seed)
				}
			}
		})
	}
}
