// Package apitest has a model process that answers from a script, for tests of
// the gateway and of its clients.
package apitest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine/chat"
	"github.com/kvlend/kvlend/engine/tokenizer"
)

// Step is one step of a script: exactly one field is set.
type Step struct {
	Text   string        // one chunk with one token per byte
	Tokens []int32       // one chunk
	Finish string        // a Finished that counts correctly, which ends the script
	Event  api.Event     // as it is, with its ID filled in where it is empty; a last word ends the script
	Wait   chan struct{} // go on when it closes, or when the generation is cancelled
	Until  bool          // wait for the cancellation, then answer it
	Die    bool          // close the channel without a last word
}

// Upstream is a model process with one token per byte that plays a script for
// every generation. Use New.
type Upstream struct {
	// Submitted and Cancelled get the ids as they come, if there is room.
	Submitted chan *wire.Submit
	Cancelled chan string

	mu      sync.Mutex // guards the fields below
	script  func(*wire.Submit) []Step
	refuse  error
	dead    bool
	hang    chan struct{} // Submit waits for it
	live    map[string]context.CancelFunc
	running sync.WaitGroup
	status  wire.Status
	report  *wire.CheckReport
	drain   wire.DrainState
	unloads map[string]wire.UnloadState
}

// New returns an upstream that plays script.
func New(script ...Step) *Upstream {
	return NewFunc(func(*wire.Submit) []Step { return script })
}

// NewFunc returns an upstream that chooses a script for each generation.
func NewFunc(script func(*wire.Submit) []Step) *Upstream {
	return &Upstream{
		Submitted: make(chan *wire.Submit, 4096), Cancelled: make(chan string, 4096),
		script: script, live: map[string]context.CancelFunc{},
	}
}

// Say is a script that says text token by token and finishes.
func Say(text, finish string) []Step {
	var out []Step
	for i := range len(text) {
		out = append(out, Step{Text: text[i : i+1]})
	}
	return append(out, Step{Finish: finish})
}

// SetAlive changes what Alive answers.
func (u *Upstream) SetAlive(alive bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.dead = !alive
}

// SetRefuse makes Submit fail.
func (u *Upstream) SetRefuse(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refuse = err
}

// SetHang makes Submit wait until ch closes or its context ends.
func (u *Upstream) SetHang(ch chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.hang = ch
}

// SetStatus sets what Status answers.
func (u *Upstream) SetStatus(s wire.Status) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.status = s
}

// Live counts generations that have not ended.
func (u *Upstream) Live() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.live)
}

// Wait returns when every generation has ended.
func (u *Upstream) Wait() { u.running.Wait() }

