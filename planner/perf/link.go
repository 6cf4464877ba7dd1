package perf

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kvlend/kvlend/configs"
)

// Link is one direction of a connection between two devices, used by one
// transfer at a time: who simulates several at once shares Rate between them.
// It is read-only once made, but for Batch and PieceCost, which its maker may set.
type Link struct {
	// Batch is how many pieces one call moves. 0: all of them, as kvlend's
	// fabrics do; 1: a call for each piece, as a copy per block does.
	Batch int
	// PieceCost is what each piece adds to its call, such as the descriptor of
	// a gather list. Usually 0.
	PieceCost time.Duration

	latency time.Duration // of a call; part of the curve where there is one
	rate    float64       // bytes per second of a very large call
	curve   []point       // ascending, or nil: latency + bytes/rate
}

// point is one measured call; logarithms, since interpolation is in them.
type point struct {
	size        int64
	seconds     float64
	logSize, lt float64
}

// NewLink is a link of a bandwidth in bytes per second and a latency per call.
func NewLink(bandwidth float64, latency time.Duration) (*Link, error) {
	err := within("link: bandwidth in bytes/s", bandwidth, 1, 1e16)
	if latency < 0 || latency > time.Hour {
		err = errors.Join(err, fmt.Errorf("link: latency is %s, want 0s to 1h", latency))
	}
	if err != nil {
		return nil, err
	}
	return &Link{latency: latency, rate: bandwidth}, nil
}

// ConfigLink is a link as a configuration describes it.
func ConfigLink(l configs.Link) (*Link, error) {
	link, err := NewLink(float64(l.Bandwidth), time.Duration(l.Latency))
	if err != nil {
		return nil, fmt.Errorf("from %s to %s: %w", l.From, l.To, err)
	}
	return link, nil
}

// CurveLink is a link with a measured curve, one of Curves.
func CurveLink(name string) (*Link, error) {
	for _, c := range Curves() {
		if strings.EqualFold(c.Name, name) {
			return c.Link()
		}
	}
	var known []string
	for _, c := range Curves() {
		known = append(known, c.Name)
	}
	return nil, fmt.Errorf("link: no curve %q, want one of %s", name, strings.Join(known, ", "))
}

// NVLink is the link of a GPU to its neighbours: the curve measured on the DGX
// whose links are nearest, its transfer times scaled to this GPU's nominal
// bandwidth and its latency kept. That the shape carries over is an assumption
// for all but A100 and H100.
func NVLink(g GPU) (*Link, error) {
	if g.NVLink <= 0 {
		return nil, fmt.Errorf("link: %s has no NVLink", g.Name)
	}
	name, nominal := curveA100, 300e9
	if g.NVLink > 350e9 {
		name, nominal = curveH100, 450e9
	}
	l, err := CurveLink(name)
	if err != nil {
		return nil, err
	}
	l.scale(nominal / g.NVLink)
	return l, nil
}

// What host memory reaches of a PCIe slot: copies from pinned memory with large
// pieces run at about 26 GB/s of 31.5 in a Gen4 x16 slot, and a call takes about
// 8 us.
const (
	pcieShare   = 0.83
	pcieLatency = 8 * time.Microsecond
)

// PCIe is the link between a GPU and pinned host memory, alone on its slot.
func PCIe(g GPU) (*Link, error) {
	l, err := NewLink(g.PCIeBandwidth*pcieShare, pcieLatency)
	if err != nil {
		return nil, fmt.Errorf("PCIe of %s: %w", g.Name, err)
	}
	return l, nil
}

// scale multiplies what a call takes beyond its latency.
func (l *Link) scale(by float64) {
	l.rate /= by
	for i := range l.curve {
		p := &l.curve[i]
		floor := l.latency.Seconds()
		*p = newPoint(p.size, floor+(p.seconds-floor)*by)
	}
}

// Rate is the bandwidth of very large calls, in bytes per second, and Latency
// the time of a call that moves next to nothing.
func (l *Link) Rate() float64          { return l.rate }
func (l *Link) Latency() time.Duration { return l.latency }

// Time is how long a transfer takes that has the link for itself: bytes in
// pieces of a size, the last one perhaps smaller, in calls of Batch pieces one
// after another. Nothing takes no time; a piece of 0 or less is all bytes.
func (l *Link) Time(bytes, piece int64) time.Duration {
	if bytes <= 0 {
		return 0
	}
	if piece <= 0 || piece > bytes {
		piece = bytes
	}
	pieces := (bytes-1)/piece + 1
	total := float64(pieces) * l.PieceCost.Seconds()
	batch := int64(l.Batch)
	if batch <= 0 || batch >= pieces {
		return duration(total + l.call(bytes))
	}
	each := batch * piece // below bytes, so this does not overflow
	total += float64(bytes/each) * l.call(each)
	if rest := bytes % each; rest > 0 {
		total += l.call(rest)
	}
	return duration(total)
}

// call is the seconds that one call takes.
func (l *Link) call(bytes int64) float64 {
	if l.curve == nil {
		return l.latency.Seconds() + float64(bytes)/l.rate
	}
	first, last := &l.curve[0], &l.curve[len(l.curve)-1]
	switch {
	case bytes <= first.size:
		return first.seconds
	case bytes >= last.size:
		return last.seconds + float64(bytes-last.size)/l.rate
	}
	i, _ := slices.BinarySearchFunc(l.curve, bytes, func(p point, n int64) int { return int(min(1, max(-1, p.size-n))) })
	a, b := &l.curve[max(0, i-1)], &l.curve[i]
	f := (math.Log(float64(bytes)) - a.logSize) / (b.logSize - a.logSize)
	return math.Exp(a.lt + f*(b.lt-a.lt))
}

func newPoint(size int64, seconds float64) point {
	return point{size: size, seconds: seconds, logSize: math.Log(float64(size)), lt: math.Log(seconds)}
}
