package wire

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestLatencyBucketsMatchTheirBounds(t *testing.T) {
	bounds := LatencyBounds()
	if len(bounds) != latencyBuckets || !slices.IsSorted(bounds) {
		t.Fatalf("bounds %v", bounds)
	}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float64Range(-1, 20).Draw(t, "seconds")
		var h Latency
		h.Observe(v)
		want := 0 // as Prometheus puts it: the first bound that is not below
		for want < len(bounds) && bounds[want] < v {
			want++
		}
		if h.Counts[want] != 1 || h.Sum != max(v, 0) {
			t.Fatalf("%g s: %+v, want it in bucket %d", v, h, want)
		}
		c := h.Clone()
		c.Observe(v)
		if h.Counts[want] != 1 {
			t.Fatal("a clone shares its counts")
		}
	})
}
