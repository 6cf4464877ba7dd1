// Package serve replays request traces and synthetic conversations against a
// gateway, or against systems of different configurations that it starts as real
// processes and compares, and measures what their users would see.
//
// The load is open: a turn is due when the trace says, or a time to think after
// the answer before it, and every latency counts from when the request was due.
// Prompts are slices of dialogues, or random token ids (Prompts), made from the
// trace's own identities of text and a seed, so that every run and every
// configuration is asked exactly the same; and since the engine is bit-exact,
// every answer is checked against all others to the same request, and some
// against a plain engine's.
package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/bench/serve/report"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/internal/trace"
)

// DefaultTimeout is that of a request.
const DefaultTimeout = 10 * time.Minute

// Options of a run. Zero values mean the defaults.
type Options struct {
	// URL is a running gateway, such as http://127.0.0.1:8000, and Key its key.
	// Without one, Systems are started from Binary, the path of kvlend, one
	// after the other, Rounds times; the first is what others are compared with.
	URL, Key string
	Systems  []System
	Binary   string
	Rounds   int // default 1

	Trace *trace.Trace
	// Shape fits the trace. Without a MaxContext it is the longest that all
	// systems can serve.
	Shape  trace.Shape
	Timing Timing        // default ByThink
	Length time.Duration // turns due later are not sent; 0: none is
	// Prompts is what prompts are made of. Default: dialogues, where the model's
	// tokenizer has the marks of ChatML (a running gateway is asked to tokenize);
	// else random tokens, and the result has a note that says why.
	Prompts Prompts
	Vocab   int // random prompts are token ids below it; default 256

	Model   string        // default: the first master
	Beside  []Beside      // loads of other models meanwhile
	Seed    uint64        // of the prompts' tokens
	Timeout time.Duration // of a request; default DefaultTimeout
	Retries int           // most repetitions of a refused request, if the server says when
	// Verify is how many distinct requests are compared with a plain engine;
	// negative: all.
	Verify int
	// Reference is the configuration of Model, for a gateway whose model is not
	// a built-in one.
	Reference *configs.Model
	// Notes are printed with the result.
	Notes []string
	// Progress is told, often, what is going on. It is called concurrently.
	Progress func(Progress)
}

// Beside is a load of another model. It begins with the main one, and is
// measured and checked like it.
type Beside struct {
	Model string
	Trace *trace.Trace
}

// Validate reports what is out of range or missing.
func (o *Options) Validate() error {
	c := *o
	return c.setDefaults()
}

// Result is what a run measured.
type Result = report.Result

// Progress is how far a run is.
type Progress struct {
	Doing       string
	Done, Total int // requests of all rounds
}

