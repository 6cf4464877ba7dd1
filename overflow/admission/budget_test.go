package admission

import (
	"encoding/binary"
	"errors"
	"math"
	"math/big"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"
)

// clock is set by the test.
type clock struct{ t time.Time }

func newClock() *clock { return &clock{time.Unix(1_800_000_000, 0)} }

func (c *clock) now() time.Time { return c.t }

func budget(t interface{ Fatal(...any) }, o BudgetOptions) *Budget {
	b, err := NewBudget(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBudgetScript(t *testing.T) {
	c := newClock()
	b := budget(t, BudgetOptions{PerDay: 24_000, Now: c.now}) // 1000 an hour, which is the burst
	for i, s := range []struct {
		rest time.Duration
		take int64
		want bool
		left int64
	}{
		{0, 600, true, 400},
		{0, 401, false, 400},
		{0, 400, true, 0},
		{0, 1, false, 0},
		{3599 * time.Millisecond, 1, false, 0},
		{time.Millisecond, 1, true, 0}, // 1 byte in 3.6 s
		{30 * time.Minute, 500, true, 0},
		{100 * time.Hour, 0, true, 1000},
		{0, -5, true, 1000},
		{0, 1000, true, 0},
		{time.Hour, 3000, true, 0}, // larger than the burst: earned afterwards
		{2 * time.Hour, 1, false, 0},
		{time.Minute, 16, true, 0},
		{-10 * time.Hour, 1, false, 0}, // set back
		{time.Hour, 1000, true, 0},
		{math.MaxInt64, 999, true, 1},
		{0, math.MaxInt64, false, 1},
	} {
		c.t = c.t.Add(s.rest)
		if got := b.Take(s.take); got != s.want {
			t.Errorf("step %d: Take(%d) is %v", i, s.take, got)
		}
		if u := b.Usage(); u.Remaining != s.left {
			t.Errorf("step %d: %d bytes remain, want %d", i, u.Remaining, s.left)
		}
	}
	if u := b.Usage(); u.Written != 600+400+1+500+1000+3000+16+1000+999 || u.Refused != 6 {
		t.Errorf("%d written, %d refused", u.Written, u.Refused)
	}
}

// A budget of exact rational numbers.
type ratBudget struct {
	perDay, burst int64
	tokens        *big.Rat
}

func (m *ratBudget) rest(d time.Duration) {
	m.tokens.Add(m.tokens, new(big.Rat).Mul(big.NewRat(m.perDay, int64(24*time.Hour)), big.NewRat(int64(d), 1)))
	if full := big.NewRat(m.burst, 1); m.tokens.Cmp(full) > 0 {
		m.tokens = full
	}
}

func (m *ratBudget) take(n int64) bool {
	if m.tokens.Cmp(big.NewRat(min(n, m.burst), 1)) < 0 {
		return false
	}
	m.tokens.Sub(m.tokens, big.NewRat(n, 1))
	return true
}

// Every answer is that of exact arithmetic, whether or not the process restarts
// between the calls; and no more is granted than was promised.
func TestPropertyBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newClock()
		o := BudgetOptions{
			PerDay: rapid.Int64Range(1, maxBudget).Draw(t, "per day"),
			Burst:  rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(1, maxBudget)).Draw(t, "burst"),
			Now:    c.now,
		}
		b := budget(t, o)
		burst := b.Usage().Burst
		if o.Burst == 0 && burst != max(1, o.PerDay/24) || o.Burst != 0 && burst != o.Burst {
			t.Fatalf("burst is %d", burst)
		}
		m := &ratBudget{perDay: o.PerDay, burst: burst, tokens: big.NewRat(burst, 1)}
		began := c.t
		granted, largest := int64(0), int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			rest := time.Duration(rapid.OneOf(rapid.Int64Range(0, 1e9), rapid.Int64Range(0, int64(48*time.Hour))).Draw(t, "rest"))
			c.t = c.t.Add(rest)
			m.rest(rest)
			if rapid.IntRange(0, 3).Draw(t, "restart") == 0 {
				b = restart(t, b, o)
			}
			n := rapid.OneOf(rapid.Int64Range(1, burst), rapid.Int64Range(1, min(3*burst, maxBudget))).Draw(t, "take")
			got := b.Take(n)
			if want := m.take(n); got != want {
				t.Fatalf("Take(%d) is %v, exactly %v with %v left", n, got, want, m.tokens)
			}
			if got {
				granted += n
				largest = max(largest, n)
			}
			promised := new(big.Rat).Mul(big.NewRat(o.PerDay, int64(24*time.Hour)), big.NewRat(int64(c.t.Sub(began)), 1))
			promised.Add(promised, big.NewRat(burst+max(0, largest-burst), 1))
			if promised.Cmp(big.NewRat(granted, 1)) < 0 {
				t.Fatalf("%d granted, %v promised", granted, promised)
			}
			if u := b.Usage(); u.Written != granted || !u.Since.Equal(began) {
				t.Fatalf("%d written since %v, want %d since %v", u.Written, u.Since, granted, began)
			}
		}
	})
}

