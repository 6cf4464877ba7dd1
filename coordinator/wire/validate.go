package wire

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of fields. They protect the receiver, so they are far above what any
// real server needs.
const (
	MaxName      = 256      // bytes of a model's name, role, request ID, error code
	MaxText      = 8 << 10  // bytes of a reason or an error message
	MaxUnits     = 1 << 20  // units in one message, and of one worker
	MaxTokens    = 2 << 20  // tokens of one request
	MaxStops     = 1024     // stop tokens
	MaxPriority  = 1 << 20  // either way from 0
	MaxSalt      = 64       // bytes of salt
	MaxTop       = 128      // alternatives of a token
	MaxLogitBias = 4096     // entries
	MaxDegraded  = 256      // lines
	MaxPeers     = 1024     // rows of a Status
	MaxBatch     = 64 << 10 // messages in a frame
	MaxDuration  = 366 * 24 * time.Hour
	maxCount     = math.MaxInt64
)

// Clip makes any text fit a field: invalid UTF-8 is replaced and what exceeds
// limit bytes is cut off. Errors from elsewhere go through it, so that
// reporting an error cannot fail.
func Clip(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// check collects the first violation of a message.
type check struct{ err error }

func (c *check) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *check) text(field, v string, limit int) {
	if len(v) > limit {
		c.fail("%s: %d bytes, at most %d are accepted", field, len(v), limit)
	}
	if !utf8.ValidString(v) {
		c.fail("%s: not valid UTF-8", field)
	}
}

func (c *check) count(field string, v, lo, hi int64) {
	if v < lo || v > hi {
		c.fail("%s: %d, must be from %d to %d", field, v, lo, hi)
	}
}

func (c *check) length(field string, n, limit int) {
	if n > limit {
		c.fail("%s: %d entries, at most %d are accepted", field, n, limit)
	}
}

func (c *check) span(field string, d time.Duration) {
	if d < 0 || d > MaxDuration {
		c.fail("%s: %v, must be from 0s to %v", field, d, MaxDuration)
	}
}

func (c *check) number(field string, v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		c.fail("%s: %v, must be finite", field, v)
	}
}

func (c *check) millis(field string, v float64) {
	c.number(field, v)
	if v < 0 {
		c.fail("%s: %v, must not be negative", field, v)
	}
}

func (c *check) units(field string, us []UnitEpoch) {
	c.length(field, len(us), MaxUnits)
	for i := range us {
		if us[i].Unit >= MaxUnits {
			c.fail("%s[%d].Unit: %d, must be below %d", field, i, us[i].Unit, MaxUnits)
			return
		}
	}
}

// id requires the number that pairs a request with its answer.
func (c *check) id(field string, v uint64) {
	if v == 0 {
		c.fail("%s: 0, must be positive", field)
	}
}

// name requires the text that names a request.
func (c *check) name(field, v string) {
	if v == "" {
		c.fail("%s: empty, must have 1 to %d bytes", field, MaxName)
	}
	c.text(field, v, MaxName)
}

// Validate implements Message.
func (m *Hello) Validate() error {
	var c check
	c.text("Model", m.Model, MaxName)
	c.text("Role", m.Role, MaxName)
	c.id("Incarnation", m.Incarnation)
	c.text("ConfigHash", m.ConfigHash, MaxName)
	c.count("UnitBytes", m.UnitBytes, 0, maxCount)
	c.count("Units", int64(m.Units), 0, MaxUnits)
	c.count("PID", int64(m.PID), 0, 1<<31-1)
	return c.err
}

// Validate implements Message.
func (m *Bye) Validate() error {
	var c check
	c.text("Reason", m.Reason, MaxText)
	return c.err
}

// Validate implements Message.
func (m *Frame) Validate() error {
	var c check
	c.id("From", m.From)
	c.id("To", m.To)
	if m.Got < m.Ack {
		c.fail("Got: %d, must be at least Ack (%d)", m.Got, m.Ack)
	}
	c.length("Messages", len(m.Messages), MaxBatch)
	if len(m.Messages) > 0 && (m.First == 0 || m.First > math.MaxUint64-MaxBatch) {
		c.fail("First: %d, must be from 1 to %d", m.First, uint64(math.MaxUint64-MaxBatch))
	}
	return c.err
}

// Validate implements Message.
func (m *Borrow) Validate() error {
	var c check
	c.id("ID", m.ID)
	c.count("Want", int64(m.Want), 1, MaxUnits)
	c.count("Min", int64(m.Min), 0, int64(m.Want))
	return c.err
}

// Validate implements Message.
func (m *Grant) Validate() error {
	var c check
	c.id("ID", m.ID)
	c.id("Lease", m.Lease)
	c.units("Units", m.Units)
	c.span("TTL", m.TTL)
	return c.err
}

// Validate implements Message.
func (m *Deny) Validate() error {
	var c check
	c.id("ID", m.ID)
	c.text("Reason", m.Reason, MaxText)
	c.count("Available", int64(m.Available), 0, MaxUnits)
	c.span("RetryAfter", m.RetryAfter)
	return c.err
}

// Validate implements Message.
func (m *Return) Validate() error {
	var c check
	c.id("ID", m.ID)
	c.units("Units", m.Units)
	return c.err
}

// Validate implements Message.
func (m *Reclaim) Validate() error {
	var c check
	c.id("ID", m.ID)
	c.count("Want", int64(m.Want), 1, MaxUnits)
	c.span("Deadline", m.Deadline)
	return c.err
}

// Validate implements Message.
func (m *Released) Validate() error {
	var c check
	c.id("ID", m.ID)
	c.units("Units", m.Units)
	return c.err
}

// Validate implements Message.
func (m *Renew) Validate() error {
	var c check
	c.id("ID", m.ID)
	return c.err
}

// Validate implements Message.
func (m *Renewed) Validate() error {
	var c check
	c.id("ID", m.ID)
	c.span("TTL", m.TTL)
	return c.err
}

// Validate implements Message.
func (m *Sync) Validate() error {
	var c check
	c.units("Units", m.Units)
	c.span("TTL", m.TTL)
	c.units("Fenced", m.Fenced)
	return c.err
}
