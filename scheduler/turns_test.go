package scheduler

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kvlend/kvlend/engine"
)

// streamy is a cache in which some sequences' KV is streamed. A step lasts as
// long as its computing or its streams, whichever is longer.
type streamy struct {
	*toyCache
	cost map[uint64]time.Duration // of streaming a sequence once
	run  [][]uint64               // the sequences of every step
}

func (c *streamy) StepCost(id uint64) (int64, time.Duration) {
	d := c.cost[id]
	return int64(d), d
}

func (c *streamy) Begin(ctx context.Context, steps []StepSeq) (Step, error) {
	var ids []uint64
	for _, s := range steps {
		ids = append(ids, s.ID)
	}
	c.run = append(c.run, ids)
	return c.toyCache.Begin(ctx, steps)
}

// compute is what a step of the test's model costs without streams.
func compute(batch []engine.Sequence) time.Duration {
	d := time.Millisecond
	for _, s := range batch {
		d += time.Duration(len(s.Tokens)) * 20 * time.Microsecond
	}
	return d
}

func newStreamyRig(t *testing.T, cost map[uint64]time.Duration, opt Options) (*rig, *streamy) {
	r := newRig(t, newToyCache(1, 4, 600, 600), opt)
	c := &streamy{toyCache: r.cache, cost: cost}
	r.s = New(r.model, c, opt)
	r.model.record = false
	r.model.before = func(batch []engine.Sequence) error {
		var streams time.Duration
		for _, id := range c.run[len(c.run)-1] {
			streams += c.cost[id]
		}
		time.Sleep(max(compute(batch), streams)) // in the bubble
		return nil
	}
	return r, c
}

// perToken is a request's time per token after the first.
func perToken(c *collector) time.Duration {
	u := c.last().Usage
	return time.Duration((u.TotalMS - u.QueueMS - u.PrefillMS) / float64(u.CompletionTokens-1) * float64(time.Millisecond))
}

// serve runs so many requests of each kind and returns their times per token.
func serveStreamed(t *testing.T, atHome, streamed int, d time.Duration, opt Options) (home, away time.Duration, c *streamy) {
	bubble(t, func(t *testing.T) {
		cost := map[uint64]time.Duration{}
		for i := range streamed {
			cost[uint64(atHome+i+1)] = d
		}
		var r *rig
		r, c = newStreamyRig(t, cost, opt)
		for i := range 2 * costSteps { // a service that has run for a while
			n := 1 + i%2*60
			r.s.cost.Observe(Work{Tokens: n}, compute([]engine.Sequence{{Tokens: make([]int32, n)}}))
		}
		// Those at home last longer, so that there is no time without them.
		var homes, aways []*collector
		for i := range atHome {
			homes = append(homes, r.submit(fmt.Sprint("home", i), 40, 200))
		}
		for i := range streamed {
			aways = append(aways, r.submit(fmt.Sprint("away", i), 40, 20))
		}
		r.start()
		for _, c := range aways {
			<-c.ended
			away = max(away, perToken(c))
		}
		if streamed > 0 { // the time per token while there were streams
			most := 0
			for _, c := range homes {
				most = max(most, len(c.got()))
			}
			if most > 0 {
				home = time.Duration(aways[0].last().Usage.TotalMS*float64(time.Millisecond)) / time.Duration(most)
			}
		}
		r.finished()
		for _, c := range homes {
			if streamed == 0 {
				home = max(home, perToken(c))
			}
		}
		if st := r.s.Stats(); opt.StreamFactor > 100 && st.SatOut != 0 {
			t.Errorf("%+v", st)
		}
	})
	return home, away, c
}

// What the rule is for: times per token of sequences at home and streamed, alone,
// together without turns, and with them.
func TestTurnsProtectThoseAtHome(t *testing.T) {
	const d = 5 * time.Millisecond
	never := Options{StreamFactor: 1e6}
	home, _, _ := serveStreamed(t, 2, 0, 0, Options{})
	_, away, _ := serveStreamed(t, 0, 2, d, Options{})
	mixedHome, mixedAway, _ := serveStreamed(t, 2, 2, d, never)
	turnsHome, turnsAway, _ := serveStreamed(t, 2, 2, d, Options{})
	t.Logf("time per token: at home %v, streamed %v; together: at home %v, streamed %v; in turns: at home %v, streamed %v",
		home, away, mixedHome, mixedAway, turnsHome, turnsAway)
	if away != 2*d {
		t.Errorf("streamed sequences alone take %v, want %v: nobody waits for them", away, 2*d)
	}
	if turnsHome > mixedHome/2 || turnsHome > home+d {
		t.Errorf("at home: %v in turns, %v without", turnsHome, mixedHome)
	}
	if turnsAway > 2*mixedAway {
		t.Errorf("streamed: %v in turns, %v without", turnsAway, mixedAway)
	}
}

// Streams that computing hides cost nobody a turn.
func TestHiddenStreamsTakePart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, _ := newStreamyRig(t, map[uint64]time.Duration{2: 300 * time.Microsecond}, Options{})
		r.start()
		<-r.submit("teaches", 60, 40).ended
		before := r.s.Stats()
		if before.Cost.Steps < costSteps {
			t.Fatalf("%+v", before.Cost)
		}
		r.submit("streamed", 40, 50)
		r.submit("at home", 40, 50)
		r.finished()
		if st := r.s.Stats(); st.SatOut != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// Every streamed sequence runs at least every StreamTurns-th step, those at home
// in every one.
func TestTurnsAreBounded(t *testing.T) {
	for _, streamed := range []int{1, 2, 3, 7, 20} {
		for _, turns := range []int{2, 5, 8} {
			t.Run(fmt.Sprint(streamed, "/", turns), func(t *testing.T) {
				_, _, c := serveStreamed(t, 2, streamed, 20*time.Millisecond, Options{StreamTurns: turns})
				last := map[uint64]int{}
				for i, ids := range c.run {
					for _, id := range ids {
						if at, ok := last[id]; ok && i-at > turns {
							t.Fatalf("sequence %d runs in steps %d and %d", id, at, i)
						}
						if at, ok := last[id]; ok && c.cost[id] == 0 && i != at+1 {
							t.Fatalf("sequence %d, at home, sits out a step before %d", id, i)
						}
						last[id] = i
					}
				}
			})
		}
	}
}

// Steps that streams have made long teach nothing about computing.
func TestStreamsDoNotTeach(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, _ := newStreamyRig(t, map[uint64]time.Duration{1: 8 * time.Millisecond, 2: 8 * time.Millisecond}, Options{})
		r.submit("a", 40, 10)
		r.submit("b", 20, 50)
		r.submit("c", 40, 50)
		r.submit("d", 8, 30)
		r.start()
		r.finished()
		st := r.s.Stats().Cost
		if st.Steps == 0 || st.StepMS < 0.9 || st.StepMS > 1.1 || st.TokenMS < 0.018 || st.TokenMS > 0.022 {
			t.Errorf("%+v", st)
		}
	})
}
