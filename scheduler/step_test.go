package scheduler

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/sampling"
)

// shapes turns recorded batches into [start, length] pairs.
func shapes(batches [][]engine.Sequence) (out [][][2]int) {
	for _, b := range batches {
		var step [][2]int
		for _, s := range b {
			step = append(step, [2]int{s.Start, len(s.Tokens)})
		}
		out = append(out, step)
	}
	return out
}

// Decodes come first, one token each; prefill fills the rest of the budget in
// order of arrival, in whole blocks.
func TestStepComposition(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 40, 40), Options{MaxRunning: 3, MaxBatchTokens: 10})
		r.submit("a", 6, 4)
		r.submit("b", 19, 2)
		r.submit("c", 3, 1)
		r.start()
		r.finished()
		want := [][][2]int{
			{{0, 6}, {0, 4}},          // a whole, b's first block
			{{6, 1}, {4, 8}},          // a decodes, b goes on; 1 token of budget is left
			{{7, 1}, {12, 7}},         // the last chunk of b may end inside a block; c does not fit
			{{8, 1}, {19, 1}, {0, 3}}, // a's last token is never fed back
		}
		if got := shapes(r.model.batches); !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("steps\n%v, want\n%v", got, want)
		}
		st := r.s.Stats()
		if st.Steps != 4 || st.PrefillTokens != 28 || st.DecodeTokens != 4 || st.Sampled != 7 || st.Finished.Length != 3 || st.BatchTokens != 5 {
			t.Errorf("%+v", st)
		}
	})
}

// Without bypass, a small request never overtakes a large one that waits for
// memory.
func TestFirstComeFirstServed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 10, 10), Options{MaxBypass: -1})
		r.model.layerTime = time.Millisecond
		r.submit("first", 20, 8)
		large := r.submit("large", 28, 4)
		small := r.submit("small", 1, 1)
		r.start()
		<-small.ended
		if len(large.got()) == 0 {
			t.Error("the small request was served before the large one had a token")
		}
		r.finished()
	})
}

// Without memory for both, the later request gives way, is computed again and
// answers the same.
func TestPreemptsLatest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 8, 8), Options{})
		r.model.layerTime = time.Millisecond
		a, b := r.submit("a", 9, 20), r.submit("b", 9, 20)
		r.start()
		r.finished()
		if u := a.last().Usage; u.Preemptions != 0 {
			t.Errorf("the earlier request: %+v", u)
		}
		if u := b.last().Usage; u.Preemptions != 1 || u.QueueMS != 0 || u.PrefillMS != 2 {
			t.Errorf("the later request: %+v", u)
		}
		if st := r.s.Stats(); st.Preemptions != 1 || st.Evictions != 0 || st.LostTokens == 0 || st.Refusals == 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestFinishReasons(t *testing.T) {
	q := Request{ID: "a", Tokens: prose("a", 7), MaxTokens: 12, Sampling: orDefault(sampling.Params{})}
	whole := reference(q).tokens
	stop := whole[5]
	first := slices.Index(whole, stop)
	for _, c := range []struct {
		ignore bool
		finish string
		n      int
	}{{false, FinishStop, first + 1}, {true, FinishLength, 12}} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, newToyCache(1, 4, 8, 8), Options{})
			r.start()
			q.StopIDs, q.IgnoreEOS = []int32{stop}, c.ignore
			got := r.send(q)
			r.finished()
			if ev := got.last(); ev.Finish != c.finish || !ev.HasToken || len(got.got()) != c.n {
				t.Errorf("%+v after %d tokens", ev, len(got.got()))
			}
			if st := r.s.Stats(); st.Finished.Stop+st.Finished.Length != 1 {
				t.Errorf("%+v", st)
			}
		})
	}
}

func TestUsageTimes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 8, 8), Options{MaxBatchTokens: 4, MaxRunning: 1})
		r.model.layerTime = time.Millisecond // 2 ms a step
		c := r.submit("a", 12, 5)            // 3 steps of prefill, 4 of decode
		time.Sleep(10 * time.Millisecond)    // in the bubble
		r.start()
		r.finished()
		if u := c.last().Usage; u.QueueMS != 10 || u.PrefillMS != 6 || u.TotalMS != 24 {
			t.Errorf("%+v", u)
		}
		if st := r.s.Stats(); st.LastStep != 2*time.Millisecond {
			t.Errorf("last step took %v", st.LastStep)
		}
	})
}

