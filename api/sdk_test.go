package api_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/api/apitest"
	"github.com/kvlend/kvlend/coordinator/wire"
)

func sdk(s *system, key string) *openai.Client {
	c := openai.NewClient(option.WithBaseURL(s.url+"/v1"), option.WithAPIKey(key),
		option.WithHTTPClient(s.http), option.WithMaxRetries(0))
	return &c
}

func chatParams() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: "toy",
		Messages: []openai.ChatCompletionMessageParamUnion{
			openai.SystemMessage("be brief"),
			openai.UserMessage("hi"),
		},
		MaxCompletionTokens: openai.Int(20),
		Seed:                openai.Int(7),
	}
}

func TestSDKChat(t *testing.T) {
	s := start(t, apitest.New(apitest.Say("Hello", "stop")...))
	got, err := sdk(s, "k").Chat.Completions.New(t.Context(), chatParams())
	if err != nil {
		t.Fatal(err)
	}
	c := got.Choices[0]
	if c.Message.Content != "Hello" || c.FinishReason != "stop" || c.Message.Role != "assistant" {
		t.Errorf("choice %+v", c)
	}
	u := got.Usage
	prompt := int64(len("<system>be brief<user>hi<assistant>"))
	if u.PromptTokens != prompt || u.CompletionTokens != 5 || u.TotalTokens != prompt+5 || u.PromptTokensDetails.CachedTokens != prompt/2 {
		t.Errorf("usage %+v", u)
	}
}

