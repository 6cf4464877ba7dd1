package sim

import "time"

// series is a quantity over time, as means over equal slices. There are never
// more than maxSlices: when they do not suffice, each two become one.
type series struct {
	slice time.Duration
	sums  []float64 // value times seconds
	value float64
	since time.Duration
	most  float64
}

const (
	maxSlices  = 512
	firstSlice = 100 * time.Millisecond
)

func newSeries() *series { return &series{slice: firstSlice} }

// set says that the quantity has another value from a time on.
func (s *series) set(at time.Duration, v float64) {
	s.until(at)
	s.value = v
	s.most = max(s.most, v)
}

// until adds the present value up to a time.
func (s *series) until(at time.Duration) {
	for s.since < at {
		i := int(s.since / s.slice)
		for i >= maxSlices {
			s.halve()
			i = int(s.since / s.slice)
		}
		for i >= len(s.sums) {
			s.sums = append(s.sums, 0)
		}
		end := min(at, time.Duration(i+1)*s.slice)
		s.sums[i] += s.value * (end - s.since).Seconds()
		s.since = end
	}
}

func (s *series) halve() {
	n := 0
	for i := 0; i < len(s.sums); i += 2 {
		sum := s.sums[i]
		if i+1 < len(s.sums) {
			sum += s.sums[i+1]
		}
		s.sums[n] = sum
		n++
	}
	s.sums = s.sums[:n]
	s.slice *= 2
}

// Series is a quantity over time: means over slices of equal length.
type Series struct {
	Slice  time.Duration `json:"slice_ns"`
	Values []float64     `json:"values"`
	Mean   float64       `json:"mean"`
	Most   float64       `json:"most"`
}

// report closes the series at a time.
func (s *series) report(end time.Duration) Series {
	s.until(end)
	out := Series{Slice: s.slice, Most: s.most}
	sum := 0.0
	for i, v := range s.sums {
		sum += v
		out.Values = append(out.Values, v/(min(end, time.Duration(i+1)*s.slice)-time.Duration(i)*s.slice).Seconds())
	}
	if end > 0 {
		out.Mean = sum / end.Seconds()
	}
	return out
}
