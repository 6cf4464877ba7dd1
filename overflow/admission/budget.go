package admission

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
)

// BudgetOptions describe a Budget.
type BudgetOptions struct {
	// PerDay is how many bytes may be written in a day, in [0, 1e15]. 0: nothing
	// is refused, and what is written is only counted.
	PerDay int64
	// Burst is how many bytes may be written at once after a rest, in [0, 1e15].
	// 0: an hour's worth, PerDay/24 and at least 1.
	Burst int64
	// Rated is how many bytes may be written to the device in its life (TBW), as
	// its maker says, in [0, 1e18]; 0: not known.
	Rated int64
	// Now is the time of day. Nil: time.Now.
	Now func() time.Time
}

const (
	maxBudget = 1e15
	maxRated  = 1e18
	day       = uint64(24 * time.Hour)
	maxRest   = uint64(400 * 24 * time.Hour) // a longer rest counts as this
)

func (o BudgetOptions) validate() error {
	if o.PerDay < 0 || o.PerDay > maxBudget {
		return fmt.Errorf("write_budget: %d: must be in [0, %d] bytes a day", o.PerDay, int64(maxBudget))
	}
	if o.Burst < 0 || o.Burst > maxBudget {
		return fmt.Errorf("write burst: %d: must be in [0, %d] bytes", o.Burst, int64(maxBudget))
	}
	if o.Rated < 0 || o.Rated > maxRated {
		return fmt.Errorf("rated writes: %d: must be in [0, %d] bytes", o.Rated, int64(maxRated))
	}
	return nil
}

// Budget bounds what is written to a device, for its endurance: a token bucket
// that fills at PerDay and holds Burst. In any time t no more than Burst + PerDay
// * t is granted, and what the last grant was larger than Burst, if it was. The
// arithmetic is exact.
//
// Its state can be kept over restarts, so that a restart grants no fresh burst:
// MarshalBinary, with what else the device persists, and UnmarshalBinary into a
// new Budget before its first use. What is granted between the last
// MarshalBinary and a crash is forgotten, so it should be kept often enough.
//
// A clock that is set forward earns a burst at most. One that is set back (which
// only shows over a restart, or where Now has no monotonic part) earns nothing by
// that, and goes on from there.
//
// Methods are safe for concurrent use.
type Budget struct {
	perDay, burst, rated int64
	now                  func() time.Time

	mu      sync.Mutex // guards what follows
	tokens  int64      // may be negative after a grant larger than burst
	part    uint64     // of a token, in [0, day)
	at      time.Time  // when tokens was right
	written int64      // granted in all
	refused uint64
	since   time.Time // when written was 0
}

// NewBudget makes a budget with a full burst. An error names the option and its
// range.
func NewBudget(o BudgetOptions) (*Budget, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	b := &Budget{perDay: o.PerDay, burst: o.Burst, rated: o.Rated, now: o.Now}
	if b.burst == 0 {
		b.burst = max(1, o.PerDay/24)
	}
	if b.now == nil {
		b.now = time.Now
	}
	b.tokens, b.at = b.burst, b.now()
	b.since = b.at
	return b, nil
}

// Take asks for n bytes and says whether they may be written. More than Burst is
// granted when the bucket is full, and has to be earned afterwards. n below 1 is
// granted, n above 1e15 never.
func (b *Budget) Take(n int64) bool {
	if n <= 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.perDay > 0 {
		b.fill()
	}
	if n > maxBudget || b.perDay > 0 && b.tokens < min(n, b.burst) {
		b.refused++
		return false
	}
	if b.perDay > 0 {
		b.tokens -= n
	}
	b.written += n
	return true
}

// fill adds what the time since the last fill has earned. b.mu is held.
func (b *Budget) fill() {
	now := b.now()
	rest := now.Sub(b.at)
	b.at = now
	if rest <= 0 {
		return
	}
	hi, lo := bits.Mul64(min(uint64(rest), maxRest), uint64(b.perDay))
	lo, carry := bits.Add64(lo, b.part, 0)
	earned, part := bits.Div64(hi+carry, lo, day) // hi < day: 400 days of 1e15 bytes
	b.tokens, b.part = b.tokens+int64(earned), part
	if b.tokens >= b.burst {
		b.tokens, b.part = b.burst, 0
	}
}

