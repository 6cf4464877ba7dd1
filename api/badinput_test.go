package api_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/api/apitest"
)

// TestBadInput: every wrong request gets an error that names the field, none
// reaches the model process, and a good one is served afterwards.
func TestBadInput(t *testing.T) {
	s := start(t, apitest.New(apitest.Say("ok", "stop")...))
	const chat, text = "/v1/chat/completions", "/v1/completions"
	type row struct {
		path, body  string
		status      int
		code, param string
	}
	rows := []row{
		{chat, ``, 400, "invalid_json", ""},
		{chat, `   `, 400, "invalid_json", ""},
		{chat, `{`, 400, "invalid_json", ""},
		{chat, `nonsense`, 400, "invalid_json", ""},
		{chat, `[]`, 400, "invalid_type", ""},
		{chat, `"x"`, 400, "invalid_type", ""},
		{chat, chatBody(``) + `x`, 400, "invalid_json", ""},
		{chat, chatBody(``) + `{}`, 400, "invalid_json", ""},
		{chat, chatBody(`,"user":"` + "\xff" + `"`), 400, "invalid_utf8", ""},
		{text, textBody(`,"temperature":NaN`), 400, "invalid_json", ""},
		{text, strings.Repeat(`{"a":`, 100_000), 400, "invalid_json", ""},
		{chat, `null`, 400, "missing_required_parameter", "model"},
		{chat, `{}`, 400, "missing_required_parameter", "model"},
		{chat, `{"model":7}`, 400, "invalid_type", "model"},
		{chat, `{"model":"nope","messages":[]}`, 404, "model_not_found", "model"},
		{text, `{"model":"` + strings.Repeat("n", 5000) + `"}`, 404, "model_not_found", "model"},
		{chat, `{"model":"toy"}`, 400, "missing_required_parameter", "messages"},
		{chat, `{"model":"toy","messages":[]}`, 400, "missing_required_parameter", "messages"},
		{chat, `{"model":"toy","messages":{}}`, 400, "invalid_type", "messages"},
		{chat, `{"model":"toy","messages":[null]}`, 400, "invalid_value", "messages[0].role"},
		{chat, `{"model":"toy","messages":[{"role":"king","content":"x"}]}`, 400, "invalid_value", "messages[0].role"},
		{chat, `{"model":"toy","messages":[{"role":"user"}]}`, 400, "missing_required_parameter", "messages[0].content"},
		{chat, `{"model":"toy","messages":[{"role":"user","content":7}]}`, 400, "invalid_type", "messages[0].content"},
		{chat, `{"model":"toy","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, "unsupported_value", "messages[0].content[0].type"},
		{chat, `{"model":"toy","messages":[{"role":"user","content":[{"type":"text"}]}]}`, 400, "missing_required_parameter", "messages[0].content[0].text"},
		{chat, `{"model":"toy","messages":[{"role":"system","content":"x"}]}`, 400, "invalid_value", "messages"}, // the template refuses
		{chat, chatBody(`,"max_completion_tokens":0`), 400, "invalid_value", "max_completion_tokens"},
		{chat, chatBody(`,"max_tokens":"7"`), 400, "invalid_type", "max_tokens"},
		{chat, chatBody(`,"top_logprobs":2`), 400, "invalid_value", "top_logprobs"},
		{chat, chatBody(`,"logprobs":true,"top_logprobs":21`), 400, "invalid_value", "top_logprobs"},
		{chat, chatBody(`,"logprobs":3`), 400, "invalid_type", "logprobs"},
		{chat, chatBody(`,"tool_choice":"required"`), 400, "unsupported_value", "tool_choice"},
		{chat, chatBody(`,"functions":[{}]`), 400, "unsupported_parameter", "functions"},
		{chat, chatBody(`,"modalities":["audio"]`), 400, "unsupported_value", "modalities[0]"},
		{chat, chatBody(`,"response_format":{"type":"json_object"}`), 400, "unsupported_value", "response_format"},
		{chat, chatBody(`,"response_format":"json"`), 400, "invalid_type", "response_format"},
		{text, `{"model":"toy"}`, 400, "missing_required_parameter", "prompt"},
		{text, `{"model":"toy","prompt":""}`, 400, "invalid_value", "prompt"},
		{text, `{"model":"toy","prompt":[]}`, 400, "invalid_value", "prompt"},
		{text, `{"model":"toy","prompt":[[]]}`, 400, "invalid_value", "prompt"},
		{text, `{"model":"toy","prompt":{}}`, 400, "invalid_type", "prompt"},
		{text, `{"model":"toy","prompt":[1,"a"]}`, 400, "invalid_type", "prompt"},
		{text, `{"model":"toy","prompt":["a",null]}`, 400, "invalid_type", "prompt"},
		{text, `{"model":"toy","prompt":[1,null]}`, 400, "invalid_type", "prompt"},
		{text, `{"model":"toy","prompt":[null]}`, 400, "invalid_type", "prompt"},
		{text, `{"model":"toy","prompt":[1.5]}`, 400, "invalid_type", "prompt"},
		{text, `{"model":"toy","prompt":[259]}`, 400, "invalid_value", "prompt[0]"},
		{text, `{"model":"toy","prompt":[[1],[-1]]}`, 400, "invalid_value", "prompt[0]"},
		{text, textBody(`,"echo":true,"logprobs":1`), 400, "unsupported_parameter", "logprobs"},
		{text, textBody(`,"suffix":"x"`), 400, "unsupported_parameter", "suffix"},
		{text, textBody(`,"best_of":3`), 400, "invalid_value", "best_of"},
		{text, textBody(`,"n":0`), 400, "invalid_value", "n"},
		{text, textBody(`,"n":129`), 400, "invalid_value", "n"},
		{text, `{"model":"toy","prompt":["a","b"],"n":65}`, 400, "invalid_value", "n"},
		{text, textBody(`,"stream_options":{"include_usage":true}`), 400, "invalid_value", "stream_options"},
		{text, textBody(`,"stop":7`), 400, "invalid_type", "stop"},
		{text, textBody(`,"stop":[""]`), 400, "invalid_value", "stop[0]"},
		{text, textBody(`,"stop":["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"]`), 400, "invalid_value", "stop"},
		{text, textBody(`,"stop_token_ids":[300]`), 400, "invalid_value", "stop_token_ids[0]"},
		{text, textBody(`,"logit_bias":{"x":1}`), 400, "invalid_value", "logit_bias"},
		{text, textBody(`,"logit_bias":{"259":1}`), 400, "invalid_value", "logit_bias"},
		{text, textBody(`,"logit_bias":{"5":101}`), 400, "invalid_value", "logit_bias[5]"},
		{text, textBody(`,"cache_salt":""`), 400, "invalid_value", "cache_salt"},
		{text, textBody(`,"user":"` + strings.Repeat("u", 513) + `"`), 400, "invalid_value", "user"},
		{text, textBody(`,"priority":9999999`), 400, "invalid_value", "priority"},
		{text, textBody(`,"seed":1.5`), 400, "invalid_type", "seed"},
		{text, textBody(`,"temperature":1e999`), 400, "invalid_type", "temperature"},
		{text, textBody(`,"stream":"yes"`), 400, "invalid_type", "stream"},
		{"/tokenize", `{"model":"toy"}`, 400, "missing_required_parameter", "prompt"},
		{"/tokenize", `{"model":"toy","prompt":"a","messages":[]}`, 400, "missing_required_parameter", "prompt"},
		{"/detokenize", `{"model":"toy"}`, 400, "missing_required_parameter", "tokens"},
		{"/detokenize", `{"model":"toy","tokens":[259]}`, 400, "invalid_value", "tokens[0]"},
	}
	for _, v := range []string{"-1", "0", "2147483648", "9223372036854775807"} {
		rows = append(rows, row{text, textBody(`,"max_tokens":` + v), 400, "invalid_value", "max_tokens"},
			row{chat, chatBody(`,"max_tokens":` + v), 400, "invalid_value", "max_tokens"})
	}
	rows = append(rows, row{text, textBody(`,"max_tokens":1e30`), 400, "invalid_type", "max_tokens"},
		row{text, textBody(`,"max_tokens":2147483647`), 400, "context_length_exceeded", "prompt"},
		row{chat, chatBody(`,"max_tokens":1000000`), 400, "context_length_exceeded", "messages"})
	for field, values := range map[string][]string{
		"temperature": {"-0.1", "101", "1e300"}, "top_p": {"0", "1.1", "-1"}, "min_p": {"-0.1", "1.5"}, "top_k": {"-2"},
		"presence_penalty": {"2.5", "-3"}, "frequency_penalty": {"3"}, "repetition_penalty": {"0", "-1", "1e9"},
	} {
		for _, v := range values {
			rows = append(rows, row{text, textBody(`,"` + field + `":` + v), 400, "invalid_value", field})
		}
	}
	for _, r := range rows {
		status, _, body := s.post(r.path, r.body)
		name := r.path + " " + r.body[:min(len(r.body), 120)]
		t.Run(name, func(t *testing.T) {
			e := wantError(t, status, body, r.status, r.code)
			if r.param != "" && (e.Param == nil || *e.Param != r.param) {
				t.Errorf("param of %s, want %s", body, r.param)
			}
			if len(e.Message) > 1000 {
				t.Errorf("a message of %d bytes", len(e.Message))
			}
		})
	}
	if status, _, body := s.post(chat, chatBody(``)); status != 200 {
		t.Errorf("a good request afterwards: %d %s", status, body)
	}
	if n := len(s.up.Submitted); n != 1 {
		t.Errorf("%d requests reached the model, want the good one only", n)
	}
}

func TestUnknownModelNamesTheOthers(t *testing.T) {
	s := start(t, apitest.New())
	status, _, body := s.post("/v1/completions", `{"model":"nope","prompt":"x"}`)
	if e := wantError(t, status, body, 404, "model_not_found"); !strings.Contains(e.Message, "toy") || !strings.Contains(e.Message, "nope") {
		t.Errorf("message %q", e.Message)
	}
}

// TestTolerated: what SDKs send beside the protocol does no harm.
func TestTolerated(t *testing.T) {
	s := start(t, apitest.New(apitest.Say("ok", "stop")...))
	for _, extra := range []string{
		`,"store":false,"metadata":{"a":"b"},"service_tier":"auto","parallel_tool_calls":true`,
		`,"temperature":1,"temperature":0`,
		`,"stop":null,"logit_bias":null,"max_tokens":null,"response_format":null,"tools":null,"audio":null,"stream_options":null`,
		`,"response_format":{"type":"text"},"tool_choice":"auto","modalities":["text"]`,
		`,"top_k":-1,"seed":-9223372036854775808`,
	} {
		if status, _, body := s.post("/v1/chat/completions", chatBody(extra)); status != 200 {
			t.Errorf("%s: %d %s", extra, status, body)
		}
	}
}

// endless yields n bytes without holding them.
type endless struct{ n int64 }

func (e *endless) Read(p []byte) (int, error) {
	if e.n == 0 {
		return 0, io.EOF
	}
	k := min(int64(len(p)), e.n)
	for i := range p[:k] {
		p[i] = ' '
	}
	e.n -= k
	return int(k), nil
}

// TestHugeBody: 100 MB are refused in the error shape, whether or not the
// client says beforehand how much it will send.
func TestHugeBody(t *testing.T) {
	s := start(t, apitest.New(apitest.Say("ok", "stop")...))
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprint("length known ", known), func(t *testing.T) {
			req, err := http.NewRequest(http.MethodPost, s.url+"/v1/chat/completions", &endless{100 << 20})
			if err != nil {
				t.Fatal(err)
			}
			if known {
				req.ContentLength = 100 << 20
			}
			resp, err := s.http.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			wantError(t, resp.StatusCode, string(body), 413, "request_too_large")
		})
	}
	if status, _, body := s.post("/v1/chat/completions", chatBody(``)); status != 200 {
		t.Errorf("a good request afterwards: %d %s", status, body)
	}
}

func TestBodyAtTheLimit(t *testing.T) {
	body := textBody(``)
	s := start(t, apitest.New(apitest.Say("ok", "stop")...), func(o *api.Options) { o.MaxBody = int64(len(body)) })
	if status, _, got := s.post("/v1/completions", body); status != 200 {
		t.Errorf("%d %s", status, got)
	}
	status, _, got := s.post("/v1/completions", body+" ")
	wantError(t, status, got, 413, "request_too_large")
}

// TestHeaderBomb: net/http answers before the gateway sees the request, and
// closes the connection on what it did not read.
func TestHeaderBomb(t *testing.T) {
	s := start(t, apitest.New(apitest.Say("ok", "stop")...))
	many := http.Header{}
	for i := range 10_000 {
		many.Set(fmt.Sprintf("X-%d", i), "some value")
	}
	for name, h := range map[string]http.Header{"one": {"X-Bomb": {strings.Repeat("b", 200<<10)}}, "many": many} {
		req, err := http.NewRequest(http.MethodGet, s.url+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = h
		resp, err := s.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%s: status %d, want 431", name, resp.StatusCode)
		}
	}
	if status, _, body := s.post("/v1/chat/completions", chatBody(``)); status != 200 {
		t.Errorf("a good request afterwards: %d %s", status, body)
	}
}

func TestContentEncodingRefused(t *testing.T) {
	s := start(t, apitest.New())
	status, _, body := s.do(http.MethodPost, "/v1/completions", strings.NewReader("x"), http.Header{"Content-Encoding": {"gzip"}})
	wantError(t, status, body, 415, "unsupported_encoding")
}

func TestNoSuchRoute(t *testing.T) {
	s := start(t, apitest.New())
	for _, p := range []string{"/", "/v2/chat", "/admin/status", "/v1/chat/completions/"} {
		status, _, body := s.post(p, `{}`)
		wantError(t, status, body, 404, "not_found")
	}
	status, h, body := s.get("/v1/chat/completions")
	wantError(t, status, body, 405, "method_not_allowed")
	if h.Get("Allow") != "POST" {
		t.Errorf("Allow: %q", h.Get("Allow"))
	}
}
