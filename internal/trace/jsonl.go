package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// mooncakeBlock is the tokens that one hash id of a Mooncake trace stands for.
const mooncakeBlock = 512

// object decodes a line; fields that it does not know are tolerated, since
// other traces of the same family have more.
func (p *parser) object(line []byte, v any) error {
	err := json.Unmarshal(line, v)
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &kind):
		field := kind.Field
		if field == "" {
			field = "line"
		}
		return p.wrong(field, kind.Value, "a "+kind.Type.String())
	default:
		return p.wrong("line", string(line), "a JSON object ("+err.Error()+")")
	}
}

// mooncake reads a request. It has no sessions: a request arrives when the
// trace says, and shares with others the blocks that it has in common.
func (p *parser) mooncake(line []byte) error {
	var o struct {
		Timestamp *float64 `json:"timestamp"`
		Input     *int     `json:"input_length"`
		Output    *int     `json:"output_length"`
		Hashes    []uint64 `json:"hash_ids"`
	}
	if err := p.object(line, &o); err != nil {
		return err
	}
	if o.Timestamp == nil || o.Input == nil || o.Output == nil {
		return p.wrong("line", string(line), "timestamp, input_length, output_length and hash_ids")
	}
	start, err := p.seconds("timestamp", *o.Timestamp, 1000)
	if err != nil {
		return err
	}
	input, err := p.whole("input_length", *o.Input, 1, maxTokens)
	if err != nil {
		return err
	}
	output, err := p.whole("output_length", *o.Output, 0, maxTokens)
	if err != nil {
		return err
	}
	if want := (input + mooncakeBlock - 1) / mooncakeBlock; len(o.Hashes) != want {
		return p.wrong("hash_ids", fmt.Sprintf("%d ids", len(o.Hashes)),
			fmt.Sprintf("%d: one per %d tokens of input_length %d", want, mooncakeBlock, input))
	}
	spans := make([]Span, len(o.Hashes))
	for i, h := range o.Hashes {
		spans[i] = Span{spanID(kindBlock, 0, h), min(mooncakeBlock, input-i*mooncakeBlock)}
	}
	p.single(start, spans, output)
	return nil
}

// agenticColumns are the values of a request, in this order.
var agenticColumns = []string{"t", "in", "out", "api_time", "think_time", "ttft", "stop"}

// agenticItem is a request, or a sub-agent with requests of its own.
type agenticItem struct {
	Values []json.RawMessage `json:"v"`
	Chain  []int             `json:"h"`

	Sub  *string       `json:"sub"`
	At   *float64      `json:"t"`
	Reqs []agenticItem `json:"reqs"`
}

// agentic reads a session. Block ids are its own: other sessions use the same
// numbers for other text.
func (p *parser) agentic(line []byte) error {
	var o struct {
		ID    *string       `json:"id"`
		Block *int          `json:"blk"`
		Cols  []string      `json:"cols"`
		Reqs  []agenticItem `json:"reqs"`
	}
	if err := p.object(line, &o); err != nil {
		return err
	}
	if o.ID == nil || o.Block == nil {
		return p.wrong("line", string(line), "id, blk, cols and reqs")
	}
	if !slices.Equal(o.Cols, agenticColumns) {
		return p.wrong("cols", fmt.Sprint(o.Cols), fmt.Sprint(agenticColumns))
	}
	block, err := p.whole("blk", *o.Block, 16, 1<<16)
	if err != nil {
		return err
	}
	a := &agenticSession{parser: p, block: block}
	s, err := a.list(*o.ID, "reqs", o.Reqs)
	if err != nil {
		return err
	}
	if len(s.Turns) == 0 && len(s.Subs) == 0 {
		return p.wrong("reqs", "[]", "at least one request")
	}
	p.sessions = append(p.sessions, s)
	return nil
}

// agenticSession is one line while it is read.
type agenticSession struct {
	*parser
	block int
	own   uint64 // numbers of texts that have no block id
}

// list reads the requests of a session or of a sub-agent. Each of its chains
// continues that of the request before it in the same list.
func (a *agenticSession) list(id, field string, items []agenticItem) (Session, error) {
	s := Session{ID: id}
	var before chain
	var answered time.Duration
	for i := range items {
		it, at := &items[i], fmt.Sprintf("%s[%d]", field, i)
		if it.Sub != nil {
			sub, err := a.sub(id, at, it, len(s.Turns)-1, answered)
			if err != nil {
				return s, err
			}
			s.Subs = append(s.Subs, sub)
			continue
		}
		t, took, err := a.values(at, it)
		if err != nil {
			return s, err
		}
		if before, err = a.chain(at, it, before, &t); err != nil {
			return s, err
		}
		if t.Think < 0 {
			t.Think = max(0, t.At-answered)
		}
		if len(s.Turns) == 0 {
			t.Think = 0
		}
		answered = t.At + took
		s.Turns = append(s.Turns, t)
	}
	return s, nil
}

