// Package placement says which devices of the overflow pool the blocks of a run
// go to. One interface, three policies: bandwidth-aware (Unified KV Pooling,
// Eq. 1-2 and Algorithm 1), uniform, and a single device.
//
// It is arithmetic only: it knows devices by their index, moves nothing and
// reads no clock.
package placement

import (
	"fmt"
	"math"
	"time"
)

// State says whether a device takes blocks.
type State uint8

// The states of a device.
const (
	OK       State = iota // takes blocks
	Slow                  // answers late: takes fewer
	Fenced                // out of use after failures: takes none
	Draining              // is being emptied: takes none
)

// String is the state in one word.
func (s State) String() string {
	switch s {
	case OK:
		return "ok"
	case Slow:
		return "slow"
	case Fenced:
		return "fenced"
	case Draining:
		return "draining"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Device is what a policy has to know of a device at the time of a call.
type Device struct {
	// Rate is the measured bandwidth in bytes per second, smoothed by whoever
	// measures, so that it follows drift. What is not in [1, 1e15] is unknown:
	// such a device counts as the slowest of the known ones that take blocks,
	// so that it is unlikely to be what all others wait for.
	Rate float64
	// Free is how many blocks it can take now: empty slots, and those whose
	// blocks the pool would give up for new ones. Below 0 counts as 0.
	Free int
	// Slots is how many blocks fit in all. 0: unknown, and the device counts as
	// far from full until Free is 0.
	Slots int
	State State
	// Fences is how often it has been fenced so far. The policies that divide
	// let a device come back slowly after each time (see Policy).
	Fences int
}

// takes says whether the device can get blocks at all.
func (d *Device) takes() bool { return d.Free > 0 && (d.State == OK || d.State == Slow) }

// known says whether the rate is one to reckon with.
func (d *Device) known() bool { return d.Rate >= minRate && d.Rate <= maxRate }

const (
	minRate = 1
	maxRate = 1e15
)

// Part is a piece of a run: its next Count blocks go to a device.
type Part struct{ Device, Count int }

// Policy divides runs of blocks among devices.
//
// A policy has a memory by device index. So devices are the same ones in the same
// order at each call; new ones join at the end. Equal calls in equal order have
// equal results. Calls do not allocate once there have been as many devices. A
// Policy is not safe for concurrent use: the caller's lock guards it.
//
// # Weights
//
// The policies that divide (bandwidth, uniform) give each device a share p_i in
// proportion to a weight. That is its rate (bandwidth) or 1 (uniform), times
//   - 0 when it is fenced, draining or has no room; 1/4 when it is slow, since
//     the rate takes a while to follow;
//   - free/(slots/8) when less than an eighth of its slots are free, so that a
//     device does not go from a full share to none within one run, and devices
//     that are nearly full fill up together;
//   - 1/16 after it has been fenced, and twice that with every 16 blocks that it
//     has been given since, up to 1: a device that fails again does so with
//     little on it. Where no other takes blocks it is given all.
type Policy interface {
	// Name is what the policy is called in the config.
	Name() string
	// Place appends to dst where the next blocks of a run go, in the order of
	// the run: the first part's blocks come first. Each device occurs at most
	// once, in the order of indices, with a Count of at least 1. The counts sum
	// to blocks, or to all the room of the devices that take blocks, where that
	// is less. What is over a device's room goes to the others by their shares.
	Place(dst []Part, devices []Device, blocks int) []Part
	// Shares appends the p_i, one per device, that the next Place would aim at.
	// They sum to 1, or to 0 when no device takes blocks.
	Shares(dst []float64, devices []Device) []float64
}

// The names of the policies.
const (
	Bandwidth = "bandwidth"
	Uniform   = "uniform"
	Single    = "single"
)

// ParsePolicy makes the policy with this name. Each pool needs its own. The
// error names the accepted values.
func ParsePolicy(name string) (Policy, error) {
	switch name {
	case Bandwidth:
		return &shared{name: name, byRate: true}, nil
	case Uniform:
		return &shared{name: name}, nil
	case Single:
		return single{}, nil
	}
	return nil, fmt.Errorf("placement: %q: must be %s, %s or %s", name, Bandwidth, Uniform, Single)
}

// Finish is how long reading or writing what Place has returned takes when each
// device works at its rate and beside the others: the longest of count * bytes /
// rate. blockBytes is the size of a block. Unknown rates count as Device.Rate
// says; it is 0 when none is known.
func Finish(parts []Part, devices []Device, blockBytes int64) time.Duration {
	unknown := slowest(devices)
	longest := 0.0
	for _, p := range parts {
		rate := unknown
		if d := &devices[p.Device]; d.known() {
			rate = d.Rate
		}
		longest = max(longest, float64(p.Count)*float64(blockBytes)/rate)
	}
	return time.Duration(min(longest*float64(time.Second), 1<<62))
}

// slowest is the smallest of the known rates of the devices that take blocks, or
// else of all; +Inf when none is known.
func slowest(devices []Device) float64 {
	all, taking := math.Inf(1), math.Inf(1)
	for i := range devices {
		d := &devices[i]
		if !d.known() {
			continue
		}
		all = min(all, d.Rate)
		if d.takes() {
			taking = min(taking, d.Rate)
		}
	}
	if math.IsInf(taking, 1) {
		return all
	}
	return taking
}

// single puts all on the first device that takes blocks, and what it has no room
// for on the next: what a stack with one disk does.
type single struct{}

func (single) Name() string { return Single }

func (single) Place(dst []Part, devices []Device, blocks int) []Part {
	for i := range devices {
		if blocks <= 0 {
			break
		}
		if devices[i].takes() {
			n := min(blocks, devices[i].Free)
			dst = append(dst, Part{i, n})
			blocks -= n
		}
	}
	return dst
}

func (single) Shares(dst []float64, devices []Device) []float64 {
	share := 1.0
	for i := range devices {
		if devices[i].takes() {
			dst = append(dst, share)
			share = 0
		} else {
			dst = append(dst, 0)
		}
	}
	return dst
}
