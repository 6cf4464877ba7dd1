package coordinator

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlend/kvlend/coordinator/session"
	"github.com/kvlend/kvlend/coordinator/transport"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

var update = flag.Bool("update", false, "rewrite the expected output of testdata/*.txt")

// TestScenarios runs testdata/*.txt: lines of commands, a line "----", and
// what happened, up to an empty line. They run over sessions and a simulated
// network, on the clock of testing/synctest. Commands:
//
//	start M             start a process of master M and connect it
//	crash M             end it without a word; units it had are not written any more
//	freeze M, thaw M    cut its link without telling either end; heal it
//	restart worker      end the worker's process and start another over the same table
//	want M n least      ask for units
//	aim M n [stuck]     ask until M has n units, again after each denial; stuck:
//	                    with fewer it cannot go on. 0 ends it
//	yield M             from now on return at once what is asked back, lowest first
//	release M n         return n units, lowest first
//	refuse M            answer the oldest Evacuate: no more will come
//	quiesce M           stop writing to units that were lost, and release them
//	need n within       the worker needs n units
//	confirm             confirm every fence reported so far
//	lose T, repeat T    lose, or send twice, the next message of a type
//	wait d              let time pass
//	state               print the units by state, and each replica
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runScenario(t, path) })
		})
	}
}

