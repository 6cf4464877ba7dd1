package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlend/kvlend/engine/sampling"
)

func TestSubmitRefusesInvalid(t *testing.T) {
	s := New(&toyModel{block: 4}, newToyCache(1, 4, 10, 10), Options{})
	sink := func(Event) { t.Error("Sink was called") }
	good := Request{ID: "a", Tokens: []int32{1}, MaxTokens: 1, Sink: sink, Sampling: sampling.Default()}
	for field, change := range map[string]func(r *Request){
		"ID":        func(r *Request) { r.ID = "" },
		"Sink":      func(r *Request) { r.Sink = nil },
		"Tokens":    func(r *Request) { r.Tokens = nil },
		"MaxTokens": func(r *Request) { r.MaxTokens = 0 },
		"Tokens[0]": func(r *Request) { r.Tokens = []int32{-1} },
		"Tokens[1]": func(r *Request) { r.Tokens = []int32{0, toyVocab} },
		"Sampling":  func(r *Request) { r.Sampling.TopP = -1 },
		"Priority":  func(r *Request) { r.Priority = MaxPriority + 1 },
		"Tenant":    func(r *Request) { r.Tenant = strings.Repeat("t", MaxTenant+1) },
		"Salt":      func(r *Request) { r.Salt = make([]byte, MaxSalt+1) },

		"Sampling.LogitBias": func(r *Request) { r.Sampling.LogitBias = map[int32]float32{toyVocab: 1} },
	} {
		r := good
		change(&r)
		var invalid *InvalidError
		err := s.Submit(r)
		if !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: got %v", field, err)
			continue
		}
		if !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), invalid.Want) {
			t.Errorf("%s: message %q", field, err)
		}
	}
	invalid := good
	invalid.Sampling.TopP = -1
	var cause *sampling.ParamError
	if err := s.Submit(invalid); !errors.As(err, &cause) {
		t.Errorf("%v has no ParamError", err)
	}
	if st := s.Stats(); st.Waiting != 0 {
		t.Errorf("%d requests wait", st.Waiting)
	}
}

func TestSubmitRefusesTooLong(t *testing.T) {
	for _, c := range []struct {
		name              string
		context, blocks   int
		prompt, maxTokens int
		limit             int
		by                string
	}{
		{"cache fits", 0, 10, 30, 10, 0, ""},
		{"cache, one more", 0, 10, 31, 10, 40, LimitCache},
		{"model fits", 32, 10, 30, 2, 0, ""},
		{"model, one more", 32, 10, 30, 3, 32, LimitModel},
		{"model as large as cache", 40, 10, 40, 1, 40, LimitModel},
		{"prompt alone", 0, 10, 100, 1, 40, LimitCache},
		{"no overflow", 0, 10, 3, math.MaxInt, 40, LimitCache},
	} {
		s := New(&toyModel{block: 4, maxContext: c.context}, newToyCache(1, 4, 10, c.blocks), Options{})
		err := s.Submit(Request{ID: "a", Tokens: prose("a", c.prompt), MaxTokens: c.maxTokens, Sink: func(Event) {}, Sampling: sampling.Default()})
		if c.limit == 0 {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		var long *TooLongError
		want := TooLongError{PromptTokens: c.prompt, MaxTokens: c.maxTokens, Limit: c.limit, LimitedBy: c.by}
		if !errors.As(err, &long) || *long != want || !strings.Contains(err.Error(), c.by) {
			t.Errorf("%s: got %v, want %v", c.name, err, &want)
		}
	}
}

func TestSubmitRefusesOverloadAndDuplicates(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{MaxWaiting: 2})
		r.submit("a", 3, 3)
		q := Request{ID: "a", Tokens: []int32{1}, MaxTokens: 1, Sink: func(Event) {}, Sampling: sampling.Default()}
		if err := r.s.Submit(q); !errors.Is(err, ErrDuplicate) || !strings.Contains(err.Error(), `"a"`) {
			t.Errorf("second a: %v", err)
		}
		r.submit("b", 3, 3)
		q.ID = "c"
		err := r.s.Submit(q)
		var over *OverloadedError
		if !errors.Is(err, ErrOverloaded) || !errors.As(err, &over) || over.Waiting != 2 || !strings.Contains(err.Error(), "2, the limit") || over.RetryAfter < time.Second {
			t.Errorf("third request: %v", err)
		}
		r.start()
		r.finished()
		r.sent = nil
		r.submit("a", 4, 4) // the id is free again
		r.finished()
	})
}

