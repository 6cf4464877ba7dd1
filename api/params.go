package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"

	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/engine/tokenizer"
)

// Bounds on a request's parts that nothing else bounds.
const (
	maxStops      = 16
	maxStopBytes  = 1024
	maxStopIDs    = 128
	maxNameBytes  = 512 // user, cache_salt
	maxPriority   = wire.MaxPriority
	maxTokensRoof = math.MaxInt32
)

// settings are a request's parameters after validation.
type settings struct {
	n            int
	stream       bool
	includeUsage bool
	account      bool // with kvlend's account of the answer
	receipt      bool // with the receipt
	skipSpecial  bool
	ignoreEOS    bool
	stops        []string
	stopIDs      []int32
	maxTokens    int // 0: not given
	priority     int // lower first
	params       sampling.Params
}

// parseSettings validates what chat and completion requests have in common.
// logprobs is as in sampling.Params.
func (g *Gateway) parseSettings(m *Model, s *openai.Sampling, logprobs int) (*settings, *apiError) {
	out := &settings{n: 1, stream: s.Stream, skipSpecial: true, ignoreEOS: s.IgnoreEOS}
	if s.Priority != nil {
		out.priority = *s.Priority
	}
	if s.N != nil {
		out.n = *s.N
	}
	if out.n < 1 || out.n > g.opt.MaxChoices {
		return nil, outOfRange("n", out.n, fmt.Sprintf("from 1 to %d", g.opt.MaxChoices))
	}
	if s.StreamOptions != nil {
		if !s.Stream {
			return nil, badParam("stream_options", "invalid_value", "stream_options is only allowed together with \"stream\": true")
		}
		out.includeUsage = s.StreamOptions.IncludeUsage
	}
	if s.SkipSpecialTokens != nil {
		out.skipSpecial = *s.SkipSpecialTokens
	}
	var e *apiError
	if out.account, out.receipt, e = parseAsk(s.Kvlend); e != nil {
		return nil, e
	}
	if out.stops, e = parseStops(s.Stop); e != nil {
		return nil, e
	}
	if out.stopIDs, e = m.stopIDs(s); e != nil {
		return nil, e
	}
	if e = checkLabels(s); e != nil {
		return nil, e
	}
	if out.params, e = m.samplingParams(s, logprobs); e != nil {
		return nil, e
	}
	return out, nil
}

func (m *Model) stopIDs(s *openai.Sampling) ([]int32, *apiError) {
	if len(s.StopTokenIDs) > maxStopIDs {
		return nil, outOfRange("stop_token_ids", fmt.Sprintf("%d ids", len(s.StopTokenIDs)), fmt.Sprintf("at most %d ids", maxStopIDs))
	}
	if e := m.checkIDs("stop_token_ids", s.StopTokenIDs); e != nil {
		return nil, e
	}
	ids := append([]int32(nil), s.StopTokenIDs...)
	if !s.IgnoreEOS {
		ids = append(ids, m.StopIDs...)
	}
	return ids, nil
}

// checkIDs reports the first id that the model does not have.
func (m *Model) checkIDs(field string, ids []int32) *apiError {
	for i, id := range ids {
		if id < 0 || int(id) >= m.Vocab {
			return outOfRange(fmt.Sprintf("%s[%d]", field, i), id, fmt.Sprintf("a token id from 0 to %d", m.Vocab-1))
		}
	}
	return nil
}

func checkLabels(s *openai.Sampling) *apiError {
	if s.User != nil && len(*s.User) > maxNameBytes {
		return outOfRange("user", fmt.Sprintf("%d bytes", len(*s.User)), fmt.Sprintf("at most %d bytes", maxNameBytes))
	}
	if s.CacheSalt != nil && (*s.CacheSalt == "" || len(*s.CacheSalt) > maxNameBytes) {
		return outOfRange("cache_salt", fmt.Sprintf("%d bytes", len(*s.CacheSalt)), fmt.Sprintf("from 1 to %d bytes", maxNameBytes))
	}
	if s.Priority != nil && (*s.Priority < -maxPriority || *s.Priority > maxPriority) {
		return outOfRange("priority", *s.Priority, fmt.Sprintf("from %d to %d", -maxPriority, maxPriority))
	}
	return nil
}

