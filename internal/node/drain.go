package node

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// errDraining refuses a request while the model is drained.
var errDraining = errors.New("the model is being drained: it takes no new requests")

// retryDrain is when a client may come again then.
const retryDrain = 5 * time.Second

// drainEvery is how often a drain looks whether requests have ended and units
// have come home.
const drainEvery = 50 * time.Millisecond

// drain is a drain in progress. It lasts until it is undone or the process
// ends.
type drain struct {
	on   atomic.Bool
	asks chan *wire.DrainAsk
}

// setDrain starts or undoes a drain: requests that come from now on see it.
// runDrain does the rest and answers; when too many questions wait, whoever
// asks gets no answer.
func (n *Node) setDrain(m *wire.DrainAsk) {
	if n.drain.on.Swap(!m.Undo) == m.Undo {
		n.opt.Log.Info("drain", "on", !m.Undo)
	}
	select {
	case n.drain.asks <- m:
	default:
		n.opt.Log.Warn("too many questions about the drain are waiting, one is dropped")
	}
}

// runDrain carries out drains until ctx ends.
func (n *Node) runDrain(ctx context.Context) {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-n.drain.asks:
			st := n.lookDrain()
			st.ID = m.ID
			n.out.push(st)
		case <-tick.C:
			if n.drain.on.Load() {
				n.lookDrain()
			}
		}
	}
}

// lookDrain does what the drain, or its end, needs at this moment.
func (n *Node) lookDrain() *wire.DrainState {
	st := &wire.DrainState{Draining: n.drain.on.Load()}
	n.mu.Lock()
	st.Requests = len(n.live)
	n.mu.Unlock()
	if n.opt.Drain != nil {
		st.Units = n.opt.Drain(st.Draining, st.Requests == 0)
	}
	return st
}

// maxDrainAsks bounds the questions that may wait.
const maxDrainAsks = 16
