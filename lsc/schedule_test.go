package lsc

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestScheduleIsExactlyTheAllowedOne runs passes with random blocks and compute
// times on a paced fabric under fake time, and asserts of every load and store
// that it ran at the very moment that the package's rules give: neither
// earlier (data would be overwritten) nor later (overlap would be lost).
func TestScheduleIsExactlyTheAllowedOne(t *testing.T) {
	for seed := range uint64(100) {
		for _, buffers := range []int{1, 2} {
			for _, one := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) { checkSchedule(t, seed, buffers, one) })
			}
		}
	}
}

// layerTimes are the moments of one layer in fake time.
type layerTimes struct{ called, ready, written, done time.Time }

func checkSchedule(t *testing.T, seed uint64, buffers int, oneStream bool) {
	rng := rand.New(rand.NewPCG(seed, 1))
	layers, n := 1+rng.IntN(7), 1+rng.IntN(5)
	per := []time.Duration{time.Millisecond, 1700 * time.Microsecond}
	r := newRig(t, rigConfig{layers: layers, blocks: n, buffers: buffers, m: 1 << 10, oneStream: oneStream, perBlock: per[0], perSecond: per[1]})
	x := &expected{layers: layers, buffers: buffers, oneStream: oneStream, per: per, began: time.Now(), trace: map[string]interval{}}
	var blocks []Block
	for i := range n {
		load, store, home := rng.IntN(3) > 0, rng.IntN(2) > 0, rng.IntN(2) > 0
		b := r.block(i, buffers, load, store, nil)
		if home && load && layers > buffers {
			b = r.promoted(i, store, nil)
		}
		if rng.IntN(3) == 0 {
			b = r.far(b)
		}
		x.add(b)
		blocks = append(blocks, b)
	}
	p, err := r.pipeline(buffers).Begin(blocks)
	if err != nil {
		t.Fatal(err)
	}
	// Fake time, to the nanosecond: no two things happen at the same moment
	// unless one causes the other.
	compute := func() { time.Sleep(time.Duration(1 + rng.IntN(3_000_000))) }
	x.at = make([]layerTimes, layers)
	for l := range layers {
		at := &x.at[l]
		at.called = time.Now()
		if err := p.Layer(l); err != nil {
			t.Fatal(err)
		}
		at.ready = time.Now()
		compute() // QKV
		at.written = time.Now()
		p.Written(l)
		compute() // attention
		at.done = time.Now()
		p.Done(l)
		compute() // FFN
	}
	if err := p.Finish(); err != nil {
		t.Fatal(err)
	}
	x.simulate()
	where := fmt.Sprintf("seed %d, %d buffers, one stream %v", seed, buffers, oneStream)
	x.check(t, where, r.trace.clone(), p.Stats(), time.Now())
}

// expected is a model of the streams, written from the rules: it replays the
// moments at which the pass was called.
type expected struct {
	layers, buffers int
	oneStream       bool
	per             []time.Duration // of a block on each link
	loads           [2][2]int       // blocks by stream and by kind: streamed, promoted
	stores          int             // all blocks
	storesFar       int             // those of the second link
	reuse           bool            // stores from slots that are shared between layers
	began           time.Time
	at              []layerTimes

	layer int                  // layers whose attention is done
	free  map[string]time.Time // when a stream has ended what it has
	next  [2][2]int            // layers submitted, by stream and by kind
	pump  [2]time.Time         // when the stream's last batch is over and something is to be chosen; zero: never
	trace map[string]interval  // what should have run
	busy  time.Duration
}

func (x *expected) add(b Block) {
	if b.Load {
		k := 0
		if len(b.Slots) == x.layers {
			k = 1
		}
		x.loads[b.Via][k]++
	}
	if b.Store {
		x.stores++
		x.storesFar += b.Via
		x.reuse = x.reuse || len(b.Slots) < x.layers
	}
}

// run puts a batch that takes d at the end of a stream, at moment t.
func (x *expected) run(stream, key string, t, after time.Time, d time.Duration) time.Time {
	start := maxTime(maxTime(t, after), x.free[stream])
	x.trace[key] = interval{start, start.Add(d)}
	x.free[stream] = start.Add(d)
	return x.free[stream]
}

func (x *expected) loadStream(via int) string {
	if via == 0 && x.oneStream {
		return "store"
	}
	return fmt.Sprint("load", via)
}

// stored is when the slots of layer l have been stored.
func (x *expected) stored(l int) time.Time {
	if l < x.buffers || !x.reuse {
		return time.Time{}
	}
	return x.trace[batchKey("store", 0, l-x.buffers)].end
}

