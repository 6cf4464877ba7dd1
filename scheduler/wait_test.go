package scheduler

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlend/kvlend/engine"
)

// resize sets how many blocks may be used.
func (c *toyCache) resize(blocks int) {
	c.mu.Lock()
	c.limit = blocks
	c.mu.Unlock()
	c.signal()
}

func (c *toyCache) reserveCalls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reserves
}

// A wait for memory costs nothing: no Reserve is repeated without a reason.
func TestWaitsWithoutPolling(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 2, 20), Options{AdmissionTimeout: 2 * time.Hour})
		r.start()
		r.submit("a", 30, 5)
		time.Sleep(time.Hour) // in the bubble
		if n := r.cache.reserveCalls(); n != 1 {
			t.Errorf("%d calls of Reserve in an idle hour, want 1", n)
		}
		r.submit("b", 3, 3) // behind a: no reason to try again
		synctest.Wait()
		if n := r.cache.reserveCalls(); n != 1 {
			t.Errorf("%d calls of Reserve after a later request came, want 1", n)
		}
		r.cache.resize(5)
		synctest.Wait()
		if n := r.cache.reserveCalls(); n != 2 {
			t.Errorf("%d calls of Reserve after some memory came, want 2", n)
		}
		r.cache.resize(20)
		r.finished()
	})
}

func TestCancelOfTheFirstWakesTheNext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 4, 20), Options{AdmissionTimeout: time.Hour})
		r.start()
		r.submit("large", 40, 5)
		r.submit("small", 5, 5)
		time.Sleep(time.Minute) // in the bubble
		began := time.Now()
		r.s.Cancel("large")
		r.finished()
		if d := time.Since(began); d != 0 {
			t.Errorf("the next request waited %v", d)
		}
	})
}

func TestAdmissionTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 4, 20), Options{AdmissionTimeout: 30 * time.Second})
		r.start()
		began := time.Now()
		large, small := newCollector(), newCollector()
		for _, q := range []Request{
			{ID: "large", Tokens: prose("large", 40), MaxTokens: 5, Sink: large.sink},
			{ID: "small", Tokens: prose("small", 5), MaxTokens: 5, Sink: small.sink},
		} {
			q.Sampling = orDefault(q.Sampling)
			if err := r.s.Submit(q); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 { // news that do not help do not restart the clock
			time.Sleep(5 * time.Second) // in the bubble
			r.cache.signal()
		}
		<-large.ended
		var adm *AdmissionError
		ev := large.last()
		if !errors.As(ev.Err, &adm) || adm.Tokens != 44 || adm.Limit != 80 || !errors.Is(ev.Err, ErrWait) {
			t.Errorf("%+v", ev)
		} else if !strings.Contains(ev.Err.Error(), "44 tokens") || !strings.Contains(ev.Err.Error(), "30s") {
			t.Errorf("message %q", ev.Err)
		}
		if d := time.Since(began); d != 30*time.Second {
			t.Errorf("failed after %v", d)
		}
		if ev.Usage.QueueMS != 30000 {
			t.Errorf("%+v", ev.Usage)
		}
		<-small.ended
		if ev := small.last(); ev.Err != nil {
			t.Errorf("the small request: %v", ev.Err)
		}
	})
}

// The admission clock stands still while something runs.
func TestNoAdmissionTimeoutBehindARunningRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{AdmissionTimeout: time.Second})
		r.model.layerTime = time.Second
		r.submit("a", 40, 20)
		r.submit("b", 40, 20)
		r.start()
		r.finished()
	})
}

// While asked-for memory is on its way, a running sequence waits and nobody is
// preempted.
func TestGrowthWaitsForComingMemory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newToyCache(1, 4, 6, 20)
		c.lendDelay = time.Second
		r := newRig(t, c, Options{})
		r.submit("a", 9, 20)
		r.submit("b", 9, 20)
		r.start()
		r.finished()
		if st := r.s.Stats(); st.Preemptions != 0 || st.Refusals == 0 {
			t.Errorf("%+v", st)
		}
	})
}

// Memory that is late costs the latest arrival its own.
func TestGrowthTimeoutPreempts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newToyCache(1, 4, 8, 20)
		c.lendDelay = time.Hour
		r := newRig(t, c, Options{GrowTimeout: 3 * time.Second})
		a, b := r.submit("a", 9, 20), r.submit("b", 9, 20)
		r.start()
		began := time.Now()
		<-a.ended
		if d := time.Since(began); d != 3*time.Second {
			t.Errorf("the first request took %v, want 3s of waiting", d)
		}
		r.finished()
		if x, y := a.last().Usage.Preemptions, b.last().Usage.Preemptions; x != 0 || y != 1 {
			t.Errorf("preemptions %d and %d, want 0 and 1", x, y)
		}
	})
}

