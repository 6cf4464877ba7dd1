package elastic

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// ScaleUp is SwiftCache's Algorithm 1, lines 10-19: the blocks by which worker
// i grows, and the master shrinks, so that a request of requestLen tokens fits.
// n is N_i, the worker's current blocks; b is B_i, tokens per block; meuI and
// meuM are the minimum elastic units. All but n are positive.
func ScaleUp(n, b, meuI, meuM, requestLen int) (worker, master int) {
	need := ceilDiv(requestLen, b)
	if need <= n {
		return 0, 0
	}
	k := ceilDiv(need-n, meuI)
	return k * meuI, k * meuM
}

// ScaleDown is SwiftCache's Algorithm 1, lines 21-31: the blocks by which
// worker i can shrink, and the master grow, when the longest request of the
// last t seconds had maxLen tokens (see WindowMax). Parameters as for ScaleUp.
func ScaleDown(n, b, meuI, meuM, maxLen int) (worker, master int) {
	maxNeed := ceilDiv(maxLen, b)
	if maxNeed >= n {
		return 0, 0
	}
	k := (n - maxNeed) / meuI
	return k * meuI, k * meuM
}

// sample is one observation at a time.
type sample struct {
	at     time.Duration
	tokens int
}

// WindowMax is the largest of the values observed in the last t: a monotone
// deque, constant time per observation on average. Times must not decrease.
// Not safe for concurrent use.
type WindowMax struct {
	window time.Duration
	deque  []sample // tokens strictly decreasing from the front
	front  int
}

// NewWindowMax returns a window of length t.
func NewWindowMax(t time.Duration) *WindowMax { return &WindowMax{window: t} }

// Observe adds a value.
func (w *WindowMax) Observe(now time.Duration, tokens int) {
	w.expire(now)
	for len(w.deque) > w.front && w.deque[len(w.deque)-1].tokens <= tokens {
		w.deque = w.deque[:len(w.deque)-1]
	}
	if w.front > 0 && w.front == len(w.deque) {
		w.deque, w.front = w.deque[:0], 0
	}
	w.deque = append(w.deque, sample{now, tokens})
}

// Max is the largest value observed in (now-t, now], 0 when there is none.
func (w *WindowMax) Max(now time.Duration) int {
	w.expire(now)
	if w.front == len(w.deque) {
		return 0
	}
	return w.deque[w.front].tokens
}

func (w *WindowMax) expire(now time.Duration) {
	for w.front < len(w.deque) && now-w.deque[w.front].at >= w.window {
		w.front++
	}
	// Move the rest down once half of the memory is behind the front.
	if w.front > 32 && w.front*2 > len(w.deque) {
		w.deque = w.deque[:copy(w.deque, w.deque[w.front:])]
		w.front = 0
	}
}

// ScaleState is a worker as a policy sees it. Blocks are the worker's own full
// blocks, in LOCAL units and the remainder.
type ScaleState struct {
	Blocks      int // N_i: all blocks that the worker has now
	Used        int // of them in use
	BlockTokens int // B_i
	// MEU is MEU_i, UnitSpec.PerUnit of the worker: the pieces in a unit.
	MEU int
	// Pieces of a full block: 1, or the worker's layers under layer-lcm, where
	// a unit may be smaller than a block.
	Pieces int
	Lent   int // units that could come back
}

// ScalePolicy decides how many units a worker takes back and gives away. It
// only counts: which units, and whether they are free and above the floor, is
// for Units to say. Times are on any clock that does not run backwards. Not
// safe for concurrent use.
type ScalePolicy interface {
	// Observe tells of a request of the worker's own that needs tokens tokens
	// at most, prompt and generated.
	Observe(now time.Duration, tokens int)
	// Up returns the units to take back, at most s.Lent, so that a request of
	// tokens tokens finds room beside the blocks in use.
	Up(s ScaleState, tokens int) int
	// Down returns the units that may be given away now. It never asks for
	// blocks in use.
	Down(now time.Duration, s ScaleState) int
}

// ScaleDownPolicy names how a ScalePolicy decides to give memory away.
type ScaleDownPolicy string

// The scale-down policies.
const (
	DownWindow     ScaleDownPolicy = "window"     // Algorithm 1
	DownQuantile   ScaleDownPolicy = "quantile"   // a share of the recent requests
	DownHysteresis ScaleDownPolicy = "hysteresis" // occupancy between two marks
	DownFloor      ScaleDownPolicy = "floor"      // resident blocks only
)

// ScaleOptions choose a ScalePolicy. Taking back is as a request needs it
// (Algorithm 1) under all of them.
type ScaleOptions struct {
	Down     ScaleDownPolicy
	Window   time.Duration // window, quantile: how long a request counts; positive
	Quantile float64       // quantile: share of recent requests that must fit, 0 < q <= 1
	// Hysteresis: below the occupancy Low units are given away until the
	// occupancy is at most High. 0 <= Low < High <= 1.
	Low, High float64
}

