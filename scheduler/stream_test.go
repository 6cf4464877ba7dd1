package scheduler

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kvlend/kvlend/engine"
)

// narrow is a cache at home for one sequence: who is admitted beside another is
// streamed to its end.
type narrow struct {
	toyPrefix
	d      time.Duration
	worth  func(Admission, Streams) bool
	stream map[uint64]bool
	batch  []uint64
}

func (c *narrow) Admit(a Admission) (int, error) {
	beside := len(c.held) > 0
	if beside && !c.worth(a, Streams{Now: c.d}) {
		return 0, ErrWait
	}
	cached, err := c.toyPrefix.Admit(a)
	c.stream[a.ID] = beside && err == nil
	return cached, err
}

func (c *narrow) StepCost(id uint64) (int64, time.Duration) {
	if c.stream[id] {
		return 1, c.d
	}
	return 0, 0
}

func (c *narrow) Begin(ctx context.Context, steps []StepSeq) (Step, error) {
	c.batch = c.batch[:0]
	for _, s := range steps {
		c.batch = append(c.batch, s.ID)
	}
	return c.toyPrefix.Begin(ctx, steps)
}

// newNarrow is a rig over a narrow cache whose streams take d each. Its scheduler
// knows what computing costs.
func newNarrow(t *testing.T, d time.Duration, worth func(Admission, Streams) bool) *rig {
	r := newRig(t, newToyPrefix(1, 4, 900, 900).toyCache, Options{})
	c := &narrow{toyPrefix: toyPrefix{r.cache}, d: d, worth: worth, stream: map[uint64]bool{}}
	r.s = New(r.model, c, Options{})
	r.model.record = false
	r.model.before = func(batch []engine.Sequence) error {
		var streams time.Duration
		for _, id := range c.batch {
			_, more := c.StepCost(id)
			streams += more
		}
		time.Sleep(max(compute(batch), streams)) // in the bubble
		return nil
	}
	for i := range 2 * costSteps {
		n := 1 + i%2*60
		r.s.cost.Observe(Work{Tokens: n}, compute([]engine.Sequence{{Tokens: make([]int32, n)}}))
	}
	return r
}

// waiting serves a request with first tokens to draw and then one with 20, of
// which the scheduler has learned to expect usual, and returns how long both
// took together.
func waiting(t *testing.T, d time.Duration, first, usual int, worth func(Admission, Streams) bool) (sum time.Duration, st Stats) {
	bubble(t, func(t *testing.T) {
		r := newNarrow(t, d, worth)
		r.s.answer = float64(usual)
		a := r.submit("first", 40, first)
		b := r.submit("second", 40, 20)
		r.start()
		<-a.ended
		<-b.ended
		for _, c := range []*collector{a, b} {
			sum += time.Duration(c.last().Usage.TotalMS * float64(time.Millisecond))
		}
		r.finished()
		st = r.s.Stats()
	})
	return sum, st
}

// Whether a request streams beside another or waits for its end costs at most
// little more than the better of both where lengths are as expected, and at most
// twice as much where they are not.
func TestRatherWaitsThanStreams(t *testing.T) {
	ask := func(a Admission, st Streams) bool { return a.Worth == nil || a.Worth(st) }
	for _, d := range []time.Duration{500 * time.Microsecond, 2 * time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond} {
		for _, first := range []int{3, 20, 60, 500} {
			for _, usual := range []int{20, first} {
				t.Run(fmt.Sprint(d, "/", first, "/", usual), func(t *testing.T) {
					streamed, _ := waiting(t, d, first, usual, func(Admission, Streams) bool { return true })
					waited, _ := waiting(t, d, first, usual, func(Admission, Streams) bool { return false })
					chosen, st := waiting(t, d, first, usual, ask)
					t.Logf("streamed %v, waited %v, chosen %v, refusals %d", streamed, waited, chosen, st.RatherWaited)
					bound := 2 * min(streamed, waited)
					if usual == first || first == 20 {
						bound = min(streamed, waited) * 3 / 2
					}
					if chosen > bound+10*time.Millisecond {
						t.Errorf("chosen %v, want at most %v", chosen, bound)
					}
				})
			}
		}
	}
}

// backlog serves twelve requests that come at once, and returns how long all took.
func backlog(t *testing.T, d time.Duration, worth func(Admission, Streams) bool) (took time.Duration) {
	bubble(t, func(t *testing.T) {
		r := newNarrow(t, d, worth)
		began := time.Now()
		var all []*collector
		for i := range 12 {
			all = append(all, r.submit(fmt.Sprint(i), 20, 40))
		}
		r.start()
		for _, a := range all {
			<-a.ended
		}
		took = time.Since(began)
		r.finished()
	})
	return took
}

// While more wait than run, streams may not lower what gets done: all are served in
// little more than the better of streaming all of them and of none.
func TestABacklogIsNotStreamedToASlowerPace(t *testing.T) {
	for _, d := range []time.Duration{100 * time.Microsecond, time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond, 400 * time.Millisecond} {
		streamed := backlog(t, d, func(Admission, Streams) bool { return true })
		waited := backlog(t, d, func(Admission, Streams) bool { return false })
		chosen := backlog(t, d, func(a Admission, st Streams) bool { return a.Worth == nil || a.Worth(st) })
		t.Logf("%v: streamed %v, waited %v, chosen %v", d, streamed, waited, chosen)
		if bound := min(streamed, waited) * 5 / 4; chosen > bound {
			t.Errorf("streams of %v: %v, want at most %v (all streamed %v, none %v)", d, chosen, bound, streamed, waited)
		}
	}
}

// With nobody to wait for, and without measurements, nothing waits.
func TestNothingToWaitFor(t *testing.T) {
	s := New(&toyModel{block: 4}, newToyPrefix(1, 4, 8, 8), Options{})
	q := &seq{req: Request{MaxTokens: 100}, tokens: make([]int32, 8), prompt: 8}
	huge := Streams{Now: time.Hour}
	if !s.worthStreaming(q, huge, time.Now()) {
		t.Error("waits although nothing runs")
	}
	s.running = append(s.running, &seq{req: Request{MaxTokens: 5}, tokens: make([]int32, 8), prompt: 8})
	if !s.worthStreaming(q, huge, time.Now()) {
		t.Error("waits although nothing is known of the cost")
	}
	now := q.waitsSince
	for i := range 2 * costSteps {
		s.cost.Observe(Work{Tokens: 1 + i%2*60}, time.Millisecond)
	}
	if s.worthStreaming(q, huge, now) {
		t.Error("streams for an hour a token")
	}
	if at := s.opt.BypassTime / 2; s.worthStreaming(q, huge, now.Add(at-1)) || !s.worthStreaming(q, huge, now.Add(at)) {
		t.Errorf("does not stream after %v of waiting", at)
	}
}