func TestSubmitRefusesATenantsSurplus(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{MaxRunning: 1, MaxWaitingTenant: 2})
		r.model.layerTime = time.Second
		send := func(id, tenant string) error {
			c := newCollector()
			q := Request{ID: id, Tokens: prose(id, 3), MaxTokens: 4, Tenant: tenant, Sink: c.sink, Sampling: orDefault(sampling.Params{})}
			err := r.s.Submit(q)
			if err == nil {
				r.sent, r.subs[id] = append(r.sent, q), c
			}
			return err
		}
		r.start()
		for i, tenant := range []string{"ann", "bob", "ann", "ann"} { // the first runs
			if err := send(fmt.Sprint(i), tenant); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		err := send("more", "ann")
		var over *OverloadedError
		if !errors.As(err, &over) || !errors.Is(err, ErrOverloaded) || !over.PerTenant || over.Tenant != "ann" || over.Waiting != 2 ||
			!strings.Contains(err.Error(), `2 of tenant "ann", the limit of one tenant`) || over.RetryAfter < time.Second {
			t.Errorf("ann's third: %v", err)
		}
		if err := send("bob again", "bob"); err != nil {
			t.Errorf("bob's second: %v", err)
		}
		r.s.Cancel("3")
		synctest.Wait()
		time.Sleep(3 * time.Second) // in the bubble: the end of the step
		if err := send("after a cancel", "ann"); err != nil {
			t.Errorf("after a place came free: %v", err)
		}
		r.sent = slices.DeleteFunc(r.sent, func(q Request) bool { return q.ID == "3" })
		r.finished()
		r.s.mu.Lock()
		defer r.s.mu.Unlock()
		if len(r.s.tenants) != 0 {
			t.Errorf("left: %v", r.s.tenants)
		}
	})
}

// Whoever fills the queue leaves others their equal part of it.
func TestAFullQueueHasPlacesForOtherTenants(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const most = 6
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{MaxRunning: 1, MaxWaiting: most})
		r.model.layerTime = time.Second
		n := 0
		send := func(tenant string) error {
			n++
			c := newCollector()
			q := Request{ID: fmt.Sprint(n), Tokens: prose(fmt.Sprint(n), 3), MaxTokens: 2, Tenant: tenant, Sink: c.sink, Sampling: orDefault(sampling.Params{})}
			err := r.s.Submit(q)
			if err == nil {
				r.sent, r.subs[q.ID] = append(r.sent, q), c
			}
			return err
		}
		r.start()
		if err := send("greedy"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it runs
		fill := func(tenant string, want int) {
			t.Helper()
			got := 0
			for range 2 * most {
				err := send(tenant)
				var over *OverloadedError
				switch {
				case err == nil:
					got++
				case !errors.As(err, &over) || over.PerTenant || over.Waiting != most:
					t.Fatalf("%s: %v", tenant, err)
				}
			}
			if got != want {
				t.Errorf("%s has %d places, want %d", tenant, got, want)
			}
		}
		fill("greedy", most)
		fill("modest", most/2)
		fill("third", most/3)
		fill("fourth", 1) // twice MaxWaiting wait
		fill("fifth", 0)
		r.finished()
	})
}

func TestRetryAfterForgetsIdleTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{})
		r.start()
		for i := range 3 {
			r.submit(fmt.Sprint(i), 3, 3)
			r.finished()
			time.Sleep(time.Hour) // in the bubble
		}
		r.s.mu.Lock()
		defer r.s.mu.Unlock()
		if got := r.s.pace.retryAfter(1); got != time.Second {
			t.Errorf("requests take no time, but a place is free in %v", got)
		}
	})
}

func TestRetryAfterFollowsThePace(t *testing.T) {
	var p pace
	if got := p.retryAfter(1); got != time.Second {
		t.Errorf("unknown pace: %v", got)
	}
	now := time.Unix(1000, 0)
	for range 50 {
		p.ended(now)
		now = now.Add(7 * time.Second)
	}
	if got := p.retryAfter(1); got != 7*time.Second {
		t.Errorf("one request in 7 s: %v", got)
	}
	p.ended(now.Add(time.Hour * 24))
	if got := p.retryAfter(1); got != time.Minute {
		t.Errorf("after a long pause: %v", got)
	}
}

func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{})
		r.model.layerTime = time.Millisecond
		r.submit("a", 9, 5)
		r.start()
		short, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
		defer cancel()
		if err := r.s.Drain(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Drain with too little time: %v", err)
		}
		if err := r.s.Submit(Request{ID: "b", Tokens: []int32{1}, MaxTokens: 1, Sink: func(Event) {}, Sampling: sampling.Default()}); !errors.Is(err, ErrDraining) {
			t.Errorf("Submit while draining: %v", err)
		}
		if err := r.s.Drain(t.Context()); err != nil {
			t.Errorf("Drain: %v", err)
		}
		r.finished()
		if err := r.s.Drain(t.Context()); err != nil || !r.s.Stats().Draining {
			t.Errorf("second Drain: %v, %+v", err, r.s.Stats())
		}
	})
}

func TestStopEndsEverything(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{MaxRunning: 1})
		r.model.layerTime = time.Millisecond
		a, b := r.submit("a", 9, 50), r.submit("b", 9, 5)
		r.start()
		time.Sleep(15 * time.Millisecond) // in the bubble
		r.stop()
		for _, c := range []*collector{a, b} {
			if ev := c.last(); !errors.Is(ev.Err, ErrStopped) || !errors.Is(ev.Err, context.Canceled) {
				t.Errorf("last event %+v", ev)
			}
		}
		if len(a.got()) == 0 || len(b.got()) != 0 {
			t.Errorf("tokens: %v and %v", a.got(), b.got())
		}
		if err := r.s.Submit(Request{ID: "c", Tokens: []int32{1}, MaxTokens: 1, Sink: func(Event) {}, Sampling: sampling.Default()}); !errors.Is(err, ErrStopped) {
			t.Errorf("Submit after Run: %v", err)
		}
		if err := r.s.Run(t.Context()); err == nil {
			t.Error("a second Run was accepted")
		}
		if err := r.s.Drain(t.Context()); err != nil {
			t.Errorf("Drain after Run: %v", err)
		}
	})
}

func TestCancel(t *testing.T) {
	const layer = time.Millisecond
	for _, c := range []struct {
		name    string
		after   time.Duration // a step takes 2 ms
		prompt  int
		running bool
	}{
		{"queued", 0, 8, false},
		{"between prefill chunks", 3 * layer, 64, true},
		{"in the last prefill chunk", layer, 8, true},
		{"decoding", 11 * layer, 8, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, newToyCache(1, 4, 40, 40), Options{MaxRunning: 2, MaxBatchTokens: 16})
				r.model.layerTime = layer
				other := r.submit("other", 6, 30)
				if !c.running {
					r.submit("third", 6, 30)
				}
				victim := r.submit("victim", c.prompt, 40)
				r.start()
				time.Sleep(c.after) // in the bubble
				if !r.s.Cancel("victim") {
					t.Error("Cancel found nothing")
				}
				r.s.Cancel("victim") // again is harmless
				sent := len(victim.got())
				<-victim.ended
				if ev := victim.last(); ev.Finish != FinishCancelled || ev.Err != nil {
					t.Errorf("last event %+v", ev)
				}
				if got := len(victim.got()); got != sent {
					t.Errorf("%d tokens were sent after Cancel", got-sent)
				}
				r.cache.mu.Lock()
				held := len(r.cache.held)
				r.cache.mu.Unlock()
				if limit := len(r.sent) - 1; held > limit {
					t.Errorf("%d sequences hold memory, want at most %d", held, limit)
				}
				select {
				case <-other.ended:
					t.Error("the other request ended first: the test proves nothing")
				default:
				}
				r.finished()
				if r.s.Cancel("victim") {
					t.Error("Cancel found an ended request")
				}
			})
		})
	}
}

