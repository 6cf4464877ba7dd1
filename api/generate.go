package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/coordinator/wire"
)

// receiptWait bounds the wait for the account of a generation that a stop
// string ended: the answer itself is complete.
const receiptWait = 2 * time.Second

// Causes for which a request's context ends, beside the client's departure.
var (
	errTimeout  = errors.New("request timeout")
	errShutdown = errors.New("gateway is shutting down")
)

// sink receives a request's progress on the handler's goroutine.
type sink interface {
	// start comes once per choice, before its first piece.
	start(c *choice)
	piece(c *choice, p piece)
	// flush comes when there is nothing more at the moment. An error means
	// that the client is gone.
	flush() error
}

// job is the set of generations behind one request.
type job struct {
	g       *Gateway
	m       *Model
	set     *settings
	id      string
	tenant  *tenant
	salt    []byte
	started time.Time
	choices []*choice
	box     *mailbox
	pending int // choices whose answer is not complete
	open    int // choices whose model process has not said its last word
}

// run submits every choice and feeds out until all answers are complete. When
// it returns nothing of the request is left running in the model process,
// save for cancellations under way.
func (j *job) run(ctx context.Context, out sink) *apiError {
	defer j.cancelOpen()
	defer j.box.close()
	if !j.m.Upstream.Alive() {
		return unavailable(j.m.Name, "is not running at the moment")
	}
	for i, c := range j.choices {
		if e := j.submit(ctx, i, c); e != nil {
			return e
		}
	}
	var receipts <-chan time.Time
	for j.open > 0 {
		if j.pending == 0 && receipts == nil {
			receipts = time.After(receiptWait)
		}
		select {
		case <-ctx.Done():
			return contextError(ctx, j.g.opt.RequestTimeout)
		case <-receipts:
			return nil
		case <-j.box.wake:
		}
		items, over := j.box.take()
		for _, it := range items {
			if e := j.handle(it, out); e != nil {
				return e
			}
		}
		if over {
			return &apiError{status: http.StatusRequestTimeout, kind: typeInvalid, code: "client_too_slow", outcome: "slow_client",
				message: fmt.Sprintf("The client fell more than %d events behind", j.g.opt.StreamBuffer*len(j.choices))}
		}
		if err := out.flush(); err != nil {
			return clientGone(err)
		}
	}
	return nil
}

func (j *job) submit(ctx context.Context, i int, c *choice) *apiError {
	if ctx.Err() != nil {
		return contextError(ctx, j.g.opt.RequestTimeout)
	}
	events, err := j.m.Upstream.Submit(ctx, &wire.Submit{
		ID: c.id, Tokens: c.prompt.ids, MaxTokens: c.most, StopIDs: j.set.stopIDs,
		// Processes take IgnoreEOS to mean all of StopIDs; the model's own are
		// left out of the list already.
		IgnoreEOS: j.set.ignoreEOS && len(j.set.stopIDs) == 0,
		Sampling:  j.set.wireSampling(i % j.set.n),
		Priority:  j.set.priority, Tenant: j.tenant.name, Salt: j.salt,
		UpTo: j.set.maxTokens == 0,
	})
	var refused *SubmitError
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return contextError(ctx, j.g.opt.RequestTimeout)
	case errors.As(err, &refused):
		return fromFailed(&refused.Failed)
	default:
		j.g.opt.Logger.Warn("request could not be handed to its model", "model", j.m.Name, "id", c.id, "error", err)
		return unavailable(j.m.Name, "cannot be reached at the moment")
	}
	c.submitted = true
	j.g.pumps.add()
	go j.pump(i, c.id, events)
	return nil
}

// pump moves events into the mailbox until the channel closes. After the
// mailbox refused one, the generation is cancelled and the rest thrown away.
func (j *job) pump(i int, id string, events <-chan Event) {
	defer j.g.pumps.done()
	taken := true
	for ev := range events {
		if taken && !j.box.put(item{i, ev, time.Now()}) {
			taken = false
			j.m.Upstream.Cancel(id)
		}
	}
	j.box.put(item{i, nil, time.Now()})
}

// handle passes one event through its choice and on to out.
func (j *job) handle(it item, out sink) *apiError {
	c := j.choices[it.choice]
	if c.closed {
		return nil
	}
	finished := c.finish != ""
	p, e := c.accept(it)
	if e != nil {
		return e
	}
	if c.closed {
		j.open--
	}
	if finished {
		return nil
	}
	if _, isChunk := it.event.(*wire.Chunk); isChunk || c.finish != "" {
		if !c.begun {
			c.begun = true
			out.start(c)
		}
		out.piece(c, p)
	}
	if c.finish != "" {
		j.pending--
		if !c.closed {
			j.m.Upstream.Cancel(c.id)
		}
		j.g.metrics.answered(c)
	}
	return nil
}

func (j *job) cancelOpen() {
	for _, c := range j.choices {
		if c.submitted && !c.closed {
			j.m.Upstream.Cancel(c.id)
		}
	}
}

// usage sums over the choices. A prompt counts once, with the cache hit of its
// first choice.
func (j *job) usage() openai.Usage {
	var u openai.Usage
	for i, c := range j.choices {
		if i%j.set.n == 0 {
			u.PromptTokens += len(c.prompt.ids)
			u.PromptTokensDetails.CachedTokens += c.cached()
		}
		u.CompletionTokens += c.counted
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// contextError explains the end of a request's context.
func contextError(ctx context.Context, timeout time.Duration) *apiError {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, errTimeout):
		return &apiError{status: http.StatusGatewayTimeout, kind: typeServer, code: "request_timeout", outcome: "timeout",
			message: fmt.Sprintf("The answer was not complete after %v, the limit of this server", timeout)}
	case errors.Is(cause, errShutdown):
		return &apiError{status: http.StatusServiceUnavailable, kind: typeServer, code: "shutting_down",
			message: "The server is shutting down", retryAfter: time.Second}
	}
	return clientGone(cause)
}

// clientGone is recorded, but there is nobody to send it to.
func clientGone(err error) *apiError {
	return &apiError{status: 499, kind: typeInvalid, code: "client_closed_request", outcome: "cancelled",
		message: fmt.Sprintf("The client went away: %v", err)}
}

// requestContext ends with the client, the request timeout or a hard shutdown.
func (g *Gateway) requestContext(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	stop := context.AfterFunc(g.hard, func() { cancel(errShutdown) })
	ctx, cancelTimer := context.WithTimeoutCause(ctx, g.opt.RequestTimeout, errTimeout)
	return ctx, func() {
		cancelTimer()
		stop()
		cancel(context.Canceled)
	}
}

// newID returns prefix and 96 random bits, which no two gateways will repeat.
func newID(prefix string) string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	return prefix + hex.EncodeToString(b[:])
}
