// Package scheduler decides, iteration by iteration, which sequences run and
// with how many tokens: continuous batching, chunked prefill, priorities, fair
// shares of tenants, reuse of cached prefixes, preemption by recomputation.
// Masters and workers use the same scheduler over different caches.
//
// # A step
//
// Before each step every decoding sequence gets room for one more token, by
// priority and arrival. They take part with one token each; prefill takes the
// rest of the token budget, in the same order, in chunks that end on block
// boundaries except a prompt's last. While budget is left, requests are
// admitted from the queue, each with room for its whole prompt and one token,
// or not at all. This is iteration-level scheduling (Orca, OSDI 2022) with
// chunked prefill (Sarathi-Serve, OSDI 2024).
//
// Where streaming the borrowed KV of some sequences would make every token of
// the others wait (StepCoster), those with streamed KV take turns: see
// takeTurns. And where streaming in every step would cost more than waiting
// until somebody else ends, a request stays in the queue: see worthStreaming.
//
// # The queue
//
// Memory is offered by priority, then to the tenant that has had the least
// service (virtual token counters, OSDI 2024), then by arrival: see queue. Who
// is first and is refused stays first until it is admitted. Meanwhile requests
// from behind may use what is free and not enough for it, within bounds: each
// request is overtaken at most MaxBypass times, and not after BypassTime from
// its first refusal; one place among those that run is left for it; and what
// the others hold is taken back if it is refused after BypassTime although
// memory has changed. So from BypassTime on everything is as if nobody had
// overtaken it. Priorities decide who comes next, not who goes: a request that
// waits takes memory from none that runs.
//
// # Memory
//
// A sequence that cannot grow takes the memory of the last in rank: of the
// lowest priority, there of one that overtook others, then of the latest
// arrival. That one goes back to its place in the queue and is computed again
// from its prompt and the tokens it has produced (recomputation as in vLLM, SOSP
// 2023), less what a PrefixCache still has. The same happens to sequences whose
// KV the cache lost. Since the engine is batch-invariant and sampling is
// stateless, the request goes on with the same bits; no token is sent twice.
// The first in rank never gives way to another, and alone it can have all
// memory there is, so it always finishes.
//
// The loop sleeps when nothing can run; Submit, Cancel, Cache.Changed and
// timeouts wake it. A refused Reserve or Admit is not repeated without a reason.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/prefix"
)

// Cache is the block memory of one model as the scheduler sees it. The
// scheduler calls it from a single goroutine, except BlockTokens and
// MaxTokens, which Submit calls from any.
type Cache interface {
	// BlockTokens is B.
	BlockTokens() int
	// MaxTokens is the longest sequence that could ever be held (all memory
	// that may be borrowed included).
	MaxTokens() int
	// Reserve makes room for sequence id to hold tokens tokens (prompt plus
	// generated; never shrinks). It is all or nothing. ErrWait: not now;
	// Changed fires when trying again makes sense (memory was freed,
	// borrowed or reclaimed). ErrComing, a kind of ErrWait: memory has been
	// asked for, so it is better to wait than to preempt. ErrNever: larger
	// than MaxTokens. A refusal is not repeated before Changed or a Release.
	Reserve(id uint64, tokens int) error
	// Release frees everything that id holds. Unknown ids are ignored.
	Release(id uint64)
	// Evicted lists sequences that lost blocks since the last call (a forced
	// return of borrowed memory). The scheduler Releases them and computes
	// them again from their tokens. It asks between the last Reserve and
	// Begin, so a Reserve need not know that its sequence was evicted; only a
	// later loss is Begin's to find.
	Evicted() []uint64
	// Begin starts a step over the given sequences, in batch order. The
	// returned KV serves one Forward; then exactly one of Commit or Abort is
	// called. A sequence that does not hold the KV of all positions before
	// Start gets a *LostError. An error from Forward or Commit means that the KV written in
	// this step is lost: sequences in a *LostError must be recomputed (the
	// scheduler Releases them), the others may simply run the same step
	// again. An error from Begin means the same and is followed by neither
	// Commit nor Abort. steps is valid until Begin returns.
	Begin(ctx context.Context, steps []StepSeq) (Step, error)
	// Changed is signalled (capacity 1, level-triggered) when a Reserve that
	// answered ErrWait may succeed or Evicted has news.
	Changed() <-chan struct{}
}

// BorrowCounter is a Cache that can say how much of a sequence lay in borrowed
// memory.
type BorrowCounter interface {
	// PeakBorrowed is the most borrowed blocks that id has held at once.
	PeakBorrowed(id uint64) int
}

// PrefixCache is a Cache that keeps the KV of sequences that have ended, by
// prefix, and gives it to later ones (DESIGN section 7).
type PrefixCache interface {
	Cache
	// Admit is the first Reserve of a sequence, all or nothing: it makes room
	// for a.Room tokens, and finds as much of a.Tokens as can be used of what
	// was kept. cached says how many leading tokens are in place: whole blocks,
	// and fewer than len(a.Tokens), so that there is something to compute. The
	// sequence's first step starts there. Errors are those of Reserve.
	Admit(a Admission) (cached int, err error)
	// Expect says that a request waits in the queue, so that what is far away
	// can come nearer meanwhile. It is a hint, repeated or not, and changes no
	// answer of Admit but its speed.
	Expect(a Admission)
	// Receipt tells where the tokens of a sequence came from. It is asked
	// before Release; the zero Receipt for an unknown id.
	Receipt(id uint64) Receipt
}