func runScenario(t *testing.T, path string) {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := newStage(t)
	defer s.close()
	var out, want bytes.Buffer
	line, expecting := 0, false
	sc := bufio.NewScanner(bytes.NewReader(text))
	finish := func() {
		got := s.output()
		if expecting && !*update && got != want.String() {
			t.Errorf("%s:%d: got\n%swant\n%s", path, line, got, want.String())
		}
		if expecting {
			out.WriteString(got)
		}
		want.Reset()
		expecting = false
	}
	for sc.Scan() {
		line++
		l := sc.Text()
		switch {
		case expecting && l != "":
			want.WriteString(l + "\n")
			continue
		case l == "----":
			expecting = true
		case l == "":
			finish()
		case !strings.HasPrefix(l, "#"):
			if err := s.command(strings.Fields(l)); err != nil {
				t.Fatalf("%s:%d: %v", path, line, err)
			}
		}
		out.WriteString(l + "\n")
	}
	finish()
	if *update {
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// stage is one worker and its masters, each a machine and its links.
type stage struct {
	t     *testing.T
	net   *transport.Sim
	begin time.Time
	mem   []byte

	mu      sync.Mutex
	units   *elastic.Units
	lender  *Lender
	links   map[uint32]*session.Link // of the worker, by master
	masters map[string]*actor
	fences  []Fence
	faults  map[string]string // by message type: "lose" or "repeat"
	log     map[string][]string
	wake    *time.Timer
}

// actor is a master's process.
type actor struct {
	name  string
	owner uint32
	b     *Borrower
	link  *session.Link
	use   []wire.UnitEpoch
	lost  []wire.UnitEpoch
	asked []uint64
	aim   int
	stuck bool
	yield bool
}

var owners = map[string]uint32{"atlas": 0, "cedar": 1}

func newStage(t *testing.T) *stage {
	s := &stage{
		t: t, net: transport.NewSim(1, transport.Faults{MinDelay: time.Millisecond, MaxDelay: time.Millisecond}),
		begin: time.Now(), masters: map[string]*actor{}, faults: map[string]string{}, log: map[string][]string{},
	}
	s.units, s.mem = newUnits(t, 8, 1, nil)
	s.wake = time.AfterFunc(time.Hour, s.tick)
	s.startWorker()
	return s
}

func (s *stage) now() time.Duration { return time.Since(s.begin) }

func (s *stage) note(who, format string, args ...any) {
	s.log[who] = append(s.log[who], fmt.Sprintf(format, args...))
}

// output returns what happened since the last call, actor by actor.
func (s *stage) output() string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.check()
	var b strings.Builder
	for _, who := range []string{"worker", "atlas", "cedar", "state"} {
		for _, l := range s.log[who] {
			fmt.Fprintf(&b, "%s: %s\n", who, l)
		}
	}
	s.log = map[string][]string{}
	return b.String()
}

func (s *stage) check() {
	borrowers := map[uint32]*Borrower{}
	for _, a := range s.masters {
		borrowers[a.owner] = a.b
	}
	if errs := append(CheckPair(s.lender, borrowers), s.units.Check()...); len(errs) > 0 {
		s.t.Errorf("after %v: %v", s.now(), errors.Join(errs...))
	}
}

func (s *stage) startWorker() {
	s.lender = NewLender(s.now(), LenderOptions{Units: s.units, TTL: 10 * time.Second, Within: 2 * time.Second, Patience: time.Second})
	s.links = map[uint32]*session.Link{}
	for name, owner := range owners {
		s.links[owner] = s.open(session.Options{
			Self: wire.Hello{Model: "worker"}, Listener: s.net.Listen("worker", name),
			OnMessage:   func(m wire.Message) { s.do(func() error { return s.lender.Receive(s.now(), owner, m) }) },
			OnUp:        func(wire.Hello) { s.do(func() error { s.lender.Up(s.now(), owner); return nil }) },
			OnDown:      func(error) { s.do(func() error { s.lender.Down(s.now(), owner); return nil }) },
			OnPeerReset: func() { s.do(func() error { s.lender.PeerReset(s.now(), owner); return nil }) },
		})
	}
}

func (s *stage) startMaster(name string) {
	a := &actor{name: name, owner: owners[name], b: NewBorrower(BorrowerOptions{})}
	s.masters[name] = a
	a.link = s.open(session.Options{
		Self: wire.Hello{Model: name}, Dialer: s.net.Dialer("worker", name),
		OnMessage:   func(m wire.Message) { s.do(func() error { return a.b.Receive(s.now(), m) }) },
		OnUp:        func(wire.Hello) { s.do(func() error { a.b.Up(s.now()); return nil }) },
		OnDown:      func(error) { s.do(func() error { a.b.Down(s.now()); return nil }) },
		OnPeerReset: func() { s.do(func() error { a.b.PeerReset(s.now()); return nil }) },
	})
}

func (s *stage) open(o session.Options) *session.Link {
	l, err := session.Open(o)
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// do changes a machine, and does the actions that follow.
func (s *stage) do(f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := f(); err != nil {
		s.t.Error(err)
	}
	s.settle()
}

func (s *stage) tick() {
	s.do(func() error {
		s.lender.Tick(s.now())
		for _, a := range s.masters {
			a.b.Tick(s.now())
		}
		return nil
	})
}

func (s *stage) settle() {
	for _, a := range s.lender.Take() {
		switch a := a.(type) {
		case Send:
			s.send("worker", s.links[a.To], a.Message)
		case Fence:
			s.note("worker", "fence of %d, %s: %s", a.Owner, list(a.Units), a.Reason)
			s.fences = append(s.fences, a)
		}
	}
	next, ok := s.lender.NextWake()
	for _, m := range s.masters {
		for _, a := range m.b.Take() {
			s.masterDoes(m, a)
		}
		if at, some := m.b.NextWake(); some && (!ok || at < next) {
			next, ok = at, true
		}
	}
	if ok {
		s.wake.Reset(max(0, next-s.now()))
	}
}

func (s *stage) masterDoes(m *actor, a Action) {
	switch a := a.(type) {
	case Send:
		s.send(m.name, m.link, a.Message)
	case Granted:
		s.note(m.name, "granted %s", list(a.Units))
		m.use = append(m.use, a.Units...)
		m.ask(s.now())
	case Denied:
		if m.aim == 0 {
			s.note(m.name, "denied, %d available: %s", a.Available, a.Reason)
		}
		time.AfterFunc(a.RetryAfter, func() { s.do(func() error { m.ask(s.now()); return nil }) })
	case Evacuate:
		s.note(m.name, "evacuate %d", a.N)
		if m.yield {
			if err := m.release(s.now(), a.N); err != nil {
				s.t.Error(err)
			}
			s.settle()
			return
		}
		m.asked = append(m.asked, a.Reclaim)
	case Lost:
		s.note(m.name, "lost %s: %s", list(a.Units), a.Reason)
		m.use = slices.DeleteFunc(m.use, func(e wire.UnitEpoch) bool { return slices.Contains(a.Units, e) })
		m.lost = append(m.lost, a.Units...)
	}
}

// ask asks for what a master lacks of its aim.
func (a *actor) ask(now time.Duration) {
	if n := a.aim - len(a.use); n > 0 && a.stuck {
		a.b.Want(now, Wish{Units: n, Least: n})
	} else {
		a.b.Want(now, Wish{Units: n, Least: 0})
	}
}

// release returns a master's first n units. It may lack some of its aim then.
func (a *actor) release(now time.Duration, n int) error {
	defer a.ask(now)
	slices.SortFunc(a.use, func(x, y wire.UnitEpoch) int { return int(x.Unit) - int(y.Unit) })
	give := slices.Clone(a.use[:n])
	a.use = a.use[n:]
	return a.b.Release(now, give)
}

func (s *stage) send(who string, l *session.Link, m wire.Message) {
	copies := 1
	name := m.Type().String()
	switch s.faults[name] {
	case "lose":
		copies = 0
		s.note(who, "%s is lost", name)
	case "repeat":
		copies = 2
		s.note(who, "%s is sent twice", name)
	}
	delete(s.faults, name)
	for range copies {
		if err := l.TrySend(m); err != nil && !errors.Is(err, session.ErrClosed) {
			s.t.Error(err)
		}
	}
}

func (s *stage) close() {
	s.wake.Stop()
	for _, a := range s.masters {
		a.link.Close()
	}
	for _, l := range s.links {
		l.Close()
	}
}

func list(units []wire.UnitEpoch) string {
	out := make([]string, len(units))
	for i, e := range units {
		out[i] = fmt.Sprintf("%d@%d", e.Unit, e.Epoch)
	}
	return "[" + strings.Join(out, " ") + "]"
}

// command runs one line of a scenario.
func (s *stage) command(f []string) error {
	arg := func(i int) int {
		if i >= len(f) {
			return 0
		}
		n, _ := strconv.Atoi(f[i])
		return n
	}
	word := ""
	if len(f) > 1 {
		word = f[1]
	}
	if _, isMaster := owners[word]; isMaster {
		return s.masterCommand(f[0], word, arg(2), arg(3), f[len(f)-1] == "stuck")
	}
	switch f[0] {
	case "wait":
		d, err := time.ParseDuration(word)
		time.Sleep(d)
		return err
	case "need":
		within, err := time.ParseDuration(f[2])
		s.do(func() error { s.note("worker", "%d are coming", s.lender.Need(s.now(), arg(1), within)); return nil })
		return err
	case "confirm":
		s.do(func() error {
			for _, fence := range s.fences {
				s.lender.ConfirmFence(s.now(), fence.Owner, fence.ID)
			}
			s.fences = nil
			return nil
		})
	case "lose", "repeat":
		s.do(func() error { s.faults[word] = f[0]; return nil })
	case "restart":
		s.restartWorker()
	case "state":
		s.do(func() error { s.state(); return nil })
	default:
		return fmt.Errorf("unknown command %q", f)
	}
	return nil
}

func (s *stage) restartWorker() {
	for _, l := range s.links {
		l.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fences = nil
	s.units, _ = newUnits(s.t, 0, 1, s.mem)
	s.startWorker()
}

func (s *stage) state() {
	u := s.units
	s.note("state", "LOCAL %d, LENT %d, RECLAIMING %d, FENCED %d", u.Count(elastic.Local), u.Count(elastic.Lent), u.Count(elastic.Reclaiming), u.Count(elastic.Fenced))
	for _, name := range []string{"atlas", "cedar"} {
		if a := s.masters[name]; a != nil {
			s.note("state", "%s uses %s, version %d of %d", name, list(a.use), a.b.Version(), s.lender.Version(a.owner))
		}
	}
}

func (s *stage) masterCommand(verb, name string, n, least int, stuck bool) error {
	a := s.masters[name]
	switch verb {
	case "start":
		s.mu.Lock()
		s.startMaster(name)
		s.mu.Unlock()
		time.Sleep(100 * time.Millisecond)
		return nil
	case "crash":
		a.link.Close()
		s.mu.Lock()
		delete(s.masters, name)
		s.mu.Unlock()
		return nil
	case "freeze", "thaw":
		s.net.Partition("worker", name, verb == "freeze")
		return nil
	}
	var err error
	s.do(func() error {
		switch verb {
		case "want":
			a.b.Want(s.now(), Wish{Units: n, Least: least})
		case "release":
			err = a.release(s.now(), n)
		case "aim":
			a.aim, a.stuck = n, stuck
			a.ask(s.now())
		case "yield":
			a.yield = true
		case "quiesce":
			err = a.b.Release(s.now(), a.lost)
			a.lost = nil
		case "refuse":
			a.b.CannotRelease(s.now(), a.asked[0])
			a.asked = a.asked[1:]
		default:
			err = fmt.Errorf("unknown command %q", verb)
		}
		return nil
	})
	return err
}
