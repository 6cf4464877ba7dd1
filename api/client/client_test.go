package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/api/apitest"
	"github.com/kvlend/kvlend/api/client"
	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine/tokenizer"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

const patience = 20 * time.Second

func serve(t *testing.T, up *apitest.Upstream, keys ...string) *client.Client {
	t.Helper()
	opt := api.Options{Models: []*api.Model{apitest.Model("toy", up), apitest.Model("two", up)}}
	for _, k := range keys {
		opt.APIKeys = append(opt.APIKeys, api.APIKey{Key: k})
	}
	gw, err := api.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, gw.Handler(), keys...)
}

func connect(t *testing.T, h http.Handler, keys ...string) *client.Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c, err := client.New(srv.URL+"/v1/", strings.Join(keys, ""), srv.Client())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCalls(t *testing.T) {
	c := serve(t, apitest.New(apitest.Say("Hello", "stop")...), "secret")
	ctx := t.Context()
	if cards, err := c.Models(ctx); err != nil || len(cards) != 2 || cards[0].ID != "toy" {
		t.Errorf("%v %v", cards, err)
	}
	chat := openai.ChatRequest{Model: "toy", Messages: []openai.Message{openai.TextMessage("user", "hi")}}
	if r, err := c.Chat(ctx, chat); err != nil || r.Choices[0].Message.Content != "Hello" || r.Usage.CompletionTokens != 5 {
		t.Errorf("%+v %v", r, err)
	}
	var text strings.Builder
	err := c.ChatStream(ctx, chat, func(ch *openai.ChatChunk) error {
		for _, x := range ch.Choices {
			if x.Delta.Content != nil {
				text.WriteString(*x.Delta.Content)
			}
		}
		return nil
	})
	if err != nil || text.String() != "Hello" {
		t.Errorf("%q %v", text.String(), err)
	}
	req := openai.CompletionRequest{Model: "toy", Prompt: openai.Text("abc")}
	req.Kvlend = json.RawMessage("true")
	if r, err := c.Complete(ctx, req); err != nil || r.Choices[0].Text != "Hello" || r.Kvlend.LogitsHash != "0000000000000abc" {
		t.Errorf("%+v %v", r, err)
	}
	var last *openai.Completion
	if err := c.CompleteStream(ctx, req, func(r *openai.Completion) error { last = r; return nil }); err != nil || last.Kvlend == nil {
		t.Errorf("%+v %v", last, err)
	}
	prompt := "ab"
	if r, err := c.Tokenize(ctx, openai.TokenizeRequest{Model: "toy", Prompt: &prompt}); err != nil || r.Count != 2 {
		t.Errorf("%+v %v", r, err)
	}
}

func TestErrors(t *testing.T) {
	up := apitest.New(apitest.Step{Text: "x"}, apitest.Step{Die: true})
	c := serve(t, up)
	req := openai.CompletionRequest{Model: "nope", Prompt: openai.Text("abc")}
	_, err := c.Complete(t.Context(), req)
	var e *client.Error
	if !errors.As(err, &e) || e.Status != 404 || *e.Body.Code != "model_not_found" {
		t.Errorf("%v", err)
	}
	req.Model = "toy"
	err = c.CompleteStream(t.Context(), req, func(*openai.Completion) error { return nil })
	if !errors.As(err, &e) || e.Status != 200 || *e.Body.Code != "model_unavailable" {
		t.Errorf("in mid-stream: %v", err)
	}
	up.SetRefuse(&api.SubmitError{Failed: wire.Failed{Code: "overloaded", Message: "full", RetryAfter: 3 * time.Second}})
	if _, err = c.Complete(t.Context(), req); !errors.As(err, &e) || e.Status != 429 || e.RetryAfter != 3*time.Second {
		t.Errorf("%v", err)
	}
	mine := errors.New("mine")
	up.SetRefuse(nil)
	if err = c.CompleteStream(t.Context(), req, func(*openai.Completion) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("%v", err)
	}
	if _, err := client.New("localhost:8000", "", nil); err == nil {
		t.Error("an address without a scheme was accepted")
	}
}

// TestForeignServers: answers that are not of the protocol are errors.
func TestForeignServers(t *testing.T) {
	for name, body := range map[string]string{
		"cut off":   "data: {\"choices\":[]}\n\n",
		"empty":     "",
		"nonsense":  "data: nonsense\n\ndata: [DONE]\n\n",
		"html page": "<html></html>",
	} {
		c := connect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
		if err := c.CompleteStream(t.Context(), openai.CompletionRequest{}, func(*openai.Completion) error { return nil }); err == nil {
			t.Errorf("%s: streamed without an error", name)
		}
		if _, err := c.Complete(t.Context(), openai.CompletionRequest{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	c := connect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }))
	var e *client.Error
	if _, err := c.Models(t.Context()); !errors.As(err, &e) || e.Status != 502 || !strings.Contains(err.Error(), "502") {
		t.Errorf("%v", err)
	}
	c = connect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, ": comment\nevent: x\ndata:{}\n\ndata: [DONE]\n\n")
	}))
	n := 0
	if err := c.CompleteStream(t.Context(), openai.CompletionRequest{}, func(*openai.Completion) error { n++; return nil }); err != nil || n != 1 {
		t.Errorf("comments and missing spaces: %d %v", n, err)
	}
}

