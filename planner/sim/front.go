package sim

import (
	"errors"
	"fmt"
	"time"
)

// Front is what stands between a client and a model's scheduler: HTTP, the gateway
// and the messages to the model's process. It encodes as JSON, durations in
// nanoseconds.
type Front struct {
	// Request is how long a request and its first token take through it together,
	// and Token how much longer for every token of the prompt.
	Request time.Duration `json:"request_ns,omitempty"`
	Token   time.Duration `json:"token_ns,omitempty"`
}

// Validate reports every field that is out of range.
func (f Front) Validate() error {
	var errs []error
	for _, v := range []struct {
		name string
		d    time.Duration
	}{{"request_ns", f.Request}, {"token_ns", f.Token}} {
		if v.d < 0 || v.d > time.Minute {
			errs = append(errs, fmt.Errorf("front: %s is %d (%s), want 0 to %d (%s)", v.name, v.d.Nanoseconds(), v.d, time.Minute.Nanoseconds(), time.Minute))
		}
	}
	return errors.Join(errs...)
}

// of a request with so many tokens.
func (f Front) of(tokens int) time.Duration { return f.Request + time.Duration(tokens)*f.Token }

// fronted is a Hardware that knows what its front takes.
type fronted interface{ Front() Front }

// Front is that of the machine.
func (h *configured) Front() Front { return h.m.Front }

// frontOf is what is known of a hardware's front.
func frontOf(h Hardware) Front {
	if f, ok := h.(fronted); ok {
		return f.Front()
	}
	return Front{}
}