// A sequence that is alone keeps what it has while its owner's memory returns,
// and gives it back before it fails.
func TestAloneItWaitsThenYields(t *testing.T) {
	for _, c := range []struct {
		name   string
		back   time.Duration // when memory comes back
		again  int           // preemptions
		failed bool
	}{
		{"soon", time.Second, 0, false},
		{"late", 8 * time.Second, 1, false},
		{"never", time.Hour, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, newToyCache(1, 4, 4, 10), Options{GrowTimeout: 5 * time.Second, AdmissionTimeout: 10 * time.Second})
				a := r.submit("a", 9, 20)
				r.start()
				time.AfterFunc(c.back, func() { r.cache.resize(10) })
				<-a.ended
				if u := a.last().Usage; u.Preemptions != c.again {
					t.Errorf("%+v", u)
				}
				var adm *AdmissionError
				if errors.As(a.last().Err, &adm) != c.failed {
					t.Errorf("%+v", a.last())
				}
				if !c.failed {
					r.finished()
				}
			})
		})
	}
}

// odd is a cache with an answer of its own to Reserve.
type odd struct {
	*toyCache
	answer func(id uint64, tokens int) error
}

func (o *odd) Reserve(id uint64, tokens int) error {
	if err := o.answer(id, tokens); err != nil {
		return err
	}
	return o.toyCache.Reserve(id, tokens)
}

func TestReserveErrors(t *testing.T) {
	cause := errors.New("the unit table is gone")
	for _, c := range []struct {
		name string
		at   int // tokens from which on Reserve fails
		err  error
	}{
		{"admission, never", 1, ErrNever},
		{"admission, other", 1, cause},
		{"growth, never", 13, ErrNever},
		{"growth, other", 13, cause},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, newToyCache(1, 4, 10, 10), Options{})
				r.s.cache = &odd{r.cache, func(id uint64, tokens int) error {
					if id == 1 && tokens >= c.at {
						return c.err
					}
					return nil
				}}
				a := newCollector()
				q := Request{ID: "a", Tokens: prose("a", 9), MaxTokens: 20, Sink: a.sink, Sampling: orDefault(Request{}.Sampling)}
				if err := r.s.Submit(q); err != nil {
					t.Fatal(err)
				}
				r.submit("b", 5, 5)
				r.start()
				r.finished()
				var long *TooLongError
				var internal *InternalError
				err := a.last().Err
				if c.err == ErrNever && !errors.As(err, &long) || c.err == cause && (!errors.As(err, &internal) || !errors.Is(err, cause)) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// A request that the cache evicted gets the memory of a later one that cannot
// go on, at once.
func TestEvictedComesBeforeStalled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 8, 12), Options{GrowTimeout: time.Hour, AdmissionTimeout: time.Hour})
		steps := 0
		r.model.before = func([]engine.Sequence) error {
			if steps++; steps == 2 {
				r.cache.mu.Lock()
				defer r.cache.mu.Unlock()
				r.cache.evict(1)
				r.cache.limit = 3
			}
			return nil
		}
		a := r.submit("a", 9, 3)
		r.submit("b", 9, 6)
		r.start()
		began := time.Now()
		<-a.ended
		if d := time.Since(began); d != 0 {
			t.Errorf("the evicted request waited %v", d)
		}
		r.cache.resize(12)
		r.finished()
	})
}

// Submit, Cancel and Stats from many goroutines while the loop runs.
func TestConcurrentCallers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newToyCache(3, 4, 40, 40)
		c.faults = toyFaults{refuse: 0.1, evict: 0.05, lose: 0.02, fail: 0.02, budget: 300}
		r := newRig(t, c, Options{MaxRunning: 8, MaxBatchTokens: 32, StepRetries: 1000})
		r.model.record = false
		r.start()
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 40 {
					got := newCollector()
					q := Request{ID: fmt.Sprint(g, "/", i), Tokens: prose(fmt.Sprint(g, i), 1+(g*7+i*5)%40), MaxTokens: 1 + i%9, Sink: got.sink}
					q.Sampling = orDefault(q.Sampling)
					if err := r.s.Submit(q); err != nil {
						t.Error(err)
						return
					}
					if i%5 == 0 {
						r.s.Cancel(q.ID)
					}
					r.s.Stats()
					<-got.ended
					if err := got.verify(q); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if f := r.s.Stats().Finished; f.Length+f.Cancelled != 320 || f.Failed != 0 {
			t.Errorf("%+v", f)
		}
	})
}