func TestCancelFromSink(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{})
		got := 0
		ended := make(chan Event, 1)
		q := Request{ID: "a", Tokens: prose("a", 5), MaxTokens: 20, Sampling: orDefault(sampling.Params{})}
		q.Sink = func(ev Event) {
			if got++; got == 3 {
				r.s.Cancel("a")
			}
			if ev.Finish != "" {
				ended <- ev
			}
		}
		if err := r.s.Submit(q); err != nil {
			t.Fatal(err)
		}
		r.start()
		if ev := <-ended; ev.Finish != FinishCancelled || ev.Usage.CompletionTokens != 3 || got != 4 {
			t.Errorf("%d events, the last %+v", got, ev)
		}
		synctest.Wait()
		if st := r.s.Stats(); st.Finished.Cancelled != 1 || st.Running != 0 || st.Waiting != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestStopBeforeTheFirstStep(t *testing.T) {
	s := New(&toyModel{block: 4}, newToyCache(1, 4, 20, 20), Options{})
	got := newCollector()
	if err := s.Submit(Request{ID: "a", Tokens: []int32{1}, MaxTokens: 1, Sink: got.sink, Sampling: sampling.Default()}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	if ev := got.last(); !errors.Is(ev.Err, ErrStopped) {
		t.Errorf("%+v", ev)
	}
}

func TestSubmitCopiesTokens(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{})
		c := newCollector()
		q := Request{ID: "a", Tokens: prose("a", 9), MaxTokens: 5, Sink: c.sink, Sampling: orDefault(sampling.Params{}), StopIDs: []int32{-1}}
		if err := r.s.Submit(q); err != nil {
			t.Fatal(err)
		}
		clear(q.Tokens)
		q.StopIDs[0] = reference(Request{Tokens: prose("a", 9), MaxTokens: 1, Sampling: q.Sampling}).tokens[0]
		r.start()
		<-c.ended
		q.Tokens, q.StopIDs = prose("a", 9), nil
		if err := c.verify(q); err != nil {
			t.Error(err)
		}
	})
}

// late is a clock that moves on whenever it is read, and has requests come in
// between.
type late struct {
	systemClock
	mu   sync.Mutex
	t    time.Time
	read func()
}

func (c *late) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(time.Millisecond)
	now, read := c.t, c.read
	if read != nil {
		c.read = nil
		c.mu.Unlock()
		read()
		c.mu.Lock()
	}
	return now
}

// A request that comes while a turn begins has not waited a negative time.
func TestQueueTimeIsNotNegative(t *testing.T) {
	c := &late{t: time.Unix(1000, 0)}
	s := New(&toyModel{block: 4}, newToyCache(1, 4, 20, 20), Options{Clock: c})
	var usage Usage
	c.read = func() {
		err := s.Submit(Request{ID: "a", Tokens: make([]int32, 5), MaxTokens: 1, Sampling: sampling.Default(), IgnoreEOS: true,
			Sink: func(e Event) { usage = e.Usage }})
		if err != nil {
			t.Error(err)
		}
	}
	for range 10 {
		s.Turn(t.Context())
	}
	if usage.CompletionTokens != 1 || usage.QueueMS < 0 || usage.PrefillMS < 0 || usage.TotalMS < usage.QueueMS {
		t.Errorf("%+v", usage)
	}
}
