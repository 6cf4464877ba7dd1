package node

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// TestUnload: a drain goes on while nobody asks, until the device is empty or the
// drain is undone.
func TestUnload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left, draining := 5, false
		n := &Node{out: newOutbox(hclog.NewNullLogger()), unloads: make(chan *wire.UnloadAsk, maxDrainAsks)}
		n.opt.Log = hclog.NewNullLogger()
		n.opt.Unload = func(device string, undo bool) *wire.UnloadState {
			if device != "d" {
				return &wire.UnloadState{Unknown: "no " + device}
			}
			if draining = !undo; draining && left > 0 {
				left--
			}
			return &wire.UnloadState{Draining: draining, Blocks: left}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { n.runUnloads(ctx) })
		ask := func(device string, undo bool) wire.UnloadState {
			n.askUnload(&wire.UnloadAsk{ID: 9, Device: device, Undo: undo})
			synctest.Wait()
			n.out.mu.Lock()
			defer n.out.mu.Unlock()
			st := n.out.pending[len(n.out.pending)-1].(*wire.UnloadState)
			return *st
		}
		if st := ask("x", false); st.Unknown != "no x" || st.ID != 9 {
			t.Errorf("%+v", st)
		}
		if st := ask("d", false); st.Blocks != 4 || !st.Draining {
			t.Errorf("%+v", st)
		}
		after(drainEvery*2 + drainEvery/2)
		if left != 2 {
			t.Errorf("%d left, nobody goes on", left)
		}
		if st := ask("d", true); st.Draining {
			t.Errorf("%+v", st)
		}
		after(10 * drainEvery)
		if draining || left != 2 {
			t.Errorf("undone, and it goes on: %d left", left)
		}
		ask("d", false)
		after(10 * drainEvery)
		if left != 0 {
			t.Errorf("%d left", left)
		}
		cancel()
		wg.Wait()
	})
}

// after lets the bubble's time pass.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// TestUnloadWithoutPool: a model without devices says so.
func TestUnloadWithoutPool(t *testing.T) {
	n := &Node{}
	if st := n.unload(&wire.UnloadAsk{ID: 3, Device: "d"}, map[string]bool{}); st.Unknown == "" || st.ID != 3 {
		t.Errorf("%+v", st)
	}
}
