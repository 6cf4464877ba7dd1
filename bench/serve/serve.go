// Package serve replays request traces and synthetic conversations against a
// gateway, or against systems of different configurations that it starts as real
// processes and compares, and measures what their users would see.
//
// The load is open: a turn is due when the trace says, or a time to think after
// the answer before it, and every latency counts from when the request was due.
// Prompts are token ids made from the trace's own identities of text and a seed,
// so that every run and every configuration is asked exactly the same; and since
// the engine is bit-exact, every answer is checked against all others to the
// same request, and some against a plain engine's.
package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/bench/serve/report"
	"github.com/kvlend/kvlend/bench/serve/trace"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/internal/source"
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
	Vocab  int           // prompts are token ids below it; default 256

	Model   string        // default: the first master
	Seed    uint64        // of the prompts' tokens
	Timeout time.Duration // of a request; default DefaultTimeout
	Retries int           // most repetitions of a refused request, if the server says when
	// Verify is how many distinct requests are compared with a plain engine;
	// negative: all.
	Verify int
	// Reference is the model's configuration, for a gateway whose model is not a
	// built-in one.
	Reference *configs.Model
	// Progress is told, often, what is going on. It is called concurrently.
	Progress func(Progress)
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
	return nil
}

// run is the state of one run.
type run struct {
	opt    Options
	trace  *trace.Trace // shaped
	model  string
	judge  *judge
	res    *report.Result
	unsent int
	done   atomic.Int64
	total  int
}

// Run replays the trace. An error means that it could not; whether the systems
// did well is Result.Err's to say.
func Run(ctx context.Context, opt Options) (*Result, error) {
	if err := opt.setDefaults(); err != nil {
		return nil, err
	}
	r := &run{opt: opt, judge: newJudge(opt.Verify), model: opt.Model}
	if err := r.fit(ctx); err != nil {
		return nil, err
	}
	r.total = r.res.Size.Turns * opt.Rounds * max(1, len(opt.Systems))
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
	if err := r.reference(ctx); err != nil {
		return nil, err
	}
	r.res.Checks = r.judge.checks
	r.res.Fill()
	return r.res, nil
}

// fit finds the model and its longest context, and shapes the trace to it.
func (r *run) fit(ctx context.Context) error {
	most, err := 0, error(nil)
	if r.opt.URL != "" {
		g := newGateway(r.opt.URL, r.opt.Key, r.opt.Model, r.opt.Timeout)
		defer g.close()
		card, err := g.card(ctx)
		if err != nil {
			return fmt.Errorf("serve: %s: %w", r.opt.URL, err)
		}
		r.model, most = card.ID, card.MaxModelLen
	} else {
		if r.model, err = pick(r.opt.Systems, r.opt.Model); err != nil {
			return err
		}
		if most, err = longest(r.opt.Systems, r.model); err != nil {
			return err
		}
	}
	shape := r.opt.Shape
	if shape.MaxContext == 0 {
		shape.MaxContext = most
	}
	t, cut, err := shape.Apply(r.opt.Trace)
	if err != nil {
		return err
	}
	r.trace = t
	r.res = &report.Result{Trace: t.Name, Size: t.Size(), Cut: cut, Model: r.model, Seed: r.opt.Seed, Timing: r.timing(), Notes: t.Notes}
	r.res.Notes = append(r.res.Notes, fmt.Sprintf("longest context %d tokens, lengths divided by %g, times by %g",
		shape.MaxContext, max(1, shape.Tokens), orOne(shape.Time)))
	if t.Timeless() && len(t.Sessions) > 1 {
		r.res.Notes = append(r.res.Notes, "all sessions began at once: the trace has no arrivals, and no rate was given")
	}
	return nil
}

func orOne(v float64) float64 {
	if v == 0 {
		return 1
	}
	return v
}

func (r *run) timing() string {
	if r.opt.Timing == ByTrace || r.trace.Single() {
		return "when the trace has them"
	}
	return "a time to think after the answer before"
}

