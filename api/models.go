package api

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/kvlend/kvlend/api/openai"
)

func (g *Gateway) modelNames() string {
	names := make([]string, len(g.models))
	for i, m := range g.models {
		names[i] = m.Name
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func (g *Gateway) card(m *Model) openai.ModelCard {
	return openai.ModelCard{ID: m.Name, Object: "model", Created: g.started.Unix(), OwnedBy: "kvlend",
		MaxModelLen: m.MaxTokens(), Role: m.Role}
}

func (g *Gateway) listModels(c *gin.Context) {
	out := openai.ModelList{Object: "list", Data: []openai.ModelCard{}}
	for _, m := range g.models {
		out.Data = append(out.Data, g.card(m))
	}
	if g.router != nil {
		out.Data = append(out.Data, g.autoCard())
	}
	g.writeJSON(c, http.StatusOK, out)
}

// oneModel serves /v1/models/{id}; an id may contain slashes.
func (g *Gateway) oneModel(c *gin.Context) {
	id := strings.TrimPrefix(c.Param("id"), "/")
	if g.router != nil && id == AutoModel {
		g.writeJSON(c, http.StatusOK, g.autoCard())
		return
	}
	m, e := g.model(id)
	if e != nil {
		g.fail(c, e)
		return
	}
	g.writeJSON(c, http.StatusOK, g.card(m))
}

// tokenize serves POST /tokenize.
func (g *Gateway) tokenize(c *gin.Context) {
	var req openai.TokenizeRequest
	out, e := g.tokenized(c, &req)
	if e != nil {
		g.fail(c, e)
		return
	}
	g.writeJSON(c, http.StatusOK, out)
}

func (g *Gateway) tokenized(c *gin.Context, req *openai.TokenizeRequest) (*openai.TokenizeResponse, *apiError) {
	if e := g.decode(c, req); e != nil {
		return nil, e
	}
	m, e := g.model(req.Model)
	if e != nil {
		return nil, e
	}
	var ids []int32
	switch {
	case (req.Prompt != nil) == (req.Messages != nil):
		return nil, badParam("prompt", "missing_required_parameter", "one of prompt and messages is needed, and not both")
	case req.Prompt != nil:
		var err error
		ids, err = m.encode(*req.Prompt, req.AddSpecialTokens == nil || *req.AddSpecialTokens)
		if err != nil {
			return nil, badParam("prompt", "invalid_value", "prompt could not be turned into tokens: "+err.Error())
		}
	default:
		p, e := m.chatPrompt(req.Messages, req.Tools, req.AddGenerationPrompt, req.ChatTemplateKwargs)
		if e != nil {
			return nil, e
		}
		ids = p.ids
	}
	if ids == nil {
		ids = []int32{}
	}
	out := &openai.TokenizeResponse{Count: len(ids), MaxModelLen: m.MaxTokens(), Tokens: ids}
	if req.ReturnTokenStrs {
		for _, id := range ids {
			out.TokenStrs = append(out.TokenStrs, m.legacyToken(id))
		}
	}
	return out, nil
}

// detokenize serves POST /detokenize.
func (g *Gateway) detokenize(c *gin.Context) {
	var req openai.DetokenizeRequest
	e := g.decode(c, &req)
	if e != nil {
		g.fail(c, e)
		return
	}
	m, e := g.model(req.Model)
	if e == nil && req.Tokens == nil {
		e = badParam("tokens", "missing_required_parameter", "tokens is missing: it must be a list of token ids")
	}
	if e == nil {
		e = m.checkIDs("tokens", req.Tokens)
	}
	if e != nil {
		g.fail(c, e)
		return
	}
	g.writeJSON(c, http.StatusOK, openai.DetokenizeResponse{Prompt: m.Tokenizer.Decode(req.Tokens, false)})
}

// health serves GET /health, which needs no key and therefore tells no names.
// It is well as long as one model can be served.
func (g *Gateway) health(c *gin.Context) {
	alive := 0
	for _, m := range g.models {
		if m.Upstream.Alive() {
			alive++
		}
	}
	status, word := http.StatusOK, "ok"
	switch {
	case alive == 0:
		status, word = http.StatusServiceUnavailable, "unavailable"
		c.Header("Retry-After", "1")
	case alive < len(g.models):
		word = "degraded"
	}
	g.writeJSON(c, status, gin.H{"status": word, "models": fmt.Sprintf("%d/%d", alive, len(g.models))})
}

func (g *Gateway) version(c *gin.Context) {
	g.writeJSON(c, http.StatusOK, gin.H{"version": g.opt.Version, "name": "kvlend",
		"uptime_seconds": int64(time.Since(g.started).Seconds())})
}
