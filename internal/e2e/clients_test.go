package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// TestOpenAIGo streams from each model with the official Go SDK.
func TestOpenAIGo(t *testing.T) {
	s := Start(t)
	c := openai.NewClient(option.WithBaseURL(s.Endpoint+"/v1"), option.WithAPIKey("none"),
		option.WithHTTPClient(s.http), option.WithMaxRetries(0))
	page, err := c.Models.List(t.Context())
	if err != nil || len(page.Data) != 4 { // with auto, which stays with the conversation
		t.Fatalf("models: %v, %v", page, err)
	}
	for _, m := range page.Data {
		p := openai.ChatCompletionNewParams{
			Model: m.ID, MaxCompletionTokens: openai.Int(30), Seed: openai.Int(7),
			Messages:      []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("be brief"), openai.UserMessage("hi")},
			StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
		}
		stream := c.Chat.Completions.NewStreaming(t.Context(), p)
		acc := openai.ChatCompletionAccumulator{}
		for stream.Next() {
			if !acc.AddChunk(stream.Current()) {
				t.Fatalf("the SDK could not add %+v", stream.Current())
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		if u := acc.Usage; len(acc.Choices) != 1 || u.CompletionTokens < 1 || u.CompletionTokens > 30 || u.TotalTokens != u.PromptTokens+u.CompletionTokens {
			t.Fatalf("%s: %+v", m.ID, acc)
		}
		p.StreamOptions = openai.ChatCompletionStreamOptionsParam{}
		whole, err := c.Chat.Completions.New(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := acc.Choices[0].Message.Content, whole.Choices[0].Message.Content; a != b || whole.Usage.TotalTokens != acc.Usage.TotalTokens {
			t.Errorf("%s: streamed %q, whole %q", m.ID, a, b)
		}
	}
	var e *openai.Error
	_, err = c.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{
		Model: "none", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")}})
	if !errors.As(err, &e) || e.StatusCode != 404 || e.Code != "model_not_found" {
		t.Errorf("unknown model: %v", err)
	}
}

// TestOpenAIPython runs the official Python SDK where there is one.
func TestOpenAIPython(t *testing.T) {
	script, err := filepath.Abs(filepath.Join("..", "..", "api", "sdktest", "python_sdk.py"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(script); err != nil {
		t.Fatal(err) // it is part of the repository
	}
	python := os.Getenv("KVLEND_PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import openai").CombinedOutput(); err != nil {
		t.Skipf("skipped: no Python with the openai package (%s; KVLEND_PYTHON names one): %v: %s", python, err, tail(strings.TrimSpace(string(out)), 1))
	}
	s := Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, python, script, s.Endpoint+"/v1", "atlas")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
