// Package api is the HTTP gateway: the OpenAI protocol in front of model
// processes that it reaches by messages only.
//
// The gateway renders chat templates, turns text into tokens and tokens into
// text, matches stop strings and counts; a model process sees token ids and
// answers with token ids. Every answer is checked on the way: a chunk that was
// lost or repeated, a wrong total or a process that died is an error to the
// client, never a shorter success.
//
// A client cannot harm the others: bodies, headers, connections and times are
// bounded, connections that only hold a place are closed when a place is
// needed, and what a client does not read is buffered up to a bound and then
// cancelled. When a client goes away its generations are cancelled at once.
//
// A request belongs to the tenant of its API key; what one tenant's prompts left
// in a cache is never found by another's (tenant.go). The model "auto" leaves the
// choice of the model to the gateway (route.go).
//
// Routes: /v1/chat/completions, /v1/completions, /v1/models, /v1/models/{id},
// /tokenize, /detokenize, /health, /version, /metrics. AdminHandler is meant
// for another listener (a Unix socket) and serves /admin/status.
package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine/chat"
	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/engine/tokenizer"
)

// Event is what a model process says about a generation: *wire.Chunk, then
// one of *wire.Finished or *wire.Failed.
type Event any

// Upstream is one model process. All methods are safe for concurrent use.
type Upstream interface {
	// Submit hands a generation to the process. The channel carries its
	// events in order and is closed after the last, also after Cancel and when
	// the process is lost (then without a *wire.Finished or *wire.Failed).
	// The gateway receives promptly until the channel closes. ctx bounds the
	// submission and may be cancelled together with Cancel; an error that is a
	// *SubmitError chooses the client's answer.
	Submit(ctx context.Context, s *wire.Submit) (<-chan Event, error)
	// Cancel ends a generation. Unknown ids are ignored; it does not wait.
	Cancel(id string)
	// Status asks the process for its figures.
	Status(ctx context.Context) (*wire.Status, error)
	// Check asks the process to verify its invariants.
	Check(ctx context.Context) (*wire.CheckReport, error)
	// Drain starts a drain, or undoes it, and asks how far it is.
	Drain(ctx context.Context, undo bool) (*wire.DrainState, error)
	// Unload starts to empty a device of the model's overflow pool, or undoes
	// that, and asks how far it is.
	Unload(ctx context.Context, device string, undo bool) (*wire.UnloadState, error)
	// Trace makes the process record what it does for a while.
	Trace(ctx context.Context, length time.Duration) (*wire.Trace, error)
	// Alive says whether the process answers at the moment.
	Alive() bool
}

// SubmitError is a refusal by the process before it sent any event.
type SubmitError struct{ Failed wire.Failed }

// Error implements error.
func (e *SubmitError) Error() string { return e.Failed.Code + ": " + e.Failed.Message }

// Model is a model that the gateway serves.
type Model struct {
	Name string
	Role string // "master", "worker" or "local"
	// MaxTokens is the longest sequence, prompt and answer, that the model can
	// hold now.
	MaxTokens func() int
	// BlockTokens is how many tokens a block of its KV holds, MaxRunning how
	// many sequences it computes at once; Options.Auto needs them.
	BlockTokens, MaxRunning int
	// MaxWaiting is how many sequences may wait; 0: not known.
	MaxWaiting int
	// RaiseLimit says in words what would raise MaxTokens; "" has a default
	// per role.
	RaiseLimit string
	// Vocab is the number of token ids; ids of requests are checked against it.
	Vocab     int
	Tokenizer *tokenizer.Tokenizer
	Template  *chat.Template // nil: the model cannot chat
	// Defaults hold where a request says nothing. The zero value stands for
	// sampling.Default.
	Defaults sampling.Params
	// StopIDs end an answer unless the request ignores them.
	StopIDs  []int32
	Upstream Upstream
}

// Logger is the part of hclog.Logger (and slog.Logger) that the gateway uses.
type Logger interface {
	Info(msg string, args ...any)
	Warn(msg string, args ...any)
	Error(msg string, args ...any)
}

// Options configure a Gateway. A zero field has the default given.
type Options struct {
	Models  []*Model
	APIKeys []APIKey    // none: no key needed, and everybody is one tenant
	Version string      // for /version
	Links   []AdminLink // for operators
	// Auto offers AutoModel.
	Auto bool
	// Restarts is how often the gateway's process was started again.
	Restarts int

	MaxBody        int64         // bytes of a request body; 16 MiB
	MaxHeader      int           // bytes of a request's headers; 64 KiB
	MaxConnections int           // 2048
	ReadTimeout    time.Duration // for a whole request to arrive; 30 s
	IdleTimeout    time.Duration // of a kept-alive connection; 120 s
	WriteTimeout   time.Duration // for a client to take one write; 30 s
	RequestTimeout time.Duration // for a whole answer; 600 s
	MaxChoices     int           // prompts times n of one request; 128
	StreamBuffer   int           // events held per choice for a slow client; 8192

	Logger Logger // nil: silent
}

