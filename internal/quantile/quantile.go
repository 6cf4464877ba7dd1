// Package quantile counts values in logarithmic buckets, so that quantiles of
// any number of them take bounded memory and have a bounded relative error. The
// buckets are fixed ones, by the bits of a float64 (as in HdrHistogram): equal
// values in whatever order have equal quantiles, to the bit, and merging loses
// nothing. Only sums depend on the order, in their last bits.
package quantile

import (
	"fmt"
	"math"
	"slices"
)

const (
	subBits = 7 // buckets per power of two, as a power of two
	shift   = 52 - subBits
	// RelativeError bounds how far a quantile is from the value that has its
	// rank, in either direction: half a bucket, which is widest, relatively,
	// above a power of two.
	RelativeError = 1.0 / (2 << subBits)

	// Values below least count as 0, those above most as most.
	least = 1.0 / (1 << 40)
	most  = 1 << 60
)

// Sketch holds the counts. The zero value is empty and ready. Values are not
// negative, in any unit between 1e-12 and 1e18; negative ones and NaN count as
// 0. It takes 8 bytes for each bucket between the smallest and the largest that
// was used: 1 KiB for each power of two, 100 KiB at most. Not safe for
// concurrent use.
type Sketch struct {
	counts   []uint64
	first    int // bucket of counts[0]
	n, zeros uint64
	sum      float64
	min, max float64
}

func bucket(v float64) int { return int(math.Float64bits(v) >> shift) }

// middle is the value that stands for a bucket.
func middle(b int) float64 {
	low := math.Float64frombits(uint64(b) << shift)
	high := math.Float64frombits(uint64(b+1) << shift)
	return low + (high-low)/2
}

// Add counts a value.
func (s *Sketch) Add(v float64) { s.AddN(v, 1) }

// AddN counts a value n times.
func (s *Sketch) AddN(v float64, n uint64) {
	if n == 0 {
		return
	}
	if !(v >= least) { // NaN too
		v = 0
	}
	v = min(v, most)
	if s.n == 0 || v < s.min {
		s.min = v
	}
	s.max = max(s.max, v)
	s.n += n
	s.sum += v * float64(n)
	if v == 0 {
		s.zeros += n
		return
	}
	b := bucket(v)
	s.cover(b, b)
	s.counts[b-s.first] += n
}

// cover makes room for the buckets from low to high.
func (s *Sketch) cover(low, high int) {
	if len(s.counts) == 0 {
		s.first = low
	}
	if low < s.first {
		s.counts = slices.Insert(s.counts, 0, make([]uint64, s.first-low)...)
		s.first = low
	}
	if more := high - s.first + 1 - len(s.counts); more > 0 {
		s.counts = append(s.counts, make([]uint64, more)...)
	}
}

// Merge adds all that another sketch counted; it stays as it is.
func (s *Sketch) Merge(o *Sketch) {
	if o.n == 0 {
		return
	}
	if len(o.counts) > 0 {
		s.cover(o.first, o.first+len(o.counts)-1)
		for i, c := range o.counts {
			s.counts[o.first-s.first+i] += c
		}
	}
	if s.n == 0 || o.min < s.min {
		s.min = o.min
	}
	s.max = max(s.max, o.max)
	s.n += o.n
	s.zeros += o.zeros
	s.sum += o.sum
}

// Count is how many values there are, Sum their sum, Mean their mean, Min and
// Max the outermost ones (as counted: see Sketch); all 0 without any.
func (s *Sketch) Count() uint64 { return s.n }
func (s *Sketch) Sum() float64  { return s.sum }
func (s *Sketch) Min() float64  { return s.min }
func (s *Sketch) Max() float64  { return s.max }
func (s *Sketch) Mean() float64 {
	if s.n == 0 {
		return 0
	}
	return s.sum / float64(s.n)
}

// Quantile is the smallest value that at least the share q of all do not exceed
// (nearest rank), up to RelativeError. 0 without values; q outside of 0 to 1 is
// the nearer end.
func (s *Sketch) Quantile(q float64) float64 {
	if s.n == 0 {
		return 0
	}
	if !(q > 0) {
		return s.min
	}
	// 0.07 * 100 is a hair above 7: the rank is 7 all the same.
	rank := uint64(math.Ceil(min(q, 1) * float64(s.n) * (1 - 1e-12)))
	if rank >= s.n {
		return s.max
	}
	if rank <= s.zeros {
		return 0
	}
	seen := s.zeros
	for i, c := range s.counts {
		if seen += c; seen >= rank {
			return min(max(middle(s.first+i), s.min), s.max)
		}
	}
	panic(fmt.Sprintf("BUG: a sketch of %d values has %d in its buckets", s.n, seen))
}

// Bins calls f for each bucket that counts something, from the smallest on: its
// values are in [low, high). The first may be that of zeros, with low = high = 0.
func (s *Sketch) Bins(f func(low, high float64, n uint64)) {
	if s.zeros > 0 {
		f(0, 0, s.zeros)
	}
	for i, c := range s.counts {
		if c > 0 {
			f(math.Float64frombits(uint64(s.first+i)<<shift), math.Float64frombits(uint64(s.first+i+1)<<shift), c)
		}
	}
}
