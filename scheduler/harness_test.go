package scheduler

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/kvlend/kvlend/engine/sampling"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	flag.Parse()
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "rapid.checks" })
	if !set {
		if err := flag.Set("rapid.checks", "2000"); err != nil { // a history costs 0.2 ms
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// collector records a request's events.
type collector struct {
	mu     sync.Mutex
	tokens []int32
	end    *Event
	extra  int           // events after the end
	ended  chan struct{} // closed at the end
}

func newCollector() *collector { return &collector{ended: make(chan struct{})} }

func (c *collector) sink(ev Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil {
		c.extra++
		return
	}
	if ev.HasToken {
		c.tokens = append(c.tokens, ev.Token.ID)
	}
	if ev.Finish != "" || ev.Err != nil {
		c.end = &ev
		close(c.ended)
	}
}

func (c *collector) last() Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end == nil {
		return Event{}
	}
	return *c.end
}

func (c *collector) got() []int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.tokens)
}

// verify compares what was sent with the reference.
func (c *collector) verify(r Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	want := reference(r)
	switch {
	case c.end == nil:
		return fmt.Errorf("request %s has not ended", r.ID)
	case c.extra > 0:
		return fmt.Errorf("request %s: %d events after the last", r.ID, c.extra)
	case c.end.Err != nil:
		return fmt.Errorf("request %s: %w", r.ID, c.end.Err)
	case c.end.Usage.PromptTokens != len(r.Tokens) || c.end.Usage.CompletionTokens != len(c.tokens):
		return fmt.Errorf("request %s: usage %+v for %d and %d tokens", r.ID, c.end.Usage, len(r.Tokens), len(c.tokens))
	case c.end.Finish == FinishCancelled:
		if len(c.tokens) > len(want.tokens) || !slices.Equal(c.tokens, want.tokens[:len(c.tokens)]) {
			return fmt.Errorf("request %s, cancelled: tokens %v, want a prefix of %v", r.ID, c.tokens, want.tokens)
		}
		return nil
	case c.end.Finish != want.finish || !slices.Equal(c.tokens, want.tokens):
		return fmt.Errorf("request %s: %s after %v, want %s after %v", r.ID, c.end.Finish, c.tokens, want.finish, want.tokens)
	case c.end.Usage.LogitsHash != want.hash:
		return fmt.Errorf("request %s: logits hash %x, want %x", r.ID, c.end.Usage.LogitsHash, want.hash)
	}
	return nil
}

// rig is a scheduler over the toy model and the toy cache, in a bubble.
type rig struct {
	t     *testing.T
	model *toyModel
	cache *toyCache
	s     *Scheduler
	stop  func()
	sent  []Request
	subs  map[string]*collector
}

// newRig starts a scheduler; the test's end stops it and checks for leaks.
func newRig(t *testing.T, c *toyCache, opt Options) *rig {
	t.Helper()
	r := &rig{t: t, cache: c, model: &toyModel{block: c.block, record: true}, subs: map[string]*collector{}}
	r.s = New(r.model, c, opt)
	return r
}

func (r *rig) start() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.s.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			r.t.Errorf("Run: %v, want context.Canceled", err)
		}
		if err := r.cache.check(); err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(r.stop)
}

func (r *rig) submit(id string, prompt, maxTokens int) *collector {
	r.t.Helper()
	return r.send(Request{ID: id, Tokens: prose(id, prompt), MaxTokens: maxTokens})
}

func (r *rig) send(q Request) *collector {
	r.t.Helper()
	c := newCollector()
	q.Sink = c.sink
	q.Sampling = orDefault(q.Sampling)
	if err := r.s.Submit(q); err != nil {
		r.t.Fatalf("Submit(%s): %v", q.ID, err)
	}
	r.sent = append(r.sent, q)
	r.subs[q.ID] = c
	return c
}

// finished waits for all requests and compares them with the reference.
func (r *rig) finished() {
	r.t.Helper()
	for _, q := range r.sent {
		<-r.subs[q.ID].ended
		if err := r.subs[q.ID].verify(q); err != nil {
			r.t.Error(err)
		}
	}
}

// prose is a prompt of n tokens that depends on the name.
func prose(name string, n int) []int32 {
	var h uint64
	for _, b := range []byte(name) {
		h = mix(h, uint64(b))
	}
	out := make([]int32, n)
	for i := range out {
		h = mix(h, uint64(i))
		out[i] = int32(h % toyVocab)
	}
	return out
}

func orDefault(p sampling.Params) sampling.Params {
	if p.TopP == 0 {
		p = sampling.Default()
		p.Temperature = 0
	}
	return p
}

// bubble runs f with fake time.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}
