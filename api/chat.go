package api

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/engine/chat"
	"github.com/kvlend/kvlend/engine/sampling"
)

// chat serves POST /v1/chat/completions.
func (g *Gateway) chat(c *gin.Context) {
	var req openai.ChatRequest
	j, h, e := g.prepareChat(c, &req)
	if e != nil {
		g.reject(c, req.Model, e)
		return
	}
	g.serve(c, j, &chatShape{h})
}

func (g *Gateway) prepareChat(c *gin.Context, req *openai.ChatRequest) (*job, head, *apiError) {
	if e := g.decode(c, req); e != nil {
		return nil, head{}, e
	}
	own := g.tenantOf(c)
	a := &ask{model: req.Model, salt: own.salt(req.CacheSalt), sampling: &req.Sampling}
	a.trail = func(salt []byte) trail { return g.router.homes.chatTrail(salt, req) }
	a.plan = func(m *Model) (*plan, *apiError) { return g.chatPlan(m, req) }
	p, e := g.place(c.Request.Context(), a)
	if e != nil {
		return nil, head{}, e
	}
	p.set.askByHeader(c)
	h := newHead("chatcmpl-", p.m, p.set)
	return g.newJob(p, h.id, own, a.salt), h, nil
}

func (g *Gateway) chatPlan(m *Model, req *openai.ChatRequest) (*plan, *apiError) {
	set, e := g.chatSettings(m, req)
	if e != nil {
		return nil, e
	}
	pr, e := m.chatPrompt(req.Messages, req.Tools, req.AddGenerationPrompt, req.ChatTemplateKwargs)
	if e != nil {
		return nil, e
	}
	return g.newPlan(m, set, "messages", []prompt{pr})
}

func (g *Gateway) chatSettings(m *Model, req *openai.ChatRequest) (*settings, *apiError) {
	logprobs, e := chatLogprobCount(req)
	if e != nil {
		return nil, e
	}
	for _, f := range []struct {
		name string
		raw  json.RawMessage
	}{{"audio", req.Audio}, {"functions", req.Functions}, {"function_call", req.FunctionCall}} {
		if e := unsupported(f.name, f.raw); e != nil {
			return nil, e
		}
	}
	for i, v := range req.Modalities {
		if v != "text" {
			return nil, badParam(fmt.Sprintf("modalities[%d]", i), "unsupported_value",
				fmt.Sprintf("modality %s is not supported: only \"text\" is", quote(v)))
		}
	}
	if e := checkToolChoice(req.ToolChoice); e != nil {
		return nil, e
	}
	if e := checkFormat(req.ResponseFormat); e != nil {
		return nil, e
	}
	set, e := g.parseSettings(m, &req.Sampling, logprobs)
	if e != nil {
		return nil, e
	}
	older, e := checkMaxTokens("max_tokens", req.MaxTokens)
	if e != nil {
		return nil, e
	}
	if set.maxTokens, e = checkMaxTokens("max_completion_tokens", req.MaxCompletionTokens); e != nil {
		return nil, e
	}
	if set.maxTokens == 0 {
		set.maxTokens = older
	}
	return set, nil
}

func chatLogprobCount(req *openai.ChatRequest) (int, *apiError) {
	wanted := req.Logprobs != nil && *req.Logprobs
	switch {
	case req.TopLogprobs == nil && wanted:
		return 0, nil
	case req.TopLogprobs == nil:
		return -1, nil
	case *req.TopLogprobs < 0 || *req.TopLogprobs > sampling.MaxLogprobs:
		return 0, outOfRange("top_logprobs", *req.TopLogprobs, fmt.Sprintf("from 0 to %d", sampling.MaxLogprobs))
	case !wanted:
		return 0, badParam("top_logprobs", "invalid_value", "top_logprobs needs \"logprobs\": true")
	}
	return *req.TopLogprobs, nil
}

func checkToolChoice(raw json.RawMessage) *apiError {
	if isNull(raw) {
		return nil
	}
	var s string
	if json.Unmarshal(raw, &s) != nil || (s != "none" && s != "auto") {
		return badParam("tool_choice", "unsupported_value",
			"tool_choice must be \"none\" or \"auto\": this server cannot force a tool call")
	}
	return nil
}

// chatPrompt renders a conversation and turns it into tokens.
func (m *Model) chatPrompt(messages []openai.Message, tools []json.RawMessage, generate *bool, extra map[string]any) (prompt, *apiError) {
	if m.Template == nil {
		return prompt{}, badParam("model", "unsupported_model",
			fmt.Sprintf("The model %s has no chat template: use /v1/completions", quote(m.Name)))
	}
	in := chat.Input{Tools: tools, AddGenerationPrompt: generate == nil || *generate, Extra: extra}
	if len(messages) == 0 {
		return prompt{}, badParam("messages", "missing_required_parameter", "messages is missing or empty: it must have at least one element")
	}
	for i := range messages {
		out, e := message(fmt.Sprintf("messages[%d]", i), &messages[i])
		if e != nil {
			return prompt{}, e
		}
		in.Messages = append(in.Messages, out)
	}
	text, err := m.Template.Render(in)
	if err != nil {
		return prompt{}, badParam("messages", "invalid_value", "The model's chat template refused the messages: "+err.Error())
	}
	list, e := m.textPrompts("messages", []string{text}, false)
	if e != nil {
		return prompt{}, e
	}
	return list[0], nil
}