// attached replays against a running gateway.
func (r *run) attached(ctx context.Context) error {
	c := report.Config{Name: r.opt.URL}
	for k := range r.opt.Rounds {
		round, err := r.replay(ctx, c.Name, k, r.opt.URL)
		if err != nil {
			return err
		}
		c.Rounds = append(c.Rounds, round)
	}
	if r.opt.Rounds > 1 {
		r.res.Notes = append(r.res.Notes, "the gateway keeps what it has cached from round to round")
	}
	r.res.Configs = []report.Config{c}
	return nil
}

// interleaved replays against every system in turn, round after round, each
// time started anew.
func (r *run) interleaved(ctx context.Context) error {
	for i := range r.opt.Systems {
		s := &r.opt.Systems[i]
		r.res.Configs = append(r.res.Configs, report.Config{Name: s.Name, Emulated: s.Config.Fabric.Pace, Links: s.links(), LinkTimes: s.LinkTimes})
	}
	for k := range r.opt.Rounds {
		for i := range r.opt.Systems {
			s := &r.opt.Systems[i]
			r.opt.Progress(Progress{"starting " + s.Name, int(r.done.Load()), r.total})
			err := s.with(ctx, r.opt.Binary, func(endpoint string) error {
				round, err := r.replay(ctx, s.Name, k, endpoint)
				r.res.Configs[i].Rounds = append(r.res.Configs[i].Rounds, round)
				return err
			})
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

// replay plays the trace once.
func (r *run) replay(ctx context.Context, name string, round int, endpoint string) (report.Round, error) {
	g := newGateway(endpoint, r.opt.Key, r.model, r.opt.Timeout)
	defer g.close()
	where := fmt.Sprintf("%s, round %d", name, round+1)
	l := &load{
		trace: r.trace, content: trace.Content{Seed: r.opt.Seed, Vocab: r.opt.Vocab}, timing: r.opt.Timing,
		length: r.opt.Length, retries: r.opt.Retries, to: g,
		heard: func(q *request, a *answer) {
			r.judge.hear(where, q, a)
			r.opt.Progress(Progress{where, int(r.done.Add(1)), r.total})
		},
	}
	restore, ok := urgent()
	err := l.run(ctx)
	restore()
	if err != nil {
		return report.Round{}, err
	}
	if !ok {
		r.note("priority: this user may not raise the generator's; on a busy machine it may send late")
	}
	r.unsent += l.unsent
	for code, text := range l.texts {
		r.note(fmt.Sprintf("%s: such as: %s", code, text))
	}
	return report.Round{Summary: report.Summary{Wall: l.end}, Samples: l.samples}, nil
}

// note adds a note that is not there yet, up to a number that people read.
func (r *run) note(text string) {
	const most = 12
	code, _, _ := strings.Cut(text, ":")
	if len(r.res.Notes) < most && !slices.ContainsFunc(r.res.Notes, func(n string) bool { return strings.HasPrefix(n, code+":") }) {
		r.res.Notes = append(r.res.Notes, text)
	}
}

// reference compares the sample of answers with a plain engine's.
func (r *run) reference(ctx context.Context) error {
	m := r.opt.Reference
	switch {
	case len(r.judge.kept) == 0:
		return nil
	case m != nil:
	case len(r.opt.Systems) > 0:
		m, _ = r.opt.Systems[0].Config.Model(r.model)
	case slices.Contains(engine.BuiltinNames(), r.model):
		m, _ = configs.Default().Model(r.model)
	}
	if m == nil {
		return nil
	}
	e, err := source.Engine(m)
	if err != nil {
		return fmt.Errorf("serve: the reference of %s: %w", r.model, err)
	}
	defer e.Close()
	return r.judge.compare(ctx, e, fmt.Sprintf("a plain engine (%s, %s)", m.Source, m.KVDtype), func(done, of int) {
		r.opt.Progress(Progress{fmt.Sprintf("reference answers: %d of %d", done, of), int(r.done.Load()), r.total})
	})
}