func (o *Options) setDefaults() error {
	if o.Rounds == 0 {
		o.Rounds = 1
	}
	if o.Timing == "" {
		o.Timing = ByThink
	}
	if o.Vocab == 0 {
		o.Vocab = 256
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	o.URL = strings.TrimSuffix(strings.TrimSuffix(o.URL, "/"), "/v1")
	switch {
	case o.Trace == nil:
		return errors.New("serve: Trace is nil")
	case (o.URL == "") == (len(o.Systems) == 0):
		return errors.New("serve: want either the URL of a gateway or systems to start")
	case o.URL == "" && o.Binary == "":
		return errors.New("serve: Binary is empty, want the path of kvlend")
	case o.Rounds < 1 || o.Rounds > 1000:
		return fmt.Errorf("serve: Rounds is %d: want from 1 to 1000", o.Rounds)
	case o.Timing != ByThink && o.Timing != ByTrace:
		return fmt.Errorf("serve: Timing is %q: want %q or %q", o.Timing, ByThink, ByTrace)
	case o.Prompts != "" && !slices.Contains(AllPrompts(), o.Prompts):
		return fmt.Errorf("serve: Prompts is %q: want one of %q, or none for the default", o.Prompts, AllPrompts())
	case o.Vocab < 1 || o.Vocab > 1<<30:
		return fmt.Errorf("serve: Vocab is %d: want from 1 to %d", o.Vocab, 1<<30)
	case o.Length < 0 || o.Timeout < 0 || o.Retries < 0:
		return fmt.Errorf("serve: Length is %v, Timeout %v, Retries %d: want 0 or more", o.Length, o.Timeout, o.Retries)
	}
	names := map[string]bool{}
	for _, s := range o.Systems {
		if s.Name == "" || names[s.Name] {
			return fmt.Errorf("serve: two systems are called %q: want names that differ", s.Name)
		}
		names[s.Name] = true
	}
	for _, b := range o.Beside {
		if b.Trace == nil || b.Model == "" {
			return fmt.Errorf("serve: a load beside has the model %q and the trace %v: want both", b.Model, b.Trace)
		}
	}
	return o.Shape.Validate()
}

// run is the state of one run.
type run struct {
	opt   Options
	parts []*part // the main one first
	res   *report.Result
	done  atomic.Int64
	total int

	mu     sync.Mutex
	unsent int
}

// part is the load of one model.
type part struct {
	model   string
	trace   *trace.Trace // shaped
	content trace.Content
	judge   *judge
}

// Run replays the trace. An error means that it could not; whether the systems
// did well is Result.Err's to say.
func Run(ctx context.Context, opt Options) (*Result, error) {
	if err := opt.setDefaults(); err != nil {
		return nil, err
	}
	r := &run{opt: opt}
	if err := r.fit(ctx); err != nil {
		return nil, err
	}
	for _, p := range r.parts {
		r.total += p.trace.Size().Turns * opt.Rounds * max(1, len(opt.Systems))
	}
	var err error
	if opt.URL != "" {
		err = r.attached(ctx)
	} else {
		err = r.interleaved(ctx)
	}
	if err != nil {
		return nil, err
	}
	if r.unsent > 0 {
		r.res.Notes = append(r.res.Notes, fmt.Sprintf("%d turns were due after %v and not sent", r.unsent, opt.Length))
	}
	for _, p := range r.parts {
		if err := r.reference(ctx, p); err != nil {
			return nil, err
		}
		r.res.Checks.Add(&p.judge.checks)
	}
	r.res.Fill()
	return r.res, nil
}

// fit finds the models and their longest contexts, and shapes the traces to
// them.
func (r *run) fit(ctx context.Context) error {
	shape := r.opt.Shape
	model, most, err := r.limit(ctx, r.opt.Model)
	if err != nil {
		return err
	}
	if shape.MaxContext == 0 {
		shape.MaxContext = most
	}
	cut, err := r.add(model, r.opt.Trace, shape)
	if err != nil {
		return err
	}
	t := r.parts[0].trace
	r.res = &report.Result{Trace: t.Name, Size: t.Size(), Cut: cut, Model: model, Seed: r.opt.Seed, Prompts: map[string]string{},
		Timing: r.timing(t), Notes: slices.Concat(r.opt.Notes, t.Notes)}
	r.res.Notes = append(r.res.Notes, fmt.Sprintf("longest context %d tokens, lengths divided by %g, times by %g",
		shape.MaxContext, max(1, shape.Tokens), orOne(shape.Time)))
	if t.Timeless() && len(t.Sessions) > 1 {
		r.res.Notes = append(r.res.Notes, "all sessions began at once: the trace has no arrivals, and no rate was given")
	}
	for _, b := range r.opt.Beside {
		name, most, err := r.limit(ctx, b.Model)
		if err != nil {
			return err
		}
		if _, err := r.add(name, b.Trace, trace.Shape{MaxContext: most}); err != nil {
			return err
		}
		size := r.parts[len(r.parts)-1].trace.Size()
		r.res.Notes = append(r.res.Notes, fmt.Sprintf("beside it %s had %d sessions of %d turns", name, size.Sessions, size.Turns))
	}
	return r.contents(ctx)
}

func (r *run) add(model string, t *trace.Trace, shape trace.Shape) (trace.Cut, error) {
	for _, p := range r.parts {
		if p.model == model {
			return trace.Cut{}, fmt.Errorf("serve: the model %s has two loads: want one of each model", model)
		}
	}
	fitted, cut, err := shape.Apply(t)
	if err != nil {
		return cut, err
	}
	r.parts = append(r.parts, &part{model: model, trace: fitted, judge: newJudge(r.opt.Verify)})
	return cut, nil
}

// limit finds a model and its longest context; "" is the default model.
func (r *run) limit(ctx context.Context, name string) (model string, most int, err error) {
	if r.opt.URL == "" {
		return Longest(r.opt.Systems, name)
	}
	g := newGateway(r.opt.URL, r.opt.Key, name, r.opt.Timeout)
	defer g.close()
	card, err := g.card(ctx)
	if err != nil {
		return "", 0, fmt.Errorf("serve: %s: %w", r.opt.URL, err)
	}
	return card.ID, card.MaxModelLen, nil
}

func orOne(v float64) float64 {
	if v == 0 {
		return 1
	}
	return v
}

func (r *run) timing(t *trace.Trace) string {
	if r.opt.Timing == ByTrace || t.Single() {
		return "when the trace has them"
	}
	return "a time to think after the answer before"
}

// attached replays against a running gateway.
func (r *run) attached(ctx context.Context) error {
	r.configs(report.Config{Name: r.opt.URL})
	for k := range r.opt.Rounds {
		if err := r.replay(ctx, 0, k, r.opt.URL); err != nil {
			return err
		}
	}
	if r.opt.Rounds > 1 {
		r.res.Notes = append(r.res.Notes, "the gateway keeps what it has cached from round to round")
	}
	return nil
}

// configs adds a system's part of the result, for every model with a load.
func (r *run) configs(c report.Config) {
	for _, p := range r.parts {
		c.Model = p.model
		r.res.Configs = append(r.res.Configs, c)
	}
}

// interleaved replays against every system in turn, round after round, each
// time started anew.
func (r *run) interleaved(ctx context.Context) error {
	for i := range r.opt.Systems {
		s := &r.opt.Systems[i]
		r.configs(report.Config{Name: s.Name, Emulated: s.Config.Fabric.Pace, Links: s.links(), LinkTimes: s.LinkTimes})
	}
	for k := range r.opt.Rounds {
		for i := range r.opt.Systems {
			s := &r.opt.Systems[i]
			r.opt.Progress(Progress{"starting " + s.Name, int(r.done.Load()), r.total})
			err := s.with(ctx, r.opt.Binary, func(endpoint string) error { return r.replay(ctx, i, k, endpoint) })
			if err != nil && ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				r.res.Problems = append(r.res.Problems, fmt.Sprintf("round %d: %v", k+1, err))
			}
		}
	}
	return nil
}

