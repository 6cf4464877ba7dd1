package inorder

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestQueue(t *testing.T) {
	q := NewQueue[int]()
	next := 0
	for i := range 10000 {
		if !q.Push(2*i) || !q.Push(2*i+1) {
			t.Fatal("an open queue refuses")
		}
		for range 1 + i%3 {
			if next > 2*i+1 {
				break
			}
			got, ok := q.Pop()
			if !ok || got != next {
				t.Fatalf("popped %d, %v, want %d", got, ok, next)
			}
			next++
		}
	}
	if !q.Close() || q.Close() || q.Push(1) {
		t.Error("a queue is closed once, and refuses then")
	}
	for ; next < 20000; next++ {
		if got, ok := q.Pop(); !ok || got != next {
			t.Fatalf("popped %d, %v after Close, want %d", got, ok, next)
		}
	}
	if got, ok := q.Pop(); ok {
		t.Errorf("a drained queue has %d", got)
	}
}

// TestQueueMemory: it is bounded by what waits, not by what ever passed.
func TestQueueMemory(t *testing.T) {
	q := NewQueue[int]()
	q.Push(0)
	for i := range 10000 {
		q.Push(i + 1)
		if got, _ := q.Pop(); got != i {
			t.Fatalf("popped %d, want %d", got, i)
		}
	}
	if n := cap(q.items); n > 64 {
		t.Errorf("room for %d items with one waiting", n)
	}
}

func TestQueueWakes(t *testing.T) {
	q := NewQueue[int]()
	got := make(chan bool)
	go func() {
		_, first := q.Pop()
		_, second := q.Pop()
		got <- first && !second
	}()
	q.Push(1)
	q.Close()
	if !<-got {
		t.Error("the waiting goroutine did not see one item and the end")
	}
}

func TestEvent(t *testing.T) {
	e := NewEvent()
	over, cancel := context.WithCancelCause(context.Background())
	why := errors.New("enough")
	cancel(why)
	if err := e.Wait(over); !errors.Is(err, why) || e.Err() != nil {
		t.Errorf("before: Wait %v, Err %v", err, e.Err())
	}
	if began, ended := e.Ran(); !began.IsZero() || !ended.IsZero() {
		t.Error("it ran before it happened")
	}
	failed, from, to := errors.New("failed"), time.Unix(1, 0), time.Unix(2, 0)
	e.Settle(failed, from, to)
	<-e.Done()
	if began, ended := e.Ran(); e.Err() != failed || e.Wait(over) != failed || began != from || ended != to {
		t.Errorf("after: %v, %v to %v", e.Err(), began, ended)
	}
}
