// Package sampling turns logits into tokens: greedy, temperature, top-k,
// top-p, min-p, repetition penalties, logit bias, seeds and log
// probabilities. It is stateless between calls, so that a request that is
// computed again after preemption draws the same tokens.
//
// The order of operations is vLLM's: penalties, logit bias, temperature,
// min-p, top-k, top-p. Log probabilities are those of the raw logits, before
// any of it.
//
// Results are equal on every machine: the arithmetic is float64 in a fixed
// order, with this package's own exp and log (the standard library's differ
// between architectures, and compilers may fuse a multiplication with an
// addition unless the product is converted explicitly). The only randomness
// is a hash of the seed and of the token's index in the output.
package sampling

// Params are a request's sampling parameters in the OpenAI API's terms.
// The zero value is not valid; start from Default.
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
	Logprob float32    // of the raw logits; 0 where Params.Logprobs is -1
	Top     []TopToken // Logprobs alternatives, best first; lies in the scratch
}

// TopToken is one alternative.
type TopToken struct {
	ID      int32
	Logprob float32
}
