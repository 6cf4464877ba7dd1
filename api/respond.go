package api

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/kvlend/kvlend/api/openai"
)

// shape is what differs between chat and completion answers.
type shape interface {
	// first is the event that opens a choice's stream; nil: none.
	first(c *choice) any
	// chunk is an event with a part of an answer.
	chunk(c *choice, p piece) any
	// last is an event without choices: usage (null where not asked for) and
	// kvlend's object.
	last(usage json.RawMessage, k *openai.Kvlend) any
	// whole is the answer without streaming.
	whole(j *job, answers []answer) any
}

// answer is a choice's whole answer.
type answer struct {
	c      *choice
	text   strings.Builder
	tokens []tokenInfo
}

// serve runs the job and answers the request in the given shape.
func (g *Gateway) serve(c *gin.Context, j *job, s shape) {
	if e := j.tenant.enter(len(j.choices)); e != nil {
		g.fail(c, e)
		g.metrics.finished(j, e)
		return
	}
	defer j.tenant.leave(len(j.choices))
	ctx, cancel := g.requestContext(c.Request.Context())
	defer cancel()
	var e *apiError
	if j.set.stream {
		e = g.serveStream(c, j, s, func(out sink) *apiError { return j.run(ctx, out) })
	} else {
		out := &collector{answers: make([]answer, len(j.choices))}
		if e = j.run(ctx, out); e == nil {
			g.writeJSON(c, 200, s.whole(j, out.answers))
		} else if e.outcome != "cancelled" {
			g.fail(c, e)
		}
	}
	g.metrics.finished(j, e)
	if e != nil && e.status >= 500 {
		g.opt.Logger.Warn("request failed", "id", j.id, "model", j.m.Name, "code", e.code, "error", e.message)
	}
}

func (g *Gateway) serveStream(c *gin.Context, j *job, s shape, run func(sink) *apiError) *apiError {
	out := &streamer{events: newEventStream(c, g.opt.WriteTimeout), shape: s, held: make([]piece, len(j.choices))}
	e := run(out)
	switch {
	case e == nil:
		var usage json.RawMessage
		if j.set.includeUsage {
			usage = encode(j.usage())
		}
		if k := j.kvlend(); k != nil || usage != nil {
			out.events.send(s.last(usage, k))
		}
		out.events.done()
		if out.events.err != nil {
			e = clientGone(out.events.err)
		}
	case e.outcome == "cancelled":
	case !out.events.started:
		g.fail(c, e)
	default:
		out.events.send(e.body())
		out.events.done()
	}
	return e
}

// encode panics on what cannot happen: our own types always encode.
func encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: an answer did not encode: " + err.Error())
	}
	return b
}

// collector gathers whole answers.
type collector struct{ answers []answer }

func (k *collector) start(c *choice) { k.answers[c.index].c = c }

func (k *collector) piece(c *choice, p piece) {
	a := &k.answers[c.index]
	a.text.WriteString(p.text)
	a.tokens = append(a.tokens, p.tokens...)
}

func (k *collector) flush() error { return nil }

// streamer sends pieces as events. Pieces without text wait for the next one
// with text, so that log probabilities travel beside the text they belong to.
type streamer struct {
	events *eventStream
	shape  shape
	held   []piece
}

func (s *streamer) start(c *choice) {
	if ev := s.shape.first(c); ev != nil {
		s.events.send(ev)
	}
}

func (s *streamer) piece(c *choice, p piece) {
	held := &s.held[c.index]
	p.tokens = append(held.tokens, p.tokens...)
	held.tokens = nil
	if p.text == "" && p.finish == "" {
		held.tokens = p.tokens
		return
	}
	s.events.send(s.shape.chunk(c, p))
}

func (s *streamer) flush() error { return s.events.flush() }

// head is what all parts of an answer share.
type head struct {
	id      string
	created int64
	model   *Model
	usage   json.RawMessage // of chunks: absent, or null
}

func newHead(prefix string, m *Model, set *settings) head {
	h := head{id: newID(prefix), created: time.Now().Unix(), model: m}
	if set.stream && set.includeUsage {
		h.usage = json.RawMessage("null")
	}
	return h
}

// finishReason is nil, which becomes null, until there is one.
func finishReason(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
