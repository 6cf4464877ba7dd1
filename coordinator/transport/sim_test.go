package transport

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// arrivals sends count frames over a faulty link and returns what arrived,
// in order, and how long it took.
func arrivals(t *testing.T, seed uint64, f Faults, count int) (got []string, took time.Duration) {
	t.Helper()
	s := NewSim(seed, f)
	client, server := connect(t, s.Listen("s", "c"), s.Dialer("s", "c"))
	for i := range count {
		must(t, client.Send(fmt.Append(nil, i)))
	}
	start := time.Now()
	time.AfterFunc(f.MaxDelay*3+1, func() { _ = client.Close() })
	for {
		frame, err := server.Recv()
		if err != nil {
			return got, took
		}
		got, took = append(got, string(frame)), time.Since(start)
	}
}

func TestSimFaults(t *testing.T) {
	const count = 1000
	synctest.Test(t, func(t *testing.T) {
		var sent []string
		for i := range count {
			sent = append(sent, fmt.Sprint(i))
		}
		if got, _ := arrivals(t, 1, Faults{}, count); !slices.Equal(got, sent) {
			t.Errorf("without faults %d of %d frames arrived as sent", len(got), count)
		}
		if got, _ := arrivals(t, 1, Faults{Loss: 0.3}, count); len(got) < 600 || len(got) > 800 {
			t.Errorf("with a loss of 0.3 %d of %d frames arrived", len(got), count)
		}
		got, _ := arrivals(t, 1, Faults{Duplicate: 0.3}, count)
		if len(got) < 1200 || len(got) > 1400 {
			t.Errorf("with 0.3 duplicates %d of %d frames arrived", len(got), count)
		}
		got, took := arrivals(t, 1, Faults{MinDelay: time.Second, MaxDelay: 3 * time.Second}, count)
		if !slices.Equal(got, sent) || took < 2*time.Second || took > 3*time.Second {
			t.Errorf("delay: %d frames after %v, want %d in order within 2s and 3s", len(got), took, count)
		}
		got, _ = arrivals(t, 1, Faults{Reorder: 0.2, MaxDelay: time.Second}, count)
		if slices.Equal(got, sent) || len(got) != count {
			t.Errorf("reordering: %d of %d frames, in order %v", len(got), count, slices.Equal(got, sent))
		}
		all := Faults{Loss: 0.2, Duplicate: 0.2, Reorder: 0.2, MaxDelay: time.Second}
		a, _ := arrivals(t, 7, all, count)
		b, _ := arrivals(t, 7, all, count)
		c, _ := arrivals(t, 8, all, count)
		if !slices.Equal(a, b) || slices.Equal(a, c) {
			t.Errorf("the seed does not decide what arrives")
		}
	})
}

func TestSimPartitionAndCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSim(1, Faults{})
		l, d := s.Listen("s", "c"), s.Dialer("s", "c")
		client, server := connect(t, l, d)
		s.Partition("s", "c", true)
		must(t, client.Send([]byte("swallowed")))
		if _, err := d.Dial(t.Context()); err == nil {
			t.Error("dialed through a partition")
		}
		s.Partition("s", "c", false)
		must(t, client.Send([]byte("heard")))
		f, err := server.Recv()
		must(t, err)
		if string(f) != "heard" {
			t.Errorf("got %q", f)
		}
		must(t, client.Send([]byte("in flight")))
		s.Cut("s", "c")
		if f, err := server.Recv(); err == nil {
			t.Errorf("got %q over a cut connection", f)
		}
		connect(t, l, d)
	})
}
