package api

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/coordinator/wire"
)

// AutoModel is the name by which clients leave the choice of the model to the
// gateway, where Options.Auto is set.
//
// The rule looks at the models that can hold the request at all, and first at
// where its conversation was served before: its KV lies there, so it stays
// unless the queue there is full.
// Otherwise the request goes to
//
//  1. a worker or local model where nothing waits, whose own free memory holds
//     it and for which it is not long (at most half of the longest context, so
//     that it does not take what the worker could lend): the one with the least
//     free memory;
//  2. else a master where nothing waits, the one with the shortest context:
//     long requests and those that need borrowed memory are what it is for;
//  3. else wherever the fewest wait; then the longest context.
//
// Ties go to the model that comes first. Models whose queue is full, that are
// being drained or did not say how they are come last, in this order.
const AutoModel = "auto"

const (
	// statusAge is how old the models' figures may be for a choice.
	statusAge = 20 * time.Millisecond
	// routeTimeout bounds what a model process that hangs can cost a request.
	routeTimeout = 250 * time.Millisecond
	// assumedAnswer stands for the length of an answer that nobody limited, in
	// tokens, where its KV demand is estimated.
	assumedAnswer = 256
)

// ask is a request before its model is known.
type ask struct {
	model    string
	salt     []byte
	sampling *openai.Sampling
	trail    func(salt []byte) trail
	// plan is the request as m would serve it.
	plan func(m *Model) (*plan, *apiError)
}

// place finds the model for a request.
func (g *Gateway) place(ctx context.Context, a *ask) (*plan, *apiError) {
	if g.router != nil && a.model == AutoModel {
		return g.router.route(ctx, a)
	}
	m, e := g.model(a.model)
	if e != nil {
		return nil, e
	}
	return a.plan(m)
}

// router chooses models.
type router struct {
	models []*Model
	homes  *homes
	ready  chan struct{} // closed when the models have been asked once

	mu       sync.Mutex // guards the fields below
	asked    time.Time
	asking   bool
	statuses []*wire.Status // by model; nil: not known
	sent     []load         // what was given to each model since its status
}

// load is what requests take of a model.
type load struct{ sequences, tokens int }

func newRouter(models []*Model) *router {
	return &router{models: models, homes: newHomes(maxHomes), ready: make(chan struct{}), statuses: make([]*wire.Status, len(models)), sent: make([]load, len(models))}
}

// candidate is a model that can hold a request.
type candidate struct {
	index   int // of the model
	master  bool
	known   bool // the process said how it is
	drained bool
	full    bool // its queue takes no more
	most    int  // tokens of its longest context
	free    int  // tokens that its own memory has room for
	waiting int
	demand  load
	longest int // tokens of the longest sequence
}

// rank orders candidates: by class, then by what counts within it.
func (c *candidate) rank() [3]int {
	switch {
	case !c.known:
		return [3]int{5}
	case c.drained:
		return [3]int{4}
	case c.full:
		return [3]int{3}
	case c.waiting > 0:
	case !c.master && c.demand.tokens <= c.free && c.longest <= c.most/2:
		return [3]int{0, c.free}
	case c.master:
		return [3]int{1, c.most}
	}
	return [3]int{2, c.waiting, -c.most}
}

// pick returns the position of the best candidate; there must be one.
func pick(cs []candidate) int {
	best := 0
	for i := range cs {
		a, b := cs[i].rank(), cs[best].rank()
		if slices.Compare(a[:], b[:]) < 0 {
			best = i
		}
	}
	return best
}

// route chooses among the models that can hold the request.
func (r *router) route(ctx context.Context, a *ask) (*plan, *apiError) {
	if e := tokenBound(a.sampling); e != nil {
		return nil, e
	}
	plans := make([]*plan, len(r.models))
	var alive []int
	var refused *apiError
	room := -1 // longest context of those that refused
	for i, m := range r.models {
		p, e := a.plan(m)
		if e != nil {
			// What concerns the request alone is the same everywhere. Of the
			// models that are too small the largest tells the limit.
			if size := m.MaxTokens(); refused == nil || e.code == "context_length_exceeded" && size > room {
				refused, room = e, size
				if e.code != "context_length_exceeded" {
					room = -1
				}
			}
			continue
		}
		plans[i] = p
		if m.Upstream.Alive() {
			alive = append(alive, i)
		}
	}
	if len(alive) == 0 {
		if refused != nil && !slices.ContainsFunc(plans, func(p *plan) bool { return p != nil }) {
			return nil, refused
		}
		return nil, &apiError{status: http.StatusServiceUnavailable, kind: typeServer, code: "model_unavailable", retryAfter: time.Second,
			message: "No model that can hold this request is running at the moment"}
	}
	t := a.trail(a.salt)
	at := r.choose(ctx, alive, plans, t)
	r.homes.settle(t, at)
	return plans[at], nil
}

