package node

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/scheduler"
)

// gate is a sender that lets messages through one by one.
type gate struct {
	mu  sync.Mutex
	got []wire.Message
	in  chan struct{}
}

func (g *gate) Send(ctx context.Context, m wire.Message) error {
	select {
	case <-g.in:
	case <-ctx.Done():
		return ctx.Err()
	}
	g.mu.Lock()
	g.got = append(g.got, m)
	g.mu.Unlock()
	return nil
}

func token(id int32) scheduler.Event {
	return scheduler.Event{HasToken: true, Token: sampling.Token{ID: id, Logprob: -float32(id)}}
}

// TestTokensPileUpIntoChunks: what a slow gateway has not taken travels
// together, in order, and counts right.
func TestTokensPileUpIntoChunks(t *testing.T) {
	o := newOutbox(hclog.NewNullLogger())
	for i := range int32(3) {
		o.event("a", token(i))
		o.event("b", token(10+i))
	}
	last := token(3)
	last.Finish, last.Usage = scheduler.FinishStop, scheduler.Usage{PromptTokens: 7, LogitsHash: 9}
	o.event("a", last)
	o.event("b", scheduler.Event{Err: errors.New("broken")})
	want := []wire.Message{
		&wire.Chunk{ID: "a", Tokens: []int32{0, 1, 2, 3}, Logprobs: []float32{0, -1, -2, -3}},
		&wire.Chunk{ID: "b", Tokens: []int32{10, 11, 12}, Logprobs: []float32{-10, -11, -12}},
		&wire.Finished{ID: "a", Reason: "stop", Tokens: 4, Prompt: 7, LogitsHash: 9},
		&wire.Failed{ID: "b", Code: "internal_error", Message: "broken"},
	}
	if !reflect.DeepEqual(o.pending, want) {
		t.Fatalf("pending %+v", o.pending)
	}
	for _, m := range o.pending {
		if _, err := wire.Encode(m); err != nil {
			t.Errorf("%T: %v", m, err)
		}
	}
}

func TestAlternativesStayAligned(t *testing.T) {
	o := newOutbox(hclog.NewNullLogger())
	o.event("a", token(1))
	with := token(2)
	with.Token.Top = []sampling.TopToken{{ID: 2, Logprob: -1}}
	o.event("a", with)
	c := o.pending[0].(*wire.Chunk)
	if len(c.Top) != 2 || c.Top[0] != nil || len(c.Top[1]) != 1 {
		t.Fatalf("alternatives %+v", c.Top)
	}
	if _, err := wire.Encode(c); err != nil {
		t.Error(err)
	}
}

// TestChunksCount: after a chunk was sent the next one begins where it ended.
func TestChunksCount(t *testing.T) {
	o := newOutbox(hclog.NewNullLogger())
	g := &gate{in: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { o.run(ctx, g) })
	o.event("a", token(1))
	g.in <- struct{}{} // the first chunk is on its way
	o.event("a", token(2))
	g.in <- struct{}{}
	cancel()
	wg.Wait()
	second := g.got[1].(*wire.Chunk)
	if second.First != 1 || len(second.Tokens) != 1 {
		t.Fatalf("second chunk %+v", second)
	}
}

func TestForgetDropsTheQueue(t *testing.T) {
	o := newOutbox(hclog.NewNullLogger())
	o.event("a", token(1))
	o.forget()
	if len(o.pending) != 0 || len(o.sent) != 0 {
		t.Fatal("something is left")
	}
}

func TestFailureCodes(t *testing.T) {
	cases := []struct {
		err   error
		code  string
		retry bool
	}{
		{&scheduler.TooLongError{}, "context_length_exceeded", false},
		{&scheduler.OverloadedError{}, "overloaded", true},
		{&scheduler.AdmissionError{}, "unavailable", true},
		{&scheduler.InvalidError{Field: "tokens"}, "invalid_value", false},
		{scheduler.ErrStopped, "shutting_down", true},
		{scheduler.ErrDraining, "shutting_down", true},
		{errors.New("else"), "internal_error", false},
	}
	for _, c := range cases {
		f := failure("x", c.err)
		if f.Code != c.code || (f.RetryAfter > 0) != c.retry {
			t.Errorf("%T: code %q, retry after %s", c.err, f.Code, f.RetryAfter)
		}
	}
}

// strict is a sender that refuses what a link refuses.
type strict struct{ got []wire.Message }

func (s *strict) Send(_ context.Context, m wire.Message) error {
	if _, err := wire.Encode(m); err != nil {
		return err
	}
	s.got = append(s.got, m)
	return nil
}

// TestInvalidMessage: a message that can never be sent is reported as our own
// fault, and the request that it was for ends.
func TestInvalidMessage(t *testing.T) {
	for _, m := range []wire.Message{
		&wire.Status{ID: 1, Blocks: wire.BlockStatus{BorrowedKept: -3}},
		&wire.Chunk{ID: "a", First: -1, Tokens: []int32{1}},
		&wire.Finished{ID: "a", Tokens: -1},
	} {
		var log bytes.Buffer
		o := newOutbox(hclog.New(&hclog.LoggerOptions{Output: &log}))
		ctx, cancel := context.WithCancel(t.Context())
		to := &strict{}
		o.push(m)
		o.event("b", scheduler.Event{Err: errors.New("broken")})
		var wg sync.WaitGroup
		wg.Go(func() { o.run(ctx, cancelling{to, "b", cancel}) })
		wg.Wait()
		if text := log.String(); !strings.Contains(text, "BUG") || !strings.Contains(text, m.Type().String()) {
			t.Errorf("%T: logged %q", m, text)
		}
		_, question := m.(*wire.Status)
		if want := map[bool]int{true: 1, false: 2}[question]; len(to.got) != want {
			t.Errorf("%T: sent %+v", m, to.got)
		} else if f := to.got[0].(*wire.Failed); !question && (f.ID != "a" || f.Code != "internal_error") {
			t.Errorf("%T: %+v", m, f)
		}
	}
}

// cancelling ends the sending once a request's failure was sent.
type cancelling struct {
	*strict
	last string
	end  func()
}

func (c cancelling) Send(ctx context.Context, m wire.Message) error {
	err := c.strict.Send(ctx, m)
	if f, ok := m.(*wire.Failed); ok && f.ID == c.last {
		c.end()
	}
	return err
}