func TestStepErrors(t *testing.T) {
	for _, c := range []struct {
		name     string
		failures int
		retries  int
		attempts int // of the error, 0: none
	}{
		{"within the bound", 2, 2, 0},
		{"beyond the bound", 3, 2, 3},
		{"never retried", 1, -1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, newToyCache(1, 4, 20, 20), Options{StepRetries: c.retries})
				left := c.failures
				cause := errors.New("a cosmic ray")
				r.model.before = func(batch []engine.Sequence) error {
					if batch[0].Start == 8 && left > 0 {
						left--
						return cause
					}
					return nil
				}
				a := r.submit("a", 8, 6)
				r.start()
				<-a.ended
				if c.attempts == 0 {
					r.finished()
				} else {
					var internal *InternalError
					ev := a.last()
					if !errors.As(ev.Err, &internal) || internal.Attempts != c.attempts || !errors.Is(ev.Err, cause) || ev.Usage.CompletionTokens != 1 {
						t.Errorf("%+v", ev)
					}
				}
				if st := r.s.Stats(); st.StepErrors != uint64(c.failures) {
					t.Errorf("%+v", st)
				}
				r.sent = nil
				r.submit("later", 5, 5) // the scheduler still works
				r.finished()
			})
		})
	}
}

// Only what a LostError names is computed again.
func TestLostSequenceIsComputedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{})
		steps := 0
		r.model.before = func([]engine.Sequence) error {
			if steps++; steps == 4 {
				r.cache.mu.Lock()
				defer r.cache.mu.Unlock()
				r.cache.evictOne()
			}
			return nil
		}
		a, b := r.submit("a", 8, 9), r.submit("b", 8, 9)
		r.start()
		r.finished()
		if n := a.last().Usage.Preemptions + b.last().Usage.Preemptions; n != 1 {
			t.Errorf("%d sequences were computed again, want 1", n)
		}
		if st := r.s.Stats(); st.Evictions != 1 || st.Preemptions != 0 || st.StepErrors != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestEndlessLossesFail(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{MaxLosses: 5})
		r.model.before = func([]engine.Sequence) error {
			return &LostError{IDs: []uint64{1}, Err: errors.New("the peer is gone")}
		}
		a := r.submit("a", 8, 9)
		r.start()
		<-a.ended
		var internal *InternalError
		if ev := a.last(); !errors.As(ev.Err, &internal) || internal.Attempts != 6 || !strings.Contains(ev.Err.Error(), "the peer is gone") {
			t.Errorf("%+v", ev)
		}
	})
}

func TestBadLogitsFailTheRequestOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		opt := Options{Sampler: func(l []float32, p, o []int32, i int, sp sampling.Params, sc *sampling.Scratch) (sampling.Token, error) {
			if sp.Seed == 13 && i == 2 {
				l = slices.Clone(l)
				l[0] = float32(math.NaN())
			}
			return sampling.Sample(l, p, o, i, sp, sc)
		}}
		r := newRig(t, newToyCache(1, 4, 20, 20), opt)
		bad := newCollector()
		q := Request{ID: "bad", Tokens: prose("bad", 4), MaxTokens: 9, Sink: bad.sink, Sampling: orDefault(sampling.Params{})}
		q.Sampling.Seed = 13
		if err := r.s.Submit(q); err != nil {
			t.Fatal(err)
		}
		r.submit("good", 4, 9)
		r.start()
		r.finished()
		if ev := bad.last(); !errors.Is(ev.Err, sampling.ErrLogits) || len(bad.got()) != 2 {
			t.Errorf("%+v", ev)
		}
	})
}

func TestPanicInForwardPropagates(t *testing.T) {
	c := newToyCache(1, 4, 20, 20)
	s := New(&toyModel{block: 4, before: func([]engine.Sequence) error { panic("BUG: kernel") }}, c, Options{})
	err := s.Submit(Request{ID: "a", Tokens: []int32{1}, MaxTokens: 1, Sink: func(Event) {}, Sampling: sampling.Default()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if p := recover(); p != "BUG: kernel" {
			t.Errorf("recovered %v", p)
		}
	}()
	t.Errorf("Run returned %v", s.Run(t.Context()))
}

func TestTopTokensMayBeKept(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{})
		var events []Event
		ended := make(chan struct{})
		q := Request{ID: "a", Tokens: prose("a", 4), MaxTokens: 6, Sampling: orDefault(sampling.Params{})}
		q.Sampling.Logprobs = 3
		q.Sink = func(ev Event) {
			if events = append(events, ev); ev.Finish != "" {
				close(ended)
			}
		}
		if err := r.s.Submit(q); err != nil {
			t.Fatal(err)
		}
		r.start()
		<-ended
		for i, ev := range events {
			if len(ev.Token.Top) != 3 || ev.Token.Top[0].ID != ev.Token.ID { // greedy
				t.Errorf("event %d: %+v", i, ev.Token)
			}
		}
	})
}

func TestHashRow(t *testing.T) {
	row := []float32{0, float32(math.Copysign(0, -1)), 1.5, -2, float32(math.Inf(1)), math.SmallestNonzeroFloat32}
	if got := string(float32Bytes(row)); got != string(encodeFloat32(row)) {
		t.Errorf("bytes % x, want % x", got, encodeFloat32(row))
	}
	// XXH3-64 of no bytes with seed 0, from the algorithm's reference.
	if got := HashRow(0, nil); got != 0x2d06800538d394c2 {
		t.Errorf("hash of nothing: %x", got)
	}
	seen := map[uint64]bool{}
	for i := range row {
		changed := slices.Clone(row)
		changed[i] = math.Float32frombits(math.Float32bits(changed[i]) ^ 1)
		seen[HashRow(7, changed)] = true
	}
	seen[HashRow(7, row)], seen[HashRow(8, row)] = true, true
	if len(seen) != len(row)+2 {
		t.Errorf("%d different hashes, want %d", len(seen), len(row)+2)
	}
}