var update = flag.Bool("update", false, "write the golden transcript anew")

var figures = regexp.MustCompile(`first after \d+ ms(, [\d.]+ tokens/s)?`)

// TestChat compares a whole conversation in the terminal.
func TestChat(t *testing.T) {
	up := apitest.NewFunc(func(s *wire.Submit) []apitest.Step {
		if strings.Contains(tokenizer.Builtin().Decode(s.Tokens, false), "fail") {
			return []apitest.Step{{Text: "oh"}, {Event: &wire.Failed{Code: "internal_error", Message: "it broke"}}}
		}
		return apitest.Say("Hi\x1b[", "stop")
	})
	c := serve(t, up)
	in := "hello\n\n/help\n/nonsense\nfail\n/model\n/model two\n/model nope\ntwo \\\nlines\n/reset\nanew\n"
	var out bytes.Buffer
	err := client.Chat(t.Context(), client.ChatOptions{Client: c, System: "s", MaxTokens: 50, In: strings.NewReader(in), Out: &out})
	if err != nil {
		t.Fatal(err)
	}
	got := figures.ReplaceAllString(out.String(), "first after N ms")
	if *update {
		if err := os.WriteFile("testdata/chat.txt", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/chat.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	for _, prompt := range []string{
		"<system>s<user>hello<assistant>",
		"<system>s<user>hello<assistant>Hi\x1b[<user>fail<assistant>",
		"<system>s<user>hello<assistant>Hi\x1b[<user>two \nlines<assistant>", // the turn that failed is forgotten
		"<system>s<user>anew<assistant>",
	} {
		select {
		case sub := <-up.Submitted:
			if p := tokenizer.Builtin().Decode(sub.Tokens, false); p != prompt || sub.MaxTokens != 50 {
				t.Errorf("prompt %q with %d tokens, want %q", p, sub.MaxTokens, prompt)
			}
		default:
			t.Fatalf("no submission of %q", prompt)
		}
	}
}

// TestChatScript: a script learns that messages had no answer, and that its output
// could not be written.
func TestChatScript(t *testing.T) {
	up := apitest.NewFunc(func(s *wire.Submit) []apitest.Step {
		if strings.Contains(tokenizer.Builtin().Decode(s.Tokens, false), "fail") {
			return []apitest.Step{{Event: &wire.Failed{Code: "internal_error", Message: "it broke"}}}
		}
		return apitest.Say("Hi", "stop")
	})
	c := serve(t, up)
	for in, want := range map[string]string{
		"hello\nanew\n":            "",
		"hello\n/model two\n/quit": "",
		"fail\n/reset\nhello\n":    "messages and commands that failed: 1",
		"fail\n/model nope\n/quit": "messages and commands that failed: 2",
		"/nonsense":                "messages and commands that failed: 1",
	} {
		err := client.Chat(t.Context(), client.ChatOptions{Client: c, In: strings.NewReader(in), Out: io.Discard, Script: true})
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%q: error %v, want %q", in, err, want)
		}
	}
	full := errors.New("no space left")
	err := client.Chat(t.Context(), client.ChatOptions{Client: c, In: strings.NewReader("hello\nagain\n"), Out: broken{full}})
	if !errors.Is(err, full) {
		t.Errorf("error %v", err)
	}
}

// broken is where nothing can be written.
type broken struct{ err error }

func (b broken) Write([]byte) (int, error) { return 0, b.err }

func TestChatRefuses(t *testing.T) {
	c := serve(t, apitest.New())
	err := client.Chat(t.Context(), client.ChatOptions{Client: c, Model: "nope", In: strings.NewReader(""), Out: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "toy, two") {
		t.Errorf("%v", err)
	}
}

// screen is a terminal that tells when a text has appeared.
type screen struct {
	mu   sync.Mutex
	text strings.Builder
	news chan struct{}
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	s.text.Write(p)
	s.mu.Unlock()
	select {
	case s.news <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (s *screen) await(t *testing.T, text string) {
	t.Helper()
	late := time.After(patience)
	for {
		s.mu.Lock()
		got := s.text.String()
		s.mu.Unlock()
		if strings.Contains(got, text) {
			return
		}
		select {
		case <-s.news:
		case <-late:
			t.Fatalf("no %q in %q", text, got)
		}
	}
}

// TestChatInterrupt: the first Ctrl-C ends the answer, everywhere; one while
// nothing comes ends the chat.
func TestChatInterrupt(t *testing.T) {
	up := apitest.New(apitest.Step{Text: "partial"}, apitest.Step{Until: true})
	c := serve(t, up)
	in, typed := io.Pipe()
	out := &screen{news: make(chan struct{}, 1)}
	interrupt := make(chan os.Signal)
	done := make(chan error, 1)
	go func() {
		done <- client.Chat(context.Background(), client.ChatOptions{Client: c, In: in, Out: out, Interrupt: interrupt})
	}()
	if _, err := io.WriteString(typed, "go\n"); err != nil {
		t.Fatal(err)
	}
	out.await(t, "partial")
	interrupt <- os.Interrupt
	out.await(t, "[interrupted]\n> ")
	up.Wait() // the model process was told
	interrupt <- os.Interrupt
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("the chat goes on")
	}
	typed.Close()
}
