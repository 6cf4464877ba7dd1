package wire

import (
	"fmt"
	"math"
)

// What a Status says of links and of lending beside the books.

// latencyBuckets is how many bounded buckets a Latency has: from 100 us,
// doubling, to 6.6 s; one more is for what takes longer.
const latencyBuckets = 17

// LatencyBounds returns the upper bounds of a Latency's buckets in seconds.
func LatencyBounds() []float64 {
	out := make([]float64, latencyBuckets)
	for i := range out {
		out[i] = 100e-6 * float64(int(1)<<i)
	}
	return out
}

// Latency is a histogram of durations. Counts is empty when nothing was
// observed, else it has a number per bucket of LatencyBounds and a last one for
// what takes longer.
type Latency struct {
	Counts []uint64 `cbor:"1,keyasint"`
	Sum    float64  `cbor:"2,keyasint"` // seconds
}

// Observe adds a duration in seconds. Negative ones count as 0.
func (h *Latency) Observe(seconds float64) {
	if h.Counts == nil {
		h.Counts = make([]uint64, latencyBuckets+1)
	}
	seconds = max(seconds, 0)
	i, bound := 0, 100e-6
	for i < latencyBuckets && seconds > bound {
		i++
		bound *= 2
	}
	h.Counts[i]++
	h.Sum += seconds
}

// Clone returns a copy that shares nothing with h.
func (h Latency) Clone() Latency {
	return Latency{Counts: append([]uint64(nil), h.Counts...), Sum: h.Sum}
}

// LinkStatus is one end of a link.
type LinkStatus struct {
	Peer     string `cbor:"1,keyasint"`
	Up       bool   `cbor:"2,keyasint"`
	Reason   string `cbor:"3,keyasint"` // why it is down or was refused
	Refused  bool   `cbor:"4,keyasint"`
	Queued   int    `cbor:"5,keyasint"` // messages not acknowledged
	Sent     uint64 `cbor:"6,keyasint"`
	Resent   uint64 `cbor:"7,keyasint"`
	Dropped  uint64 `cbor:"8,keyasint"` // lost with a process of the peer
	Connects uint64 `cbor:"9,keyasint"`
	Resets   uint64 `cbor:"10,keyasint"` // times that the peer was another process
}

// LendingStatus counts what happened between a worker and a master, as either
// of them saw it, since its process began.
type LendingStatus struct {
	Peer      string `cbor:"1,keyasint"`
	Granted   uint64 `cbor:"2,keyasint"` // units
	Returned  uint64 `cbor:"3,keyasint"` // units
	Denied    uint64 `cbor:"4,keyasint"` // requests
	Reclaimed uint64 `cbor:"5,keyasint"` // units asked back
	Fenced    uint64 `cbor:"6,keyasint"` // units taken without consent
	Confirmed uint64 `cbor:"7,keyasint"` // fenced units that came home
	// GrantTime is from asking to having (masters), ReclaimTime from asking
	// back to the last unit's return, FenceTime from taking to the proof that
	// nobody writes any more (workers).
	GrantTime   Latency `cbor:"8,keyasint"`
	ReclaimTime Latency `cbor:"9,keyasint"`
	FenceTime   Latency `cbor:"10,keyasint"`
}

// Count is a named number.
type Count struct {
	Name string `cbor:"1,keyasint"`
	N    uint64 `cbor:"2,keyasint"`
}

// Interference says what lending costs a worker's own requests.
type Interference struct {
	Prefill    StepTimes `cbor:"1,keyasint"`
	Decode     StepTimes `cbor:"2,keyasint"`
	BackingOff bool      `cbor:"3,keyasint"` // nothing is lent because of it
	Backoffs   uint64    `cbor:"4,keyasint"`
}

// StepTimes compares recent steps while units are lent with recent ones while
// none are. Times are medians in milliseconds, per token of a prompt or per step
// of decoding, which is the time per token of each request; they compare only if
// the work was alike. Ratio does so at equal work; 0: not known.
type StepTimes struct {
	WithSteps    int     `cbor:"1,keyasint"`
	WithoutSteps int     `cbor:"2,keyasint"`
	WithMS       float64 `cbor:"3,keyasint"`
	WithoutMS    float64 `cbor:"4,keyasint"`
	Ratio        float64 `cbor:"5,keyasint"`
}

func (t *StepTimes) check(c *check, field string) {
	c.count(field+".WithSteps", int64(t.WithSteps), 0, maxCount)
	c.count(field+".WithoutSteps", int64(t.WithoutSteps), 0, maxCount)
	c.millis(field+".WithMS", t.WithMS)
	c.millis(field+".WithoutMS", t.WithoutMS)
	c.millis(field+".Ratio", t.Ratio)
}

func (l *LinkStatus) check(c *check, i int) {
	c.text(fmt.Sprintf("Links[%d].Peer", i), l.Peer, MaxName)
	c.text(fmt.Sprintf("Links[%d].Reason", i), l.Reason, MaxText)
	c.count(fmt.Sprintf("Links[%d].Queued", i), int64(l.Queued), 0, math.MaxInt32)
}

func (l *LendingStatus) check(c *check, i int) {
	c.text(fmt.Sprintf("Lending[%d].Peer", i), l.Peer, MaxName)
	for name, h := range map[string]*Latency{"GrantTime": &l.GrantTime, "ReclaimTime": &l.ReclaimTime, "FenceTime": &l.FenceTime} {
		if n := len(h.Counts); n != 0 && n != latencyBuckets+1 {
			c.fail("Lending[%d].%s.Counts: %d entries, must be 0 or %d", i, name, n, latencyBuckets+1)
		}
		c.millis(fmt.Sprintf("Lending[%d].%s.Sum", i, name), h.Sum)
	}
}

// checkHealth bounds the part of a Status that this file describes.
func (m *Status) checkHealth(c *check) {
	c.length("Links", len(m.Links), MaxPeers)
	for i := range m.Links {
		m.Links[i].check(c, i)
	}
	c.length("Lending", len(m.Lending), MaxPeers)
	for i := range m.Lending {
		m.Lending[i].check(c, i)
	}
	c.length("Moved", len(m.Moved), MaxPeers)
	for i := range m.Moved {
		c.text(fmt.Sprintf("Moved[%d].Name", i), m.Moved[i].Name, MaxName)
	}
	c.count("Restarts", int64(m.Restarts), 0, maxCount)
	m.Interference.Prefill.check(c, "Interference.Prefill")
	m.Interference.Decode.check(c, "Interference.Decode")
	c.count("LinkBudget", m.LinkBudget, 0, math.MaxInt64)
}