// While an early sequence waits for its next block, nobody else takes memory.
func TestNobodyTakesMemoryBeforeAStalledSequence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{})
		var mu sync.Mutex
		come := false
		r.s.cache = &odd{r.cache, func(id uint64, tokens int) error {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case come:
			case id == 1 && tokens > 12:
				return ErrComing
			case id == 2 && tokens > 8 || id == 3:
				t.Errorf("Reserve(%d, %d) while sequence 1 waits", id, tokens)
			}
			return nil
		}}
		r.submit("a", 11, 9) // stalls after two tokens
		b := r.submit("b", 5, 9)
		r.start()
		synctest.Wait()
		if n := len(b.got()); n != 4 {
			t.Errorf("the later sequence had %d tokens, want the 4 that its blocks hold", n)
		}
		r.submit("c", 2, 2)
		time.Sleep(time.Second) // in the bubble
		mu.Lock()
		come = true
		mu.Unlock()
		r.cache.signal()
		r.finished()
		if st := r.s.Stats(); st.Preemptions != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// Each wait of a running sequence has the whole GrowTimeout, also after it was
// preempted.
func TestGrowTimeoutStartsAnew(t *testing.T) {
	for _, c := range []struct {
		name  string
		at    []time.Duration // of one more block each
		again int
	}{
		{"after growth", []time.Duration{3 * time.Second, 6 * time.Second, 9 * time.Second}, 0},
		{"after preemption", []time.Duration{7 * time.Second, 10 * time.Second, 13 * time.Second}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, newToyCache(1, 4, 3, 20), Options{GrowTimeout: 5 * time.Second})
				a := r.submit("a", 9, 14) // 3 to 6 blocks
				r.start()
				for i, at := range c.at {
					time.AfterFunc(at, func() { r.cache.resize(4 + i) })
				}
				r.finished()
				if u := a.last().Usage; u.Preemptions != c.again {
					t.Errorf("%+v", u)
				}
			})
		})
	}
}

// The admission clock starts anew when a request that has run comes back.
func TestAdmissionTimeoutStartsAnew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 1, 20), Options{GrowTimeout: time.Second, AdmissionTimeout: 30 * time.Second})
		a := r.submit("a", 9, 14)
		r.start()
		time.AfterFunc(20*time.Second, func() { r.cache.resize(3) })
		time.AfterFunc(45*time.Second, func() { r.cache.resize(20) })
		r.finished()
		if u := a.last().Usage; u.Preemptions != 1 || u.QueueMS != 20000 || u.TotalMS != 45000 {
			t.Errorf("%+v", u)
		}
	})
}

// Memory that comes while others run is used at once.
func TestMemoryThatComesWhileOthersRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 10, 20), Options{})
		r.model.layerTime = time.Second
		a := r.submit("a", 9, 30)
		b := r.submit("b", 33, 2)
		r.start()
		time.Sleep(10 * time.Second) // in the bubble
		r.cache.resize(20)
		<-b.ended
		if a.last().Finish != "" {
			t.Error("the second request ran after the first only")
		}
		r.finished()
	})
}

// While one that runs waits for memory nobody is admitted: what the queue's first
// waits for, and waited for too long, is no reason to look again.
func TestDeadlineOfAStalledSequence(t *testing.T) {
	now := time.Unix(1000, 0)
	s := New(&toyModel{}, newToyCache(1, 4, 2, 20), Options{GrowTimeout: 10 * time.Second})
	first := &seq{req: Request{ID: "first"}, waitsUntil: now.Add(-time.Second)}
	s.queue.join(first)
	if at, ok := s.Deadline(now); !ok || !at.Equal(first.waitsUntil) {
		t.Errorf("the first of the queue is looked at again at %v, %v, want %v", at, ok, first.waitsUntil)
	}
	s.running = []*seq{{}, {stalledSince: now.Add(-time.Second)}}
	if at, ok := s.Deadline(now); !ok || !at.Equal(now.Add(9*time.Second)) {
		t.Errorf("with a sequence that waits to grow: %v, %v, want %v", at, ok, now.Add(9*time.Second))
	}
}
