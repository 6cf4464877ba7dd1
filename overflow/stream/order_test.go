package stream_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/overflow/stream"
)

// held is a rig whose devices keep what they are given until told, in a bubble
// where synctest.Wait says that everything has come to a halt.
func held(t *testing.T, n int, o stream.Options, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, n, 1<<20, 1<<20, o)
		for _, d := range r.devs {
			d.hold = true
		}
		f(t, r)
	})
}

// flyingAt lists the offsets of what is in flight on device i, in blocks.
func (r *rig) flyingAt(i int) []int {
	synctest.Wait()
	var at []int
	for _, io := range r.devs[i].inFlight() {
		at = append(at, int(io.Off/page))
	}
	slices.Sort(at)
	return at
}

func (r *rig) wantFlying(i int, want ...int) {
	r.Helper()
	if got := r.flyingAt(i); !slices.Equal(got, want) {
		r.Fatalf("device %d has I/O in flight at blocks %v, want %v", i, got, want)
	}
}

// landAt ends the I/O at a block.
func (r *rig) landAt(i, block int, err error) {
	r.Helper()
	for _, io := range r.devs[i].inFlight() {
		if io.Off == int64(block)*page {
			r.devs[i].land(io, err)
			synctest.Wait()
			return
		}
	}
	r.Fatalf("device %d has no I/O at block %d", i, block)
}

// TestReadsRunAhead: later batches start before the first has ended, past calls
// and events, and become visible in order.
func TestReadsRunAhead(t *testing.T) {
	held(t, 2, stream.Options{}, func(t *testing.T, r *rig) {
		clear(r.host.Bytes())
		var evs []nvlink.Event
		var calls []int
		for i := range 4 {
			r.copy(r.load(i%2, int64(i)*2*page, int64(i)*page, page))
			r.must(r.s.Call(func() error { calls = append(calls, i); return nil }))
			evs = append(evs, r.record())
		}
		r.wantFlying(0, 0, 4)
		r.wantFlying(1, 2, 6)
		for _, block := range []int{6, 4, 2} { // all but the first
			r.landAt(block/2%2, block, nil)
			if isDone(evs[0]) || len(calls) > 0 {
				t.Fatal("something passed the first batch")
			}
		}
		r.equal("host before the first batch", r.host.Bytes(), make([]byte, 1<<20))
		r.landAt(0, 0, nil)
		for _, e := range evs {
			if !isDone(e) {
				t.Fatal("an event has not completed")
			}
		}
		if !slices.Equal(calls, []int{0, 1, 2, 3}) {
			t.Errorf("calls ran in the order %v", calls)
		}
		for i := range int64(4) {
			r.equal("host", r.host.Bytes()[i*page:][:page], r.devs[i%2].bytes(i*2*page, page))
		}
	})
}

// TestCallSeesItsTurn: what later batches bring is not there yet.
func TestCallSeesItsTurn(t *testing.T) {
	held(t, 1, stream.Options{}, func(t *testing.T, r *rig) {
		var seen [3]byte
		for i := range 3 {
			r.devs[0].mem[i*2*page] = byte(i + 1)
			r.copy(r.load(0, int64(i)*2*page, 0, 1)) // all to the same place
			r.must(r.s.Call(func() error { seen[i] = r.host.Bytes()[0]; return nil }))
		}
		r.wantFlying(0, 0, 2, 4)
		r.devs[0].landAll()
		synctest.Wait()
		if seen != [3]byte{1, 2, 3} {
			t.Errorf("calls saw %v", seen)
		}
	})
}

// TestNothingPassesAWait, but what is behind it starts as soon as the event is
// done, while earlier batches still fly.
func TestNothingPassesAWait(t *testing.T) {
	held(t, 1, stream.Options{}, func(t *testing.T, r *rig) {
		e := hostEvent{make(chan struct{})}
		past := hostEvent{make(chan struct{})}
		close(past.done)
		r.copy(r.load(0, 0, 0, page))
		r.must(r.s.WaitEvent(past))
		r.copy(r.load(0, 2*page, 0, page))
		r.must(r.s.WaitEvent(e))
		r.copy(r.load(0, 4*page, page, page))
		after := r.record()
		r.wantFlying(0, 0, 2)
		close(e.done)
		r.wantFlying(0, 0, 2, 4)
		r.landAt(0, 4, nil)
		if isDone(after) {
			t.Fatal("an event passed the batches before it")
		}
		// One that belongs to the stream itself.
		r.must(r.s.WaitEvent(r.record()))
		r.copy(r.load(0, 6*page, page, page))
		r.wantFlying(0, 0, 2)
		r.landAt(0, 0, nil)
		r.wantFlying(0, 2)
		r.landAt(0, 2, nil)
		r.wantFlying(0, 6)
	})
}

func TestEventsAcrossStreams(t *testing.T) {
	held(t, 1, stream.Options{}, func(t *testing.T, r *rig) {
		other, err := stream.New(stream.Options{Memory: r.mem})
		r.must(err)
		defer func() { r.must(other.Close()) }()
		r.copy(r.store(0, 0, 0, page))
		r.must(other.WaitEvent(r.record()))
		r.must(other.CopyBatch([]nvlink.Copy{r.load(0, 0, page, page)}))
		back, err := other.Record()
		r.must(err)
		r.must(r.s.WaitEvent(back))
		r.copy(r.store(0, 2*page, page, page))
		end := r.record()
		for _, block := range []int{0, 0, 2} {
			r.wantFlying(0, block)
			if isDone(end) {
				t.Fatal("done too early")
			}
			r.landAt(0, block, nil)
		}
		if !isDone(back) || !isDone(end) {
			t.Fatal("events have not completed")
		}
		r.equal("copy of a copy", r.devs[0].bytes(2*page, page), r.devs[0].bytes(0, page))
	})
}

