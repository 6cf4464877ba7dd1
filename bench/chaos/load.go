package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// outcome is how a request ended.
type outcome string

// Outcomes. Those of proper errors are their codes.
const (
	right     outcome = "right"
	cancelled outcome = "cancelled by the client"
	broken    outcome = "connection broken"
	wrong     outcome = "WRONG"
	improper  outcome = "IMPROPER"
	hung      outcome = "HUNG"
)

// books count outcomes.
type books struct {
	mu       sync.Mutex
	outcomes map[outcome]int
	borrowed int // right answers out of borrowed memory
	pool     int // right answers with tokens from disks
	redone   int // right answers after preemptions
	problems []string
}

// maxProblems bounds the list of what went wrong; the counts go on.
const maxProblems = 20

func newBooks() *books { return &books{outcomes: map[outcome]int{}} }

func (b *books) count(o outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.outcomes[o]++
}

// problem notes something that fails the run.
func (b *books) problem(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.problems) < maxProblems {
		b.problems = append(b.problems, fmt.Sprintf(format, args...))
	}
}

func (b *books) line() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	total := 0
	for _, n := range b.outcomes {
		total += n
	}
	return fmt.Sprintf("%d requests, %d right, %d wrong", total, b.outcomes[right], b.outcomes[wrong])
}

// client sends requests until until ends; what is under way then may end.
func (r *run) client(ctx, until context.Context, number int) {
	rng := rand.New(rand.NewPCG(r.opt.Seed, uint64(number)))
	// Half of the clients talk to the master, so that it needs to borrow.
	mine := models[0]
	if number%2 == 1 {
		mine = models[1+number/2%2]
	}
	for until.Err() == nil {
		model := mine
		if rng.IntN(5) == 0 {
			model = models[rng.IntN(len(models))]
		}
		var choice []ask
		for _, a := range r.asks {
			if a.Model == model {
				choice = append(choice, a)
			}
		}
		a := choice[1+rng.IntN(len(choice)-1)] // not the probe
		if r.one(ctx, a, rng.IntN(2) == 0, cancelAfter(rng)) != right {
			pause(until, time.Duration(20+rng.IntN(200))*time.Millisecond)
		}
	}
}

// cancelAfter is the time after which a client hangs up; 0: it does not.
func cancelAfter(rng *rand.Rand) time.Duration {
	if rng.IntN(8) != 0 {
		return 0
	}
	return time.Duration(1+rng.IntN(700)) * time.Millisecond
}

// one sends one request and books its outcome.
func (r *run) one(ctx context.Context, a ask, stream bool, cancel time.Duration) outcome {
	limit := r.opt.Hang
	if cancel > 0 {
		limit = cancel
	}
	rctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	calm := r.watch.calm()
	receipt, err := r.http.do(rctx, a, stream, func(int) {})
	o := classify(err, rctx.Err() != nil, cancel > 0)
	if ctx.Err() != nil {
		return cancelled // the whole run was
	}
	switch {
	case o == right:
		if err := a.right(receipt.TokenIDs, receipt.LogitsHash); err != nil {
			o = wrong
			r.books.problem("wrong answer: %v", err)
			break
		}
		r.books.mu.Lock()
		if receipt.BorrowedBlocks > 0 {
			r.books.borrowed++
		}
		if receipt.Receipt != nil && receipt.Receipt.Pool > 0 {
			r.books.pool++
		}
		if receipt.Preemptions > 0 {
			r.books.redone++
		}
		r.books.mu.Unlock()
	case o == broken && calm():
		o = improper
		r.books.problem("%s, %d tokens: the connection broke although nobody touched the gateway: %v", a.Model, len(a.Prompt), err)
	case o == improper:
		r.books.problem("%s, %d tokens, stream %v: %v", a.Model, len(a.Prompt), stream, err)
	case o == hung:
		r.books.problem("%s, %d tokens, stream %v: neither answer nor error within %v", a.Model, len(a.Prompt), stream, limit)
	}
	r.books.count(o)
	return o
}

// classify names the outcome of a request.
func classify(err error, late, mayCancel bool) outcome {
	var no *refusal
	var bad *badAnswer
	switch {
	case err == nil:
		return right
	case errors.As(err, &bad):
		return improper
	case errors.As(err, &no):
		return outcome(no.code)
	case late && mayCancel:
		return cancelled
	case late:
		return hung
	default:
		return broken
	}
}
