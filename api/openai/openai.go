// Package openai holds the types of the OpenAI HTTP protocol as kvlend speaks
// it: what the gateway (package api) reads and writes, and what the client
// (package api/client) writes and reads. Fields that may be a string or
// something else are json.RawMessage: the gateway parses them itself, because
// only it can name the place of an error.
package openai

import "encoding/json"

// ChatRequest is the body of POST /v1/chat/completions. A nil field was not
// given.
type ChatRequest struct {
	Model               string            `json:"model"`
	Messages            []Message         `json:"messages"`
	MaxTokens           *int              `json:"max_tokens,omitempty"`
	MaxCompletionTokens *int              `json:"max_completion_tokens,omitempty"`
	Logprobs            *bool             `json:"logprobs,omitempty"`
	TopLogprobs         *int              `json:"top_logprobs,omitempty"`
	Tools               []json.RawMessage `json:"tools,omitempty"`
	ToolChoice          json.RawMessage   `json:"tool_choice,omitempty"` // "none" or "auto"
	ResponseFormat      json.RawMessage   `json:"response_format,omitempty"`
	Modalities          []string          `json:"modalities,omitempty"`
	Audio               json.RawMessage   `json:"audio,omitempty"`
	Functions           json.RawMessage   `json:"functions,omitempty"`
	FunctionCall        json.RawMessage   `json:"function_call,omitempty"`
	// ChatTemplateKwargs and AddGenerationPrompt go to the chat template.
	ChatTemplateKwargs  map[string]any `json:"chat_template_kwargs,omitempty"`
	AddGenerationPrompt *bool          `json:"add_generation_prompt,omitempty"`
	Sampling
}

// CompletionRequest is the body of POST /v1/completions. A nil field was not
// given.
type CompletionRequest struct {
	Model          string          `json:"model"`
	Prompt         json.RawMessage `json:"prompt"` // string, [string], [id] or [[id]]
	MaxTokens      *int            `json:"max_tokens,omitempty"`
	Logprobs       *int            `json:"logprobs,omitempty"`
	Echo           *bool           `json:"echo,omitempty"`
	BestOf         *int            `json:"best_of,omitempty"`
	Suffix         *string         `json:"suffix,omitempty"`
	ResponseFormat json.RawMessage `json:"response_format,omitempty"`
	// AddSpecialTokens: whether text prompts get the model's BOS (default true).
	AddSpecialTokens *bool `json:"add_special_tokens,omitempty"`
	Sampling
}

// Sampling holds what both kinds of request have in common.
type Sampling struct {
	N                 *int               `json:"n,omitempty"`
	Stream            bool               `json:"stream,omitempty"`
	StreamOptions     *StreamOptions     `json:"stream_options,omitempty"`
	Stop              json.RawMessage    `json:"stop,omitempty"` // string, [string] or null
	StopTokenIDs      []int32            `json:"stop_token_ids,omitempty"`
	Temperature       *float64           `json:"temperature,omitempty"`
	TopP              *float64           `json:"top_p,omitempty"`
	TopK              *int               `json:"top_k,omitempty"`
	MinP              *float64           `json:"min_p,omitempty"`
	PresencePenalty   *float64           `json:"presence_penalty,omitempty"`
	FrequencyPenalty  *float64           `json:"frequency_penalty,omitempty"`
	RepetitionPenalty *float64           `json:"repetition_penalty,omitempty"`
	LogitBias         map[string]float64 `json:"logit_bias,omitempty"`
	Seed              *int64             `json:"seed,omitempty"`
	IgnoreEOS         bool               `json:"ignore_eos,omitempty"`
	SkipSpecialTokens *bool              `json:"skip_special_tokens,omitempty"`
	Priority          *int               `json:"priority,omitempty"`
	CacheSalt         *string            `json:"cache_salt,omitempty"`
	User              *string            `json:"user,omitempty"`
	// Kvlend asks for the kvlend object in the answer: true for all of it, or
	// {"receipt": true} for the receipt alone.
	Kvlend json.RawMessage `json:"kvlend,omitempty"`
}

// StreamOptions belong to "stream": true.
type StreamOptions struct {
	IncludeUsage bool `json:"include_usage,omitempty"`
}