// Submit implements api.Upstream.
func (u *Upstream) Submit(ctx context.Context, s *wire.Submit) (<-chan api.Event, error) {
	u.mu.Lock()
	refuse, hang := u.refuse, u.hang
	u.mu.Unlock()
	if hang != nil {
		u.Submitted <- s
		select {
		case <-hang:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if refuse != nil {
		return nil, refuse
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.live[s.ID] != nil {
		return nil, fmt.Errorf("the id %q is in use", s.ID)
	}
	run, cancel := context.WithCancel(context.Background())
	u.live[s.ID] = cancel
	out := make(chan api.Event)
	p := &play{id: s.ID, prompt: len(s.Tokens), logprobs: s.Sampling.Logprobs, out: out}
	script := u.script(s)
	u.running.Go(func() {
		defer close(out)
		p.run(run, script)
		u.mu.Lock()
		defer u.mu.Unlock()
		cancel()
		delete(u.live, s.ID)
	})
	if hang == nil {
		select {
		case u.Submitted <- s:
		default:
		}
	}
	return out, nil
}

// Cancel implements api.Upstream.
func (u *Upstream) Cancel(id string) {
	u.mu.Lock()
	if cancel := u.live[id]; cancel != nil {
		cancel()
	}
	u.mu.Unlock()
	select {
	case u.Cancelled <- id:
	default:
	}
}

// Status implements api.Upstream.
func (u *Upstream) Status(context.Context) (*wire.Status, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.status
	return &s, nil
}

// SetReport sets what Check answers; nil (the default) makes it fail.
func (u *Upstream) SetReport(r *wire.CheckReport) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.report = r
}

// Check implements api.Upstream.
func (u *Upstream) Check(context.Context) (*wire.CheckReport, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.report == nil {
		return nil, errors.New("there is no report")
	}
	return u.report, nil
}

// SetDrain sets what Drain answers; Draining is then as Drain was last asked.
func (u *Upstream) SetDrain(s wire.DrainState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.drain = s
}

// Drain implements api.Upstream.
func (u *Upstream) Drain(_ context.Context, undo bool) (*wire.DrainState, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.drain.Draining = !undo
	s := u.drain
	return &s, nil
}

// SetUnload sets what Unload answers for a device; Draining is then as Unload was
// last asked.
func (u *Upstream) SetUnload(device string, s wire.UnloadState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.unloads == nil {
		u.unloads = map[string]wire.UnloadState{}
	}
	u.unloads[device] = s
}

// Unload implements api.Upstream.
func (u *Upstream) Unload(_ context.Context, device string, undo bool) (*wire.UnloadState, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s, ok := u.unloads[device]
	if !ok {
		return &wire.UnloadState{ID: 1, Unknown: "there is no device " + device}, nil
	}
	s.Draining = !undo
	return &s, nil
}

// Trace implements api.Upstream: it answers at once that nothing happened.
func (u *Upstream) Trace(_ context.Context, length time.Duration) (*wire.Trace, error) {
	return &wire.Trace{ID: 1, Length: length}, nil
}

// Alive implements api.Upstream.
func (u *Upstream) Alive() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.dead
}

// play is one generation's run through the script. Like a real process it
// never stops sending because of a cancellation alone: it ends at the next step.
type play struct {
	id       string
	prompt   int
	logprobs int
	out      chan<- api.Event
	sent     int
}

func (p *play) run(ctx context.Context, script []Step) {
	for _, s := range script {
		if s.Wait != nil {
			select {
			case <-s.Wait:
			case <-ctx.Done():
			}
		}
		if s.Until {
			<-ctx.Done()
		}
		if ctx.Err() != nil {
			p.out <- p.finished("cancelled")
			return
		}
		switch {
		case s.Die:
			return
		case s.Finish != "":
			p.out <- p.finished(s.Finish)
			return
		case s.Event != nil:
			p.out <- named(s.Event, p.id)
			switch s.Event.(type) {
			case *wire.Finished, *wire.Failed:
				return
			}
		case s.Text != "":
			p.chunk(bytesTokens(s.Text))
		case s.Tokens != nil:
			p.chunk(s.Tokens)
		}
	}
}

func bytesTokens(text string) []int32 {
	ids := make([]int32, len(text))
	for i := range len(text) {
		ids[i] = int32(text[i])
	}
	return ids
}

// chunk invents log probabilities that depend on the token only.
func (p *play) chunk(ids []int32) {
	c := &wire.Chunk{ID: p.id, First: p.sent, Tokens: ids}
	for _, id := range ids {
		if p.logprobs < 0 {
			break
		}
		c.Logprobs = append(c.Logprobs, -float32(id)/256)
		if p.logprobs > 0 {
			var top []wire.TokenLogprob
			for k := range int32(p.logprobs) {
				top = append(top, wire.TokenLogprob{ID: (id + k) % 256, Logprob: -float32(id)/256 - float32(k)})
			}
			c.Top = append(c.Top, top)
		}
	}
	p.sent += len(ids)
	p.out <- c
}

func (p *play) finished(reason string) *wire.Finished {
	return &wire.Finished{ID: p.id, Reason: reason, Tokens: p.sent, Prompt: p.prompt, Cached: p.prompt / 2,
		LogitsHash: 0xabc, Preemptions: 1, Borrowed: 2, QueueMS: 3, PrefillMS: 4, TotalMS: 5,
		Receipt: wire.Receipt{Local: p.prompt/2 - p.prompt/4, Borrowed: p.prompt / 4, Declined: 1, PredictedMS: 2, RecomputeMS: 3}}
}

func named(ev api.Event, id string) api.Event {
	switch ev := ev.(type) {
	case *wire.Chunk:
		e := *ev
		if e.ID == "" {
			e.ID = id
		}
		return &e
	case *wire.Finished:
		e := *ev
		if e.ID == "" {
			e.ID = id
		}
		return &e
	case *wire.Failed:
		e := *ev
		if e.ID == "" {
			e.ID = id
		}
		return &e
	}
	return ev
}

// Model returns a model of 259 tokens (bytes, then three special ones) that
// can hold 256 and speaks to u.
func Model(name string, u api.Upstream) *api.Model {
	return &api.Model{
		Name: name, Role: "worker", MaxTokens: func() int { return 256 }, BlockTokens: 16, MaxRunning: 8, Vocab: 259,
		Tokenizer: tokenizer.Builtin(), Template: mustTemplate(), StopIDs: []int32{tokenizer.BuiltinIMEnd}, Upstream: u,
	}
}

// template writes "<role>content" for each message, and the tool calls. It
// refuses a conversation without a user.
const template = `{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}{{ raise_exception('no user message') }}{% endif %}` +
	`{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{% endfor %}` +
	`{% if add_generation_prompt %}<assistant>{% endif %}`

func mustTemplate() *chat.Template {
	t, err := chat.New(template, nil)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return t
}
