// Package doctor looks at a machine before kvlend runs on it: what it can do,
// what is missing, and what to do about that.
//
// Each probe runs on its own, under a time limit: what hangs, panics or cannot
// be read becomes a finding and stops nothing. What a probe asks of the kernel
// goes through a Host, so that tests stand for odd machines.
package doctor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvlend/kvlend/nvlink/topology"
	"github.com/kvlend/kvlend/planner"
)

// Level says how much a finding matters.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Note    Level = "note"    // works; good to know
	Warning Level = "warning" // works, more slowly or with less than it could
	Problem Level = "problem" // does not work
)

// Finding is one thing that was looked at.
type Finding struct {
	Level Level  `json:"level"`
	What  string `json:"what"`
	Found string `json:"found"`
	Hint  string `json:"hint,omitempty"` // what to do
}

// Section is the findings about one part of the machine.
type Section struct {
	Name     string    `json:"name"`
	Findings []Finding `json:"findings"`
}

// Link is a link between two devices of the configuration, as it will be used.
type Link struct {
	From        string          `json:"from"`
	To          string          `json:"to"`
	BytesPerSec float64         `json:"bytes_per_sec"`
	Source      topology.Source `json:"source"`
}

// Report is everything that was found.
type Report struct {
	OK       bool      `json:"ok"` // there are no problems
	Problems int       `json:"problems"`
	Warnings int       `json:"warnings"`
	Sections []Section `json:"sections"`
	// Inventory is what is known of the GPUs; nil: nothing.
	Inventory *topology.Inventory `json:"inventory,omitempty"`
	// Links are those between the devices of the configuration, if there is one.
	Links []Link `json:"links,omitempty"`
}

// Build describes the binary.
type Build struct {
	Version, Go, Platform string
	CUDA                  bool // it has the build tag cuda, and can ask NVML
}

// Options of Run.
type Options struct {
	Build Build
	// System is the configuration to check; nil: none.
	System *planner.System
	// RunDir is where the system's sockets will lie, with System.
	RunDir string
	// Running reports that a system serves from RunDir already.
	Running bool
	// Limit is how long a probe may take (5 s), GPULimit how long the driver may
	// take to describe the GPUs (20 s).
	Limit, GPULimit time.Duration
}

// doctor is one examination.
type doctor struct {
	Options
	*Host
	// gpus is closed when the inventory is as complete as it gets: then inv and
	// gpuErr may be read.
	gpus   chan struct{}
	inv    *topology.Inventory
	gpuErr error

	mu    sync.Mutex
	links []Link
}

// probe looks at one thing.
type probe struct {
	section, what string
	limit         time.Duration
	look          func(context.Context) []Finding
}

// The sections, in order.
const (
	sectionBuild     = "build"
	sectionCPU       = "CPU"
	sectionMemory    = "memory"
	sectionLimits    = "limits"
	sectionKernel    = "kernel"
	sectionContainer = "container"
	sectionGPU       = "GPU"
	sectionConfig    = "configuration"
)

// Run examines a machine. It takes as long as the slowest probe, and ends early
// with ctx. Probes that do not come back stay behind as goroutines.
func Run(ctx context.Context, h *Host, o Options) *Report {
	if o.Limit == 0 {
		o.Limit = 5 * time.Second
	}
	if o.GPULimit == 0 {
		o.GPULimit = 20 * time.Second
	}
	d := &doctor{Options: o, Host: h, gpus: make(chan struct{})}
	probes := d.probes()
	results := make([][]Finding, len(probes))
	var wg sync.WaitGroup
	go d.inventory(ctx) // those who want it wait for it, not without end
	for i, p := range probes {
		wg.Go(func() { results[i] = p.run(ctx) })
	}
	wg.Wait()
	return d.report(probes, results)
}

func (d *doctor) probes() []probe {
	limit := d.Limit
	late := d.Limit + d.GPULimit // those that wait for the inventory
	list := []probe{
		{sectionBuild, "binary", limit, d.build},
		{sectionCPU, "cores", limit, d.cores},
		{sectionCPU, "kernels", limit, d.kernels},
		{sectionMemory, "memory", limit, d.memory},
		{sectionMemory, "control group", limit, d.groupMemory},
		{sectionMemory, "huge pages", limit, d.hugePages},
		{sectionMemory, "shared memory", limit, d.sharedMemory},
		{sectionLimits, "locked memory", limit, d.memlock},
		{sectionLimits, "open files", limit, d.openFiles},
		{sectionLimits, "processes", limit, d.processes},
		{sectionLimits, "address space", limit, d.addressSpace},
		{sectionKernel, "version", limit, d.kernelVersion},
		{sectionKernel, "io_uring", limit, d.ioUring},
		{sectionKernel, "pidfd", limit, d.pidfd},
		{sectionKernel, "direct I/O", limit, d.directIO},
		{sectionContainer, "container", limit, d.container},
		{sectionGPU, "driver", limit, d.driver},
		{sectionGPU, "device files", limit, d.deviceFiles},
		{sectionGPU, "libraries", limit, d.libraries},
		{sectionGPU, "GPUs", late, d.gpuFindings},
		{sectionGPU, "links", late, d.pairFindings},
	}
	if d.System != nil {
		list = append(list, d.configProbes(limit, late)...)
	}
	return list
}

// run looks, for as long as the probe may.
func (p probe) run(ctx context.Context) []Finding {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	done := make(chan []Finding, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- []Finding{{Warning, p.what, fmt.Sprintf("could not be looked at: %v", r), "report this as a defect of kvlend doctor"}}
			}
		}()
		done <- p.look(ctx)
	}()
	select {
	case f := <-done:
		return f
	case <-ctx.Done():
	}
	select {
	case f := <-done:
		return f
	default:
		return []Finding{{Warning, p.what, fmt.Sprintf("did not answer: %v (limit %s)", ctx.Err(), p.limit), "something of this hangs: look at dmesg"}}
	}
}

func (d *doctor) report(probes []probe, results [][]Finding) *Report {
	r := &Report{}
	for i, p := range probes {
		n := len(r.Sections)
		if n == 0 || r.Sections[n-1].Name != p.section {
			r.Sections = append(r.Sections, Section{Name: p.section})
			n++
		}
		s := &r.Sections[n-1]
		s.Findings = append(s.Findings, results[i]...)
		for _, f := range results[i] {
			switch f.Level {
			case Problem:
				r.Problems++
			case Warning:
				r.Warnings++
			}
		}
	}
	r.OK = r.Problems == 0
	select {
	case <-d.gpus:
		r.Inventory = d.inv
	default: // it hangs
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r.Links = d.links
	return r
}

// one is a single finding.
func one(l Level, what, hint, format string, args ...any) []Finding {
	return []Finding{{l, what, fmt.Sprintf(format, args...), hint}}
}

// unknown is the finding about what cannot be read.
func unknown(what string, err error) []Finding {
	return one(Note, what, "", "not known: %v", err)
}

// size prints a number of bytes with three digits.
func size(n uint64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, u := float64(n), -1
	for f >= 999.5 && u < len(units)-1 {
		f /= 1024
		u++
	}
	return fmt.Sprintf("%.3g %ciB", f, units[u])
}
