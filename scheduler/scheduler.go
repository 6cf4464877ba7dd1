// Package scheduler decides, iteration by iteration, which sequences run and
// with how many tokens: continuous batching, first come first served, chunked
// prefill, preemption by recomputation. Masters and workers use the same
// scheduler over different caches.
package scheduler

import (
	"context"
	"errors"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/sampling"
)

// Cache is the block memory of one model as the scheduler sees it. The
// scheduler calls it from a single goroutine.
type Cache interface {
	// BlockTokens is B.
	BlockTokens() int
	// MaxTokens is the longest sequence that could ever be held (all memory
	// that may be borrowed included).
	MaxTokens() int
	// Reserve makes room for sequence id to hold tokens tokens (prompt plus
	// generated; never shrinks). It is all or nothing. ErrWait: not now;
	// Changed fires when trying again makes sense (memory was freed,
	// borrowed or reclaimed). ErrNever: larger than MaxTokens.
	Reserve(id uint64, tokens int) error
	// Release frees everything that id holds. Unknown ids are ignored.
	Release(id uint64)
	// Evicted lists sequences that lost blocks since the last call (a forced
	// return of borrowed memory). The scheduler Releases them and computes
	// them again from their tokens.
	Evicted() []uint64
	// Begin starts a step over the given sequences, in batch order. The
	// returned KV serves one Forward; then exactly one of Commit or Abort is
	// called. An error from Forward or Commit means that the KV written in
	// this step is lost: sequences in a *LostError must be recomputed, the
	// others may simply run the same step again.
	Begin(ctx context.Context, steps []StepSeq) (Step, error)
	// Changed is signalled (capacity 1, level-triggered) when a Reserve that
	// answered ErrWait may succeed or Evicted has news.
	Changed() <-chan struct{}
}

// StepSeq is a sequence's share of a step: positions [Start, Start+New).
type StepSeq struct {
	ID         uint64
	Start, New int
}

// Step is one iteration over the cache.
type Step interface {
	engine.KV
	Commit() error // waits for background stores that the next step depends on
	Abort()
}

// LostError names sequences whose KV is no longer complete.
type LostError struct {
	IDs []uint64
	Err error
}

func (e *LostError) Error() string { return "KV lost: " + e.Err.Error() }
func (e *LostError) Unwrap() error { return e.Err }

// Errors of Cache.Reserve and of Submit.
var (
	ErrWait  = errors.New("no free blocks at the moment")
	ErrNever = errors.New("longer than this model can ever hold")
)

// Request is one generation.
type Request struct {
	ID        string
	Tokens    []int32 // prompt, at least one
	MaxTokens int     // new tokens, at least one
	Sampling  sampling.Params
	StopIDs   []int32 // end-of-sequence ids, unless IgnoreEOS
	IgnoreEOS bool
	// Sink receives the request's events in order, on the scheduler's
	// goroutine; it must not block.
	Sink func(Event)
}

// Event is progress of one request. After an event with Finish or Err set no
// more events come.
type Event struct {
	Token    sampling.Token // valid when HasToken
	HasToken bool
	// PromptLogprobs, when asked for, come with the first token.
	Finish string // "", "stop", "length", "cancelled"
	Err    error
	Usage  Usage // with Finish
}

// Usage is a request's account.
type Usage struct {
	PromptTokens, CompletionTokens, CachedTokens int
	// LogitsHash chains xxh3-64 over the float32 bits of every row of logits
	// that was sampled from: equal hashes mean bit-equal computation.
	LogitsHash uint64
	// Preemptions counts how often the request was computed again.
	Preemptions                 int
	QueueMS, PrefillMS, TotalMS float64
}
