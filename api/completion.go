package api

import (
	"encoding/json"
	"fmt"

	"github.com/gin-gonic/gin"

	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/engine/sampling"
)

// completionTokens is the length of an answer for which a completion request
// gives none: the protocol's default.
const completionTokens = 16

// completions serves POST /v1/completions.
func (g *Gateway) completions(c *gin.Context) {
	var req openai.CompletionRequest
	j, s, e := g.prepareCompletion(c, &req)
	if e != nil {
		g.reject(c, req.Model, e)
		return
	}
	g.serve(c, j, s)
}

func (g *Gateway) prepareCompletion(c *gin.Context, req *openai.CompletionRequest) (*job, *textShape, *apiError) {
	if e := g.decode(c, req); e != nil {
		return nil, nil, e
	}
	own := g.tenantOf(c)
	a := &ask{model: req.Model, salt: own.salt(req.CacheSalt), sampling: &req.Sampling}
	text := "" // of the first prompt; the same for every model
	a.trail = func(salt []byte) trail { return g.router.homes.textTrail(salt, text) }
	a.plan = func(m *Model) (*plan, *apiError) {
		p, e := g.completionPlan(m, req)
		if e == nil {
			text = p.prompts[0].text
		}
		return p, e
	}
	p, e := g.place(c.Request.Context(), a)
	if e != nil {
		return nil, nil, e
	}
	p.set.askByHeader(c)
	s := &textShape{head: newHead("cmpl-", p.m, p.set), echo: req.Echo != nil && *req.Echo}
	return g.newJob(p, s.id, own, a.salt), s, nil
}

func (g *Gateway) completionPlan(m *Model, req *openai.CompletionRequest) (*plan, *apiError) {
	set, e := g.completionSettings(m, req)
	if e != nil {
		return nil, e
	}
	prompts, e := m.parsePrompt(req.Prompt, req.AddSpecialTokens == nil || *req.AddSpecialTokens, g.opt.MaxChoices)
	if e != nil {
		return nil, e
	}
	if prompts[0].given && req.Model == AutoModel {
		return nil, autoNeedsText("prompt")
	}
	return g.newPlan(m, set, "prompt", prompts)
}

func (g *Gateway) completionSettings(m *Model, req *openai.CompletionRequest) (*settings, *apiError) {
	logprobs := -1
	if req.Logprobs != nil {
		logprobs = *req.Logprobs
		if logprobs < 0 || logprobs > sampling.MaxLogprobs {
			return nil, outOfRange("logprobs", logprobs, fmt.Sprintf("from 0 to %d", sampling.MaxLogprobs))
		}
		if req.Echo != nil && *req.Echo {
			return nil, badParam("logprobs", "unsupported_parameter",
				"logprobs together with echo is not supported: this server gives no log probabilities of prompts")
		}
	}
	if req.Suffix != nil && *req.Suffix != "" {
		return nil, badParam("suffix", "unsupported_parameter", "suffix is not supported by this server")
	}
	if e := checkFormat(req.ResponseFormat); e != nil {
		return nil, e
	}
	set, e := g.parseSettings(m, &req.Sampling, logprobs)
	if e != nil {
		return nil, e
	}
	if req.BestOf != nil && *req.BestOf != set.n {
		return nil, outOfRange("best_of", *req.BestOf, fmt.Sprintf("equal to n (%d): this server does not rank answers", set.n))
	}
	if set.maxTokens, e = checkMaxTokens("max_tokens", req.MaxTokens); e != nil {
		return nil, e
	}
	if set.maxTokens == 0 {
		set.maxTokens = completionTokens
	}
	return set, nil
}

// textShape gives answers the form of /v1/completions.
type textShape struct {
	head
	echo bool
}

func (s *textShape) event(choices []openai.CompletionChoice) *openai.Completion {
	return &openai.Completion{ID: s.id, Object: "text_completion", Created: s.created, Model: s.model.Name,
		Choices: choices, Usage: s.usage}
}

func (s *textShape) first(c *choice) any {
	if !s.echo {
		return nil
	}
	return s.event([]openai.CompletionChoice{{Index: c.index, Text: c.prompt.text}})
}

func (s *textShape) chunk(c *choice, p piece) any {
	return s.event([]openai.CompletionChoice{{Index: c.index, Text: p.text,
		Logprobs: s.model.legacyLogprobs(p.tokens), FinishReason: finishReason(p.finish)}})
}

func (s *textShape) last(usage json.RawMessage, k *openai.Kvlend) any {
	ev := s.event([]openai.CompletionChoice{})
	ev.Usage, ev.Kvlend = usage, k
	return ev
}

func (s *textShape) whole(j *job, answers []answer) any {
	var choices []openai.CompletionChoice
	for i := range answers {
		a := &answers[i]
		text := a.text.String()
		if s.echo {
			text = a.c.prompt.text + text
		}
		choices = append(choices, openai.CompletionChoice{Index: i, Text: text,
			Logprobs: s.model.legacyLogprobs(a.tokens), FinishReason: finishReason(a.c.finish)})
	}
	out := s.event(choices)
	out.Usage, out.Kvlend = encode(j.usage()), j.kvlend()
	return out
}
