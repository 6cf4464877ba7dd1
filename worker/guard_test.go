package worker

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/scheduler"
)

// load is a worker's own load as the guard sees it: prompts of random sizes and
// decoding at random lengths, some steps late for reasons of their own.
type load struct {
	g   *guard
	r   *rand.Rand
	now time.Duration
}

// run observes n steps of each kind that take so many times as long as alone.
func (l *load) run(n int, lent bool, prefill, decode float64) {
	for range n {
		start, tokens := l.r.IntN(2000), 16+l.r.IntN(240)
		l.step(prefillStep, start, tokens, lent, prefill)
		for range 2 {
			l.step(decodeStep, start+l.r.IntN(500), 1, lent, decode)
		}
	}
}

func (l *load) step(kind stepKind, start, tokens int, lent bool, slow float64) {
	var w scheduler.Work
	w.Add(start, tokens)
	took := time.Duration(slow * (0.97 + 0.06*l.r.Float64()) * (5e5 + 2e5*float64(tokens) + 10*w.Attended))
	if l.r.IntN(20) == 0 {
		took *= 3
	}
	l.now += took
	l.g.observe(l.now, kind, w, lent, took)
}

func newLoad(limit float64) *load {
	return &load{g: newGuard(limit), r: rand.New(rand.NewPCG(1, 2)), now: time.Hour}
}

func (l *load) status() wire.Status {
	var st wire.Status
	l.g.describe(l.now, &st)
	return st
}

// TestGuardComparesAtEqualWork: the same slowdown is found whatever was
// computed on each side, and none where there is none.
func TestGuardComparesAtEqualWork(t *testing.T) {
	l := newLoad(0)
	l.run(300, false, 1, 1)
	l.run(300, true, 1.3, 1.1)
	in := l.status().Interference
	for _, c := range []struct {
		name  string
		times wire.StepTimes
		want  float64
	}{{"prefill", in.Prefill, 1.3}, {"decode", in.Decode, 1.1}} {
		if c.times.Ratio < c.want-0.03 || c.times.Ratio > c.want+0.03 {
			t.Errorf("%s: ratio %.3f, want %.2f", c.name, c.times.Ratio, c.want)
		}
		if c.times.WithSteps != guardWindow || c.times.WithoutSteps != guardWindow || c.times.WithMS <= 0 || c.times.WithoutMS <= 0 {
			t.Errorf("%s: %+v", c.name, c.times)
		}
	}
	if in.Backoffs != 0 {
		t.Error("backed off without a limit")
	}
}

// TestGuardBacksOff: lending that hurts ends, goes on after the cool-down when
// the figure is well below the limit, and each further time it hurts it takes
// twice as long.
func TestGuardBacksOff(t *testing.T) {
	l := newLoad(0.10)
	l.run(300, false, 1, 1)
	l.run(300, true, 1.05, 1.05)
	if l.g.backsOff(l.now) {
		t.Fatal("backs off below the limit")
	}
	for i, long := range []time.Duration{coolDown, 2 * coolDown, 4 * coolDown, 8 * coolDown, 8 * coolDown} {
		for n := 0; !l.g.backsOff(l.now); n++ {
			if n == 100 {
				t.Fatalf("round %d: lending costs 25%% and goes on", i)
			}
			l.run(5, true, 1.05, 1.25)
		}
		if left := l.g.backoff - l.now; left < long-5*time.Second || left > long {
			t.Errorf("round %d: nothing is lent for %v, want %v", i, left, long)
		}
		st := l.status()
		if len(st.Degraded) != 1 || !strings.Contains(st.Degraded[0], "decoding was 2") || !st.Interference.BackingOff || st.Interference.Backoffs != uint64(i+1) {
			t.Errorf("round %d: status %v, %+v", i, st.Degraded, st.Interference)
		}
		l.now = l.g.backoff
		if l.g.backsOff(l.now) {
			t.Fatal("the cool-down does not end")
		}
	}
	l.run(300, true, 1.02, 1.02)
	if l.g.long != 0 || len(l.status().Degraded) != 0 {
		t.Errorf("after calm the next cool-down takes %v; %v", 2*l.g.long, l.status().Degraded)
	}
}

// TestGuardWaitsForCalm: units that are still lent and still hurt lengthen the
// cool-down, even below the limit itself.
func TestGuardWaitsForCalm(t *testing.T) {
	l := newLoad(0.10)
	l.run(300, false, 1, 1)
	l.run(200, true, 1, 1.3)
	until := l.g.backoff
	l.run(200, true, 1, 1.08)
	if l.g.backoff <= until {
		t.Error("the cool-down was not lengthened at 8% of at most 5%")
	}
	until = l.g.backoff
	l.run(300, true, 1, 1)
	was := l.g.backoff
	l.run(300, true, 1, 1)
	if l.g.backoff != was || !l.g.backsOff(until-1) || l.g.backsOff(was) {
		t.Error("calm does not end the cool-down in time")
	}
}

// TestGuardNeedsBothSides: a worker that has always lent has nothing to compare
// with.
func TestGuardNeedsBothSides(t *testing.T) {
	l := newLoad(0.10)
	l.run(300, true, 2, 2)
	l.run(20, false, 1, 1)
	l.run(20, true, 2, 2)
	if l.g.backsOff(l.now) || l.status().Interference.Prefill.Ratio != 0 {
		t.Error("judged without enough steps beside which nothing was lent")
	}
}

// TestBackingOffWorkerLendsNothing: the cache times its steps and heeds the guard.
func TestBackingOffWorkerLendsNothing(t *testing.T) {
	w := newWorld(t, elastic.PolicyLCM, elastic.DownFloor)
	cfg := w.cache.cfg
	cfg.MaxSlowdown, cfg.KeepFor = 0.1, 0
	var cpu time.Duration
	per := time.Millisecond
	cfg.StepClock = func() time.Duration { cpu += per; return cpu }
	cache, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.cache = cache
	turns := func(n int) {
		for range n {
			w.talk(uint64(cpu), int32(w.now), 1) // 17 tokens
			w.now += 100 * time.Millisecond
		}
	}
	turns(guardLeast)
	for i := range 20 { // the model needs steps of other sizes
		w.talk(uint64(cpu), int32(w.now)+int32(i), 4)
	}
	w.now += time.Minute
	if w.lend(2) != 2 {
		t.Fatal("nothing is lent at first")
	}
	per = 1500 * time.Microsecond
	turns(guardLeast + guardJudge)
	w.now += time.Second
	if n := w.lend(1); n != 0 {
		t.Errorf("%d units lent although steps take half as long again", n)
	}
	var st wire.Status
	w.cache.Describe(&st, nil, nil)
	if len(st.Degraded) != 1 || st.Interference.Prefill.Ratio != 0 || st.Interference.Prefill.WithSteps >= guardLeast {
		t.Errorf("status %v, %+v", st.Degraded, st.Interference)
	}
	w.now += coolDown
	if w.lend(1) != 1 {
		t.Error("nothing is lent after the cool-down")
	}
}

func TestMaxSlowdownIsNotNegative(t *testing.T) {
	w := newWorld(t, elastic.PolicyLCM, elastic.DownFloor)
	cfg := w.cache.cfg
	cfg.MaxSlowdown = -0.1
	if _, err := New(cfg); err == nil {
		t.Error("a negative MaxSlowdown was accepted")
	}
}