// TestWritesAndReads: who waits for whom.
func TestWritesAndReads(t *testing.T) {
	held(t, 1, stream.Options{}, func(t *testing.T, r *rig) {
		want := r.fill(4)
		r.copy(r.store(0, 0, 0, 3*page))       // a
		r.copy(r.store(0, 10*page, page, 100)) // b: together with a
		r.copy(r.load(0, 20*page, 0, page))    // c: passes them
		r.copy(r.load(0, 2*page, 8*page, 1))   // d: overlaps a
		r.copy(r.load(0, 30*page, 9*page, 1))  // e: behind d
		r.wantFlying(0, 0, 10, 20)
		r.landAt(0, 20, nil)
		r.landAt(0, 10, nil)
		r.wantFlying(0, 0)
		r.landAt(0, 0, nil)
		r.wantFlying(0, 2, 30)
		r.copy(r.store(0, 40*page, 8*page, 1)) // f: its source is what d brings
		r.copy(r.load(0, 50*page, 10*page, 1)) // g: behind f
		r.wantFlying(0, 2, 30)
		r.landAt(0, 30, nil)
		r.wantFlying(0, 2)
		r.landAt(0, 2, nil)
		r.wantFlying(0, 40, 50)
		r.copy(r.store(0, 40*page, 0, 1)) // h: overlaps f, and is behind g
		r.landAt(0, 50, nil)
		r.wantFlying(0, 40)
		r.landAt(0, 40, nil)
		r.wantFlying(0, 40)
		r.landAt(0, 40, nil)
		r.must(r.sync())
		r.equal("what d read", r.host.Bytes()[8*page:][:1], want[2*page:][:1])
	})
}

// TestMixedBatch: its reads first.
func TestMixedBatch(t *testing.T) {
	held(t, 2, stream.Options{}, func(t *testing.T, r *rig) {
		r.copy(r.store(0, 0, 0, page), r.load(0, 2*page, page, page), r.load(1, 4*page, 2*page, page), r.store(1, 6*page, 3*page, page))
		r.wantFlying(0, 2)
		r.wantFlying(1, 4)
		r.landAt(0, 2, nil)
		r.wantFlying(0)
		r.landAt(1, 4, nil)
		r.wantFlying(0, 0)
		r.wantFlying(1, 6)
	})
}

// TestPrefetchIsBounded by staging, and what is due comes first.
func TestPrefetchIsBounded(t *testing.T) {
	held(t, 1, stream.Options{MaxRead: page, Staging: 4 * page}, func(t *testing.T, r *rig) {
		for i := range int64(4) {
			r.copy(r.load(0, 4*i*page, 2*i*page, page), r.load(0, (4*i+2)*page, (2*i+1)*page, page))
		}
		r.wantFlying(0, 0, 2, 4, 6)
		r.landAt(0, 6, nil)
		r.landAt(0, 4, nil)
		r.wantFlying(0, 0, 2) // the buffers wait for their turn
		r.landAt(0, 0, nil)
		r.wantFlying(0, 2, 8)
		r.landAt(0, 2, nil)
		r.wantFlying(0, 8, 10, 12, 14)
		r.devs[0].landAll()
		r.must(r.sync())
		if r.mem.peak > 4*page {
			t.Errorf("%d bytes of staging", r.mem.peak)
		}
	})
}

// TestDevicesTakeTurns: with little staging all devices work, in proportion.
func TestDevicesTakeTurns(t *testing.T) {
	held(t, 2, stream.Options{MaxRead: page, Staging: 8 * page}, func(t *testing.T, r *rig) {
		var pieces []nvlink.Copy
		for i := range int64(40) {
			d := 0
			if i >= 30 {
				d = 1
			}
			pieces = append(pieces, r.load(d, 2*i*page, i*page, page))
		}
		r.copy(pieces...)
		if a, b := len(r.flyingAt(0)), len(r.flyingAt(1)); a != 6 || b != 2 {
			t.Errorf("%d and %d I/Os in flight, want 6 and 2", a, b)
		}
	})
}

// TestEventsKnowTheirTime: of batches that ran ahead too.
func TestEventsKnowTheirTime(t *testing.T) {
	held(t, 1, stream.Options{}, func(t *testing.T, r *rig) {
		t0 := time.Now()
		r.copy(r.load(0, 0, 0, page))
		a := r.record()
		r.copy(r.load(0, 2*page, 0, page))
		b := r.record()
		r.must(r.s.Call(func() error { time.Sleep(3 * time.Millisecond); return nil }))
		c, none := r.record(), r.record()
		if began, _ := b.(nvlink.Timed).Ran(); !began.IsZero() {
			t.Error("an event that has not happened knows its time")
		}
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		r.landAt(0, 2, nil)
		time.Sleep(2 * time.Millisecond)
		r.landAt(0, 0, nil)
		r.must(c.Wait(t.Context()))
		for i, w := range []struct {
			e            nvlink.Event
			began, ended time.Duration
		}{{a, 0, 12}, {b, 12, 12}, {c, 12, 15}} {
			began, ended := w.e.(nvlink.Timed).Ran()
			if began.Sub(t0) != w.began*time.Millisecond || ended.Sub(t0) != w.ended*time.Millisecond {
				t.Errorf("batch %d ran from %v to %v, want %d to %d ms", i, began.Sub(t0), ended.Sub(t0), w.began, w.ended)
			}
		}
		r.must(none.Wait(t.Context()))
		if began, ended := none.(nvlink.Timed).Ran(); !began.IsZero() || !ended.IsZero() {
			t.Error("nothing took time")
		}
	})
}