func restart(t interface{ Fatal(...any) }, b *Budget, o BudgetOptions) *Budget {
	state, err := b.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	again := budget(t, o)
	if err := again.UnmarshalBinary(state); err != nil {
		t.Fatal(err)
	}
	return again
}

func TestBudgetRestart(t *testing.T) {
	c := newClock()
	o := BudgetOptions{PerDay: 24_000, Now: c.now}
	b := budget(t, o)
	b.Take(1000)
	b = restart(t, b, o)
	if b.Take(1) {
		t.Error("a restart grants a fresh burst")
	}
	c.t = c.t.Add(-24 * time.Hour)
	b = restart(t, b, o)
	if u := b.Usage(); !u.Since.Equal(c.t) {
		t.Errorf("counted since %v, which is to come", u.Since)
	}
	c.t = c.t.Add(time.Hour)
	if !b.Take(1000) {
		t.Error("a state from the future refuses what an hour has earned")
	}
	b = restart(t, b, BudgetOptions{PerDay: 2400, Now: c.now})
	c.t = c.t.Add(time.Hour)
	if u := b.Usage(); u.Remaining != 100 || u.Written != 2000 {
		t.Errorf("with other options: %+v", u)
	}
	b = restart(t, b, BudgetOptions{PerDay: 24, Now: c.now})
	if u := b.Usage(); u.Remaining != 1 {
		t.Errorf("more than the burst: %+v", u)
	}
}

func TestBudgetWithoutBound(t *testing.T) {
	b := budget(t, BudgetOptions{Rated: 1e15})
	for range 10 {
		if !b.Take(1e14 / 10) {
			t.Fatal("refused")
		}
	}
	u := b.Usage()
	if u.Written != 1e14 || u.YearsAtBudget != -1 || u.Years != -1 {
		t.Errorf("%+v", u)
	}
}

func TestBudgetLifetime(t *testing.T) {
	c := newClock()
	const tbw = 600e12
	b := budget(t, BudgetOptions{PerDay: 500e9, Rated: tbw, Burst: 1e12, Now: c.now})
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9*math.Abs(want) {
			t.Errorf("%s: %v years, want %v", what, got, want)
		}
	}
	near("at first, at budget", b.Usage().YearsAtBudget, 600e12/500e9/365.25)
	near("at first", b.Usage().Years, -1)
	b.Take(100e9)
	c.t = c.t.Add(59 * time.Minute)
	near("too early to say", b.Usage().Years, -1)
	c.t = c.t.Add(48*time.Hour - 59*time.Minute)
	near("50 GB a day", b.Usage().Years, (600e12-100e9)/50e9/365.25)
	near("at budget", b.Usage().YearsAtBudget, (600e12-100e9)/500e9/365.25)
	for b.Take(1e12) {
		c.t = c.t.Add(48 * time.Hour)
		if b.Usage().Written > tbw {
			break
		}
	}
	near("worn out", b.Usage().Years, 0)
	near("unknown", budget(t, BudgetOptions{PerDay: 1, Now: c.now}).Usage().YearsAtBudget, -1)
}

