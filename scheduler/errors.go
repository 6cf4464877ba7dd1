package scheduler

import (
	"errors"
	"fmt"
	"time"
)

// Errors of Submit and of events.
var (
	// ErrOverloaded: MaxWaiting requests wait already, or MaxWaitingTenant of
	// the request's tenant. Submit returns it
	// inside an *OverloadedError.
	ErrOverloaded = errors.New("too many requests are waiting")
	// ErrDuplicate: a request of this id has not ended yet.
	ErrDuplicate = errors.New("a request with this id is still running")
	// ErrDraining: Drain was called.
	ErrDraining = errors.New("the scheduler takes no more requests: it is draining")
	// ErrStopped: Run has returned.
	ErrStopped = errors.New("the scheduler has stopped")
)

// OverloadedError is Submit's refusal when the queue, or what one tenant may
// have of it, is full. It is ErrOverloaded.
type OverloadedError struct {
	Waiting    int           // requests in the queue, or of the tenant, which is its limit
	PerTenant  bool          // the limit is the tenant's, not the queue's
	Tenant     string        // with PerTenant
	RetryAfter time.Duration // when a place in the queue is likely to be free
}

func (e *OverloadedError) Error() string {
	if e.PerTenant {
		return fmt.Sprintf("%v: %d of tenant %q, the limit of one tenant; try again in %v", ErrOverloaded, e.Waiting, e.Tenant, e.RetryAfter)
	}
	return fmt.Sprintf("%v: %d, the limit; try again in %v", ErrOverloaded, e.Waiting, e.RetryAfter)
}

// Unwrap makes the error an ErrOverloaded.
func (e *OverloadedError) Unwrap() error { return ErrOverloaded }

// What limits the length of a request.
const (
	LimitModel = "the model's maximum context"
	LimitCache = "the KV memory this model can ever have, borrowed memory included"
)

// TooLongError says that a request could never be served.
type TooLongError struct {
	PromptTokens, MaxTokens int
	Limit                   int    // tokens that prompt and output may have together
	LimitedBy               string // LimitModel or LimitCache
}

func (e *TooLongError) Error() string {
	return fmt.Sprintf("%d prompt tokens and max_tokens %d exceed %d tokens: %s", e.PromptTokens, e.MaxTokens, e.Limit, e.LimitedBy)
}

// InvalidError names the field of a Request that is out of range.
type InvalidError struct {
	Field string
	Value string
	Want  string // the accepted range
	Err   error  // the cause, where there is one
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("request: %s is %s, must be %s", e.Field, e.Value, e.Want)
}

func (e *InvalidError) Unwrap() error { return e.Err }

// AdmissionError ends a request that could have run, alone in the model, if
// KV memory had come within Options.AdmissionTimeout.
type AdmissionError struct {
	Tokens int           // KV memory waited for, in tokens
	Limit  int           // tokens that the cache said it could hold
	Waited time.Duration // with nothing else running
	Err    error         // the cache's last refusal
}

func (e *AdmissionError) Error() string {
	return fmt.Sprintf("waited %v for KV memory for %d tokens (at most %d can ever be held) while nothing else was running: %v",
		e.Waited, e.Tokens, e.Limit, e.Err)
}

func (e *AdmissionError) Unwrap() error { return e.Err }

// InternalError ends requests whose step failed again and again, or whose
// token could not be drawn.
type InternalError struct {
	Op       string // what failed
	Attempts int
	Err      error
}

func (e *InternalError) Error() string {
	return fmt.Sprintf("%s failed (attempts: %d): %v", e.Op, e.Attempts, e.Err)
}

func (e *InternalError) Unwrap() error { return e.Err }
