package wire

import (
	"fmt"
	"math"
	"time"
)

// The messages of the timeline, from the gateway to a model process and back.

// Bounds of the timeline.
const (
	MaxTrace      = time.Minute // that one may ask for
	MaxTraceSpans = 1 << 16
	MaxTraceNames = 1024
)

// TraceAsk asks a model process to record what it does for a while.
type TraceAsk struct {
	ID     uint64        `cbor:"1,keyasint"`
	Length time.Duration `cbor:"2,keyasint"`
}

// Trace answers TraceAsk.
type Trace struct {
	ID     uint64        `cbor:"1,keyasint" json:"id"`
	PID    int           `cbor:"2,keyasint" json:"pid"`
	Start  int64         `cbor:"3,keyasint" json:"start"` // when recording began, Unix nanoseconds
	Length time.Duration `cbor:"4,keyasint" json:"length"`
	// Names are what the spans' indices mean.
	Names []string    `cbor:"5,keyasint" json:"names"`
	Spans []TraceSpan `cbor:"6,keyasint" json:"spans"`
	Lost  uint64      `cbor:"7,keyasint" json:"lost"` // spans that did not fit
}

// TraceSpan is something that took time.
type TraceSpan struct {
	Track    uint32        `cbor:"1,keyasint" json:"track"` // index into Names, as Name and Category
	Name     uint32        `cbor:"2,keyasint" json:"name"`
	Category uint32        `cbor:"3,keyasint" json:"category"`
	Layer    int32         `cbor:"4,keyasint" json:"layer"` // -1: none
	ID       uint64        `cbor:"5,keyasint" json:"id"`    // of a step or sequence; 0: none
	Start    int64         `cbor:"6,keyasint" json:"start"` // nanoseconds after the trace's Start; may be before it
	Length   time.Duration `cbor:"7,keyasint" json:"length"`
	Bytes    int64         `cbor:"8,keyasint" json:"bytes"`
}

// Type implements Message.
func (*TraceAsk) Type() Type { return TypeTraceAsk }

// Type implements Message.
func (*Trace) Type() Type { return TypeTrace }

// Validate implements Message.
func (m *TraceAsk) Validate() error {
	var c check
	c.id("ID", m.ID)
	if m.Length <= 0 || m.Length > MaxTrace {
		c.fail("Length: %v, must be above 0s and at most %v", m.Length, MaxTrace)
	}
	return c.err
}

// Validate implements Message.
func (m *Trace) Validate() error {
	var c check
	c.id("ID", m.ID)
	c.count("PID", int64(m.PID), 0, math.MaxInt32)
	c.count("Start", m.Start, 0, maxCount)
	c.span("Length", m.Length)
	c.length("Names", len(m.Names), MaxTraceNames)
	for i, n := range m.Names {
		c.text(fmt.Sprintf("Names[%d]", i), n, MaxName)
	}
	c.length("Spans", len(m.Spans), MaxTraceSpans)
	for i := range m.Spans {
		if c.err != nil {
			break
		}
		m.Spans[i].check(&c, i, len(m.Names))
	}
	return c.err
}

func (s *TraceSpan) check(c *check, i, names int) {
	for _, n := range [...]uint32{s.Track, s.Name, s.Category} {
		if int64(n) >= int64(names) {
			c.fail("Spans[%d]: name %d, must be below %d, the number of names", i, n, names)
		}
	}
	if s.Layer < -1 {
		c.fail("Spans[%d].Layer: %d, must be at least -1", i, s.Layer)
	}
	if limit := int64(MaxDuration); s.Start < -limit || s.Start > limit || s.Length < 0 || s.Length > MaxDuration || s.Bytes < 0 {
		c.fail("Spans[%d]: starts at %d ns, takes %v, moves %d bytes: out of range", i, s.Start, s.Length, s.Bytes)
	}
}
