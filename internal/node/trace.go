package node

import (
	"context"
	"sync"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/internal/timeline"
)

// maxTraceAsks bounds the questions for the timeline that are not yet looked at,
// and those that are answered at the same time.
const maxTraceAsks = 4

// askTrace queues a question; when too many are under way, whoever asks gets no
// answer.
func (n *Node) askTrace(m *wire.TraceAsk) {
	select {
	case n.traces <- m:
	default:
		n.opt.Log.Warn("too many ask for the timeline, one is dropped")
	}
}

// runTraces answers them, side by side: each takes as long as it was asked to.
func (n *Node) runTraces(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for range maxTraceAsks {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case m := <-n.traces:
					n.out.push(n.trace(ctx, m))
				}
			}
		})
	}
}

func (n *Node) trace(ctx context.Context, m *wire.TraceAsk) *wire.Trace {
	rec := n.opt.Timeline
	if rec == nil {
		rec = new(timeline.Recorder) // of which nothing is heard
	}
	out := timeline.ToWire(m.ID, rec.Collect(ctx, m.Length))
	out.PID = n.opt.Hello.PID
	return out
}
