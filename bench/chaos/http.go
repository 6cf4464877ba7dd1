package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/kvlend/kvlend/api/openai"
)

// httpClient speaks to the gateway, with more distrust than a usual client: it
// tells an answer that broke off from one that claims to be whole.
type httpClient struct {
	endpoint string
	http     *http.Client
}

func newHTTPClient(endpoint string) *httpClient {
	return &httpClient{endpoint, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

func (c *httpClient) close() { c.http.CloseIdleConnections() }

// refusal is a proper error: the server says what is wrong.
type refusal struct {
	status int // 200 in the middle of a stream
	code   string
	text   string
}

func (e *refusal) Error() string { return fmt.Sprintf("HTTP %d, %s: %s", e.status, e.code, e.text) }

// badAnswer is an answer that breaks the protocol, such as a success without
// its end.
type badAnswer struct{ why string }

func (e *badAnswer) Error() string { return e.why }

func refused(status int, e openai.Error) error {
	if e.Code == nil || *e.Code == "" || e.Message == "" {
		return &badAnswer{fmt.Sprintf("HTTP %d without code or message", status)}
	}
	if *e.Code == "internal_error" || (status != http.StatusOK && status < 500 && status != http.StatusTooManyRequests) {
		return &badAnswer{fmt.Sprintf("HTTP %d, %s to a request that is right: %s", status, *e.Code, e.Message)}
	}
	return &refusal{status, *e.Code, e.Message}
}

// do sends a request and returns the receipt of a whole answer. after is
// called with the number of events so far; it may cancel ctx.
func (c *httpClient) do(ctx context.Context, a ask, stream bool, after func(events int)) (*openai.Kvlend, error) {
	body, err := json.Marshal(map[string]any{
		"model": a.Model, "prompt": a.Prompt, "max_tokens": a.MaxTokens, "temperature": a.Temperature, "seed": a.Seed,
		"top_p": 1, "top_k": 0, "ignore_eos": true, "kvlend": true, "stream": stream,
	})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.GetBody = nil // no silent repetition: every outcome is counted
	req.Header.Set("Content-Type", "application/json")
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK && stream {
		return readStream(res.Body, after)
	}
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		var e openai.ErrorBody
		if err := json.Unmarshal(raw, &e); err != nil {
			return nil, &badAnswer{fmt.Sprintf("HTTP %d with a body that is no error object: %.200q", res.StatusCode, raw)}
		}
		return nil, refused(res.StatusCode, e.Error)
	}
	var out openai.Completion
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, &badAnswer{fmt.Sprintf("HTTP 200 with a body that is no completion: %.200q", raw)}
	}
	return whole(&out, out.Kvlend)
}

// whole checks that an answer says that it came to its end.
func whole(last *openai.Completion, r *openai.Kvlend) (*openai.Kvlend, error) {
	switch {
	case r == nil || r.Account == nil:
		return nil, &badAnswer{"success without a receipt"}
	case len(last.Choices) == 1 && last.Choices[0].FinishReason != nil && *last.Choices[0].FinishReason != "length":
		return nil, &badAnswer{fmt.Sprintf("finish reason %q, want length", *last.Choices[0].FinishReason)}
	}
	return r, nil
}

func readStream(body io.Reader, after func(int)) (*openai.Kvlend, error) {
	lines := bufio.NewReaderSize(body, 64<<10)
	var receipt *openai.Kvlend
	finished := false
	for events := 0; ; {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			// Not io.ErrUnexpectedEOF: the server says that this is all.
			return nil, &badAnswer{"the stream ended in good order, without [DONE] or an error"}
		}
		if err != nil {
			return nil, err
		}
		data, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			if !finished {
				return nil, &badAnswer{"the stream ended with [DONE] but without a finish reason"}
			}
			return whole(&openai.Completion{}, receipt)
		}
		var ev struct {
			openai.Completion
			Error *openai.Error `json:"error"`
		}
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			return nil, &badAnswer{fmt.Sprintf("event that is no JSON: %.200q", data)}
		}
		if ev.Error != nil {
			return nil, refused(http.StatusOK, *ev.Error)
		}
		if ev.Kvlend != nil {
			receipt = ev.Kvlend
		}
		for _, ch := range ev.Choices {
			finished = finished || ch.FinishReason != nil
		}
		events++
		after(events)
	}
}