func (m *Model) samplingParams(s *openai.Sampling, logprobs int) (sampling.Params, *apiError) {
	p := m.Defaults
	p.Logprobs = logprobs
	set := func(to *float32, from *float64) {
		if from != nil {
			*to = float32(*from)
		}
	}
	set(&p.Temperature, s.Temperature)
	set(&p.TopP, s.TopP)
	set(&p.MinP, s.MinP)
	set(&p.PresencePenalty, s.PresencePenalty)
	set(&p.FrequencyPenalty, s.FrequencyPenalty)
	set(&p.RepetitionPenalty, s.RepetitionPenalty)
	if s.TopK != nil {
		p.TopK = *s.TopK
	}
	p.Seed = rand.Uint64()
	if s.Seed != nil {
		p.Seed = uint64(*s.Seed)
	}
	var e *apiError
	if p.LogitBias, e = m.logitBias(s.LogitBias); e != nil {
		return p, e
	}
	if err := p.Validate(); err != nil {
		var pe *sampling.ParamError
		if errors.As(err, &pe) {
			return p, outOfRange(pe.Field, pe.Value, pe.Accept)
		}
		return p, badParam("", "invalid_value", err.Error())
	}
	return p, nil
}

func (m *Model) logitBias(in map[string]float64) (map[int32]float32, *apiError) {
	if len(in) == 0 {
		return nil, nil
	}
	if len(in) > sampling.MaxLogitBias {
		return nil, outOfRange("logit_bias", fmt.Sprintf("%d entries", len(in)), fmt.Sprintf("at most %d entries", sampling.MaxLogitBias))
	}
	out := make(map[int32]float32, len(in))
	for k, v := range in {
		id, err := strconv.ParseInt(k, 10, 32)
		if err != nil || id < 0 || int(id) >= m.Vocab {
			return nil, outOfRange("logit_bias", "for the key "+quote(k), fmt.Sprintf("for token ids from 0 to %d", m.Vocab-1))
		}
		out[int32(id)] = float32(v)
	}
	return out, nil
}

// wireSampling is the settings' form for choice i. Choices of one request
// differ in their seeds only.
func (s *settings) wireSampling(i int) wire.Sampling {
	p := s.params
	return wire.Sampling{
		Temperature: p.Temperature, TopK: p.TopK, TopP: p.TopP, MinP: p.MinP,
		RepetitionPenalty: p.RepetitionPenalty, PresencePenalty: p.PresencePenalty, FrequencyPenalty: p.FrequencyPenalty,
		Seed: p.Seed + uint64(i), Logprobs: p.Logprobs, LogitBias: p.LogitBias,
	}
}

func isNull(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) == 0 || string(raw) == "null"
}

func parseStops(raw json.RawMessage) ([]string, *apiError) {
	if isNull(raw) {
		return nil, nil
	}
	var one string
	var list []string
	if json.Unmarshal(raw, &one) == nil {
		list = []string{one}
	} else if json.Unmarshal(raw, &list) != nil {
		return nil, badParam("stop", "invalid_type", "stop must be a string or a list of strings")
	}
	if len(list) > maxStops {
		return nil, outOfRange("stop", fmt.Sprintf("%d strings", len(list)), fmt.Sprintf("at most %d strings", maxStops))
	}
	for i, s := range list {
		if len(s) == 0 || len(s) > maxStopBytes {
			return nil, outOfRange(fmt.Sprintf("stop[%d]", i), fmt.Sprintf("%d bytes long", len(s)), fmt.Sprintf("from 1 to %d bytes long", maxStopBytes))
		}
	}
	return list, nil
}

// checkFormat accepts {"type": "text"} only: promising JSON and not enforcing
// it would be worse than refusing.
func checkFormat(raw json.RawMessage) *apiError {
	if isNull(raw) {
		return nil
	}
	var f struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(raw, &f) != nil || f.Type == "" {
		return badParam("response_format", "invalid_type", `response_format must be an object such as {"type": "text"}`)
	}
	if f.Type != "text" {
		return badParam("response_format", "unsupported_value",
			fmt.Sprintf("response_format type %s is not supported: only \"text\" is", quote(f.Type)))
	}
	return nil
}

// unsupported refuses fields whose silent absence would change the answer.
func unsupported(field string, raw json.RawMessage) *apiError {
	if isNull(raw) {
		return nil
	}
	return badParam(field, "unsupported_parameter", field+" is not supported by this server")
}

// tokenLimit validates the number of tokens asked for and fits it into the
// model's context. field names where the prompt came from.
func (m *Model) tokenLimit(field string, prompt int, s *settings) (int, *apiError) {
	limit := m.MaxTokens()
	want := s.maxTokens
	room := limit - prompt
	if want == 0 {
		want = max(room, 1)
	}
	if want <= room {
		return want, nil
	}
	return 0, badParam(field, "context_length_exceeded", fmt.Sprintf(
		"The maximum context length of %s is %d tokens at present, but this request needs at least %d (%d in %s and %d for the answer). %s",
		quote(m.Name), limit, prompt+want, prompt, field, want, m.raise()))
}

