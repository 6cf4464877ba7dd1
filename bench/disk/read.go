package disk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlend/kvlend/overflow/device"
)

// ReadOptions say what Read measures. Zero fields have the defaults named.
type ReadOptions struct {
	Path string // of a file, written if there is none, or of a block device
	// Span is how many bytes of it are read at random; 1 GiB.
	Span   int64
	Sizes  []int64 // of a read; 4 KiB to 1 MiB
	Depths []int   // reads in flight; 1, 8, 32, 64
	Rounds int     // 5
	// Each is how long a measurement takes; 1 s. fio's best settings at a point
	// are chosen in runs half as long.
	Each time.Duration
	// Alone leaves fio out: for machines that have none.
	Alone    bool
	Progress func(string)
}

func (o ReadOptions) withDefaults() (ReadOptions, error) {
	if o.Span == 0 {
		o.Span = 1 << 30
	}
	if len(o.Sizes) == 0 {
		o.Sizes = []int64{4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20}
	}
	if len(o.Depths) == 0 {
		o.Depths = []int{1, 8, 32, 64}
	}
	if o.Rounds == 0 {
		o.Rounds = 5
	}
	if o.Each == 0 {
		o.Each = time.Second
	}
	if o.Progress == nil {
		o.Progress = nothing
	}
	switch {
	case o.Path == "":
		return o, errors.New("no file or device to read")
	case o.Rounds < 1 || o.Rounds > 1000:
		return o, fmt.Errorf("rounds is %d; want 1 to 1000", o.Rounds)
	case o.Each < 50*time.Millisecond || o.Each > time.Minute:
		return o, fmt.Errorf("each measurement takes %v; want 50ms to 1m", o.Each)
	}
	for _, n := range o.Sizes {
		if n < device.Align || n%device.Align != 0 || n > o.Span || n > 16<<20 {
			return o, fmt.Errorf("reads of %d bytes; want multiples of %d, at most 16 MiB and the span's %d", n, device.Align, o.Span)
		}
	}
	for _, n := range o.Depths {
		if n < 1 || n > 1024 {
			return o, fmt.Errorf("depth %d; want 1 to 1024", n)
		}
	}
	return o, nil
}

// ReadResult is what Read measured.
type ReadResult struct {
	Machine  Machine    `json:"machine"`
	Fio      string     `json:"fio,omitempty"` // its version
	Path     string     `json:"path"`
	Kind     string     `json:"kind"`
	Degraded string     `json:"degraded,omitempty"`
	Span     int64      `json:"span_bytes"`
	Rounds   int        `json:"rounds"`
	Each     float64    `json:"seconds_each"`
	Cells    []ReadCell `json:"cells"`
}

// ReadCell is one size and depth: medians over the rounds.
type ReadCell struct {
	Size  int64 `json:"size_bytes"`
	Depth int   `json:"depth"`

	BytesPerSec float64 `json:"bytes_per_second"`
	CPUPerGB    float64 `json:"cpu_seconds_per_gb"`
	Calls       float64 `json:"submission_calls_per_read"`
	Allocs      float64 `json:"allocs_per_read"`
	Median      float64 `json:"median_seconds"`
	P99         float64 `json:"p99_seconds"`

	FioBytesPerSec float64 `json:"fio_bytes_per_second,omitempty"`
	FioCPUPerGB    float64 `json:"fio_cpu_seconds_per_gb,omitempty"`
	FioTuning      string  `json:"fio_settings,omitempty"` // the best of several

	// Ratio is the median over the rounds of ours over fio's bandwidth, Low
	// and High the quartiles; CPURatio of ours over fio's CPU time per byte.
	Ratio    float64 `json:"ratio,omitempty"`
	Low      float64 `json:"ratio_quartile_1,omitempty"`
	High     float64 `json:"ratio_quartile_3,omitempty"`
	CPURatio float64 `json:"cpu_ratio,omitempty"`
}

// Read compares random reads of one file or block device by our engine with
// those by fio at its best settings.
func Read(ctx context.Context, opt ReadOptions) (res *ReadResult, err error) {
	opt, err = opt.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("bench disk read: %w", err)
	}
	res = &ReadResult{Machine: machine(), Path: opt.Path, Span: opt.Span, Rounds: opt.Rounds, Each: opt.Each.Seconds()}
	if !opt.Alone {
		if res.Fio, err = fioVersion(ctx); err != nil {
			return nil, err
		}
	}
	if err := prepare(ctx, opt.Path, opt.Span, opt.Progress); err != nil {
		return nil, err
	}
	s, err := openSet([]Spec{{Path: opt.Path}}, false, slices.Max(opt.Sizes)*int64(slices.Max(opt.Depths)), 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	info := s.devs[0].Info()
	res.Kind, res.Degraded = string(info.Kind), s.degraded()
	if info.Size < opt.Span {
		return nil, fmt.Errorf("%s has %d bytes, want a span of %d", opt.Path, info.Size, opt.Span)
	}
	for _, n := range opt.Sizes {
		for _, depth := range opt.Depths {
			c, err := readCell(ctx, s, opt, n, depth)
			if err != nil {
				return nil, fmt.Errorf("reads of %s, %d in flight: %w", size(n), depth, err)
			}
			res.Cells = append(res.Cells, *c)
		}
	}
	return res, nil
}

func readCell(ctx context.Context, s *set, opt ReadOptions, block int64, depth int) (*ReadCell, error) {
	c := &ReadCell{Size: block, Depth: depth}
	say := func(what string) { opt.Progress(fmt.Sprintf("%s, %d in flight: %s", size(block), depth, what)) }
	d := duel{path: opt.Path, load: load{span: opt.Span, block: block, depth: depth}, rounds: opt.Rounds, each: opt.Each, alone: opt.Alone, say: say}
	err := d.run(ctx, func(round int) (sample, error) {
		return s.measure(ctx, 0, d.load, opt.Each, uint64(round))
	})
	if err != nil {
		return nil, err
	}
	c.FioTuning = d.best.Name
	c.summarise(d.ours, d.theirs)
	return c, nil
}

func (c *ReadCell) summarise(ours, theirs []sample) {
	of := func(list []sample, f func(sample) float64) float64 {
		var x []float64
		for _, m := range list {
			x = append(x, f(m))
		}
		return median(x)
	}
	bw := func(m sample) float64 { return m.bytesPerSec }
	cpu := func(m sample) float64 { return m.cpuPerGB }
	c.BytesPerSec, c.CPUPerGB = of(ours, bw), of(ours, cpu)
	c.Calls = of(ours, func(m sample) float64 { return m.calls })
	c.Allocs = of(ours, func(m sample) float64 { return m.allocs })
	c.Median = of(ours, func(m sample) float64 { return m.median })
	c.P99 = of(ours, func(m sample) float64 { return m.p99 })
	if len(theirs) != len(ours) {
		return
	}
	c.FioBytesPerSec, c.FioCPUPerGB = of(theirs, bw), of(theirs, cpu)
	var ratio, cpuRatio []float64
	for i, m := range ours {
		ratio = append(ratio, m.bytesPerSec/theirs[i].bytesPerSec)
		if theirs[i].cpuPerGB > 0 {
			cpuRatio = append(cpuRatio, m.cpuPerGB/theirs[i].cpuPerGB)
		}
	}
	c.Ratio, c.CPURatio = median(ratio), median(cpuRatio)
	c.Low, c.High = quartiles(ratio)
}
