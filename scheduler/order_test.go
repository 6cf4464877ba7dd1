package scheduler

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlend/kvlend/engine"
)

// admissions is the order in which requests had their first memory.
func (c *toyCache) admissions() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.firsts)
}

// One tenant floods the queue before the other comes. From then on, while both
// wait, the service that they have had since differs by no more than the bound
// of the paper: twice what the running batch can be worth, or a prompt.
func TestServiceLagIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const running, prompt, output = 4, 20, 10
		r := newRig(t, newToyCache(1, 4, 1000, 1000), Options{MaxRunning: running})
		r.model.record = false
		r.model.layerTime = time.Millisecond
		watch(r.s, r.cache)
		for i := range 120 {
			r.send(Request{ID: fmt.Sprint("flood", i), Tokens: prose("flood", prompt), MaxTokens: output, Tenant: "flood"})
		}
		// The loop's goroutine looks before every step.
		const bound = 2 * max(prompt, outputWeight*running*output)
		worst, looked := 0, 0
		r.model.before = func([]engine.Sequence) error {
			l := r.s.queue.levels[0]
			if c, f := l.flows["calm"], l.flows["flood"]; c != nil && f != nil && len(c.waiting) > 0 && len(f.waiting) > 0 {
				looked++
				lag := int(f.service) - int(c.service)
				worst = max(worst, lag, -lag)
			}
			return nil
		}
		r.start()
		time.Sleep(300 * time.Millisecond) // in the bubble
		for i := range 30 {
			r.send(Request{ID: fmt.Sprint("calm", i), Tokens: prose("calm", prompt), MaxTokens: output, Tenant: "calm"})
		}
		r.finished()
		r.stop()
		if worst > bound || looked < 100 {
			t.Errorf("lag %d in %d looks, bound %d", worst, looked, bound)
		}
	})
}

// desk is a queue without a scheduler.
type desk struct {
	queue
	id uint64
}

func (d *desk) join(tenant string, priority int) *seq {
	d.id++
	q := &seq{id: d.id, req: Request{ID: fmt.Sprint(d.id), Tenant: tenant, Priority: priority}}
	d.queue.join(q)
	return q
}

// serve admits the next request, charges service, and ends it.
func (d *desk) serve(service uint64) *seq {
	q := d.next()
	d.offered(q)
	d.remove(q)
	q.flow.service += service
	d.leave(q)
	return q
}

func (d *desk) tenants(n int, service uint64) (out []string) {
	for range n {
		out = append(out, d.serve(service).req.Tenant)
	}
	return out
}

func TestQueueOrder(t *testing.T) {
	t.Run("nobody saves up service", func(t *testing.T) {
		var d desk
		d.join("late", 0)
		d.serve(1)
		for range 30 {
			d.join("busy", 0)
		}
		d.tenants(20, 10)
		for range 5 {
			d.join("late", 0)
		}
		if got := d.tenants(4, 10); !slices.Equal(got, []string{"busy", "late", "busy", "late"}) &&
			!slices.Equal(got, []string{"late", "busy", "late", "busy"}) {
			t.Errorf("%v", got)
		}
	})
	t.Run("going away settles no debt", func(t *testing.T) {
		var d desk
		d.join("one by one", 0)
		for range 10 {
			d.join("others", 0)
		}
		d.serve(25)
		d.join("one by one", 0)
		if got := d.tenants(4, 10); !slices.Equal(got, []string{"others", "others", "others", "one by one"}) {
			t.Errorf("%v", got)
		}
	})
	t.Run("an empty queue does not forget the time", func(t *testing.T) {
		var d desk
		keep := d.join("a", 0) // runs on, so that its level stays
		d.offered(keep)
		d.remove(keep)
		keep.flow.service = 50
		d.join("b", 0)
		if f := d.levels[0].flows["b"]; f.service != 0 {
			t.Errorf("%d", f.service) // nobody was offered memory at more than 0
		}
		d.serve(60)
		d.join("b", 0)
		d.join("b", 0)
		d.join("a", 0)
		d.serve(0) // a, at 50
		d.join("c", 0)
		if f := d.levels[0].flows["c"]; f.service < 50 {
			t.Errorf("a newcomer starts at %d", f.service)
		}
	})
}

