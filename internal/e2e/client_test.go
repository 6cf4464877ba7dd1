package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/kvlend/kvlend/api/openai"
)

// body is the HTTP form of a request. Nothing but its length ends it.
func (q Request) body(stream bool) []byte {
	return must(json.Marshal(map[string]any{
		"model": q.Model, "prompt": q.Prompt, "max_tokens": q.MaxTokens, "temperature": q.Temperature, "seed": q.Seed,
		"top_p": 1, "top_k": 0, "ignore_eos": true, "kvlend": true, "stream": stream,
	}))
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return b
}

// statusError is an answer other than 200.
type statusError struct {
	status int
	body   openai.Error
}

func (e *statusError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.status, e.body.Message) }

func (e *statusError) code() string {
	if e.body.Code == nil {
		return ""
	}
	return *e.body.Code
}

func (s *System) post(ctx context.Context, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Endpoint+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	var e openai.ErrorBody
	if err := json.Unmarshal(raw, &e); err != nil {
		return nil, fmt.Errorf("HTTP %d with a body that is no error object: %q", res.StatusCode, raw)
	}
	return nil, &statusError{res.StatusCode, e.Error}
}

// Complete sends a request and returns its answer and receipt.
func (s *System) Complete(ctx context.Context, q Request) (Answer, *openai.Kvlend, error) {
	res, err := s.post(ctx, "/v1/completions", q.body(false))
	if err != nil {
		return Answer{}, nil, err
	}
	defer res.Body.Close()
	var c openai.Completion
	if err := json.NewDecoder(res.Body).Decode(&c); err != nil {
		return Answer{}, nil, err
	}
	if c.Kvlend == nil {
		return Answer{}, nil, fmt.Errorf("the answer has no receipt")
	}
	return Answer{c.Kvlend.TokenIDs, c.Kvlend.LogitsHash}, c.Kvlend, nil
}

// Stream is an answer in progress.
type Stream struct {
	body    io.ReadCloser
	lines   *bufio.Scanner
	Receipt *openai.Kvlend // of the last event
}

// Stream sends a request and returns when its answer begins.
func (s *System) Stream(ctx context.Context, q Request) (*Stream, error) {
	res, err := s.post(ctx, "/v1/completions", q.body(true))
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 4<<20)
	return &Stream{body: res.Body, lines: lines}, nil
}

// Next reads one event; io.EOF comes after the last.
func (r *Stream) Next() error {
	for r.lines.Scan() {
		data, ok := strings.CutPrefix(r.lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return io.EOF
		}
		var ev struct {
			openai.Completion
			Error *openai.Error `json:"error"`
		}
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			return err
		}
		if ev.Error != nil {
			return fmt.Errorf("error in the stream: %s", ev.Error.Message)
		}
		if ev.Kvlend != nil {
			r.Receipt = ev.Kvlend
		}
		return nil
	}
	if err := r.lines.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

// Rest reads to the end.
func (r *Stream) Rest() (Answer, error) {
	defer r.Close()
	for {
		switch err := r.Next(); {
		case err == io.EOF && r.Receipt == nil:
			return Answer{}, fmt.Errorf("the stream had no receipt")
		case err == io.EOF:
			return Answer{r.Receipt.TokenIDs, r.Receipt.LogitsHash}, nil
		case err != nil:
			return Answer{}, err
		}
	}
}

// Close hangs up.
func (r *Stream) Close() { r.body.Close() }