// message checks one message and gives it the form that templates expect.
func message(path string, in *openai.Message) (chat.Message, *apiError) {
	out := chat.Message{Role: in.Role}
	switch in.Role {
	case "system", "user", "assistant", "tool":
	case "developer":
		out.Role = "system" // its older name, which templates know
	default:
		return out, outOfRange(path+".role", quote(in.Role), "system, developer, user, assistant or tool")
	}
	content, given, e := messageText(path+".content", in.Content)
	switch {
	case e != nil:
		return out, e
	case given:
		out.Content = content
	case in.Role == "assistant" && len(in.ToolCalls) > 0:
	default:
		return out, badParam(path+".content", "missing_required_parameter",
			path+".content is missing: it must be a string or a list of text parts")
	}
	add := func(name, value string) {
		if value != "" {
			out.More = append(out.More, chat.Field{Name: name, Value: value})
		}
	}
	add("name", in.Name)
	add("reasoning_content", in.Reasoning)
	add("tool_call_id", in.ToolCallID)
	if len(in.ToolCalls) > 0 {
		out.More = append(out.More, chat.Field{Name: "tool_calls", Value: toolCalls(in.ToolCalls)})
	}
	return out, nil
}

// toolCalls unpacks the arguments, which the protocol carries as a string:
// templates write them out as the object they are.
func toolCalls(calls []openai.ToolCall) json.RawMessage {
	out := append([]openai.ToolCall(nil), calls...)
	for i := range out {
		var text string
		args := &out[i].Function.Arguments
		if json.Unmarshal(*args, &text) == nil && strings.HasPrefix(strings.TrimSpace(text), "{") && json.Valid([]byte(text)) {
			*args = json.RawMessage(text)
		}
	}
	return encode(out)
}

// messageText reads a string or a list of text parts, which become one text
// with a line each, as in other servers; given is false for null.
func messageText(path string, raw json.RawMessage) (text string, given bool, e *apiError) {
	if isNull(raw) {
		return "", false, nil
	}
	if json.Unmarshal(raw, &text) == nil {
		return text, true, nil
	}
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return "", false, badParam(path, "invalid_type", path+" must be a string or a list of text parts")
	}
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte('\n')
		}
		if p.Type != "text" {
			return "", false, badParam(fmt.Sprintf("%s[%d].type", path, i), "unsupported_value",
				fmt.Sprintf("%s[%d].type is %s: only \"text\" is supported", path, i, quote(p.Type)))
		}
		if p.Text == nil {
			return "", false, badParam(fmt.Sprintf("%s[%d].text", path, i), "missing_required_parameter",
				fmt.Sprintf("%s[%d].text is missing", path, i))
		}
		b.WriteString(*p.Text)
	}
	return b.String(), true, nil
}

// chatShape gives answers the form of /v1/chat/completions.
type chatShape struct{ head }

func (s *chatShape) event(choices []openai.ChatChunkChoice) *openai.ChatChunk {
	return &openai.ChatChunk{ID: s.id, Object: "chat.completion.chunk", Created: s.created, Model: s.model.Name,
		Choices: choices, Usage: s.usage}
}

func (s *chatShape) first(c *choice) any {
	none := ""
	return s.event([]openai.ChatChunkChoice{{Index: c.index, Delta: openai.Delta{Role: "assistant", Content: &none}}})
}

func (s *chatShape) chunk(c *choice, p piece) any {
	out := openai.ChatChunkChoice{Index: c.index, Logprobs: s.model.chatLogprobs(p.tokens), FinishReason: finishReason(p.finish)}
	if p.text != "" {
		out.Delta.Content = &p.text
	}
	return s.event([]openai.ChatChunkChoice{out})
}

func (s *chatShape) last(usage json.RawMessage, k *openai.Kvlend) any {
	ev := s.event([]openai.ChatChunkChoice{})
	ev.Usage, ev.Kvlend = usage, k
	return ev
}

func (s *chatShape) whole(j *job, answers []answer) any {
	out := &openai.ChatResponse{ID: s.id, Object: "chat.completion", Created: s.created, Model: s.model.Name,
		Usage: j.usage(), Kvlend: j.kvlend()}
	for i := range answers {
		a := &answers[i]
		out.Choices = append(out.Choices, openai.ChatChoice{Index: i,
			Message:  openai.ChatMessage{Role: "assistant", Content: a.text.String()},
			Logprobs: s.model.chatLogprobs(a.tokens), FinishReason: a.c.finish})
	}
	return out
}
