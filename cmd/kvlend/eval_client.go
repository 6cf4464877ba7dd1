package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/kvlend/kvlend/api/client"
	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/dialogue"
	"github.com/kvlend/kvlend/internal/recall"
)

// recallPatience is how long a server may take to say what models it has.
const recallPatience = 30 * time.Second

// recallTries is how often a server that is busy is asked, and recallWait how
// long it is waited for if it does not say.
const (
	recallTries = 8
	recallWait  = time.Second
)

// recallClient asks a server of the OpenAI protocol; it implements
// recall.Answerer. What only kvlend tells is left out with other servers.
type recallClient struct {
	client *client.Client
	card   openai.ModelCard   // of the model that is asked
	cards  []openai.ModelCard // of all
	// estimates: the server does not count tokens.
	estimates bool
}

func newRecallClient(ctx context.Context, url, key, model string) (*recallClient, error) {
	c, err := client.New(url, key, nil)
	if err != nil {
		return nil, &codeError{exitUsage, err}
	}
	cards, err := c.Models(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the server's models: %w", err)
	}
	r := &recallClient{client: c, cards: cards}
	var names []string
	for _, card := range cards {
		names = append(names, card.ID)
		named := card.ID == model
		first := model == "" && (r.card.ID == "" || card.Role == configs.RoleMaster && r.card.Role != configs.RoleMaster)
		if named || first {
			r.card = card
		}
	}
	if r.card.ID == "" {
		return nil, &codeError{exitUsage, fmt.Errorf("--model is %q: the server has %q", model, names)}
	}
	var failed *client.Error
	if _, err := r.tokenize(ctx, "a"); errors.As(err, &failed) && failed.Status == http.StatusNotFound {
		r.estimates = true
	} else if err != nil {
		return nil, fmt.Errorf("counting tokens: %w", err)
	}
	return r, nil
}

func (r *recallClient) tokenize(ctx context.Context, text string) (int, error) {
	no := false
	res, err := r.client.Tokenize(ctx, openai.TokenizeRequest{Model: r.card.ID, Prompt: &text, AddSpecialTokens: &no})
	if err != nil {
		return 0, err
	}
	return res.Count, nil
}

// Count implements recall.Answerer.
func (r *recallClient) Count(ctx context.Context, text string) (int, error) {
	if r.estimates {
		return dialogue.Estimate(text), nil
	}
	return r.tokenize(ctx, text)
}

// Ask implements recall.Answerer. A server that is busy is asked again.
func (r *recallClient) Ask(ctx context.Context, q recall.Request) (recall.Reply, error) {
	zero := 0.0
	req := openai.ChatRequest{Model: r.card.ID, MaxTokens: &q.MaxTokens}
	req.Temperature = &zero
	if r.card.Role != "" { // a server of kvlend's
		req.Kvlend = json.RawMessage("true")
	}
	for _, m := range q.Messages {
		req.Messages = append(req.Messages, openai.TextMessage(m.Role, m.Content))
	}
	req.Messages = append(req.Messages, openai.TextMessage("user", q.Question))
	for try := 1; ; try++ {
		res, err := r.client.Chat(ctx, req)
		if err == nil {
			return readReply(res)
		}
		var failed *client.Error
		if !errors.As(err, &failed) {
			return recall.Reply{}, err
		}
		if failed.Body.Code != nil && strings.Contains(*failed.Body.Code, "context_length") {
			return recall.Reply{}, fmt.Errorf("%w: %s", recall.ErrTooLong, failed.Body.Message)
		}
		busy := failed.Status == http.StatusTooManyRequests || failed.Status == http.StatusServiceUnavailable
		if !busy || try == recallTries {
			return recall.Reply{}, err
		}
		wait := failed.RetryAfter
		if wait == 0 {
			wait = recallWait
		}
		select {
		case <-ctx.Done():
			return recall.Reply{}, ctx.Err()
		case <-time.After(wait):
		}
	}
}

func readReply(res *openai.ChatResponse) (recall.Reply, error) {
	if len(res.Choices) == 0 {
		return recall.Reply{}, errors.New("the answer has no choices")
	}
	out := recall.Reply{Text: res.Choices[0].Message.Content, Prompt: res.Usage.PromptTokens}
	out.Cached = res.Usage.PromptTokensDetails.CachedTokens
	k := res.Kvlend
	if k == nil {
		return out, nil
	}
	if k.Account != nil {
		out.Hash = k.LogitsHash
	}
	if p := k.Receipt; p != nil {
		out.Local, out.Borrowed, out.Host, out.Pool, out.BorrowedBlocks = p.Local, p.Borrowed, p.Host, p.Pool, p.BorrowedBlocks
	}
	return out, nil
}