func TestSDKChatStream(t *testing.T) {
	s := start(t, apitest.New(apitest.Say("Hello", "stop")...))
	p := chatParams()
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	p.N = openai.Int(2)
	stream := sdk(s, "k").Chat.Completions.NewStreaming(t.Context(), p)
	acc := openai.ChatCompletionAccumulator{}
	last := openai.ChatCompletionChunk{}
	for stream.Next() {
		last = stream.Current()
		if !acc.AddChunk(last) {
			t.Fatalf("the SDK could not add %+v", last)
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if len(acc.Choices) != 2 || acc.Choices[0].Message.Content != "Hello" || acc.Choices[1].Message.Content != "Hello" {
		t.Errorf("choices %+v", acc.Choices)
	}
	if len(last.Choices) != 0 || last.Usage.CompletionTokens != 10 {
		t.Errorf("last chunk %+v", last)
	}
}

func TestSDKCompletions(t *testing.T) {
	s := start(t, apitest.New(apitest.Say("Hello", "length")...))
	p := openai.CompletionNewParams{Model: "toy", MaxTokens: openai.Int(5),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("abc")}}
	got, err := sdk(s, "k").Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if got.Choices[0].Text != "Hello" || got.Choices[0].FinishReason != "length" || got.Usage.TotalTokens != 8 {
		t.Errorf("got %+v", got)
	}
	p.Prompt = openai.CompletionNewParamsPromptUnion{OfArrayOfTokens: []int64{97, 98}}
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := sdk(s, "k").Completions.NewStreaming(t.Context(), p)
	var text strings.Builder
	var usage openai.CompletionUsage
	for stream.Next() {
		for _, c := range stream.Current().Choices {
			text.WriteString(c.Text)
		}
		usage = stream.Current().Usage
	}
	if err := stream.Err(); err != nil || text.String() != "Hello" || usage.TotalTokens != 7 {
		t.Errorf("%v %q %+v", err, text.String(), usage)
	}
}

func TestSDKModels(t *testing.T) {
	s := start(t, apitest.New())
	page, err := sdk(s, "k").Models.List(t.Context())
	if err != nil || len(page.Data) != 1 || page.Data[0].ID != "toy" {
		t.Errorf("%v %+v", err, page)
	}
	m, err := sdk(s, "k").Models.Get(t.Context(), "toy")
	if err != nil || m.ID != "toy" || m.OwnedBy != "kvlend" {
		t.Errorf("%v %+v", err, m)
	}
}

func TestSDKErrors(t *testing.T) {
	up := apitest.New(apitest.Say("x", "stop")...)
	s := start(t, up, func(o *api.Options) { o.APIKeys = []api.APIKey{{Key: "right"}} })
	call := func(key string, change func(*openai.ChatCompletionNewParams)) *openai.Error {
		t.Helper()
		p := chatParams()
		if change != nil {
			change(&p)
		}
		_, err := sdk(s, key).Chat.Completions.New(context.Background(), p)
		var e *openai.Error
		if !errors.As(err, &e) {
			t.Fatalf("got %v, want an API error", err)
		}
		return e
	}
	if e := call("wrong", nil); e.StatusCode != 401 || e.Code != "invalid_api_key" {
		t.Errorf("%+v", e)
	}
	if e := call("right", func(p *openai.ChatCompletionNewParams) { p.Model = "nope" }); e.StatusCode != 404 || e.Code != "model_not_found" || e.Param != "model" {
		t.Errorf("%+v", e)
	}
	if e := call("right", func(p *openai.ChatCompletionNewParams) { p.Temperature = openai.Float(-1) }); e.StatusCode != 400 || e.Param != "temperature" || e.Type != "invalid_request_error" {
		t.Errorf("%+v", e)
	}
	up.SetRefuse(&api.SubmitError{Failed: wire.Failed{Code: "overloaded", Message: "full"}})
	if e := call("right", nil); e.StatusCode != 429 || e.Type != "rate_limit_error" || e.Response.Header.Get("Retry-After") != "1" {
		t.Errorf("%+v", e)
	}
}

// TestSDKReceipt: the SDK reads cached tokens by itself, and the receipt as an
// extra field, streaming or not.
func TestSDKReceipt(t *testing.T) {
	s := start(t, apitest.New(apitest.Step{Text: "ok"}, apitest.Step{Event: account()}))
	ask := option.WithJSONSet("kvlend", map[string]any{"receipt": true})
	receipt := func(raw string) wire.Receipt {
		t.Helper()
		k := decode[struct {
			Receipt struct{ Local, Borrowed, Declined int }
		}](t, raw)
		return wire.Receipt{Local: k.Receipt.Local, Borrowed: k.Receipt.Borrowed, Declined: k.Receipt.Declined}
	}
	want := wire.Receipt{Local: 1, Borrowed: 2, Declined: 1}
	got, err := sdk(s, "k").Chat.Completions.New(t.Context(), chatParams(), ask)
	if err != nil {
		t.Fatal(err)
	}
	if r := receipt(got.JSON.ExtraFields["kvlend"].Raw()); got.Usage.PromptTokensDetails.CachedTokens != 3 || r != want {
		t.Errorf("%d cached, receipt %+v", got.Usage.PromptTokensDetails.CachedTokens, r)
	}
	p := chatParams()
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := sdk(s, "k").Chat.Completions.NewStreaming(t.Context(), p, ask)
	var last openai.ChatCompletionChunk
	for stream.Next() {
		last = stream.Current()
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if r := receipt(last.JSON.ExtraFields["kvlend"].Raw()); last.Usage.PromptTokensDetails.CachedTokens != 3 || r != want {
		t.Errorf("streamed: %d cached, receipt %+v", last.Usage.PromptTokensDetails.CachedTokens, r)
	}
}

// TestSDKErrorInStream: the SDK reports an error line and no short success.
func TestSDKErrorInStream(t *testing.T) {
	s := start(t, apitest.New(apitest.Step{Text: "He"}, apitest.Step{Die: true}))
	stream := sdk(s, "k").Chat.Completions.NewStreaming(t.Context(), chatParams())
	n := 0
	for stream.Next() {
		n++
	}
	if err := stream.Err(); err == nil || !strings.Contains(err.Error(), "lost its connection") {
		t.Errorf("after %d chunks: %v", n, err)
	}
}

// TestPythonSDK runs the script that end-to-end tests run against the real
// system. KVLEND_PYTHON names a Python that has the openai package.
func TestPythonSDK(t *testing.T) {
	python := os.Getenv("KVLEND_PYTHON")
	if python == "" {
		t.Skip("KVLEND_PYTHON is not set: .ci/run sets it to a Python with the openai package")
	}
	s := start(t, apitest.New(apitest.Say("Hello from the hive", "stop")...), func(o *api.Options) { o.APIKeys = []api.APIKey{{Key: "right"}} })
	out, err := exec.CommandContext(t.Context(), python, "sdktest/python_sdk.py", s.url+"/v1", "toy", "right").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
