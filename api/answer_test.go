package api_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/api/apitest"
	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine/tokenizer"
)

var update = flag.Bool("update", false, "write the golden transcripts anew")

var changing = []struct {
	re *regexp.Regexp
	to string
}{
	{regexp.MustCompile(`(chatcmpl|cmpl)-[0-9a-f]{24}`), "$1-ID"},
	{regexp.MustCompile(`"created":\d+`), `"created":0`},
}

// TestTranscripts compares whole answers, byte for byte, with testdata.
func TestTranscripts(t *testing.T) {
	hello := apitest.Say("Hello", "stop")
	end := append(apitest.Say("Hi", "")[:2], apitest.Step{Tokens: []int32{tokenizer.BuiltinIMEnd}}, apitest.Step{Finish: "stop"})
	lost := []apitest.Step{{Text: "He"}, {Die: true}}
	for _, tc := range []struct {
		name, path, body string
		script           []apitest.Step
	}{
		{"chat", "/v1/chat/completions", chatBody(``), hello},
		{"chat-stream", "/v1/chat/completions", chatBody(`,"stream":true`), hello},
		{"chat-stream-usage", "/v1/chat/completions", chatBody(`,"stream":true,"stream_options":{"include_usage":true},"kvlend":true`), end},
		{"chat-stream-logprobs", "/v1/chat/completions", chatBody(`,"stream":true,"logprobs":true,"top_logprobs":2`), apitest.Say("ä", "stop")},
		{"chat-stream-lost", "/v1/chat/completions", chatBody(`,"stream":true`), lost},
		{"chat-stop-string", "/v1/chat/completions", chatBody(`,"stop":["ll"],"kvlend":true`), append(apitest.Say("Hello", "")[:5], apitest.Step{Until: true})},
		{"chat-stream-stop-string", "/v1/chat/completions", chatBody(`,"stream":true,"stop":"ll","stream_options":{"include_usage":true}`), append(apitest.Say("Hello", "")[:5], apitest.Step{Until: true})},
		{"chat-logprobs", "/v1/chat/completions", chatBody(`,"logprobs":true,"top_logprobs":1`), apitest.Say("ab", "length")},
		{"text", "/v1/completions", textBody(`,"n":2,"kvlend":true`), hello},
		{"text-echo", "/v1/completions", textBody(`,"echo":true`), hello},
		{"text-stream-echo", "/v1/completions", textBody(`,"echo":true,"stream":true,"stream_options":{"include_usage":true}`), hello},
		{"text-logprobs", "/v1/completions", textBody(`,"logprobs":2`), apitest.Say("ää", "length")},
		{"text-stream-logprobs", "/v1/completions", textBody(`,"logprobs":0,"stream":true`), apitest.Say("ab", "length")},
		{"text-prompts", "/v1/completions", `{"model":"toy","prompt":["a","bcd"],"echo":true}`, hello},
		{"text-token-prompts", "/v1/completions", `{"model":"toy","prompt":[[97,98],[99]],"echo":true}`, hello},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := start(t, apitest.New(tc.script...))
			status, header, body := s.post(tc.path, tc.body)
			got := fmt.Sprintf("HTTP %d ", status) + header.Get("Content-Type") + "\n\n" + body
			for _, c := range changing {
				got = c.re.ReplaceAllString(got, c.to)
			}
			golden(t, tc.name, got)
		})
	}
}

