package api

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/engine/tokenizer"
)

// leastLogprob stands for minus infinity, which JSON cannot say.
const leastLogprob = -9999

// piece is what one event adds to an answer.
type piece struct {
	text   string
	tokens []tokenInfo // only where log probabilities were asked for
	finish string      // "stop" or "length" with the last piece
}

// tokenInfo is a generated token with its log probabilities.
type tokenInfo struct {
	id      int32
	logprob float32
	top     []wire.TokenLogprob
	offset  int // characters of text before it
}

// choice is one generation: it checks the events' sequence, turns tokens into
// text, matches stop strings and counts. It serves one goroutine.
type choice struct {
	m      *Model
	id     string // of the Submit
	index  int
	prompt prompt
	most   int // tokens
	set    *settings

	text    *tokenizer.Stream
	stop    *sampling.StopMatcher
	runes   int     // characters of text so far
	got     int     // tokens that came
	counted int     // tokens that belong to the answer
	ids     []int32 // the counted ones, for the receipt
	ended   bool    // a stop id came: nothing may follow

	submitted bool
	begun     bool
	finish    string // of the answer; "" until it is complete
	closed    bool   // the model process has said its last word
	final     wire.Finished

	first, last, created time.Time // of tokens; of the request
}

func newChoice(j *job, index int, p prompt, most int) *choice {
	return &choice{
		m: j.m, id: j.id + "-" + strconv.Itoa(index), index: index, prompt: p, most: most,
		set: j.set, text: j.m.Tokenizer.NewStream(j.set.skipSpecial), stop: sampling.NewStopMatcher(j.set.stops),
		created: j.started,
	}
}

// accept takes the next event. After an error the choice is of no more use.
func (c *choice) accept(it item) (piece, *apiError) {
	switch ev := it.event.(type) {
	case nil:
		c.closed = true
		if c.finish != "" {
			return piece{}, nil
		}
		return piece{}, unavailable(c.m.Name, "ended or lost its connection before the answer was complete")
	case *wire.Chunk:
		return c.chunk(ev, it.at)
	case *wire.Finished:
		return c.finished(ev)
	case *wire.Failed:
		c.closed = true
		if c.finish != "" {
			return piece{}, nil
		}
		return piece{}, fromFailed(ev)
	default:
		return piece{}, c.broken("an event of type %T came", ev)
	}
}

// broken reports a model process that does not keep to the protocol.
func (c *choice) broken(format string, args ...any) *apiError {
	return internalError("The model process broke its protocol: " + fmt.Sprintf(format, args...) +
		". The answer was dropped, because parts of it may be missing")
}

func (c *choice) chunk(ev *wire.Chunk, at time.Time) (piece, *apiError) {
	if e := c.checkChunk(ev); e != nil {
		return piece{}, e
	}
	c.got += len(ev.Tokens)
	var p piece
	for i, id := range ev.Tokens {
		if c.finish != "" {
			break
		}
		if c.ended {
			return piece{}, c.broken("tokens came after a stop token")
		}
		if c.first.IsZero() {
			c.first = at
		}
		c.last = at
		c.counted++
		if c.set.account {
			c.ids = append(c.ids, id)
		}
		if c.set.params.Logprobs >= 0 {
			p.tokens = append(p.tokens, c.info(ev, i))
		}
		if slices.Contains(c.set.stopIDs, id) {
			c.ended = true
			continue
		}
		c.emit(&p, c.text.Push(id))
	}
	return p, nil
}

// checkChunk finds gaps, repetitions and everything else that must not reach
// a client.
func (c *choice) checkChunk(ev *wire.Chunk) *apiError {
	logprobs := c.set.params.Logprobs
	switch {
	case ev.ID != c.id:
		return c.broken("an event of the request %s came", quote(ev.ID))
	case ev.First != c.got:
		return c.broken("a chunk begins at token %d where %d was due", ev.First, c.got)
	case c.got+len(ev.Tokens) > c.most:
		return c.broken("%d tokens came where at most %d were asked for", c.got+len(ev.Tokens), c.most)
	case logprobs >= 0 && len(ev.Logprobs) != len(ev.Tokens):
		return c.broken("%d log probabilities came with %d tokens", len(ev.Logprobs), len(ev.Tokens))
	case logprobs > 0 && len(ev.Top) != len(ev.Tokens):
		return c.broken("alternatives came for %d of %d tokens", len(ev.Top), len(ev.Tokens))
	}
	for _, id := range ev.Tokens {
		if id < 0 || int(id) >= c.m.Vocab {
			return c.broken("the token id %d came, the vocabulary has %d", id, c.m.Vocab)
		}
	}
	for _, lp := range ev.Logprobs {
		if math.IsNaN(float64(lp)) {
			return c.broken("a log probability is not a number")
		}
	}
	return nil
}

