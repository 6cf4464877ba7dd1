package node

import (
	"context"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// askUnload queues a question about a device's drain; when too many wait, whoever
// asks gets no answer.
func (n *Node) askUnload(m *wire.UnloadAsk) {
	select {
	case n.unloads <- m:
	default:
		n.opt.Log.Warn("too many questions about the drain of a device are waiting, one is dropped")
	}
}

// runUnloads carries out drains of devices until ctx ends: also while nobody asks
// how far they are.
func (n *Node) runUnloads(ctx context.Context) {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	under := map[string]bool{} // the devices that are drained: whether that is not over
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-n.unloads:
			n.out.push(n.unload(m, under))
		case <-tick.C:
			for device, going := range under {
				if going {
					under[device] = !n.opt.Unload(device, false).Unloaded()
				}
			}
		}
	}
}

// unload starts or undoes a drain, or goes on with one.
func (n *Node) unload(m *wire.UnloadAsk, under map[string]bool) *wire.UnloadState {
	st := &wire.UnloadState{Unknown: "it has no overflow pool"}
	if n.opt.Unload != nil {
		st = n.opt.Unload(m.Device, m.Undo)
	}
	st.ID = m.ID
	if st.Unknown != "" {
		return st
	}
	if _, was := under[m.Device]; was == m.Undo {
		n.opt.Log.Info("drain of a device of the overflow pool", "device", m.Device, "on", !m.Undo, "blocks", st.Blocks)
	}
	delete(under, m.Device)
	if !m.Undo {
		under[m.Device] = !st.Unloaded()
	}
	return st
}
