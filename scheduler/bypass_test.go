package scheduler

import (
	"fmt"
	"testing"
	"time"
)

// stuckRig has a request that runs for ever so long in 6 of 10 blocks and one
// that waits for 8.
func stuckRig(t *testing.T, opt Options) (r *rig, runs, large *collector) {
	r = newRig(t, newToyCache(1, 4, 10, 20), opt)
	watch(r.s, r.cache)
	r.model.layerTime = time.Millisecond // 2 ms a step
	r.start()
	runs = r.submit("runs", 12, 12)
	time.Sleep(time.Millisecond) // in the bubble
	large = r.submit("large", 31, 1)
	time.Sleep(time.Millisecond)
	return r, runs, large
}

func isOver(c *collector) bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// Small requests use what is free meanwhile, but only MaxBypass of them.
func TestBypassIsBounded(t *testing.T) {
	for _, limit := range []int{-1, 1, 3} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, runs, large := stuckRig(t, Options{MaxBypass: limit})
				var small []*collector
				for i := range 6 {
					small = append(small, r.submit(fmt.Sprint("small", i), 2, 1))
				}
				<-runs.ended
				passed := 0
				for _, c := range small {
					if isOver(c) {
						passed++
					}
				}
				if passed != max(limit, 0) {
					t.Errorf("%d requests were served before the large one, want %d", passed, max(limit, 0))
				}
				<-large.ended
				r.finished()
				if st := r.s.Stats(); st.Bypasses != uint64(max(limit, 0)) {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

// After BypassTime nobody overtakes any more, and a guest whose memory is
// missing gives it back.
func TestGuestsGoHome(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, runs, large := stuckRig(t, Options{BypassTime: 10 * time.Millisecond})
		guest := r.submit("guest", 2, 15) // up to 4 blocks
		time.Sleep(12 * time.Millisecond)
		late := r.submit("late", 1, 1)
		<-runs.ended
		if isOver(late) || len(guest.got()) == 0 {
			t.Errorf("late ended: %v, guest's tokens: %v", isOver(late), guest.got())
		}
		freed := time.Now()
		<-large.ended
		if d := time.Since(freed); d != 2*time.Millisecond {
			t.Errorf("the large request had its token %v after there was memory for it", d)
		}
		r.finished()
		if u := guest.last().Usage; u.Preemptions != 1 {
			t.Errorf("guest: %+v", u)
		}
	})
}

// A guest is no guest any more once everybody it overtook is served.
func TestGuestsStay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, _, large := stuckRig(t, Options{})
		guest := r.submit("guest", 2, 30)
		<-large.ended
		r.submit("next", 25, 10) // grows beyond what is free
		r.finished()
		if u := guest.last().Usage; u.Preemptions != 0 {
			t.Errorf("guest: %+v", u)
		}
	})
}

// A guest gives way before one that came later, in its turn.
func TestGuestsAreTheFirstVictims(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newToyCache(1, 4, 13, 20), Options{})
		watch(r.s, r.cache)
		r.model.layerTime = time.Millisecond
		r.send(Request{ID: "first", Tokens: prose("1", 15), MaxTokens: 6, Tenant: "x"})
		r.start()
		time.Sleep(time.Millisecond)
		r.send(Request{ID: "short", Tokens: prose("0", 1), MaxTokens: 1, Tenant: "y"})
		guest := r.send(Request{ID: "guest", Tokens: prose("2", 7), MaxTokens: 30, Tenant: "x"})
		regular := r.send(Request{ID: "regular", Tokens: prose("3", 3), MaxTokens: 30, Tenant: "y"})
		r.send(Request{ID: "large", Tokens: prose("4", 48), MaxTokens: 1, Tenant: "y"})
		time.Sleep(5 * time.Millisecond)
		if st := r.s.Stats(); st.Running != 3 || st.Bypasses != 1 {
			t.Errorf("the guest is none: %+v", st)
		}
		r.finished()
		if a, b := guest.last().Usage.Preemptions, regular.last().Usage.Preemptions; a == 0 || b != 0 {
			t.Errorf("preemptions: guest %d, regular %d", a, b)
		}
	})
}

// The last place among those that run is kept for the first in the queue.
func TestBypassLeavesAPlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, runs, large := stuckRig(t, Options{MaxRunning: 2})
		small := r.submit("small", 2, 20)
		<-runs.ended
		<-large.ended
		if n := len(small.got()); n > 2 {
			t.Errorf("the small request ran for %d tokens before the large one", n)
		}
		r.finished()
	})
}
