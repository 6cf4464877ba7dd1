package shm

import (
	"sync"
	"testing"
	"time"

	"github.com/kvlend/kvlend/nvlink"
)

// TestEventsKnowWhenTheirBatchRan: from the start of the first copy or call to
// the end of the last one, without what the stream waited for before.
func TestEventsKnowWhenTheirBatchRan(t *testing.T) {
	paced(t, func(t *testing.T, f *Fabric, a [3]*Arena) {
		s, other := open(t, f, "s"), open(t, f, "other")
		t0 := time.Now()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		record := func(s nvlink.Stream) nvlink.Timed {
			ev, err := s.Record()
			must(err)
			return ev.(nvlink.Timed)
		}
		must(other.Call(func() error { time.Sleep(7 * time.Millisecond); return nil }))
		gate := record(other)
		must(s.WaitEvent(gate))
		must(s.CopyBatch([]nvlink.Copy{bytesOf(a[0], a[1], 10000)})) // 15 ms
		must(s.Call(func() error { time.Sleep(2 * time.Millisecond); return nil }))
		first := record(s)
		must(s.CopyBatch([]nvlink.Copy{bytesOf(a[0], a[1], 10000)}))
		second, empty := record(s), record(s)
		if began, _ := second.Ran(); !began.IsZero() {
			t.Error("an event that has not happened knows its time")
		}
		must(empty.Wait(t.Context()))
		for i, c := range []struct {
			ev           nvlink.Timed
			began, ended time.Duration
		}{{gate, 0, 7}, {first, 7, 24}, {second, 24, 39}} {
			began, ended := c.ev.Ran()
			if began.Sub(t0) != c.began*time.Millisecond || ended.Sub(t0) != c.ended*time.Millisecond {
				t.Errorf("batch %d ran from %v to %v, want %d to %d ms", i, began.Sub(t0), ended.Sub(t0), c.began, c.ended)
			}
		}
		if began, ended := empty.Ran(); !began.IsZero() || !ended.IsZero() {
			t.Errorf("nothing ran from %v to %v", began, ended)
		}
	})
}

// slowClock is a millisecond later whenever it is asked: as if the goroutine of
// a stream woke late. Nobody sleeps.
type slowClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *slowClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(time.Millisecond)
	return c.now
}

func (c *slowClock) SleepUntil(time.Time) {}

// TestLateGoroutinesDoNotCount: an emulated link starts when a copy is enqueued,
// as a copy engine does, whenever the stream's goroutine gets to it.
func TestLateGoroutinesDoNotCount(t *testing.T) {
	clock := &slowClock{now: time.Unix(0, 0)}
	s := newTestStream(t, Config{Topology: mesh(t, 1e6, 5*time.Millisecond), Pace: true, Clock: clock})
	a, b := newTestArena(t, "a", "gpu0", 1<<20), newTestArena(t, "b", "gpu1", 1<<20)
	for range 3 {
		before := clock.Now()
		if err := s.CopyBatch([]nvlink.Copy{bytesOf(a, b, 100)}); err != nil {
			t.Fatal(err)
		}
		ev, err := s.Record()
		if err == nil {
			err = ev.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		began, ended := ev.(nvlink.Timed).Ran()
		if d := began.Sub(before); d != time.Millisecond {
			t.Errorf("the copy began %v after it was enqueued", d-time.Millisecond)
		}
		if d := ended.Sub(began); d != 5100*time.Microsecond {
			t.Errorf("the copy took %v", d)
		}
		clock.mu.Lock()
		clock.now = clock.now.Add(time.Second) // the link is idle
		clock.mu.Unlock()
	}
}