// choose returns the index of the model that gets the request.
func (r *router) choose(ctx context.Context, alive []int, plans []*plan, t trail) int {
	r.refresh(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	cs := make([]candidate, len(alive))
	for i, at := range alive {
		cs[i] = r.candidate(at, plans[at])
	}
	best := -1
	if home, ok := r.homes.find(t); ok {
		best = slices.IndexFunc(cs, func(c candidate) bool { return c.index == home && !c.drained && !c.full })
	}
	if best < 0 {
		best = pick(cs)
	}
	sent := &r.sent[cs[best].index]
	sent.sequences += cs[best].demand.sequences
	sent.tokens += cs[best].demand.tokens
	return cs[best].index
}

// candidate needs r.mu.
func (r *router) candidate(at int, p *plan) candidate {
	m := r.models[at]
	c := candidate{index: at, master: m.Role == "master", most: m.MaxTokens()}
	c.demand.sequences = len(p.prompts) * p.set.n
	for i, pr := range p.prompts {
		one := len(pr.ids) + p.most[i]
		if p.set.maxTokens == 0 {
			one = len(pr.ids) + min(p.most[i], assumedAnswer)
		}
		c.demand.tokens += one * p.set.n
		c.longest = max(c.longest, one)
	}
	if s := r.statuses[at]; s != nil {
		c.known, c.drained = true, s.Draining
		c.waiting = s.Waiting + max(0, s.Running+r.sent[at].sequences-m.MaxRunning)
		c.full = m.MaxWaiting > 0 && c.waiting >= m.MaxWaiting
		// What is kept for later requests gives way to this one.
		blocks := min(s.Blocks.LocalFree+s.Blocks.LocalKept, math.MaxInt32)
		c.free = max(0, blocks*m.BlockTokens-r.sent[at].tokens)
	}
	return c
}

// refresh asks the models for their figures unless they are fresh. One request
// at a time does so; the others go on with what is known, if anything is.
func (r *router) refresh(ctx context.Context) {
	r.mu.Lock()
	if r.asking || time.Since(r.asked) < statusAge {
		r.mu.Unlock()
		<-r.ready // takes routeTimeout at most
		return
	}
	r.asking = true
	seen := slices.Clone(r.sent) // what comes later, the figures may not show
	r.mu.Unlock()
	// The figures are for everybody, also when this client goes away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), routeTimeout)
	defer cancel()
	fresh := askAll(ctx, r.models)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked.IsZero() {
		close(r.ready)
	}
	r.asked, r.asking = time.Now(), false
	r.statuses = fresh
	for i := range r.sent {
		r.sent[i].sequences -= seen[i].sequences
		r.sent[i].tokens -= seen[i].tokens
	}
}

// tokenBound refuses what says something else to each model.
func tokenBound(s *openai.Sampling) *apiError {
	field := ""
	switch {
	case len(s.LogitBias) > 0:
		field = "logit_bias"
	case len(s.StopTokenIDs) > 0:
		field = "stop_token_ids"
	default:
		return nil
	}
	return autoNeedsText(field)
}

func autoNeedsText(field string) *apiError {
	return badParam(field, "unsupported_parameter",
		fmt.Sprintf("%s has token ids, which mean something else to each model: name the model instead of %q", field, AutoModel))
}

// autoCard describes the choice as a model, where it is offered.
func (g *Gateway) autoCard() openai.ModelCard {
	largest := slices.MaxFunc(g.models, func(a, b *Model) int { return cmp.Compare(a.MaxTokens(), b.MaxTokens()) })
	return openai.ModelCard{ID: AutoModel, Object: "model", Created: g.started.Unix(), OwnedBy: "kvlend",
		MaxModelLen: largest.MaxTokens(), Role: AutoModel}
}
