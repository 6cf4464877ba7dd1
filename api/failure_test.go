package api_test

import (
	"bufio"
	"context"
	"errors"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/api/apitest"
	"github.com/kvlend/kvlend/coordinator/wire"
)

// TestBrokenProtocol: an upstream that loses, repeats or invents anything gives
// an error and never a success, streaming or not.
func TestBrokenProtocol(t *testing.T) {
	ok := apitest.Step{Text: "ab"}
	for _, tc := range []struct {
		name, extra, code string
		script            []apitest.Step
	}{
		{"gap", "", "internal_error", []apitest.Step{ok, {Event: &wire.Chunk{First: 3, Tokens: []int32{99}}}}},
		{"repeat", "", "internal_error", []apitest.Step{ok, {Event: &wire.Chunk{First: 0, Tokens: []int32{97, 98}}}}},
		{"too few", "", "internal_error", []apitest.Step{ok, {Event: &wire.Finished{Reason: "stop", Tokens: 3}}}},
		{"too many counted", "", "internal_error", []apitest.Step{ok, {Event: &wire.Finished{Reason: "stop", Tokens: 1}}}},
		{"more than asked", `,"max_tokens":1`, "internal_error", []apitest.Step{ok}},
		{"foreign chunk", "", "internal_error", []apitest.Step{{Event: &wire.Chunk{ID: "other", Tokens: []int32{97}}}}},
		{"foreign finish", "", "internal_error", []apitest.Step{{Event: &wire.Finished{ID: "other", Reason: "stop"}}}},
		{"token beyond the vocabulary", "", "internal_error", []apitest.Step{{Tokens: []int32{259}}}},
		{"negative token", "", "internal_error", []apitest.Step{{Tokens: []int32{-1}}}},
		{"no logprobs", `,"logprobs":1`, "internal_error", []apitest.Step{{Event: &wire.Chunk{Tokens: []int32{97}}}}},
		{"no alternatives", `,"logprobs":1`, "internal_error", []apitest.Step{{Event: &wire.Chunk{Tokens: []int32{97}, Logprobs: []float32{-1}}}}},
		{"NaN", `,"logprobs":0`, "internal_error", []apitest.Step{{Event: &wire.Chunk{Tokens: []int32{97}, Logprobs: []float32{float32(math.NaN())}}}}},
		{"unknown reason", "", "internal_error", []apitest.Step{{Finish: "bored"}}},
		{"unknown event", "", "internal_error", []apitest.Step{{Event: 7}}},
		{"tokens after a stop token", "", "internal_error", []apitest.Step{{Tokens: []int32{258}}, ok}},
		{"cancelled by the process", "", "model_unavailable", []apitest.Step{ok, {Finish: "cancelled"}}},
		{"died", "", "model_unavailable", []apitest.Step{ok, {Die: true}}},
		{"failed", "", "internal_error", []apitest.Step{ok, {Event: &wire.Failed{Code: "internal_error", Message: "broke"}}}},
		{"failed without words", "", "internal_error", []apitest.Step{ok, {Event: &wire.Failed{}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := start(t, apitest.New(append(tc.script, apitest.Step{Until: true})...))
			status, _, body := s.post("/v1/completions", textBody(tc.extra))
			if status < 500 {
				t.Errorf("status %d", status)
			}
			wantErrorBody(t, body, tc.code)

			status, _, body = s.post("/v1/completions", textBody(tc.extra+`,"stream":true`))
			lines := strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n")
			if status >= 500 {
				wantErrorBody(t, body, tc.code) // nothing had been sent before
				return
			}
			if n := len(lines); n < 2 || lines[n-1] != "data: [DONE]" {
				t.Fatalf("the stream does not end with an error and [DONE]: %s", body)
			}
			wantErrorBody(t, strings.TrimPrefix(lines[len(lines)-2], "data: "), tc.code)
			if strings.Contains(body, `"finish_reason":"`) {
				t.Errorf("an answer that failed was finished: %s", body)
			}
		})
	}
}

// TestInfiniteLogprob: minus infinity is a value of models and none of JSON.
func TestInfiniteLogprob(t *testing.T) {
	s := start(t, apitest.New(apitest.Step{Event: &wire.Chunk{Tokens: []int32{97}, Logprobs: []float32{float32(math.Inf(-1))}}},
		apitest.Step{Event: &wire.Finished{Reason: "length", Tokens: 1}}))
	if status, _, body := s.post("/v1/completions", textBody(`,"logprobs":0`)); status != 200 || !strings.Contains(body, "[-9999]") {
		t.Errorf("%d %s", status, body)
	}
}

// TestRefusals: errors before the first token have a proper status, also when
// a stream was asked for.
func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		failed     wire.Failed
		status     int
		retryAfter string
	}{
		{wire.Failed{Code: "overloaded", Message: "full", RetryAfter: 1500 * time.Millisecond}, 429, "2"},
		{wire.Failed{Code: "rate_limit_exceeded", Message: "slow down"}, 429, "1"},
		{wire.Failed{Code: "context_length_exceeded", Message: "too long"}, 400, ""},
		{wire.Failed{Code: "internal_error", Message: "broke"}, 500, ""},
		{wire.Failed{Code: "strange", Message: "try later", RetryAfter: time.Second}, 503, "1"},
	} {
		for _, extra := range []string{``, `,"stream":true`} {
			up := apitest.New(apitest.Step{Event: &tc.failed})
			s := start(t, up)
			check := func() {
				t.Helper()
				status, h, body := s.post("/v1/completions", textBody(extra))
				if e := wantError(t, status, body, tc.status, tc.failed.Code); e.Message != tc.failed.Message {
					t.Errorf("message %q", e.Message)
				}
				if h.Get("Retry-After") != tc.retryAfter {
					t.Errorf("Retry-After %q, want %q", h.Get("Retry-After"), tc.retryAfter)
				}
			}
			check()
			up.SetRefuse(&api.SubmitError{Failed: tc.failed})
			check()
		}
	}
}