func TestBudgetOptions(t *testing.T) {
	for _, c := range []struct {
		o    BudgetOptions
		want string
	}{
		{BudgetOptions{PerDay: -1}, "write_budget: -1: must be in [0, 1000000000000000] bytes a day"},
		{BudgetOptions{PerDay: 2e15}, "write_budget: 2000000000000000: must be in [0, 1000000000000000] bytes a day"},
		{BudgetOptions{Burst: -1}, "write burst: -1: must be in [0, 1000000000000000] bytes"},
		{BudgetOptions{Burst: 2e15}, "write burst: 2000000000000000: must be"},
		{BudgetOptions{Rated: -1}, "rated writes: -1: must be in [0, 1000000000000000000] bytes"},
		{BudgetOptions{Rated: 2e18}, "rated writes: 2000000000000000000: must be"},
	} {
		if b, err := NewBudget(c.o); b != nil || err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
}

func TestBudgetState(t *testing.T) {
	c := newClock()
	b := budget(t, BudgetOptions{PerDay: 24_000, Now: c.now})
	b.Take(300)
	good, _ := b.MarshalBinary()
	change := func(f func(s []byte) []byte) []byte { return f(append([]byte(nil), good...)) }
	sealed := func(at int, v uint64) []byte {
		return change(func(s []byte) []byte {
			binary.LittleEndian.PutUint64(s[at:], v)
			binary.LittleEndian.PutUint64(s[budgetBytes-8:], xxh3.Hash(s[:budgetBytes-8]))
			return s
		})
	}
	for _, c := range []struct {
		name, want string
		state      []byte
	}{
		{"empty", "0 bytes, want 49", nil},
		{"short", "48 bytes", good[:48]},
		{"version", "version 2, this program knows 1", change(func(s []byte) []byte { s[0] = 2; return s })},
		{"a bit", "checksum", change(func(s []byte) []byte { s[9] ^= 4; return s })},
		{"written", "-1 written", sealed(17, math.MaxUint64)},
		{"tokens", "-9223372036854775808 bytes left", sealed(1, 1<<63)},
		{"part", "parts of a byte", sealed(33, day)},
	} {
		err := b.UnmarshalBinary(c.state)
		if !errors.Is(err, ErrState) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if now, _ := b.MarshalBinary(); string(now) != string(good) {
			t.Errorf("%s: the budget has changed", c.name)
		}
	}
}

func FuzzBudgetState(f *testing.F) {
	c := newClock()
	b := budget(f, BudgetOptions{PerDay: 24_000, Now: c.now})
	b.Take(77)
	good, _ := b.MarshalBinary()
	f.Add(good, true)
	f.Add([]byte{1}, false)
	f.Fuzz(func(t *testing.T, data []byte, seal bool) {
		if seal && len(data) == budgetBytes { // past the checksum
			binary.LittleEndian.PutUint64(data[budgetBytes-8:], xxh3.Hash(data[:budgetBytes-8]))
		}
		b := budget(t, BudgetOptions{PerDay: 24_000, Rated: 1e12, Now: c.now})
		if err := b.UnmarshalBinary(data); err != nil {
			if !errors.Is(err, ErrState) || !b.Take(1000) {
				t.Fatalf("%v; or the budget has changed", err)
			}
			return
		}
		for range 3 {
			b.Take(1)
			if u := b.Usage(); u.Remaining < 0 || u.Remaining > u.Burst || u.Written < 0 || u.Since.After(c.t) {
				t.Fatalf("%+v", u)
			}
		}
		b = restart(t, b, BudgetOptions{PerDay: 24_000, Now: c.now})
		if u := b.Usage(); u.Remaining > u.Burst {
			t.Fatalf("%+v", u)
		}
	})
}

func TestBudgetConcurrently(t *testing.T) {
	c := newClock()
	b := budget(t, BudgetOptions{PerDay: 24_000, Now: c.now})
	var granted atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 400 {
				if b.Take(1) {
					granted.Add(1)
				}
				b.Usage()
			}
		})
	}
	all.Wait()
	if u := b.Usage(); granted.Load() != 1000 || u.Written != 1000 || u.Refused != 600 {
		t.Errorf("%d granted, %+v", granted.Load(), u)
	}
}