func (a *agenticSession) sub(id, at string, it *agenticItem, after int, answered time.Duration) (Sub, error) {
	if it.At == nil {
		return Sub{}, a.wrong(at+".t", "absent", "the sub-agent's start in seconds")
	}
	start, err := a.seconds(at+".t", *it.At, 1)
	if err != nil {
		return Sub{}, err
	}
	s, err := a.list(id+"/"+*it.Sub, at+".reqs", it.Reqs)
	return Sub{After: after, At: start, Think: max(0, start-answered), Session: s}, err
}

// values reads what "v" says. t.Think is negative if the trace does not know
// it; took is how long the answer took then.
func (a *agenticSession) values(at string, it *agenticItem) (t Turn, took time.Duration, err error) {
	if len(it.Values) != len(agenticColumns) {
		return t, 0, a.wrong(at+".v", fmt.Sprintf("%d values", len(it.Values)), fmt.Sprintf("%d: %v", len(agenticColumns), agenticColumns))
	}
	number := func(i int) (float64, bool) {
		if err != nil || bytes.Equal(it.Values[i], []byte("null")) {
			return 0, false
		}
		v, perr := strconv.ParseFloat(string(it.Values[i]), 64)
		if perr != nil {
			err = a.wrong(at+"."+agenticColumns[i], string(it.Values[i]), "a number, or null for a time that is not known")
		}
		return v, err == nil
	}
	duration := func(i int, missing time.Duration) time.Duration {
		v, ok := number(i)
		if !ok {
			return missing
		}
		var d time.Duration
		d, err = a.seconds(at+"."+agenticColumns[i], v, 1)
		return d
	}
	tokens := func(i, least int) int {
		v, ok := number(i)
		if n := int(v); ok && float64(n) == v && n >= least && n <= maxTokens {
			return n
		}
		if err == nil {
			err = a.wrong(at+"."+agenticColumns[i], string(it.Values[i]), fmt.Sprintf("a whole number from %d to %d", least, maxTokens))
		}
		return 0
	}
	t.At = duration(0, 0)
	input := tokens(1, 1)
	t.Output = max(1, tokens(2, 0))
	took = duration(3, 0)
	t.Think = duration(4, -1)
	if err != nil {
		return t, 0, err
	}
	t.Append = []Span{{Tokens: input}} // chain makes it what it is
	return t, took, nil
}

// chain is what a request's successor may keep of it.
type chain struct{ blocks, tokens int }

// chain reads "h": how many of the previous request's blocks are kept, then
// runs of ids. What the ids leave of the prompt is text of its own.
func (a *agenticSession) chain(at string, it *agenticItem, before chain, t *Turn) (chain, error) {
	field, input, h := at+".h", t.Append[0].Tokens, it.Chain
	if len(h)%2 != 1 {
		return chain{}, a.wrong(field, fmt.Sprintf("%d numbers", len(h)), "an odd number of them: kept blocks, then pairs of first id and length")
	}
	if h[0] < 0 || h[0] > before.blocks {
		return chain{}, a.wrong(field+"[0]", strconv.Itoa(h[0]), fmt.Sprintf("from 0 to %d: the blocks of the request before", before.blocks))
	}
	most := (input + a.block - 1) / a.block
	if h[0] > most {
		return chain{}, a.wrong(field+"[0]", strconv.Itoa(h[0]), fmt.Sprintf("at most %d for %d tokens", most, input))
	}
	blocks := h[0]
	for i := 1; i < len(h); i += 2 {
		if h[i] < 0 || h[i] > 1<<40 {
			return chain{}, a.wrong(fmt.Sprintf("%s[%d]", field, i), strconv.Itoa(h[i]), "a block id, 0 or more")
		}
		if h[i+1] < 0 || h[i+1] > most-blocks {
			return chain{}, a.wrong(fmt.Sprintf("%s[%d]", field, i+1), strconv.Itoa(h[i+1]),
				fmt.Sprintf("from 0 to %d: all blocks together are at most %d for %d tokens", most-blocks, most, input))
		}
		blocks += h[i+1]
	}
	t.Keep = min(h[0]*a.block, input, before.tokens)
	t.Append = make([]Span, 0, blocks-h[0]+1)
	end := t.Keep
	for i := 1; i < len(h); i += 2 {
		for j := range h[i+1] {
			n := min(a.block, input-end)
			t.Append = append(t.Append, Span{spanID(kindBlock, uint64(a.line), uint64(h[i]+j)), n})
			end += n
		}
	}
	if end < input {
		a.own++
		t.Append = append(t.Append, Span{spanID(kindOwn, uint64(a.line), a.own), input - end})
	}
	return chain{blocks, input}, nil
}