// NewScalePolicy returns the policy that o names.
func NewScalePolicy(o ScaleOptions) (ScalePolicy, error) {
	windowed := o.Down == DownWindow || o.Down == DownQuantile
	if windowed && o.Window <= 0 {
		return nil, fmt.Errorf("window of policy %q is %v, want more than 0", o.Down, o.Window)
	}
	switch o.Down {
	case DownWindow:
		return &windowPolicy{recent: NewWindowMax(o.Window)}, nil
	case DownQuantile:
		if !(o.Quantile > 0 && o.Quantile <= 1) {
			return nil, fmt.Errorf("quantile is %v, want more than 0 and at most 1", o.Quantile)
		}
		return &quantilePolicy{window: o.Window, q: o.Quantile}, nil
	case DownHysteresis:
		if !(o.Low >= 0 && o.Low < o.High && o.High <= 1) {
			return nil, fmt.Errorf("occupancy marks are %v and %v, want 0 <= low < high <= 1", o.Low, o.High)
		}
		return &hysteresisPolicy{low: o.Low, high: o.High}, nil
	case DownFloor:
		return floorPolicy{}, nil
	default:
		return nil, fmt.Errorf("unknown scale-down policy %q: %w", o.Down, errors.ErrUnsupported)
	}
}

// up is Algorithm 1's ScaleUp over the blocks that are free: with none in use
// it is the paper's, and requests that run together are all counted.
func up(s ScaleState, tokens int) int {
	need := ceilDiv(tokens, s.BlockTokens) * s.Pieces
	_, units := ScaleUp((s.Blocks-s.Used)*s.Pieces, 1, s.MEU, 1, need)
	return min(units, s.Lent)
}

// down is Algorithm 1's ScaleDown to keep blocks, and never less than in use.
func down(s ScaleState, keep int) int {
	_, units := ScaleDown(s.Blocks*s.Pieces, 1, s.MEU, 1, max(keep, s.Used)*s.Pieces)
	return units
}

// windowPolicy is Algorithm 1.
type windowPolicy struct{ recent *WindowMax }

func (p *windowPolicy) Observe(now time.Duration, tokens int) { p.recent.Observe(now, tokens) }
func (p *windowPolicy) Up(s ScaleState, tokens int) int       { return up(s, tokens) }
func (p *windowPolicy) Down(now time.Duration, s ScaleState) int {
	return down(s, ceilDiv(p.recent.Max(now), s.BlockTokens))
}

// quantilePolicy keeps what a share q of the recent requests needed, so that a
// single long request does not hold memory for a whole window.
type quantilePolicy struct {
	window time.Duration
	q      float64
	queue  []sample // in order of time
	sorted []int    // the same tokens in order of size
}

func (p *quantilePolicy) Observe(now time.Duration, tokens int) {
	p.expire(now)
	p.queue = append(p.queue, sample{now, tokens})
	i, _ := slices.BinarySearch(p.sorted, tokens)
	p.sorted = slices.Insert(p.sorted, i, tokens)
}

func (p *quantilePolicy) expire(now time.Duration) {
	n := 0
	for n < len(p.queue) && now-p.queue[n].at >= p.window {
		i, _ := slices.BinarySearch(p.sorted, p.queue[n].tokens)
		p.sorted = slices.Delete(p.sorted, i, i+1)
		n++
	}
	p.queue = slices.Delete(p.queue, 0, n)
}

func (p *quantilePolicy) Up(s ScaleState, tokens int) int { return up(s, tokens) }
func (p *quantilePolicy) Down(now time.Duration, s ScaleState) int {
	p.expire(now)
	keep := 0
	if n := len(p.sorted); n > 0 {
		// The smallest length that at least q of the requests do not exceed.
		rank := int(math.Ceil(p.q*float64(n) - 1e-9))
		keep = ceilDiv(p.sorted[min(max(rank, 1), n)-1], s.BlockTokens)
	}
	return down(s, keep)
}

// hysteresisPolicy looks at occupancy alone.
type hysteresisPolicy struct{ low, high float64 }

func (p *hysteresisPolicy) Observe(time.Duration, int)      {}
func (p *hysteresisPolicy) Up(s ScaleState, tokens int) int { return up(s, tokens) }
func (p *hysteresisPolicy) Down(_ time.Duration, s ScaleState) int {
	if float64(s.Used) > p.low*float64(s.Blocks) || s.Blocks == 0 {
		return 0
	}
	return down(s, int(math.Ceil(float64(s.Used)/p.high)))
}

// floorPolicy keeps resident blocks only: everything else may go, down to the
// floor that Units holds.
type floorPolicy struct{}

func (floorPolicy) Observe(time.Duration, int)             {}
func (floorPolicy) Up(s ScaleState, tokens int) int        { return up(s, tokens) }
func (floorPolicy) Down(_ time.Duration, s ScaleState) int { return down(s, 0) }