func TestQueueBounds(t *testing.T) {
	t.Run("priority first", func(t *testing.T) {
		var d desk
		d.join("a", 5)
		d.join("a", 0)
		d.join("b", -3)
		if got := []uint64{d.serve(1).id, d.serve(1).id, d.serve(1).id}; !slices.Equal(got, []uint64{3, 2, 1}) {
			t.Errorf("%v", got)
		}
		if len(d.levels) != 0 || d.n != 0 {
			t.Errorf("left: %+v", d.queue)
		}
	})
	t.Run("who owes nothing is forgotten", func(t *testing.T) {
		var d desk
		d.join("a", 0)
		d.join("b", 0)
		d.join("c", 0)
		d.serve(0)
		if l := d.levels[0]; len(l.flows) != 2 || l.idle != 0 {
			t.Errorf("%d tenants, %d idle", len(l.flows), l.idle)
		}
	})
	t.Run("idle tenants are bounded", func(t *testing.T) {
		var d desk
		last := d.join("last", 0)
		for i := range 2 * maxIdleFlows {
			q := d.join(fmt.Sprint(i), 0)
			d.remove(q)
			q.flow.service += uint64(1000 + i)
			d.leave(q)
		}
		l := d.levels[0]
		if l.idle != maxIdleFlows || len(l.flows) != maxIdleFlows+1 || l.flows[fmt.Sprint(2*maxIdleFlows-1)] == nil || l.flows["0"] != nil {
			t.Errorf("%d idle of %d", l.idle, len(l.flows))
		}
		d.remove(last)
		d.leave(last)
		if len(d.levels) != 0 {
			t.Error("a level without requests is left")
		}
	})
}

// What a request costs its tenant: the prompt once, less what was cached, and
// every token.
func TestCharges(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newPrefixRig(t, newToyPrefix(1, 4, 8, 8), Options{})
		r.model.layerTime = time.Millisecond
		var mu sync.Mutex
		var service, floor uint64
		r.model.before = func([]engine.Sequence) error {
			mu.Lock()
			defer mu.Unlock()
			if f := r.s.queue.levels[0].flows["t"]; f != nil {
				service, floor = f.service, f.level.floor
			}
			return nil
		}
		keep := r.submit("keep", 2, 22) // so that the level lasts
		r.start()
		first := r.send(Request{ID: "a", Tokens: prose("a", 9), MaxTokens: 2, Tenant: "t"})
		<-first.ended
		second := r.send(Request{ID: "b", Tokens: prose("a", 9), MaxTokens: 2, Tenant: "t"})
		<-second.ended
		synctest.Wait()
		if u := second.last().Usage; u.CachedTokens != 8 {
			t.Errorf("%+v", u)
		}
		select {
		case <-keep.ended:
			t.Error("ended first: the test proves nothing")
		default:
		}
		time.Sleep(2 * time.Millisecond) // a step
		mu.Lock()
		if service != 9+2*2+1+2*2 || floor != 9+2*2 { // the service when b was admitted
			t.Errorf("service %d, floor %d", service, floor)
		}
		mu.Unlock()
		r.finished()
	})
}

// A request that was refused as the first stays first, though its tenant's other
// requests go on being served.
func TestTheChosenStaysFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{MaxBypass: -1})
		watch(r.s, r.cache)
		r.model.layerTime = time.Millisecond
		r.send(Request{ID: "other", Tokens: prose("o", 30), MaxTokens: 2, Tenant: "b"})
		r.send(Request{ID: "long", Tokens: prose("l", 4), MaxTokens: 40, Tenant: "a"})
		r.start()
		time.Sleep(10 * time.Millisecond)
		large := r.send(Request{ID: "large", Tokens: prose("x", 72), MaxTokens: 5, Tenant: "a"})
		time.Sleep(30 * time.Millisecond) // long is charged for some tokens more
		small := r.send(Request{ID: "small", Tokens: prose("s", 4), MaxTokens: 2, Tenant: "c"})
		<-small.ended
		if len(large.got()) == 0 {
			t.Error("a request overtook the chosen one")
		}
		r.finished()
	})
}

// A low priority alone in memory does not make a high one wait for its growth.
func TestPriorityTakesFromTheStalled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 5, 20), Options{GrowTimeout: time.Hour, AdmissionTimeout: 3 * time.Hour})
		r.model.layerTime = time.Millisecond
		r.send(Request{ID: "low", Tokens: prose("low", 9), MaxTokens: 30, Priority: 1})
		r.start()
		time.Sleep(5 * time.Millisecond)
		began := time.Now()
		high := r.send(Request{ID: "high", Tokens: prose("high", 12), MaxTokens: 3})
		<-high.ended
		if d := time.Since(began); d > time.Second {
			t.Errorf("the high priority waited %v", d)
		}
		r.cache.resize(20)
		r.finished()
	})
}

// Whoever needs memory to grow takes it from the lowest priority, though that
// came first.
func TestVictimIsTheLowestPriority(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 8, 8), Options{})
		low := r.send(Request{ID: "low", Tokens: prose("low", 9), MaxTokens: 20, Priority: 1})
		high := r.send(Request{ID: "high", Tokens: prose("high", 9), MaxTokens: 20, Priority: -1})
		r.start()
		r.finished()
		if a, b := low.last().Usage.Preemptions, high.last().Usage.Preemptions; a != 1 || b != 0 {
			t.Errorf("preemptions: low %d, high %d", a, b)
		}
		if got := r.cache.admissions(); !slices.Equal(got, []uint64{2, 1}) {
			t.Errorf("admitted %v", got)
		}
	})
}