// load submits the next layer of a kind at moment t.
func (x *expected) load(via, k int, t time.Time) time.Time {
	l, after := x.next[via][k], time.Time{}
	kind := "load"
	if k == 1 && x.layers > x.buffers {
		kind = "promote"
	}
	if k == 0 {
		after = x.stored(l)
	}
	x.next[via][k]++
	d := x.per[via] * time.Duration(x.loads[via][k])
	x.busy += d
	return x.run(x.loadStream(via), batchKey(kind, via, l), t, after, d)
}

// stream submits what attention has made room for.
func (x *expected) stream(via int, t time.Time) {
	for x.loads[via][0] > 0 && x.next[via][0] < min(x.layer+x.buffers, x.layers) {
		x.load(via, 0, t)
	}
}

// choose submits the next batch of a stream with both kinds.
func (x *expected) choose(via int, t time.Time) {
	s, w := x.next[via][0], x.next[via][1]
	k := 1
	if x.loads[via][0] > 0 && s <= w && s < min(x.layer+x.buffers, x.layers) && !x.stored(s).After(t) {
		k = 0
	}
	x.pump[via] = x.load(via, k, t)
	if x.next[via][1] == x.layers {
		x.pump[via] = time.Time{}
		x.stream(via, t)
	}
}

func (x *expected) simulate() {
	x.free = map[string]time.Time{}
	for via, n := range x.loads {
		if n[1] > 0 && (n[0] > 0 || x.loadStream(via) == "store") {
			x.choose(via, x.began)
			continue
		}
		for n[1] > 0 && x.next[via][1] < x.layers {
			x.load(via, 1, x.began)
		}
		x.stream(via, x.began)
	}
	for l := range x.at {
		x.pumpUntil(x.at[l].written)
		if x.stores > 0 {
			// The links work in parallel; the batch is over with the later one.
			d := max(x.per[0]*time.Duration(x.stores-x.storesFar), x.per[1]*time.Duration(x.storesFar))
			x.run("store", batchKey("store", 0, l), x.at[l].written, time.Time{}, d)
		}
		x.pumpUntil(x.at[l].done)
		x.layer++
		for via := range x.loads {
			if x.pump[via].IsZero() {
				x.stream(via, x.at[l].done)
			}
		}
	}
}

// pumpUntil makes the choices that are due before t.
func (x *expected) pumpUntil(t time.Time) {
	for via := range x.pump {
		for !x.pump[via].IsZero() && !x.pump[via].After(t) {
			x.choose(via, x.pump[via])
		}
	}
}

func (x *expected) check(t *testing.T, where string, got map[string]interval, st Stats, finished time.Time) {
	t.Helper()
	for key, want := range x.trace {
		if iv := got[key]; !iv.start.Equal(want.start) || !iv.end.Equal(want.end) {
			t.Fatalf("%s: %s ran from %v to %v, want %v to %v", where, key,
				iv.start.Sub(x.began), iv.end.Sub(x.began), want.start.Sub(x.began), want.end.Sub(x.began))
		}
		if want.end.After(finished) {
			t.Fatalf("%s: Finish returned before the end of %s", where, key)
		}
	}
	if len(got) != len(x.trace) {
		t.Fatalf("%s: %d batches ran, want %d", where, len(got), len(x.trace))
	}
	var stall time.Duration
	for l, at := range x.at {
		ready := maxTime(at.called, x.stored(l))
		for _, kind := range []string{"load", "promote"} {
			for via := range x.loads {
				ready = maxTime(ready, x.trace[batchKey(kind, via, l)].end)
			}
		}
		if !at.ready.Equal(ready) {
			t.Fatalf("%s: Layer(%d) returned at %v, slots were ready at %v", where, l, at.ready.Sub(x.began), ready.Sub(x.began))
		}
		stall += ready.Sub(at.called)
	}
	promoted := (x.loads[0][1] + x.loads[1][1]) * x.layers
	loads := promoted + (x.loads[0][0]+x.loads[1][0])*x.layers
	want := Stats{
		LoadedBlocks: loads, StoredBlocks: x.stores * x.layers, PromotedBlocks: promoted,
		LoadedBytes: int64(loads) << 10, StoredBytes: int64(x.stores*x.layers) << 10, PromotedBytes: int64(promoted) << 10,
		Stall: stall, FirstStall: x.at[0].ready.Sub(x.at[0].called), LoadBusy: x.busy,
	}
	if st != want {
		t.Fatalf("%s: stats %+v, want %+v", where, st, want)
	}
}

func maxTime(a, b time.Time) time.Time {
	return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare)
}