// Usage is the state of a Budget at one time.
type Usage struct {
	PerDay, Burst int64 // as configured; PerDay 0: no bound
	// Remaining is what could be written now at most, in bytes; 0 while a grant
	// larger than Burst is being earned. Meaningless without a bound.
	Remaining int64
	Written   int64     // granted in all, over restarts
	Since     time.Time // when Written was 0
	Refused   uint64    // calls of Take, since the start of the process
	// Years is how long the device lasts from now, by what its maker says and
	// what was written so far, if as much is written as since Since.
	// YearsAtBudget: if the budget is used up every day. Both count only what
	// was granted here as written. -1: not known (Rated is 0; less than an hour
	// since Since, or nothing written; no bound).
	Years, YearsAtBudget float64
}

const yearDays = 365.25

// Usage says what remains and how long the device will last.
func (b *Budget) Usage() Usage {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.perDay > 0 {
		b.fill()
	}
	u := Usage{
		PerDay: b.perDay, Burst: b.burst, Remaining: max(0, b.tokens),
		Written: b.written, Since: b.since, Refused: b.refused,
		Years: -1, YearsAtBudget: -1,
	}
	if b.rated == 0 {
		return u
	}
	left := float64(max(0, b.rated-b.written))
	if b.perDay > 0 {
		u.YearsAtBudget = left / float64(b.perDay) / yearDays
	}
	if t := b.now().Sub(b.since); t >= time.Hour && b.written > 0 {
		u.Years = left / (float64(b.written) / (t.Hours() / 24)) / yearDays
	}
	return u
}

// The persisted form, little-endian: version (1 byte), tokens, time of tokens,
// written, since (8 bytes each, times in Unix nanoseconds), part of a token (8),
// XXH3-64 of all before (8).
const (
	budgetVersion = 1
	budgetBytes   = 1 + 5*8 + 8
)

// ErrState is wrapped by the errors of UnmarshalBinary.
var ErrState = errors.New("not the state of a write budget")

// MarshalBinary is the budget's state at this time; the options are not part of
// it. It never fails.
func (b *Budget) MarshalBinary() ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.perDay > 0 {
		b.fill()
	}
	out := make([]byte, 0, budgetBytes)
	out = append(out, budgetVersion)
	for _, v := range []uint64{
		uint64(b.tokens), uint64(b.at.UnixNano()), uint64(b.written), uint64(b.since.UnixNano()), b.part,
	} {
		out = binary.LittleEndian.AppendUint64(out, v)
	}
	return binary.LittleEndian.AppendUint64(out, xxh3.Hash(out)), nil
}

// UnmarshalBinary continues where the state was taken: the time since then has
// earned what it would have earned, Burst at most. On an error (ErrState, saying
// what is wrong) the budget is as it was.
func (b *Budget) UnmarshalBinary(data []byte) error {
	if len(data) != budgetBytes {
		return fmt.Errorf("%w: %d bytes, want %d", ErrState, len(data), budgetBytes)
	}
	if data[0] != budgetVersion {
		return fmt.Errorf("%w: version %d, this program knows %d", ErrState, data[0], budgetVersion)
	}
	body, check := data[:budgetBytes-8], binary.LittleEndian.Uint64(data[budgetBytes-8:])
	if xxh3.Hash(body) != check {
		return fmt.Errorf("%w: checksum does not match", ErrState)
	}
	var v [5]uint64
	for i := range v {
		v[i] = binary.LittleEndian.Uint64(body[1+8*i:])
	}
	tokens, at, written, since, part := int64(v[0]), int64(v[1]), int64(v[2]), int64(v[3]), v[4]
	if written < 0 || part >= day || tokens < -maxRated {
		return fmt.Errorf("%w: %d bytes left, %d written, %d parts of a byte", ErrState, tokens, written, part)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.tokens, b.part, b.written = tokens, part, written
	b.at, b.since = earlier(time.Unix(0, at), now), earlier(time.Unix(0, since), now)
	if b.tokens >= b.burst { // of other options perhaps
		b.tokens, b.part = b.burst, 0
	}
	return nil
}

// earlier keeps a state from the future, before the clock was set back, from
// refusing everything until then.
func earlier(t, now time.Time) time.Time {
	if t.After(now) {
		return now
	}
	return t
}
