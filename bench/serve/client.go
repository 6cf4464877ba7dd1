package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/kvlend/kvlend/api/client"
	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/bench/serve/report"
)

// Codes of failures that the server did not name.
const (
	codeTimeout    = "timeout"
	codeConnection = "connection"
	codeCutOff     = "cut_off"
	codeImproper   = "improper"
)

// maxEvent bounds one event of a stream, in bytes.
const maxEvent = 16 << 20

// gateway asks a server for streamed completions of token ids. It reads no more
// of an answer's events than it needs: it shares the machine with the server.
type gateway struct {
	url, key, model string
	limit           time.Duration
	http            *http.Client
}

func newGateway(url, key, model string, limit time.Duration) *gateway {
	// Every request may be on its way at once, and no connection is new when
	// one before it could be used.
	t := &http.Transport{MaxIdleConns: 0, MaxIdleConnsPerHost: 1 << 16, DisableCompression: true, IdleConnTimeout: 5 * time.Minute}
	return &gateway{url: url, key: key, model: model, limit: limit, http: &http.Client{Transport: t}}
}

func (g *gateway) close() { g.http.CloseIdleConnections() }

// card finds the model that the load is for: the named one; or else the first
// master, or the first.
func (g *gateway) card(ctx context.Context) (openai.ModelCard, error) {
	c, err := client.New(g.url, g.key, g.http)
	if err != nil {
		return openai.ModelCard{}, err
	}
	cards, err := c.Models(ctx)
	if err != nil {
		return openai.ModelCard{}, fmt.Errorf("list the server's models: %w", err)
	}
	var names []string
	best := -1
	for i, card := range cards {
		if card.ID == g.model {
			return card, nil
		}
		names = append(names, card.ID)
		if best < 0 || card.Role == "master" && cards[best].Role != "master" {
			best = i
		}
	}
	if g.model != "" || best < 0 {
		return openai.ModelCard{}, fmt.Errorf("there is no model %q; the server has %q", g.model, names)
	}
	return cards[best], nil
}

// tokenize has the server turn text with special tokens into token ids, none
// added: it alone knows how.
func (g *gateway) tokenize(ctx context.Context, text string) ([]int32, error) {
	ctx, cancel := context.WithTimeout(ctx, g.limit)
	defer cancel()
	c, err := client.New(g.url, g.key, g.http)
	if err != nil {
		return nil, err
	}
	none := false
	res, err := c.Tokenize(ctx, openai.TokenizeRequest{Model: g.model, Prompt: &text, AddSpecialTokens: &none})
	if err != nil {
		return nil, fmt.Errorf("the server does not tokenize: %w", err)
	}
	return res.Tokens, nil
}

// ask implements asker.
func (g *gateway) ask(ctx context.Context, r *request) answer {
	ctx, cancel := context.WithTimeout(ctx, g.limit)
	defer cancel()
	body, err := json.Marshal(struct {
		Model         string  `json:"model"`
		Prompt        []int32 `json:"prompt"`
		MaxTokens     int     `json:"max_tokens"`
		Temperature   float64 `json:"temperature"`
		TopP          float64 `json:"top_p"`
		TopK          int     `json:"top_k"`
		IgnoreEOS     bool    `json:"ignore_eos"`
		Stream        bool    `json:"stream"`
		StreamOptions any     `json:"stream_options"`
		Kvlend        bool    `json:"kvlend"`
	}{g.model, r.prompt, r.output, 0, 1, 0, true, true, openai.StreamOptions{IncludeUsage: true}, true})
	if err != nil {
		return failed(ctx, codeImproper, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return failed(ctx, codeConnection, err)
	}
	req.Header.Set("Content-Type", "application/json")
	if g.key != "" {
		req.Header.Set("Authorization", "Bearer "+g.key)
	}
	res, err := g.http.Do(req)
	if err != nil {
		return failed(ctx, codeConnection, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return refusal(ctx, res)
	}
	return readStream(ctx, res.Body)
}

// failed is an answer that did not come.
func failed(ctx context.Context, code string, err error) answer {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = codeTimeout
	}
	return answer{code: code, text: err.Error()}
}

// refusal reads an error answer.
func refusal(ctx context.Context, res *http.Response) answer {
	raw, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return failed(ctx, codeConnection, err)
	}
	a := answer{code: fmt.Sprintf("http_%d", res.StatusCode), text: res.Status}
	var body openai.ErrorBody
	if json.Unmarshal(raw, &body) == nil && body.Error.Message != "" {
		a.text = body.Error.Message
		if body.Error.Code != nil && *body.Error.Code != "" {
			a.code = *body.Error.Code
		}
	}
	if n, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && n > 0 {
		a.retryAfter = time.Duration(n) * time.Second
	}
	return a
}