func TestUnavailable(t *testing.T) {
	up := apitest.New()
	s := start(t, up)
	up.SetRefuse(errors.New("link down"))
	status, h, body := s.post("/v1/completions", textBody(``))
	if e := wantError(t, status, body, 503, "model_unavailable"); h.Get("Retry-After") == "" || strings.Contains(e.Message, "link down") {
		t.Errorf("%v %s", h, body)
	}
	up.SetAlive(false)
	status, h, body = s.post("/v1/completions", textBody(``))
	if wantError(t, status, body, 503, "model_unavailable"); h.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	status, _, body = s.get("/health")
	if status != 503 {
		t.Errorf("health %d %s", status, body)
	}
}

// TestOneChoiceFails: the others are cancelled.
func TestOneChoiceFails(t *testing.T) {
	up := apitest.NewFunc(func(s *wire.Submit) []apitest.Step {
		if strings.HasSuffix(s.ID, "-1") {
			return []apitest.Step{{Text: "x"}, {Event: &wire.Failed{Code: "internal_error", Message: "broke"}}}
		}
		return []apitest.Step{{Text: "x"}, {Until: true}}
	})
	s := start(t, up)
	status, _, body := s.post("/v1/completions", textBody(`,"n":3`))
	wantError(t, status, body, 500, "internal_error")
	got := receive(t, "cancellation", up.Cancelled) + " " + receive(t, "cancellation", up.Cancelled)
	if !strings.Contains(got, "-0") || !strings.Contains(got, "-2") {
		t.Errorf("cancelled %s", got)
	}
}

// TestDisconnect: in every phase the client's departure cancels upstream.
func TestDisconnect(t *testing.T) {
	for _, stream := range []bool{false, true} {
		for _, phase := range []string{"submitting", "waiting", "generating"} {
			t.Run(phase, func(t *testing.T) {
				script := []apitest.Step{{Until: true}}
				if phase == "generating" {
					script = []apitest.Step{{Text: "a"}, {Text: "b"}, {Until: true}}
				}
				up := apitest.New(script...)
				if phase == "submitting" {
					up.SetHang(make(chan struct{}))
				}
				s := start(t, up)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				body := textBody(``)
				if stream {
					body = textBody(`,"stream":true`)
				}
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/completions", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan struct{})
				first := make(chan struct{})
				var once sync.Once
				go func() {
					defer close(done)
					resp, err := s.http.Do(req)
					if err != nil {
						return
					}
					defer resp.Body.Close()
					r := bufio.NewReader(resp.Body)
					// The error that ends the reading is the cancellation itself.
					for _, err := r.ReadString('\n'); err == nil; _, err = r.ReadString('\n') {
						once.Do(func() { close(first) })
					}
				}()
				sub := receive(t, "submission", up.Submitted)
				if stream && phase == "generating" {
					receive(t, "first event", first)
				}
				cancel()
				receive(t, "end of the client", done)
				if phase != "submitting" {
					if id := receive(t, "cancellation", up.Cancelled); id != sub.ID {
						t.Errorf("cancelled %s, not %s", id, sub.ID)
					}
				}
			})
		}
	}
}

// TestRequestTimeout: before the first token a status, afterwards an error line.
func TestRequestTimeout(t *testing.T) {
	s := start(t, apitest.New(apitest.Step{Text: "a"}, apitest.Step{Until: true}),
		func(o *api.Options) { o.RequestTimeout = 50 * time.Millisecond })
	status, _, body := s.post("/v1/completions", textBody(``))
	wantError(t, status, body, 504, "request_timeout")
	status, _, body = s.post("/v1/completions", textBody(`,"stream":true`))
	if status != 200 || !strings.Contains(body, `"code":"request_timeout"`) || !strings.HasSuffix(body, "data: [DONE]\n\n") {
		t.Errorf("%d %s", status, body)
	}
	for range 2 {
		receive(t, "cancellation", s.up.Cancelled)
	}
}

// TestReadTimeoutSparesAnswers: the deadline for reading a request must not
// end a long answer.
func TestReadTimeoutSparesAnswers(t *testing.T) {
	wait := make(chan struct{})
	s := start(t, apitest.New(apitest.Step{Wait: wait}, apitest.Step{Text: "a"}, apitest.Step{Finish: "stop"}),
		func(o *api.Options) { o.ReadTimeout = 30 * time.Millisecond })
	timer := time.AfterFunc(150*time.Millisecond, func() { close(wait) })
	defer timer.Stop()
	if status, _, body := s.post("/v1/completions", textBody(``)); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}

// TestShutdown cancels what does not finish by itself.
func TestShutdown(t *testing.T) {
	up := apitest.New(apitest.Step{Text: "a"}, apitest.Step{Until: true})
	s := start(t, up)
	done := make(chan struct{})
	go func() {
		defer close(done)
		resp, err := s.http.Post(s.url+"/v1/completions", "application/json", strings.NewReader(textBody(``)))
		if err == nil {
			resp.Body.Close()
		}
	}()
	sub := receive(t, "submission", up.Submitted)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.gw.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("shutdown without patience: %v", err)
	}
	if id := receive(t, "cancellation", up.Cancelled); id != sub.ID {
		t.Errorf("cancelled %s, not %s", id, sub.ID)
	}
	receive(t, "end of the client", done)
}
