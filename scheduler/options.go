package scheduler

import (
	"time"

	"github.com/kvlend/kvlend/engine/sampling"
)

// Options tune a Scheduler. The zero value of a field means its default.
type Options struct {
	// MaxRunning is how many sequences may hold KV memory at once (64).
	MaxRunning int
	// MaxBatchTokens is the token budget of one step (2048): decoding
	// sequences take one each, prefill takes the rest. New raises it to
	// MaxRunning-1 + B where it is less, so that prefill always gets a block.
	MaxBatchTokens int
	// MaxWaiting is how many requests may wait before Submit refuses (1024).
	MaxWaiting int
	// MaxWaitingTenant is how many of these one tenant may have (0: no limit of
	// its own).
	MaxWaitingTenant int
	// MaxBypass is how many later requests may be admitted before a request
	// that waits for memory (8; negative: none), and BypassTime how long after
	// its first refusal (10 s).
	MaxBypass  int
	BypassTime time.Duration
	// AdmissionTimeout is how long the first request in the queue waits for
	// KV memory while nothing runs before it fails (60 s).
	AdmissionTimeout time.Duration
	// GrowTimeout is how long a running sequence sits out steps while memory
	// for its next block is on its way (ErrComing), or while it is the only
	// one running and the first in order, before memory is taken from the
	// latest arrival (10 s).
	GrowTimeout time.Duration
	// StreamFactor is how much longer the streams of a step may take than its
	// computing before sequences with streamed KV take turns (1.25), and
	// StreamTurns is how many steps such a sequence waits for its turn at most,
	// its own included (8, at least 2).
	StreamFactor float64
	StreamTurns  int
	// StepRetries is how often a step that failed with an error other than
	// *LostError runs again (2; negative: never).
	StepRetries int
	// MaxLosses is how often the cache may lose a request's KV, without a new
	// token in between, before the request fails (100).
	MaxLosses int
	// Identity is what the model's KV depends on beside tokens and salt: digest
	// of the weights, element type, layout, adapter. A PrefixCache must not be
	// shared by models of one Identity that differ in any of these.
	Identity []byte
	// Sampler draws tokens (sampling.Sample). It must leave logits unchanged.
	Sampler func(logits []float32, prompt, output []int32, index int, p sampling.Params, scratch *sampling.Scratch) (sampling.Token, error)
	Logger  Logger
	Clock   Clock
}

// Logger receives the events that an operator should see, as a message and
// alternating keys and values. hclog.Logger satisfies it. Calls come from the
// scheduler's goroutine.
type Logger interface {
	Debug(msg string, keyvals ...any)
	Warn(msg string, keyvals ...any)
}

// Clock is the scheduler's time. Calls come from any goroutine.
type Clock interface {
	Now() time.Time
	// Timer returns a channel that receives once after d, and a function
	// that releases the timer early.
	Timer(d time.Duration) (<-chan time.Time, func())
}

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) Timer(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

type noLogger struct{}

func (noLogger) Debug(string, ...any) {}
func (noLogger) Warn(string, ...any)  {}

func (o Options) withDefaults(blockTokens int) Options {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&o.MaxRunning, 64)
	def(&o.MaxBatchTokens, 2048)
	def(&o.MaxWaiting, 1024)
	def(&o.MaxLosses, 100)
	def(&o.StreamTurns, 8)
	o.StreamTurns = max(o.StreamTurns, 2)
	if !(o.StreamFactor > 0) {
		o.StreamFactor = 1.25
	}
	o.MaxBatchTokens = max(o.MaxBatchTokens, o.MaxRunning-1+blockTokens)
	if o.StepRetries == 0 {
		o.StepRetries = 2
	}
	if o.MaxBypass == 0 {
		o.MaxBypass = 8
	}
	if o.BypassTime <= 0 {
		o.BypassTime = 10 * time.Second
	}
	if o.AdmissionTimeout <= 0 {
		o.AdmissionTimeout = time.Minute
	}
	if o.GrowTimeout <= 0 {
		o.GrowTimeout = 10 * time.Second
	}
	if o.Sampler == nil {
		o.Sampler = sampling.Sample
	}
	if o.Logger == nil {
		o.Logger = noLogger{}
	}
	if o.Clock == nil {
		o.Clock = systemClock{}
	}
	return o
}