// Cancelling Run's context ends a pass in progress.
func TestContextReachesForward(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newToyCache(1, 4, 20, 20)
		s := New(&toyModel{block: 4, layerTime: time.Hour}, c, Options{})
		got := newCollector()
		err := s.Submit(Request{ID: "a", Tokens: []int32{1}, MaxTokens: 1, Sink: got.sink, Sampling: sampling.Default()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if err := s.Run(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > time.Hour {
			t.Errorf("Run: %v after %v", err, time.Since(began))
		}
		if ev := got.last(); !errors.Is(ev.Err, ErrStopped) {
			t.Errorf("%+v", ev)
		}
		if err := c.check(); err != nil {
			t.Error(err)
		}
	})
}

// Losses count only while a request gets no further.
func TestLossesBetweenTokensDoNotAddUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{MaxLosses: 1})
		lose := false
		r.model.before = func([]engine.Sequence) error {
			if lose = !lose; lose {
				return &LostError{IDs: []uint64{1}, Err: errors.New("a lease ended")}
			}
			return nil
		}
		a := r.submit("a", 5, 9)
		r.start()
		r.finished()
		if u := a.last().Usage; u.Preemptions != 9 {
			t.Errorf("%+v", u)
		}
	})
}

// A retry leaves out what was cancelled meanwhile.
func TestRetryWithoutCancelled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{})
		failed := false
		r.model.before = func([]engine.Sequence) error {
			if failed {
				return nil
			}
			failed = true
			r.s.Cancel("b")
			return errors.New("once")
		}
		r.submit("a", 5, 2)
		r.submit("b", 6, 2)
		r.start()
		r.finished()
		want := [][][2]int{{{0, 5}, {0, 6}}, {{0, 5}}, {{5, 1}}}
		if got := shapes(r.model.batches); !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("steps %v, want %v", got, want)
		}
	})
}

// A Cancel that comes while the last token is drawn is too late, and harmless.
func TestCancelWithTheLastToken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var r *rig
		r = newRig(t, newToyCache(1, 4, 20, 20), Options{
			Sampler: func(l []float32, p, o []int32, i int, sp sampling.Params, sc *sampling.Scratch) (sampling.Token, error) {
				if i == 3 && !r.s.Cancel("a") {
					t.Error("Cancel found nothing")
				}
				return sampling.Sample(l, p, o, i, sp, sc)
			}})
		a := r.submit("a", 5, 4)
		r.start()
		r.finished()
		if ev := a.last(); ev.Finish != FinishLength {
			t.Errorf("%+v", ev)
		}
		r.submit("b", 5, 3)
		r.finished()
	})
}

// No more memory is asked for than a request can use.
func TestReservesNoMoreThanNeeded(t *testing.T) {
	for _, c := range []struct {
		prompt, maxTokens int
		want              []int
	}{
		{8, 1, []int{8}},
		{7, 2, []int{8}},
		{8, 2, []int{9}},
		{6, 9, []int{8, 12, 14}},
	} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, newToyCache(1, 4, 20, 20), Options{})
			var got []int
			r.s.cache = &odd{r.cache, func(_ uint64, tokens int) error {
				got = append(got, tokens)
				return nil
			}}
			r.submit("a", c.prompt, c.maxTokens)
			r.start()
			r.finished()
			if !slices.Equal(got, c.want) {
				t.Errorf("%d+%d: reserved %v, want %v", c.prompt, c.maxTokens, got, c.want)
			}
		})
	}
}

// rough is a cache that evicts sequence 1 before step n and then has only an
// unspecific error for the step.
type rough struct {
	*toyCache
	n int
}

func (c *rough) Begin(ctx context.Context, steps []StepSeq) (Step, error) {
	if c.n--; c.n == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.evict(1)
		return nil, errors.New("blocks are missing")
	}
	return c.toyCache.Begin(ctx, steps)
}

// A step that fails because of an eviction costs the evicted sequence only.
func TestEvictionExplainsAStepError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 20, 20), Options{StepRetries: -1})
		r.s.cache = &rough{r.cache, 3}
		a, b := r.submit("a", 5, 6), r.submit("b", 5, 6)
		r.start()
		r.finished()
		if x, y := a.last().Usage.Preemptions, b.last().Usage.Preemptions; x != 1 || y != 0 {
			t.Errorf("computed again %d and %d times, want 1 and 0", x, y)
		}
		if st := r.s.Stats(); st.StepErrors != 0 || st.Evictions != 1 {
			t.Errorf("%+v", st)
		}
	})
}
