// Package disk measures the devices of the overflow pool against the ordinary
// ways of reading the same bytes: fio on one disk, the sum of several disks, and
// one file per block through a filesystem.
//
// Every figure is taken beside its yardstick, in turn, in the same run; ratios
// are medians over the rounds of the ratios within each. What is read was
// written before: a disk answers for extents that never were without doing
// anything, which makes any figure meaningless.
//
// Devices that are emulated (tools/ssd-emulate) come with their limit, and
// every result that rests on one says so.
package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Spec names a device to measure.
type Spec struct {
	Path string `json:"path"`
	// Limit is the bandwidth that it is emulated with, in bytes per second; 0:
	// a real device.
	Limit float64 `json:"emulated_limit,omitempty"`
}

// ParseSpecs reads "path=bytes-per-second,path,...": what ssd-emulate puts in
// place of {}.
func ParseSpecs(list string) ([]Spec, error) {
	var out []Spec
	seen := map[string]bool{}
	for s := range strings.SplitSeq(list, ",") {
		path, limit, emulated := strings.Cut(s, "=")
		if path == "" {
			return nil, fmt.Errorf("devices %q: an empty path; want path or path=bytes-per-second, separated by commas", list)
		}
		if seen[path] {
			return nil, fmt.Errorf("devices %q: %s appears twice", list, path)
		}
		seen[path] = true
		d := Spec{Path: path}
		if emulated {
			var err error
			if d.Limit, err = strconv.ParseFloat(limit, 64); err != nil || !(d.Limit > 0 && d.Limit <= 1e12) { // NaN included
				return nil, fmt.Errorf("devices: the limit of %s is %q; want bytes per second, 1 to 1e12", path, limit)
			}
		}
		out = append(out, d)
	}
	return out, nil
}

func emulated(specs []Spec) bool {
	return slices.ContainsFunc(specs, func(d Spec) bool { return d.Limit > 0 })
}

// Machine says where a result was taken.
type Machine struct {
	Go     string `json:"go"`
	Arch   string `json:"arch"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
}

func machine() Machine {
	m := Machine{Go: runtime.Version(), Arch: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return m
}

func (m Machine) String() string {
	return fmt.Sprintf("%s, %s, %d cores, Linux %s", m.Go, m.Arch, m.Cores, m.Kernel)
}

// cpuTime is what this process has used so far, in user and kernel mode.
func cpuTime() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	x = slices.Sorted(slices.Values(x))
	if n := len(x); n%2 == 0 {
		return (x[n/2-1] + x[n/2]) / 2
	}
	return x[len(x)/2]
}

// quartiles are the first and the third one.
func quartiles(x []float64) (low, high float64) {
	x = slices.Sorted(slices.Values(x))
	if len(x) == 0 {
		return 0, 0
	}
	at := func(q float64) float64 {
		p := q * float64(len(x)-1)
		i := int(p)
		if i+1 == len(x) {
			return x[i]
		}
		return x[i] + (p-float64(i))*(x[i+1]-x[i])
	}
	return at(0.25), at(0.75)
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func size(n int64) string {
	switch {
	case n >= 1<<30 && n%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// nothing is a Progress for those who want none.
func nothing(string) {}

// errNothing answers a request to plot nothing.
var errNothing = errors.New("nothing was measured, so nothing can be plotted")