// replay plays every part once, all at the same time, against a system.
func (r *run) replay(ctx context.Context, system, round int, endpoint string) error {
	restore, ok := urgent()
	var wg sync.WaitGroup
	errs := make([]error, len(r.parts))
	for i, p := range r.parts {
		c := &r.res.Configs[system*len(r.parts)+i]
		wg.Go(func() { errs[i] = r.play(ctx, p, c, round, endpoint) })
	}
	wg.Wait()
	restore()
	if !ok {
		r.note("priority: this user may not raise the generator's; on a busy machine it may send late")
	}
	return errors.Join(errs...)
}

// play plays one part.
func (r *run) play(ctx context.Context, p *part, c *report.Config, round int, endpoint string) error {
	g := newGateway(endpoint, r.opt.Key, p.model, r.opt.Timeout)
	defer g.close()
	where := fmt.Sprintf("%s, round %d", c.Name, round+1)
	if len(r.parts) > 1 {
		where += ", " + p.model
	}
	l := &load{
		trace: p.trace, content: p.content, timing: r.opt.Timing,
		length: r.opt.Length, retries: r.opt.Retries, to: g,
		heard: func(q *request, a *answer) {
			p.judge.hear(where, q, a)
			r.opt.Progress(Progress{where, int(r.done.Add(1)), r.total})
		},
	}
	if err := l.run(ctx); err != nil {
		return err
	}
	for code, text := range l.texts {
		r.note(fmt.Sprintf("%s: such as: %s", code, text))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unsent += l.unsent
	c.Rounds = append(c.Rounds, report.Round{Summary: report.Summary{Wall: l.end}, Samples: l.samples})
	return nil
}

// note adds a note that is not there yet, up to a number that people read.
func (r *run) note(text string) {
	const most = 12
	r.mu.Lock()
	defer r.mu.Unlock()
	code, _, _ := strings.Cut(text, ":")
	if len(r.res.Notes) < most && !slices.ContainsFunc(r.res.Notes, func(n string) bool { return strings.HasPrefix(n, code+":") }) {
		r.res.Notes = append(r.res.Notes, text)
	}
}

// reference compares a sample of a part's answers with a plain engine's.
func (r *run) reference(ctx context.Context, p *part) error {
	var m *configs.Model
	switch {
	case len(p.judge.kept) == 0:
		return nil
	case r.opt.Reference != nil && p == r.parts[0]:
		m = r.opt.Reference
	case len(r.opt.Systems) > 0:
		m, _ = r.opt.Systems[0].Config.Model(p.model)
	case slices.Contains(engine.BuiltinNames(), p.model):
		m, _ = configs.Default().Model(p.model)
	}
	if m == nil {
		return nil
	}
	e, err := source.Engine(m)
	if err != nil {
		return fmt.Errorf("serve: the reference of %s: %w", p.model, err)
	}
	defer e.Close()
	return p.judge.compare(ctx, e, fmt.Sprintf("a plain engine (%s, %s)", m.Source, m.KVDtype), func(done, of int) {
		r.opt.Progress(Progress{fmt.Sprintf("reference answers: %d of %d", done, of), int(r.done.Load()), r.total})
	})
}