func (m *Model) raise() string {
	if m.RaiseLimit != "" {
		return m.RaiseLimit
	}
	if m.Role == "master" {
		return "Shorten the request; or raise the limit: give workers larger arenas or lower floors, let more workers lend " +
			"(borrow_from), or enlarge this model's own arena, as far as the model's trained context allows"
	}
	return "Shorten the request; or raise the limit: enlarge this model's arena, or give it the role master so that it can borrow, " +
		"as far as the model's trained context allows"
}

// checkMaxTokens validates the field's own range; whether it fits the context
// is tokenLimit's affair.
func checkMaxTokens(field string, v *int) (int, *apiError) {
	if v == nil {
		return 0, nil
	}
	if *v < 1 || *v > maxTokensRoof {
		return 0, outOfRange(field, *v, fmt.Sprintf("from 1 to %d", maxTokensRoof))
	}
	return *v, nil
}

// parsePrompt reads the four forms of a completion's prompt.
func (m *Model) parsePrompt(raw json.RawMessage, addSpecial bool, most int) ([]prompt, *apiError) {
	wrong := badParam("prompt", "invalid_type", "prompt must be a string, a list of strings, a list of token ids or a list of lists of token ids")
	if isNull(raw) {
		return nil, badParam("prompt", "missing_required_parameter", "prompt is missing")
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return m.textPrompts("prompt", []string{one}, addSpecial)
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil, wrong
	}
	if len(list) == 0 {
		return nil, badParam("prompt", "invalid_value", "prompt is an empty list: it must have at least one element")
	}
	switch list[0][0] {
	case '"':
		var texts []string
		if json.Unmarshal(raw, &texts) != nil || hasNull(list) {
			return nil, wrong
		}
		if len(texts) > most {
			return nil, outOfRange("prompt", fmt.Sprintf("%d prompts", len(texts)), fmt.Sprintf("at most %d prompts", most))
		}
		return m.textPrompts("prompt", texts, addSpecial)
	case '[':
		var ids [][]int32
		if json.Unmarshal(raw, &ids) != nil || hasNull(list) {
			return nil, wrong
		}
		if len(ids) > most {
			return nil, outOfRange("prompt", fmt.Sprintf("%d prompts", len(ids)), fmt.Sprintf("at most %d prompts", most))
		}
		return m.idPrompts(ids)
	}
	var ids []int32
	if json.Unmarshal(raw, &ids) != nil || hasNull(list) {
		return nil, wrong
	}
	return m.idPrompts([][]int32{ids})
}

// hasNull finds the element that encoding/json would turn into a zero value.
func hasNull(list []json.RawMessage) bool {
	for _, e := range list {
		if isNull(e) {
			return true
		}
	}
	return false
}

// prompt is one prompt with the text that echo repeats.
type prompt struct {
	ids   []int32
	text  string
	given bool // as ids, not as text
}

// encode recognises special tokens in text: prompts, rendered chats included,
// spell them out.
func (m *Model) encode(text string, addSpecial bool) ([]int32, error) {
	return m.Tokenizer.Encode(text, tokenizer.EncodeOptions{AddSpecial: addSpecial, ParseSpecial: true})
}

func (m *Model) textPrompts(field string, texts []string, addSpecial bool) ([]prompt, *apiError) {
	out := make([]prompt, len(texts))
	for i, t := range texts {
		ids, err := m.encode(t, addSpecial)
		if err != nil {
			return nil, badParam(field, "invalid_value", fmt.Sprintf("%s could not be turned into tokens: %v", field, err))
		}
		if len(ids) == 0 {
			return nil, badParam(field, "invalid_value", field+" is empty: it must give at least one token")
		}
		out[i] = prompt{ids: ids, text: t}
	}
	return out, nil
}

func (m *Model) idPrompts(lists [][]int32) ([]prompt, *apiError) {
	out := make([]prompt, len(lists))
	for i, ids := range lists {
		if len(ids) == 0 {
			return nil, badParam("prompt", "invalid_value", "prompt has an empty list of tokens: it must have at least one")
		}
		if e := m.checkIDs("prompt", ids); e != nil {
			return nil, e
		}
		out[i] = prompt{ids: ids, text: m.Tokenizer.Decode(ids, false), given: true}
	}
	return out, nil
}
