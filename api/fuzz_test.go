package api_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/api/apitest"
	"github.com/kvlend/kvlend/api/openai"
)

// FuzzRequest sends any body to every route that takes one. Whatever it is, the
// answer is a success or an error of the client in the protocol's shape, in
// valid UTF-8, and what reaches the model process is within its bounds.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		chatBody(``), textBody(``), chatBody(`,"stream":true,"stop":["a"],"logprobs":true,"top_logprobs":3`),
		textBody(`,"n":2,"echo":true,"logit_bias":{"5":1},"stream":true,"stream_options":{"include_usage":true}`),
		`{"model":"toy","prompt":[[1,2],[3]],"logprobs":0}`, `{"model":"toy","tokens":[1,2]}`, `{"model":"toy","messages":[{"role":"tool","content":[{"type":"text","text":"\ud800"}]}]}`,
		`{"MODEL":"toy","prompt":"\u0000"}`, `[`, `null`, "\xff", `{"model":"toy","max_tokens":1e9}`,
		`{"model":"auto","prompt":"ab","cache_salt":"s","priority":-1,"kvlend":{"receipt":true}}`, textBody(`,"kvlend":{"x":[1]}`),
		`{"model":"auto","messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{}]}],"tools":[{}]}`,
	} {
		f.Add(seed)
	}
	up := apitest.New(apitest.Say("ok", "stop")...)
	model := apitest.Model("toy", up)
	gw, err := api.New(api.Options{Models: []*api.Model{model}, Auto: true, MaxChoices: 4})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"} {
			rec := httptest.NewRecorder()
			gw.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
			got := rec.Body.String()
			if !utf8.ValidString(got) {
				t.Fatalf("%s: not UTF-8: %q", path, got)
			}
			switch {
			case rec.Code == 200:
			case rec.Code >= 400 && rec.Code < 500:
				var e openai.ErrorBody
				if err := json.Unmarshal([]byte(got), &e); err != nil || e.Error.Message == "" || e.Error.Code == nil {
					t.Fatalf("%s: %v: %s", path, err, got)
				}
			default:
				// The script says two tokens; asking for one breaks it.
				if !strings.Contains(got, "at most 1 were asked for") {
					t.Fatalf("%s: %d: %s", path, rec.Code, got)
				}
			}
		}
		for len(up.Submitted) > 0 {
			sub := <-up.Submitted
			if err := sub.Validate(); err != nil {
				t.Fatalf("submitted what no message can say: %v", err)
			}
			if sub.MaxTokens < 1 || len(sub.Tokens) < 1 || len(sub.Tokens)+sub.MaxTokens > model.MaxTokens() {
				t.Fatalf("submitted %d tokens and %d more", len(sub.Tokens), sub.MaxTokens)
			}
			for _, id := range sub.Tokens {
				if id < 0 || int(id) >= model.Vocab {
					t.Fatalf("submitted the token %d", id)
				}
			}
		}
	})
}
