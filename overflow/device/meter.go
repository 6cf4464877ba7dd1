package device

import (
	"errors"
	"math/bits"
	"sync"
	"time"
)

// Meter keeps what a device achieves. Safe for concurrent use; costs no
// allocation.
type Meter struct {
	mu     sync.Mutex
	read   side // guarded by mu, as all that follows
	write  side
	errs   int64
	cancel int64
	depth  int
	deep   int
}

// Direction is what a Meter knows of reads or of writes.
type Direction struct {
	IOs, Bytes    int64
	P50, P99, Max time.Duration // latencies, to within 13 %
	// Rate is the bandwidth in bytes a second while any were under way, Size and
	// Depth their mean size in bytes and number; all lately (an exponentially
	// weighted mean over some seconds of work). 0: not yet known.
	Rate, Size, Depth float64
	Latency           time.Duration // mean, lately
}

// MeterStats are a Meter's figures.
type MeterStats struct {
	Read, Write           Direction
	Errors, Cancelled     int64
	InFlight, MaxInFlight int
}

const (
	window  = 100 * time.Millisecond // of work, that one sample of the means takes
	smooth  = 0.2                    // weight of the newest sample
	minIOs  = 16                     // of a sample
	buckets = 8 * 40
)

// side accumulates for reads or writes.
type side struct {
	ios, bytes int64
	hist       [buckets]int64 // of latencies
	max        time.Duration

	under int // under way
	since time.Time
	// The sample that is being taken.
	busy, depth, lat time.Duration // work, its integral over depth, latencies
	n, size          int64
	// Means of samples.
	samples            int64
	rate, sizes, deeps float64
	lats               float64
}

// NewMeter returns an empty Meter.
func NewMeter() *Meter { return &Meter{} }

func (m *Meter) side(io *IO) *side {
	if io.Write {
		return &m.write
	}
	return &m.read
}

// Began takes note of an I/O whose Began is set.
func (m *Meter) Began(io *IO) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.depth++
	m.deep = max(m.deep, m.depth)
	s := m.side(io)
	s.pass(io.Began)
	s.under++
}

// Ended takes note of the end of an I/O that Began knows.
func (m *Meter) Ended(io *IO) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.depth--
	s := m.side(io)
	s.pass(io.Ended)
	s.under--
	switch {
	case errors.Is(io.Err, ErrCancelled):
		m.cancel++
		return
	case io.Err != nil:
		m.errs++
		return
	}
	lat := max(0, io.Ended.Sub(io.Began))
	s.ios++
	s.bytes += int64(len(io.Buf))
	s.hist[bucket(lat)]++
	s.max = max(s.max, lat)
	s.n++
	s.size += int64(len(io.Buf))
	s.lat += lat
	if s.busy >= window && s.n >= minIOs {
		s.sample()
	}
}

// pass accounts the time up to t.
func (s *side) pass(t time.Time) {
	if d := t.Sub(s.since); s.under > 0 && d > 0 {
		s.busy += d
		s.depth += d * time.Duration(s.under)
	}
	if t.After(s.since) {
		s.since = t
	}
}

func (s *side) sample() {
	w := smooth
	if s.samples == 0 {
		w = 1
	}
	s.samples++
	busy := s.busy.Seconds()
	mean := func(v *float64, x float64) { *v += w * (x - *v) }
	mean(&s.rate, float64(s.size)/busy)
	mean(&s.sizes, float64(s.size)/float64(s.n))
	mean(&s.deeps, s.depth.Seconds()/busy)
	mean(&s.lats, float64(s.lat)/float64(s.n))
	s.busy, s.depth, s.lat, s.n, s.size = 0, 0, 0, 0, 0
}

// bucket of a latency: eight for each doubling.
func bucket(d time.Duration) int {
	n := uint64(d)
	if n < 8 {
		return int(n)
	}
	log := bits.Len64(n) - 1
	return min(8*(log-2)+int(n>>(log-3))&7, buckets-1)
}

// bucketEnd is the largest latency of a bucket.
func bucketEnd(b int) time.Duration {
	if b < 8 {
		return time.Duration(b)
	}
	log := b/8 + 2
	return time.Duration((uint64(8+b%8)+1)<<(log-3) - 1)
}

func (s *side) quantile(q float64) time.Duration {
	rank := int64(q * float64(s.ios))
	for b, n := range s.hist {
		if rank -= n; rank < 0 {
			return min(bucketEnd(b), s.max)
		}
	}
	return s.max
}

func (s *side) direction() Direction {
	return Direction{
		IOs: s.ios, Bytes: s.bytes,
		P50: s.quantile(0.5), P99: s.quantile(0.99), Max: s.max,
		Rate: s.rate, Size: s.sizes, Depth: s.deeps, Latency: time.Duration(s.lats),
	}
}

// Stats are the figures so far.
func (m *Meter) Stats() MeterStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return MeterStats{
		Read: m.read.direction(), Write: m.write.direction(),
		Errors: m.errs, Cancelled: m.cancel, InFlight: m.depth, MaxInFlight: m.deep,
	}
}