// Signs of what an event holds. Quotes inside a JSON string are escaped, so no
// text of a model can look like one.
var (
	signChoice = []byte(`"choices":[{`)
	signUsage  = []byte(`"usage":{`)
	signKvlend = []byte(`"kvlend":{`)
	signError  = []byte(`"error":{`)
)

// readStream reads an answer to its end.
func readStream(ctx context.Context, body io.Reader) answer {
	var a answer
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 4<<10), maxEvent)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		if data = bytes.TrimSpace(data); string(data) == "[DONE]" {
			return a.whole()
		}
		if bytes.Contains(data, signChoice) {
			a.end = time.Now()
			if a.first.IsZero() {
				a.first = a.end
			}
		}
		if bytes.Contains(data, signUsage) || bytes.Contains(data, signKvlend) || bytes.Contains(data, signError) {
			if err := a.event(data); err != nil {
				return failed(ctx, codeImproper, err)
			}
			if a.code != "" {
				return a
			}
		}
	}
	err := lines.Err()
	if err == nil {
		err = errors.New("the stream ended without [DONE]")
	}
	return failed(ctx, codeCutOff, err)
}

// whole checks an answer that says that it is.
func (a *answer) whole() answer {
	if a.output == 0 {
		a.output = len(a.tokens)
	}
	if a.first.IsZero() || a.output == 0 {
		return answer{code: codeImproper, text: "the stream ended without a token, or without usage"}
	}
	a.code = report.CodeOK
	return *a
}

// event reads an event that says more than text.
func (a *answer) event(data []byte) error {
	var ev struct {
		Usage  *openai.Usage   `json:"usage"`
		Kvlend json.RawMessage `json:"kvlend"`
		Error  *openai.Error   `json:"error"`
	}
	if err := json.Unmarshal(data, &ev); err != nil {
		return fmt.Errorf("an event is not what the protocol says: %w", err)
	}
	if e := ev.Error; e != nil {
		a.code, a.text = "error", e.Message
		if e.Code != nil && *e.Code != "" {
			a.code = *e.Code
		}
		return nil
	}
	if ev.Usage != nil {
		a.output, a.cached = ev.Usage.CompletionTokens, ev.Usage.PromptTokensDetails.CachedTokens
	}
	if len(ev.Kvlend) > 0 {
		return a.receipt(ev.Kvlend)
	}
	return nil
}

// receipt reads what kvlend adds to an answer. The server's version need not be
// ours: what it does not tell is not known.
func (a *answer) receipt(raw []byte) error {
	var k struct {
		TokenIDs   []int32       `json:"token_ids"`
		LogitsHash string        `json:"logits_hash"`
		Receipt    *report.Tiers `json:"receipt"`
	}
	if err := json.Unmarshal(raw, &k); err != nil {
		return fmt.Errorf("the kvlend object is not what it was: %w", err)
	}
	a.tokens, a.hash, a.tiers = k.TokenIDs, k.LogitsHash, k.Receipt
	return nil
}