func (o *Options) defaults() {
	def(&o.Version, "dev")
	def(&o.MaxBody, 16<<20)
	def(&o.MaxHeader, 64<<10)
	def(&o.MaxConnections, 2048)
	def(&o.ReadTimeout, 30*time.Second)
	def(&o.IdleTimeout, 120*time.Second)
	def(&o.WriteTimeout, 30*time.Second)
	def(&o.RequestTimeout, 600*time.Second)
	def(&o.MaxChoices, 128)
	def(&o.StreamBuffer, 8192)
	if o.Logger == nil {
		o.Logger = silent{}
	}
}

func def[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}

type silent struct{}

func (silent) Info(string, ...any)  {}
func (silent) Warn(string, ...any)  {}
func (silent) Error(string, ...any) {}

// Gateway serves the API. Create it with New.
type Gateway struct {
	opt     Options
	models  []*Model
	byName  map[string]*Model
	keys    keySet
	metrics *metrics
	router  *router // nil: the choice of the model is not offered
	// everybody is the tenant of requests where there are no keys.
	everybody *tenant
	engine    *gin.Engine
	started   time.Time

	// hard ends every request when Shutdown runs out of patience.
	hard     context.Context
	hardStop context.CancelFunc
	pumps    tally // one per submitted generation

	mu     sync.Mutex // guards server
	server *http.Server
}

// New returns a gateway. Names of models must be unique.
func New(opt Options) (*Gateway, error) {
	opt.defaults()
	keys, err := newKeySet(opt.APIKeys)
	if err != nil {
		return nil, err
	}
	g := &Gateway{opt: opt, byName: map[string]*Model{}, keys: keys, everybody: newTenant("everybody", "", 0, nil), started: time.Now()}
	for i, m := range opt.Models {
		if err := checkModel(m); err != nil {
			return nil, fmt.Errorf("models[%d]: %w", i, err)
		}
		if g.byName[m.Name] != nil {
			return nil, fmt.Errorf("models[%d]: the name %q is taken", i, m.Name)
		}
		own := *m
		if own.Defaults.TopP == 0 {
			own.Defaults = sampling.Default()
		}
		if err := own.Defaults.Validate(); err != nil {
			return nil, fmt.Errorf("models[%d]: defaults: %w", i, err)
		}
		g.models = append(g.models, &own)
		g.byName[own.Name] = &own
	}
	if opt.Auto {
		if err := checkAuto(g.models); err != nil {
			return nil, err
		}
		g.router = newRouter(g.models)
	}
	g.metrics = newMetrics(g.models, opt.Restarts)
	g.hard, g.hardStop = context.WithCancel(context.Background())
	g.engine = g.routes()
	return g, nil
}

func checkModel(m *Model) error {
	switch {
	case m == nil:
		return errors.New("is nil")
	case m.Name == "":
		return errors.New("has no name")
	case m.MaxTokens == nil, m.Tokenizer == nil, m.Upstream == nil:
		return fmt.Errorf("%s: MaxTokens, Tokenizer and Upstream are needed", m.Name)
	case m.Vocab <= 0:
		return fmt.Errorf("%s: Vocab is %d: it must be positive", m.Name, m.Vocab)
	}
	return nil
}

func checkAuto(models []*Model) error {
	if len(models) == 0 {
		return errors.New("the option Auto is set, and there are no models to choose from")
	}
	for i, m := range models {
		switch {
		case m.Name == AutoModel:
			return fmt.Errorf("models[%d]: the name %q stands for the gateway's choice", i, m.Name)
		case m.BlockTokens <= 0 || m.MaxRunning <= 0:
			return fmt.Errorf("models[%d]: %s: BlockTokens is %d and MaxRunning %d: the choice of a model needs them positive", i, m.Name, m.BlockTokens, m.MaxRunning)
		}
	}
	return nil
}

// Handler returns the API without the listener's limits on connections and
// header times; Serve adds those.
func (g *Gateway) Handler() http.Handler { return g.engine }

func (g *Gateway) routes() *gin.Engine {
	// The mode only silences gin's own printing; it is the one setting that
	// gin keeps for the whole process.
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.HandleMethodNotAllowed = true
	e.RedirectTrailingSlash = false
	e.ForwardedByClientIP = false
	e.Use(g.prepare, g.recoverPanic, g.authenticate)
	e.NoRoute(g.noRoute)
	e.NoMethod(g.noMethod)
	e.POST("/v1/chat/completions", g.chat)
	e.POST("/v1/completions", g.completions)
	reading := []string{http.MethodGet, http.MethodHead} // net/http leaves the body of a HEAD's answer out
	e.Match(reading, "/v1/models", g.listModels)
	e.Match(reading, "/v1/models/*id", g.oneModel)
	e.POST("/tokenize", g.tokenize)
	e.POST("/detokenize", g.detokenize)
	e.Match(reading, "/health", g.health)
	e.Match(reading, "/version", g.version)
	e.GET("/metrics", gin.WrapH(g.metrics.handler()))
	return e
}

// model finds the model that a request names.
func (g *Gateway) model(name string) (*Model, *apiError) {
	if name == "" {
		return nil, badParam("model", "missing_required_parameter",
			"model is missing: name one of "+g.modelNames())
	}
	m := g.byName[name]
	if m == nil {
		e := badParam("model", "model_not_found",
			fmt.Sprintf("The model %s does not exist. Models served here: %s", quote(name), g.modelNames()))
		e.status = http.StatusNotFound
		return nil, e
	}
	return m, nil
}
