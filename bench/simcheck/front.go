package simcheck

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlend/kvlend/bench/serve"
	"github.com/kvlend/kvlend/bench/serve/report"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/trace"
	"github.com/kvlend/kvlend/planner/sim"
)

// frontLoad is what is asked of an idle system: enough requests for a median, and
// seldom enough that they do not meet.
const (
	frontRequests = 24
	frontRate     = 4 // a second
	frontShort    = 16
)

// MeasureFront starts the system of a configuration and asks its first master, or
// its first model, short and long prompts for one token, one after the other. What
// of a time to first token was neither queue nor prefill, by the answer's own
// account, is the front's.
func MeasureFront(ctx context.Context, binary string, cfg *configs.Config) (sim.Front, error) {
	s, err := serve.Baseline("local-only", cfg)
	if err != nil {
		return sim.Front{}, err
	}
	systems := []serve.System{s}
	model, most, err := serve.Longest(systems, "")
	if err != nil {
		return sim.Front{}, err
	}
	long := max(2*frontShort, min(1024, most/2))
	var at [2]time.Duration
	for i, n := range []int{frontShort, long} {
		if at[i], err = front(ctx, binary, systems, model, n); err != nil {
			return sim.Front{}, err
		}
	}
	f := sim.Front{Token: max(0, (at[1]-at[0])/time.Duration(long-frontShort))}
	f.Request = max(0, at[0]-frontShort*f.Token)
	return f, f.Validate()
}

// front is the median for prompts of about n tokens.
func front(ctx context.Context, binary string, systems []serve.System, model string, n int) (time.Duration, error) {
	l := trace.DefaultSynthetic()
	l.Sessions, l.Rate, l.Turns, l.Think = frontRequests, frontRate, 1, 0
	l.First, l.Sigma, l.Answer, l.System, l.SystemShare = float64(n), 0, 1, 0, 0
	t, err := l.Make()
	if err != nil {
		return 0, err
	}
	res, err := serve.Run(ctx, serve.Options{Systems: systems, Binary: binary, Model: model, Trace: t, Seed: uint64(n)})
	if err != nil {
		return 0, err
	}
	if err := res.Err(); err != nil {
		return 0, err
	}
	var ms []float64
	for _, v := range res.Configs[0].Rounds[0].Samples {
		if v.Code == report.CodeOK && v.Receipt != nil {
			ms = append(ms, v.TTFT().Seconds()*1e3-v.Receipt.QueueMS-v.Receipt.PrefillMS)
		}
	}
	if len(ms) == 0 {
		return 0, fmt.Errorf("none of %d answers told what its time was spent on", frontRequests)
	}
	return time.Duration(max(0, report.Median(ms)) * float64(time.Millisecond)), nil
}
