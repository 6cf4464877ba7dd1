// Package engine computes transformer forward passes: Qwen3 (dense) and Llama
// models from Hugging Face directories, on kernels that are batch-invariant
// and bit-exact. It reads and writes KV cache only through block tables that
// the caller hands it layer by layer; it knows nothing of processes, tiers or
// where a block spends its life.
package engine

import (
	"context"

	"github.com/kvlend/kvlend/engine/kernels"
)

// Sequence is one sequence's share of a forward pass.
type Sequence struct {
	// Tokens are the new tokens, at least one, at positions
	// Start, Start+1, ...
	Tokens []int32
	// Start is the number of tokens whose KV is already in the cache.
	Start int
	// Logits says for which of the new tokens logits are wanted.
	Logits LogitsMode
}

// LogitsMode selects the rows of logits that a forward pass returns.
type LogitsMode uint8

// The logits modes.
const (
	NoLogits   LogitsMode = iota // a prefill chunk that is not the last one
	LastLogits                   // one row: the last new token
	AllLogits                    // a row for each new token
)

// KV is how a forward pass reaches the KV cache. The engine calls, for each
// layer in order, Layer, Written, Done. Calls come from the goroutine that
// called Forward. After an error from Layer the pass ends at once with that error.
type KV interface {
	// Memory is the arena into which the tables' offsets point. It is the
	// same slice during one pass.
	Memory() []byte
	// Layer blocks until the history of layer l is readable and returns a
	// block table per sequence, in batch order: tables[i][j] is the byte
	// offset of the layer block with positions [j*B, (j+1)*B) of sequence i,
	// for all positions up to the last new token.
	Layer(l int) (tables [][]int64, err error)
	// Written says that K and V of the new tokens of layer l are in place.
	Written(l int)
	// Done says that attention of layer l has finished reading and that the
	// tables of layer l will not be used again.
	Done(l int)
}

// Output holds the logits of a forward pass. Rows are in batch order; a
// sequence contributes 0, 1 or len(Tokens) rows according to its mode. The
// memory belongs to the model and is valid until the next Forward.
type Output struct {
	Vocab  int
	Logits [][]float32 // one slice of Vocab float32 per row
}

// Runner is what schedulers need of a model. Forward is not safe for
// concurrent use; cancelling ctx ends the pass between two layers with
// ctx's error.
type Runner interface {
	Config() *Config
	KVLayout() kernels.KVLayout
	Forward(ctx context.Context, batch []Sequence, kv KV) (*Output, error)
}

// Config is the architecture of a model, read from config.json.
type Config struct {
	Name       string // directory or built-in name
	Arch       string // "qwen3" or "llama"
	Layers     int
	Hidden     int
	Heads      int // query heads
	KVHeads    int
	HeadDim    int
	FFN        int
	Vocab      int
	MaxContext int // tokens, max_position_embeddings after RoPE scaling
	NormEps    float32
	QKNorm     bool // RMSNorm on q and k per head (Qwen3)
	AttnBias   bool // biases on the q, k, v and o projections
	MLPBias    bool // biases on the gate, up and down projections
	TiedEmbed  bool
	Rope       RopeConfig
	BOS        []int32
	EOS        []int32
	// WeightsDigest identifies the weights, dtype and architecture (blake3,
	// 32 bytes, hex). Equal digests mean interchangeable KV.
	WeightsDigest string
	WeightBytes   int64 // bytes of packed weights in memory
}

// RopeConfig is a model's rotary embedding. Factors are resolved: what a
// config file leaves out has its Hugging Face default here.
type RopeConfig struct {
	Theta    float64
	Scaling  string // "", "linear", "llama3" or "yarn"
	Factor   float64
	Original int // original_max_position_embeddings
	// llama3
	LowFreqFactor, HighFreqFactor float64
	// yarn; AttentionFactor multiplies cos and sin
	BetaFast, BetaSlow, AttentionFactor float64
	NoTruncate                          bool // leave the correction range fractional ("truncate": false)
}
