package device

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Profile is what a device was measured to do. It encodes as JSON.
type Profile struct {
	Device string    `json:"device"`
	Kind   Kind      `json:"kind"`
	Taken  time.Time `json:"taken"`
	// Degraded is the device's note then: figures of a slower path.
	Degraded string `json:"degraded,omitempty"`
	Read     Curve  `json:"read"`
	Write    Curve  `json:"write,omitempty"`
}

// Point is one measurement: I/Os of Size bytes, Depth of them under way.
type Point struct {
	Size    int           `json:"size"`
	Depth   int           `json:"depth"`
	Rate    float64       `json:"rate"`    // bytes a second
	Latency time.Duration `json:"latency"` // mean, ns
	P99     time.Duration `json:"p99"`     // ns
}

// Curve is the measurements of reads or of writes.
type Curve []Point

// Rate is the bandwidth in bytes a second at a size and depth: between
// measurements interpolated on logarithmic scales, outside them the nearest. An
// empty curve has 0.
func (c Curve) Rate(size, depth int) float64 {
	return c.at(size, depth, func(p Point) float64 { return p.Rate })
}

// Latency is the mean latency, as Rate is the bandwidth.
func (c Curve) Latency(size, depth int) time.Duration {
	return time.Duration(c.at(size, depth, func(p Point) float64 { return float64(p.Latency) }))
}

// Best is the highest bandwidth at a size, and the depth that reaches it.
func (c Curve) Best(size int) (rate float64, depth int) {
	for _, p := range c {
		if r := c.Rate(size, p.Depth); r > rate || r == rate && p.Depth < depth {
			rate, depth = r, p.Depth
		}
	}
	return rate, depth
}

func (c Curve) at(size, depth int, y func(Point) float64) float64 {
	below, above := c.neighbours(size)
	if below == 0 {
		return 0
	}
	return between(float64(size), float64(below), float64(above), c.atDepth(below, depth, y), c.atDepth(above, depth, y))
}

// neighbours are the measured sizes around size; equal outside of them; 0
// without any.
func (c Curve) neighbours(size int) (below, above int) {
	for _, p := range c {
		if p.Size <= size {
			below = max(below, p.Size)
		}
		if p.Size >= size && (above == 0 || p.Size < above) {
			above = p.Size
		}
	}
	if below == 0 {
		below = above
	}
	if above == 0 {
		above = below
	}
	return below, above
}

// atDepth interpolates between the measurements of one size.
func (c Curve) atDepth(size, depth int, y func(Point) float64) float64 {
	var points []Point
	for _, p := range c {
		if p.Size == size {
			points = append(points, p)
		}
	}
	slices.SortFunc(points, func(a, b Point) int { return cmp.Compare(a.Depth, b.Depth) })
	i := 0
	for i < len(points)-1 && points[i+1].Depth <= depth {
		i++
	}
	a, b := points[i], points[min(i+1, len(points)-1)]
	return between(float64(depth), float64(a.Depth), float64(b.Depth), y(a), y(b))
}

// between interpolates on logarithmic scales; outside a..b it is the nearer end.
func between(x, a, b, ya, yb float64) float64 {
	switch {
	case x <= a || a == b:
		return ya
	case x >= b:
		return yb
	case ya <= 0 || yb <= 0:
		return ya + (yb-ya)*(x-a)/(b-a)
	}
	f := math.Log(x/a) / math.Log(b/a)
	return math.Exp(math.Log(ya) + f*(math.Log(yb)-math.Log(ya)))
}

// Drift bounds: a device whose rate is so far from its profile has changed. The
// spread of disks in shared machines stays inside.
const (
	driftLow, driftHigh = 0.65, 1.6
	driftSamples        = 5
)

// Drifted compares what the device achieves lately with its profile, at the
// sizes and depths that it is used with. ratio is that of reads or of writes,
// whichever is further from 1; 0 while too little is known.
func (m *Meter) Drifted(p Profile) (ratio float64, drifted bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range []struct {
		s *side
		c Curve
	}{{&m.read, p.Read}, {&m.write, p.Write}} {
		expected := c.c.Rate(int(c.s.sizes), max(1, int(c.s.deeps+0.5)))
		if c.s.samples < driftSamples || expected <= 0 {
			continue
		}
		r := c.s.rate / expected
		if ratio == 0 || math.Abs(math.Log(r)) > math.Abs(math.Log(ratio)) {
			ratio = r
		}
	}
	return ratio, ratio != 0 && (ratio < driftLow || ratio > driftHigh)
}
