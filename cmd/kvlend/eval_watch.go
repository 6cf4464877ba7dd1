package main

import (
	"context"
	"sync"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/harness"
	"github.com/kvlend/kvlend/internal/recall"
)

// pollRecall is how often the system's state is looked at.
const pollRecall = 250 * time.Millisecond

// recallWatch looks at a system now and then: how many units are lent has to be
// seen while they are.
type recallWatch struct {
	sys    *harness.System
	stop   context.CancelFunc
	worker sync.WaitGroup
	seen   recall.System // the worker's until it has ended
}

func watchRecall(ctx context.Context, sys *harness.System) *recallWatch {
	w := &recallWatch{sys: sys}
	for _, l := range sys.View.Lending {
		w.seen.Units += l.Units
	}
	ctx, w.stop = context.WithCancel(ctx)
	w.worker.Go(func() {
		tick := time.NewTicker(pollRecall)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				w.look(ctx)
			}
		}
	})
	return w
}

// look reads the state. A process that does not answer now may do so later.
func (w *recallWatch) look(ctx context.Context) {
	models, err := w.sys.Status(ctx)
	if err != nil {
		return
	}
	now := recall.System{Units: w.seen.Units}
	for _, s := range models {
		if s == nil {
			return
		}
		now.Loaded += s.Loaded
		now.Stored += s.Stored
		now.Preempted += s.Preempted
		now.Stale += s.Stale
		now.Corrupt += s.Corrupt
		for _, m := range s.Moved {
			now.Moved += m.N
		}
		if s.Model.Role == configs.RoleWorker {
			for _, u := range s.Units {
				now.UnitsLent += u.Lent
			}
		}
	}
	now.UnitsLent = max(now.UnitsLent, w.seen.UnitsLent)
	w.seen = now
}

// end looks for the last time.
func (w *recallWatch) end(ctx context.Context) *recall.System {
	w.stop()
	w.worker.Wait()
	w.look(ctx)
	return &w.seen
}
