package scheduler

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/prefix"
)

// Scheduler runs requests on one model. Submit, Cancel, Stats, Limit and
// Drain may be called from any goroutine; Run is called once.
//
// A request is in the queue or running. Those that run are ordered by priority,
// then by arrival; the queue has an order of its own.
type Scheduler struct {
	runner engine.Runner
	cache  Cache
	prefix PrefixCache // the cache, if it is one
	coster StepCoster  // likewise
	opt    Options
	block  int // B

	wake  chan struct{} // capacity 1: Submit or Cancel has news for the loop
	empty chan struct{} // closed when draining and no request is left

	nRunning atomic.Int64 // len(running), for Submit

	mu        sync.Mutex
	byID      map[string]*seq // all that have not ended
	inbox     []*seq          // submitted, not yet seen by the loop
	cancels   []*seq
	lastID    uint64
	started   bool
	draining  bool
	stopped   bool
	published Stats
	tenants   tenants
	pace      pace

	// Owned by Run's goroutine.
	queue     queue
	running   []*seq // by rank
	overtaken int    // how many in the queue have been overtaken
	peeked    []*seq // scratch
	cost      *CostModel
	streamed  []*seq  // scratch
	longStep  bool    // the last step streamed more than its computing hides
	answer    float64 // mean tokens of answers; 0: none has ended
	batch     []*seq
	steps     []StepSeq
	seqs      []engine.Sequence
	scratch   sampling.Scratch
	memGen    uint64 // raised when a refused Reserve may succeed
	stats     Stats

	// idleFor, first in the queue, has waited for memory since idleSince
	// while nothing ran; a step resets it.
	idleFor   *seq
	idleSince time.Time
}

// New returns a Scheduler that is not running yet. It takes over runner and
// the calls to cache.
func New(runner engine.Runner, cache Cache, opt Options) *Scheduler {
	b := cache.BlockTokens()
	s := &Scheduler{
		runner:  runner,
		cache:   cache,
		opt:     opt.withDefaults(b),
		block:   b,
		wake:    make(chan struct{}, 1),
		empty:   make(chan struct{}),
		byID:    make(map[string]*seq),
		tenants: tenants{},
		memGen:  1,
	}
	s.cost = NewCostModel(s.opt.MaxBatchTokens)
	s.prefix, _ = cache.(PrefixCache)
	s.coster, _ = cache.(StepCoster)
	return s
}

// Limit is the most tokens that a prompt and its output may have together at
// the moment, and which of LimitModel and LimitCache sets it.
func (s *Scheduler) Limit() (tokens int, by string) {
	tokens, by = s.cache.MaxTokens(), LimitCache
	if m := s.runner.Config().MaxContext; m > 0 && m <= tokens {
		tokens, by = m, LimitModel
	}
	return tokens, by
}

// roomyAnswer is for how many tokens of an answer there is memory from the start:
// the copy of a long prompt need not be copied again for the first of them.
const roomyAnswer = 1024

// roomy copies tokens into memory that has room for more.
func roomy(tokens []int32, more int) []int32 {
	return append(make([]int32, 0, len(tokens)+more), tokens...)
}

// Submit queues a request. Tokens and StopIDs are copied; Sampling.LogitBias
// must not change any more. Errors: *InvalidError,
// *TooLongError, *OverloadedError, ErrDuplicate, ErrDraining, ErrStopped.
// After an error Sink is never called.
func (s *Scheduler) Submit(r Request) error {
	if err := s.validate(&r); err != nil {
		return err
	}
	q := &seq{req: r, root: prefix.Root(s.opt.Identity, r.Salt), prompt: len(r.Tokens), tokens: roomy(r.Tokens, min(r.MaxTokens, roomyAnswer)), submitted: s.opt.Clock.Now()}
	q.req.Tokens, q.req.Salt = nil, nil
	q.req.StopIDs = slices.Clone(r.StopIDs)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
		return ErrStopped
	case s.draining:
		return ErrDraining
	case s.byID[r.ID] != nil:
		return fmt.Errorf("%w: %q", ErrDuplicate, r.ID)
	}
	if err := s.overloaded(r.Tenant); err != nil {
		return err
	}
	if len(s.byID) == 0 {
		s.pace.last = q.submitted // the idle time before says nothing of the pace
	}
	s.lastID++
	q.id = s.lastID
	s.byID[r.ID] = q
	s.tenants.add(r.Tenant)
	s.inbox = append(s.inbox, q)
	s.signal()
	return nil
}