func (c *choice) info(ev *wire.Chunk, i int) tokenInfo {
	t := tokenInfo{id: ev.Tokens[i], logprob: finite(ev.Logprobs[i]), offset: c.runes}
	if c.set.params.Logprobs > 0 {
		for _, alt := range ev.Top[i] {
			t.top = append(t.top, wire.TokenLogprob{ID: alt.ID, Logprob: finite(alt.Logprob)})
		}
	}
	return t
}

func finite(lp float32) float32 {
	if !(lp > leastLogprob) {
		return leastLogprob
	}
	return min(lp, 0)
}

// emit passes decoded text through the stop matcher.
func (c *choice) emit(p *piece, text string) {
	c.runes += utf8.RuneCountInString(text)
	out, stopped := c.stop.Push(text)
	p.text += out
	if stopped {
		c.finish, p.finish = "stop", "stop"
	}
}

func (c *choice) finished(ev *wire.Finished) (piece, *apiError) {
	if ev.ID != c.id {
		return piece{}, c.broken("an event of the request %s came", quote(ev.ID))
	}
	if ev.Tokens != c.got {
		return piece{}, c.broken("%d tokens came of %d that were sent", c.got, ev.Tokens)
	}
	c.closed, c.final = true, *ev
	var p piece
	if c.finish != "" {
		return p, nil
	}
	switch ev.Reason {
	case "stop", "length":
	case "cancelled":
		return p, unavailable(c.m.Name, "cancelled the request")
	default:
		return p, c.broken("the reason to finish is %s", quote(ev.Reason))
	}
	c.emit(&p, c.text.Flush())
	if c.finish == "" {
		p.text += c.stop.Flush()
		c.finish, p.finish = ev.Reason, ev.Reason
	}
	return p, nil
}

// logprob gives one token in the chat style.
func (m *Model) logprob(id int32, lp float32) openai.Logprob {
	raw := m.Tokenizer.TokenBytes(id)
	out := openai.Logprob{Token: strings.ToValidUTF8(string(raw), "\uFFFD"), Logprob: lp, Bytes: make([]int, len(raw))}
	for i, b := range raw {
		out.Bytes[i] = int(b)
	}
	return out
}

// chatLogprobs is nil where there is nothing to tell.
func (m *Model) chatLogprobs(tokens []tokenInfo) *openai.ChatLogprobs {
	if len(tokens) == 0 {
		return nil
	}
	out := &openai.ChatLogprobs{}
	for _, t := range tokens {
		e := openai.TokenLogprob{Logprob: m.logprob(t.id, t.logprob), TopLogprobs: []openai.Logprob{}}
		for _, alt := range t.top {
			e.TopLogprobs = append(e.TopLogprobs, m.logprob(alt.ID, alt.Logprob))
		}
		out.Content = append(out.Content, e)
	}
	return out
}

// legacyToken spells tokens that are not text as the original API does.
func (m *Model) legacyToken(id int32) string {
	raw := m.Tokenizer.TokenBytes(id)
	if utf8.Valid(raw) {
		return string(raw)
	}
	var b strings.Builder
	b.WriteString("bytes:")
	for _, x := range raw {
		fmt.Fprintf(&b, `\x%02x`, x)
	}
	return b.String()
}

// legacyLogprobs is nil where there is nothing to tell.
func (m *Model) legacyLogprobs(tokens []tokenInfo) *openai.LegacyLogprobs {
	if len(tokens) == 0 {
		return nil
	}
	out := &openai.LegacyLogprobs{}
	for _, t := range tokens {
		out.Tokens = append(out.Tokens, m.legacyToken(t.id))
		out.TokenLogprobs = append(out.TokenLogprobs, t.logprob)
		out.TextOffset = append(out.TextOffset, t.offset)
		top := map[string]float32{}
		for _, alt := range t.top {
			top[m.legacyToken(alt.ID)] = alt.Logprob
		}
		out.TopLogprobs = append(out.TopLogprobs, top)
	}
	return out
}