// StepCoster is a Cache that can say what a step costs a sequence beside the
// computing.
type StepCoster interface {
	// StepCost is how many bytes a step streams for id, and how long streaming
	// them once takes when nothing else is streamed. Zero: all its KV is at
	// home, or it is not known. It is asked for every sequence before every
	// step, so it must be cheap.
	StepCost(id uint64) (bytes int64, d time.Duration)
}

// Admission is a sequence on its way into the cache.
type Admission struct {
	ID uint64
	// Root is where its chain of block identities begins: the model's identity
	// and the tenant's salt.
	Root prefix.Key
	// Tokens are the prompt and, after a preemption, what was generated. They
	// do not change while the sequence lives, except that the scheduler appends.
	Tokens []int32
	// Room is how many tokens to reserve for, at least len(Tokens).
	Room int
	// Compute estimates how long computing positions [from, to) takes, from
	// measured steps; 0: nothing is known yet. Nil in a hint.
	Compute func(from, to int) time.Duration
	// Worth is asked, before anything is taken, about an admission that makes
	// steps stream more. False: it is to be refused with ErrWait, since waiting
	// for those that run is better. Nil: it is worth it.
	Worth func(Streams) bool
}

// Receipt is a request's account: how many of its prompt's tokens came from
// which tier when it was admitted last, and what that cost.
type Receipt struct {
	Local, Borrowed, Host, Pool int // tokens
	// Declined tokens were cached and computed all the same, because that is
	// faster.
	Declined int
	// PredictedMS is how long the arbiter expected the prompt to take with what
	// it chose, RecomputeMS what it expected without any cache; 0: not known.
	PredictedMS, RecomputeMS float64
}

// StepSeq is a sequence's share of a step: positions [Start, Start+New).
type StepSeq struct {
	ID         uint64
	Start, New int
	// Tokens are those of the positions, New of them; valid until Commit or
	// Abort has returned.
	Tokens []int32
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

// Errors of Cache.Reserve and PrefixCache.Admit.
var (
	ErrWait  = errors.New("no free blocks at the moment")
	ErrNever = errors.New("longer than this model can ever hold")
	// ErrComing is an ErrWait that names its remedy: a borrow or a reclaim is
	// under way. A running sequence that gets it sits out steps, at most
	// Options.GrowTimeout, before anyone is preempted for it.
	ErrComing = fmt.Errorf("%w: memory has been asked for", ErrWait)
)

// Request is one generation.
type Request struct {
	ID        string  // unique among the requests that have not ended
	Tokens    []int32 // prompt, at least one
	MaxTokens int     // new tokens, at least one
	Sampling  sampling.Params
	// Priority orders the queue: lower first, equal ones by arrival. Default 0.
	Priority int
	// Tenant is whose request it is; tenants of one priority get equal shares.
	Tenant string
	// Salt keeps the tenant's cached prefixes apart from others'.
	Salt      []byte
	StopIDs   []int32 // end-of-sequence ids, unless IgnoreEOS
	IgnoreEOS bool    // StopIDs end nothing
	// Sink receives the request's events in order, on the scheduler's
	// goroutine; it must not block: every other request waits for it. It may
	// call Submit, Cancel and Stats, but not Drain.
	Sink func(Event)
}

// Event is progress of one request. After an event with Finish or Err set no
// more events come. The last token comes in the same event as its Finish; with
// FinishStop it is the stop id itself.
type Event struct {
	Token    sampling.Token // valid when HasToken; the receiver may keep it
	HasToken bool
	Finish   string // "" or one of the Finish constants
	Err      error
	Usage    Usage // with Finish or Err
}

// Why a request ended.
const (
	FinishStop      = "stop"      // a stop id was drawn
	FinishLength    = "length"    // MaxTokens were drawn
	FinishCancelled = "cancelled" // Cancel was called
)

// Usage is a request's account.
type Usage struct {
	PromptTokens, CompletionTokens int
	// CachedTokens of the prompt were in a PrefixCache at the first admission:
	// what a preempted request finds of its own KV is no hit.
	CachedTokens int
	// LogitsHash chains xxh3-64 over the float32 bits of every row of logits
	// that was sampled from: equal hashes mean bit-equal computation.
	LogitsHash uint64
	// BorrowedBlocks is the most borrowed blocks that the request held at
	// once, where the cache is a BorrowCounter.
	BorrowedBlocks int
	// Preemptions counts how often the request was computed again.
	Preemptions int
	// Receipt is the cache's account of the first admission, where it is a
	// PrefixCache.
	Receipt Receipt
	// QueueMS: Submit to first admission. PrefillMS: first admission to first
	// token. TotalMS: Submit to the last event.
	QueueMS, PrefillMS, TotalMS float64
}