func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// TestSubmit checks what reaches the model process.
func TestSubmit(t *testing.T) {
	s := start(t, apitest.New(apitest.Step{Finish: "length"}))
	status, _, body := s.post("/v1/completions", textBody(`,"max_tokens":7,"temperature":0.5,"top_p":0.25,"top_k":3,"min_p":0.125,
		"presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.5,"logit_bias":{"5":-100},"seed":-1,
		"stop_token_ids":[9],"priority":3,"cache_salt":"s","user":"u","logprobs":2,"n":2,"unknown_field":{"x":[1]}`))
	if status != 200 {
		t.Fatal(status, body)
	}
	for i := range 2 {
		sub := receive(t, "submission", s.up.Submitted)
		want := wire.Submit{ID: sub.ID, Tokens: []int32{'a', 'b', 'c', 'd'}, MaxTokens: 7,
			StopIDs: []int32{9, tokenizer.BuiltinIMEnd},
			Sampling: wire.Sampling{Temperature: 0.5, TopP: 0.25, TopK: 3, MinP: 0.125, PresencePenalty: 1, FrequencyPenalty: -1,
				RepetitionPenalty: 1.5, LogitBias: map[int32]float32{5: -100}, Seed: ^uint64(0) + uint64(i), Logprobs: 2},
			Priority: 3, Salt: sub.Salt}
		if len(sub.Salt) != 32 {
			t.Errorf("a salt of %d bytes", len(sub.Salt))
		}
		if jsonOf(sub) != jsonOf(want) {
			t.Errorf("choice %d:\n got %s\nwant %s", i, jsonOf(sub), jsonOf(want))
		}
	}
}

func TestIgnoreEOS(t *testing.T) {
	s := start(t, apitest.New(apitest.Step{Finish: "length"}))
	s.post("/v1/completions", textBody(`,"ignore_eos":true`))
	if sub := receive(t, "submission", s.up.Submitted); !sub.IgnoreEOS || len(sub.StopIDs) != 0 || sub.MaxTokens != 16 {
		t.Errorf("got %s", jsonOf(sub))
	}
	s.post("/v1/completions", textBody(`,"ignore_eos":true,"stop_token_ids":[65]`))
	if sub := receive(t, "submission", s.up.Submitted); sub.IgnoreEOS || jsonOf(sub.StopIDs) != "[65]" {
		t.Errorf("a stop token of the request is lost: %s", jsonOf(sub))
	}
}

// TestChatForms checks how messages reach the template.
func TestChatForms(t *testing.T) {
	s := start(t, apitest.New(apitest.Step{Finish: "length"}))
	status, _, body := s.post("/v1/chat/completions", `{"model":"toy","messages":[
		{"role":"developer","content":"d"},
		{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"n"},
		{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}]},
		{"role":"tool","content":"r","tool_call_id":"1"}],"max_completion_tokens":5,"max_tokens":9,"tools":[{"type":"function"}]}`)
	if status != 200 {
		t.Fatal(status, body)
	}
	sub := receive(t, "submission", s.up.Submitted)
	if got := tokenizer.Builtin().Decode(sub.Tokens, false); got != "<system>d<user>a\nb<assistant>None"+
		`[{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]`+"<tool>r<assistant>" {
		t.Errorf("prompt %q", got)
	}
	if sub.MaxTokens != 5 {
		t.Errorf("max_completion_tokens must win over max_tokens, got %d", sub.MaxTokens)
	}
}

// TestContextLimit: the longest request is served, one token more is refused.
func TestContextLimit(t *testing.T) {
	s := start(t, apitest.New(apitest.Step{Finish: "length"}))
	prompt := strings.Repeat("x", 200)
	status, _, body := s.post("/v1/completions", map[string]any{"model": "toy", "prompt": prompt, "max_tokens": 56})
	if status != 200 {
		t.Fatal(status, body)
	}
	status, _, body = s.post("/v1/completions", map[string]any{"model": "toy", "prompt": prompt, "max_tokens": 57})
	e := wantError(t, status, body, 400, "context_length_exceeded")
	for _, part := range []string{"256", "257", "200", "57", "arena"} {
		if !strings.Contains(e.Message, part) {
			t.Errorf("%q does not say %s", e.Message, part)
		}
	}
	// Without max_tokens a chat may fill the context, but needs room for one.
	message := func(n int) map[string]any {
		return map[string]any{"model": "toy", "messages": []openai.Message{openai.TextMessage("user", strings.Repeat("x", n))}}
	}
	overhead := len("<user><assistant>")
	if status, _, body = s.post("/v1/chat/completions", message(255-overhead)); status != 200 {
		t.Error(status, body)
	}
	status, _, body = s.post("/v1/chat/completions", message(256-overhead))
	wantError(t, status, body, 400, "context_length_exceeded")
}