// Message is one message of a conversation, in a request.
type Message struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content,omitempty"` // string, text parts or null
	Name       string          `json:"name,omitempty"`
	ToolCalls  []ToolCall      `json:"tool_calls,omitempty"`
	ToolCallID string          `json:"tool_call_id,omitempty"`
	Reasoning  string          `json:"reasoning_content,omitempty"`
}

// ToolCall is a call that the model made in an earlier turn.
type ToolCall struct {
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type"` // "function"
	Function ToolFunction `json:"function"`
}

// ToolFunction is the function of a ToolCall. Arguments is a string that holds
// a JSON object, or the object.
type ToolFunction struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
}

// TextMessage returns a message with plain text.
func TextMessage(role, text string) Message {
	return Message{Role: role, Content: Text(text)}
}

// Text encodes s as a JSON string, for the RawMessage fields.
func Text(s string) json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		panic("BUG: a string did not encode: " + err.Error())
	}
	return b
}

// ChatResponse answers a ChatRequest without streaming.
type ChatResponse struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"` // "chat.completion"
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []ChatChoice `json:"choices"`
	Usage   Usage        `json:"usage"`
	Kvlend  *Kvlend      `json:"kvlend,omitempty"`
}

// ChatChoice is one answer.
type ChatChoice struct {
	Index        int           `json:"index"`
	Message      ChatMessage   `json:"message"`
	Logprobs     *ChatLogprobs `json:"logprobs"`
	FinishReason string        `json:"finish_reason"` // "stop" or "length"
}

// ChatMessage is the message of an answer.
type ChatMessage struct {
	Role    string  `json:"role"`
	Content string  `json:"content"`
	Refusal *string `json:"refusal"`
}

// ChatLogprobs are the log probabilities of a chat answer.
type ChatLogprobs struct {
	Content []TokenLogprob `json:"content"`
}

// TokenLogprob is one generated token with its alternatives.
type TokenLogprob struct {
	Logprob
	TopLogprobs []Logprob `json:"top_logprobs"`
}

