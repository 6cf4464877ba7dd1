// Package client speaks the OpenAI protocol from the other side: a small client
// for tests, experiments and the terminal, and the terminal chat itself. It
// works with any server of that protocol.
package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kvlend/kvlend/api/openai"
)

const (
	// maxEvent bounds one event of a stream, in bytes.
	maxEvent = 16 << 20
	// maxAnswer bounds a whole answer, in bytes.
	maxAnswer = 256 << 20
)

// Client calls one server. It is safe for concurrent use.
type Client struct {
	base string
	key  string
	http *http.Client
}

// New returns a client. base is the server's address without /v1, such as
// http://127.0.0.1:8000; key may be empty; a nil hc stands for
// http.DefaultClient.
func New(base, key string, hc *http.Client) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("server %q: it must be an address such as http://127.0.0.1:8000", base)
	}
	if hc == nil {
		hc = http.DefaultClient
	}
	return &Client{strings.TrimSuffix(strings.TrimSuffix(base, "/"), "/v1"), key, hc}, nil
}

// Error is an error that the server reported.
type Error struct {
	Status     int // of HTTP; 200 when it came in the middle of a stream
	RetryAfter time.Duration
	Body       openai.Error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Body.Code != nil && *e.Body.Code != "" {
		return fmt.Sprintf("%s (%s)", e.Body.Message, *e.Body.Code)
	}
	return e.Body.Message
}

// Models lists the models.
func (c *Client) Models(ctx context.Context) ([]openai.ModelCard, error) {
	var list openai.ModelList
	err := c.call(ctx, http.MethodGet, "/v1/models", nil, &list)
	return list.Data, err
}

// Chat asks for a whole answer.
func (c *Client) Chat(ctx context.Context, req openai.ChatRequest) (*openai.ChatResponse, error) {
	req.Stream, req.StreamOptions = false, nil
	var out openai.ChatResponse
	if err := c.call(ctx, http.MethodPost, "/v1/chat/completions", req, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// ChatStream asks for a streamed answer and calls each with every chunk. An
// error from each ends the request and is returned.
func (c *Client) ChatStream(ctx context.Context, req openai.ChatRequest, each func(*openai.ChatChunk) error) error {
	req.Stream = true
	return stream(ctx, c, "/v1/chat/completions", req, each)
}

// Complete asks for a whole answer.
func (c *Client) Complete(ctx context.Context, req openai.CompletionRequest) (*openai.Completion, error) {
	req.Stream, req.StreamOptions = false, nil
	var out openai.Completion
	if err := c.call(ctx, http.MethodPost, "/v1/completions", req, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// CompleteStream asks for a streamed answer and calls each with every chunk.
// An error from each ends the request and is returned.
func (c *Client) CompleteStream(ctx context.Context, req openai.CompletionRequest, each func(*openai.Completion) error) error {
	req.Stream = true
	return stream(ctx, c, "/v1/completions", req, each)
}

// Tokenize turns text or messages into tokens.
func (c *Client) Tokenize(ctx context.Context, req openai.TokenizeRequest) (*openai.TokenizeResponse, error) {
	var out openai.TokenizeResponse
	if err := c.call(ctx, http.MethodPost, "/tokenize", req, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

func (c *Client) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.Join(failure(resp), resp.Body.Close())
	}
	return resp, nil
}

// failure reads an error answer, which need not come from a server of ours.
func failure(resp *http.Response) error {
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("%s: %w", resp.Status, err)
	}
	e := &Error{Status: resp.StatusCode}
	if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && n > 0 {
		e.RetryAfter = time.Duration(n) * time.Second
	}
	var body openai.ErrorBody
	if json.Unmarshal(raw, &body) == nil && body.Error.Message != "" {
		e.Body = body.Error
		return e
	}
	e.Body.Message = resp.Status
	return e
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s: the answer is not what the protocol says: %w", path, err)
	}
	return nil
}

// stream decodes server-sent events until the end marker. A stream that ends
// without one was cut off.
func stream[T any](ctx context.Context, c *Client, path string, in any, each func(*T) error) error {
	resp, err := c.send(ctx, http.MethodPost, path, in)
	if err != nil {
		return err
	}
	// What is unread is abandoned with the connection; closing has nothing to say.
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 4<<10), maxEvent)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		data = bytes.TrimSpace(data)
		if string(data) == "[DONE]" {
			return nil
		}
		var failed struct{ Error *openai.Error }
		if json.Unmarshal(data, &failed) == nil && failed.Error != nil {
			return &Error{Status: http.StatusOK, Body: *failed.Error}
		}
		chunk := new(T)
		if err := json.Unmarshal(data, chunk); err != nil {
			return fmt.Errorf("%s: an event is not what the protocol says: %w", path, err)
		}
		if err := each(chunk); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return fmt.Errorf("%s: the stream was cut off: %w", path, io.ErrUnexpectedEOF)
}