func (s *Scheduler) validate(r *Request) error {
	switch {
	case r.ID == "":
		return &InvalidError{Field: "ID", Value: "empty", Want: "not empty"}
	case r.Sink == nil:
		return &InvalidError{Field: "Sink", Value: "nil", Want: "a function"}
	case len(r.Tokens) == 0:
		return &InvalidError{Field: "Tokens", Value: "empty", Want: "at least one token"}
	case r.MaxTokens < 1:
		return &InvalidError{Field: "MaxTokens", Value: fmt.Sprint(r.MaxTokens), Want: "at least 1"}
	}
	if err := validateTenant(r); err != nil {
		return err
	}
	vocab := s.runner.Config().Vocab
	for i, t := range r.Tokens {
		if t < 0 || int(t) >= vocab {
			return &InvalidError{Field: fmt.Sprintf("Tokens[%d]", i), Value: fmt.Sprint(t), Want: fmt.Sprintf("in [0, %d)", vocab)}
		}
	}
	if err := r.Sampling.Validate(); err != nil {
		return &InvalidError{Field: "Sampling", Value: "invalid", Want: "valid: " + err.Error(), Err: err}
	}
	for id := range r.Sampling.LogitBias {
		if id < 0 || int(id) >= vocab {
			return &InvalidError{Field: "Sampling.LogitBias", Value: fmt.Sprintf("for token %d", id), Want: fmt.Sprintf("for tokens in [0, %d)", vocab)}
		}
	}
	limit, by := s.Limit()
	if r.MaxTokens > limit-len(r.Tokens) {
		return &TooLongError{PromptTokens: len(r.Tokens), MaxTokens: r.MaxTokens, Limit: limit, LimitedBy: by}
	}
	return nil
}

// Bounds of a Request.
const (
	MaxPriority = 1 << 20 // either way from 0
	MaxTenant   = 128     // bytes of Tenant
	MaxSalt     = 64      // bytes of Salt
)

func validateTenant(r *Request) error {
	switch {
	case r.Priority < -MaxPriority || r.Priority > MaxPriority:
		return &InvalidError{Field: "Priority", Value: fmt.Sprint(r.Priority), Want: fmt.Sprintf("in [%d, %d]", -MaxPriority, MaxPriority)}
	case len(r.Tenant) > MaxTenant:
		return &InvalidError{Field: "Tenant", Value: fmt.Sprintf("%d bytes long", len(r.Tenant)), Want: fmt.Sprintf("at most %d", MaxTenant)}
	case len(r.Salt) > MaxSalt:
		return &InvalidError{Field: "Salt", Value: fmt.Sprintf("%d bytes long", len(r.Salt)), Want: fmt.Sprintf("at most %d", MaxSalt)}
	}
	return nil
}

// overloaded refuses a request where the queue, or the tenant's share of it, is
// full. A tenant with less than an equal part of MaxWaiting finds a place though
// others fill the queue, which is never longer than twice MaxWaiting: else whoever
// sends most would have all places, and equal shares would be of no use to those
// who are refused. The caller holds mu.
func (s *Scheduler) overloaded(tenant string) error {
	waiting, count := s.waiting(), s.tenants[tenant]
	tenants := len(s.tenants)
	if count == (tenantCount{}) {
		tenants++
	}
	owed := tenants > 1 && (count.waiting+1)*tenants <= s.opt.MaxWaiting && waiting < 2*s.opt.MaxWaiting
	if waiting >= s.opt.MaxWaiting && !owed {
		return &OverloadedError{Waiting: s.opt.MaxWaiting, RetryAfter: s.pace.retryAfter(1)}
	}
	if n := count.waiting; s.opt.MaxWaitingTenant > 0 && n >= s.opt.MaxWaitingTenant {
		// With equal shares every so manyth request that ends is the tenant's.
		return &OverloadedError{Waiting: n, PerTenant: true, Tenant: tenant, RetryAfter: s.pace.retryAfter(len(s.tenants))}
	}
	return nil
}

// waiting is the length of the queue. The caller holds mu.
func (s *Scheduler) waiting() int { return max(0, len(s.byID)-int(s.nRunning.Load())) }

func (s *Scheduler) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Cancel ends the request of this id and reports whether there was one. Its
// memory is free at the next step boundary, when its last event, with
// FinishCancelled, is sent; what a step in progress computes for it is dropped.
func (s *Scheduler) Cancel(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.byID[id]
	if q == nil {
		return false
	}
	if !q.cancelled.Swap(true) {
		s.cancels = append(s.cancels, q)
		s.signal()
	}
	return true
}

// Drain refuses new requests from now on and returns when the last one has
// ended, or with ctx's error. Run goes on.
func (s *Scheduler) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.draining = true
	s.closeIfEmpty()
	s.mu.Unlock()
	select {
	case <-s.empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// closeIfEmpty tells Drain that nothing is left. The caller holds mu.
func (s *Scheduler) closeIfEmpty() {
	if !s.draining || len(s.byID) > 0 {
		return
	}
	select {
	case <-s.empty:
	default:
		close(s.empty)
	}
}
