// Package sampling turns logits into tokens: greedy, temperature, top-k,
// top-p, min-p, repetition penalties, seeds and log probabilities. It is
// stateless between calls, so that a request that is computed again after
// preemption draws the same tokens.
package sampling

// Params are a request's sampling parameters in the OpenAI API's terms.
type Params struct {
	Temperature       float32 // 0 is greedy
	TopK              int     // 0 or -1: off
	TopP              float32 // 1: off
	MinP              float32 // 0: off
	RepetitionPenalty float32 // 1: off; over prompt and output
	PresencePenalty   float32 // 0: off; over output
	FrequencyPenalty  float32 // 0: off; over output
	Seed              uint64
	Logprobs          int // number of alternatives to report; -1: none, 0: the chosen token only
	LogitBias         map[int32]float32
}

// Token is one sampled token.
type Token struct {
	ID      int32
	Logprob float32
	Top     []TopToken // Logprobs alternatives, best first
}

// TopToken is one alternative.
type TopToken struct {
	ID      int32
	Logprob float32
}