// Logprob is one token: its text, its log probability and its bytes, which
// need not be valid UTF-8.
type Logprob struct {
	Token   string  `json:"token"`
	Logprob float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

// ChatChunk is one event of a streamed chat answer. Usage is "null" in every
// chunk but the last where the request asked for usage, and absent where not.
type ChatChunk struct {
	ID      string            `json:"id"`
	Object  string            `json:"object"` // "chat.completion.chunk"
	Created int64             `json:"created"`
	Model   string            `json:"model"`
	Choices []ChatChunkChoice `json:"choices"`
	Usage   json.RawMessage   `json:"usage,omitempty"`
	Kvlend  *Kvlend           `json:"kvlend,omitempty"`
}

// ChatChunkChoice is one answer's part of a chunk.
type ChatChunkChoice struct {
	Index        int           `json:"index"`
	Delta        Delta         `json:"delta"`
	Logprobs     *ChatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
}

// Delta is the new part of a streamed message.
type Delta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

// Completion answers a CompletionRequest; it is also one event of a streamed
// answer, where Usage is as in ChatChunk.
type Completion struct {
	ID      string             `json:"id"`
	Object  string             `json:"object"` // "text_completion"
	Created int64              `json:"created"`
	Model   string             `json:"model"`
	Choices []CompletionChoice `json:"choices"`
	Usage   json.RawMessage    `json:"usage,omitempty"`
	Kvlend  *Kvlend            `json:"kvlend,omitempty"`
}

// CompletionChoice is one answer or its new part.
type CompletionChoice struct {
	Index        int             `json:"index"`
	Text         string          `json:"text"`
	Logprobs     *LegacyLogprobs `json:"logprobs"`
	FinishReason *string         `json:"finish_reason"`
}

// LegacyLogprobs are the log probabilities of /v1/completions: parallel lists,
// one element per token. TextOffset counts characters from the start of the
// choice's text.
type LegacyLogprobs struct {
	Tokens        []string             `json:"tokens"`
	TokenLogprobs []float32            `json:"token_logprobs"`
	TopLogprobs   []map[string]float32 `json:"top_logprobs"`
	TextOffset    []int                `json:"text_offset"`
}

// Usage counts tokens. Prompt tokens count once per prompt, however many
// answers were asked for.
type Usage struct {
	PromptTokens        int           `json:"prompt_tokens"`
	CompletionTokens    int           `json:"completion_tokens"`
	TotalTokens         int           `json:"total_tokens"`
	PromptTokensDetails PromptDetails `json:"prompt_tokens_details"`
}

// PromptDetails says how many prompt tokens came from the cache.
type PromptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// Kvlend is what kvlend adds to an answer on request. With several choices the
// fields are those of the first and Choices has all of them, in order.
type Kvlend struct {
	*Account          // with "kvlend": true
	Receipt  *Receipt `json:"receipt,omitempty"`
	Choices  []Kvlend `json:"choices,omitempty"`
}

// Receipt says where a prompt's tokens came from and what that cost. What is
// not in Local, Borrowed, Host or Pool was computed.
type Receipt struct {
	Local    int `json:"local"`    // tokens whose KV was in the model's own memory
	Borrowed int `json:"borrowed"` // in memory borrowed from other models
	Host     int `json:"host"`     // in host memory
	Pool     int `json:"pool"`     // in the overflow pool
	// Declined tokens were cached and computed all the same, because that was
	// expected to be faster.
	Declined int `json:"declined"`
	// PredictedMS is how long the prompt was expected to take, RecomputeMS how
	// long without any cache; 0: not known. PrefillMS is what it took.
	PredictedMS    float64 `json:"predicted_ms"`
	RecomputeMS    float64 `json:"recompute_ms"`
	QueueMS        float64 `json:"queue_ms"`
	PrefillMS      float64 `json:"prefill_ms"`
	TotalMS        float64 `json:"total_ms"`
	Preemptions    int     `json:"preemptions"`
	BorrowedBlocks int     `json:"borrowed_blocks"` // most held at once
}

// Account is kvlend's account of how an answer was computed.
type Account struct {
	Index int `json:"index"`
	// LogitsHash is 16 hexadecimal digits: equal hashes mean bit-equal
	// computation. It is empty when a stop string ended the answer, because
	// the model was then ended at an arbitrary later token.
	LogitsHash     string  `json:"logits_hash"`
	TokenIDs       []int32 `json:"token_ids"`
	CachedTokens   int     `json:"cached_tokens"`
	Preemptions    int     `json:"preemptions"`
	BorrowedBlocks int     `json:"borrowed_blocks"` // most held at once
	QueueMS        float64 `json:"queue_ms"`
	PrefillMS      float64 `json:"prefill_ms"`
	TotalMS        float64 `json:"total_ms"`
}

// ModelCard describes a model in /v1/models.
type ModelCard struct {
	ID          string `json:"id"`
	Object      string `json:"object"` // "model"
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen int    `json:"max_model_len"` // prompt and answer together
	Role        string `json:"role"`          // kvlend's: master, worker or local
}

// ModelList answers GET /v1/models.
type ModelList struct {
	Object string      `json:"object"` // "list"
	Data   []ModelCard `json:"data"`
}

// TokenizeRequest is the body of POST /tokenize: Prompt or Messages.
type TokenizeRequest struct {
	Model               string            `json:"model"`
	Prompt              *string           `json:"prompt,omitempty"`
	Messages            []Message         `json:"messages,omitempty"`
	Tools               []json.RawMessage `json:"tools,omitempty"`
	AddSpecialTokens    *bool             `json:"add_special_tokens,omitempty"`
	AddGenerationPrompt *bool             `json:"add_generation_prompt,omitempty"`
	ReturnTokenStrs     bool              `json:"return_token_strs,omitempty"`
	ChatTemplateKwargs  map[string]any    `json:"chat_template_kwargs,omitempty"`
}

// TokenizeResponse answers a TokenizeRequest.
type TokenizeResponse struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []int32  `json:"tokens"`
	TokenStrs   []string `json:"token_strs,omitempty"`
}

// DetokenizeRequest is the body of POST /detokenize.
type DetokenizeRequest struct {
	Model  string  `json:"model"`
	Tokens []int32 `json:"tokens"`
}

// DetokenizeResponse answers a DetokenizeRequest.
type DetokenizeResponse struct {
	Prompt string `json:"prompt"`
}

// Error is the error object.
type Error struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// ErrorBody is the body of every error response, and of an error in the middle
// of a stream.
type ErrorBody struct {
	Error Error `json:"error"`
}
