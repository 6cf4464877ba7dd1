// Package topology describes the devices of a server and the links between
// them. The values come from the config file, or from NVML where there is one.
package topology

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Link is one direction between two devices.
type Link struct {
	From, To string
	// BytesPerSec is the usable bandwidth in bytes per second, above zero.
	BytesPerSec float64
	// Latency is the time before the first byte of a copy arrives.
	Latency time.Duration
	// Source is where the bandwidth comes from; none: it was not said.
	Source Source
}

// Source is where a bandwidth comes from.
type Source string

// The sources, the most trusted first.
const (
	FromMeasured Source = "measured" // copies were timed
	FromNVML     Source = "nvml"     // nominal, as the driver describes the links
	FromConfig   Source = "config"   // as somebody wrote it down
)

// Time is how long a copy of n bytes takes on an idle link.
func (l Link) Time(n int64) time.Duration {
	return l.Latency + time.Duration(float64(n)/l.BytesPerSec*float64(time.Second))
}

// Topology is an immutable set of devices and links, safe for concurrent use.
type Topology struct {
	devices []string
	links   map[[2]string]Link
}

// New checks that devices are named and distinct, and that every link joins
// two different known devices, has a positive bandwidth and a latency that is
// not negative, and is given once per direction.
func New(devices []string, links []Link) (*Topology, error) {
	t := &Topology{devices: slices.Clone(devices), links: make(map[[2]string]Link, len(links))}
	if len(devices) == 0 {
		return nil, fmt.Errorf("topology: devices is empty; want at least one")
	}
	for i, d := range devices {
		if d == "" {
			return nil, fmt.Errorf("topology: devices[%d] is empty", i)
		}
		if slices.Contains(devices[:i], d) {
			return nil, fmt.Errorf("topology: devices[%d] %q is listed twice", i, d)
		}
	}
	for i, l := range links {
		if err := t.add(l); err != nil {
			return nil, fmt.Errorf("topology: links[%d]: %w", i, err)
		}
	}
	return t, nil
}

func (t *Topology) add(l Link) error {
	for _, d := range []string{l.From, l.To} {
		if !t.Has(d) {
			return fmt.Errorf("unknown device %q; known are %q", d, t.devices)
		}
	}
	if l.From == l.To {
		return fmt.Errorf("joins %q to itself", l.From)
	}
	if err := l.check(); err != nil {
		return err
	}
	key := [2]string{l.From, l.To}
	if _, dup := t.links[key]; dup {
		return fmt.Errorf("%q to %q is given twice", l.From, l.To)
	}
	t.links[key] = l
	return nil
}

// check reports a bandwidth or a latency that no link has.
func (l Link) check() error {
	if !(l.BytesPerSec > 0) || l.BytesPerSec > 1e15 {
		return fmt.Errorf("bandwidth %v B/s from %q to %q; want above 0 and at most 1e15", l.BytesPerSec, l.From, l.To)
	}
	if l.Latency < 0 || l.Latency > time.Second {
		return fmt.Errorf("latency %v from %q to %q; want 0 to 1s", l.Latency, l.From, l.To)
	}
	return nil
}

// Combine takes each link from the first of several lists that has it.
func Combine(lists ...[]Link) []Link {
	var out []Link
	seen := map[[2]string]bool{}
	for _, list := range lists {
		for _, l := range list {
			if key := [2]string{l.From, l.To}; !seen[key] {
				seen[key] = true
				out = append(out, l)
			}
		}
	}
	return out
}

// FullMesh joins every ordered pair of devices with equal links.
func FullMesh(devices []string, bytesPerSec float64, latency time.Duration) (*Topology, error) {
	var links []Link
	for _, a := range devices {
		for _, b := range devices {
			if a != b {
				links = append(links, Link{From: a, To: b, BytesPerSec: bytesPerSec, Latency: latency})
			}
		}
	}
	return New(devices, links)
}

// Devices returns the devices in the order in which they were given.
func (t *Topology) Devices() []string { return slices.Clone(t.devices) }

// Has reports whether dev is a device.
func (t *Topology) Has(dev string) bool { return slices.Contains(t.devices, dev) }

// Link returns the link from one device to another. There is none from a
// device to itself.
func (t *Topology) Link(from, to string) (Link, bool) {
	l, ok := t.links[[2]string{from, to}]
	return l, ok
}

// Links returns all links, ordered by From and To.
func (t *Topology) Links() []Link {
	var out []Link
	for _, a := range t.devices {
		for _, b := range t.devices {
			if l, ok := t.Link(a, b); ok {
				out = append(out, l)
			}
		}
	}
	return out
}

// Rank orders devices by the bandwidth of their links to another one, the
// fastest first: that device itself, if it is among them. Equal ones keep their
// order, those without a link come last.
func (t *Topology) Rank(to string, from []string) []string {
	rate := func(dev string) float64 {
		if dev == to {
			return math.Inf(1)
		}
		return t.links[[2]string{dev, to}].BytesPerSec
	}
	out := slices.Clone(from)
	slices.SortStableFunc(out, func(a, b string) int { return cmp.Compare(rate(b), rate(a)) })
	return out
}
