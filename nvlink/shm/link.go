package shm

import (
	"math"
	"sync"
	"time"

	"github.com/kvlend/kvlend/nvlink/topology"
)

// link paces one direction between two devices. Batches cross it one after
// another: each holds the link for bytes/bandwidth from the moment when the
// link is free, and arrives one latency later (virtual finish time).
type link struct {
	topology.Link

	mu sync.Mutex
	// free is when the last accepted batch leaves the link.
	free time.Time
}

// reserve accepts n bytes that may start at start and returns when they have
// arrived.
func (l *link) reserve(start time.Time, n int64) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.free.After(start) {
		start = l.free
	}
	l.free = start.Add(time.Duration(math.Round(float64(n) / l.BytesPerSec * float64(time.Second))))
	return l.free.Add(l.Latency)
}
