package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/overflow/device"
)

// WriteOptions say what Write measures. Zero fields have the defaults named.
type WriteOptions struct {
	// Path is of a file that is made and removed afterwards. With Force it may
	// also be a file or a block device that exists: what it holds is lost.
	Path   string
	Force  bool
	Span   int64   // how many bytes of it are written; 512 MiB
	Sizes  []int64 // of a write; 4 KiB, 64 KiB, 1 MiB
	Depths []int   // writes in flight; 1, 32
	// SyncBytes is what is written between two syncs where there are any; 32 MiB,
	// 0 in a result: there were none.
	SyncBytes int64
	Rounds    int           // 3
	Each      time.Duration // how long a measurement takes; 500 ms
	// Blocks is how many blocks of Qwen3-8B's shape a store is made to keep; 96
	// (216 MB). Layers is how many each has; 36.
	Blocks, Layers int
	// Alone leaves fio out: for machines that have none.
	Alone    bool
	Progress func(string)
}

func (o WriteOptions) withDefaults() (WriteOptions, error) {
	set := func(v *int, n int) {
		if *v == 0 {
			*v = n
		}
	}
	if o.Span == 0 {
		o.Span = 512 << 20
	}
	if len(o.Sizes) == 0 {
		o.Sizes = []int64{4 << 10, 64 << 10, 1 << 20}
	}
	if len(o.Depths) == 0 {
		o.Depths = []int{1, 32}
	}
	if o.SyncBytes == 0 {
		o.SyncBytes = 32 << 20
	}
	set(&o.Rounds, 3)
	set(&o.Blocks, 96)
	set(&o.Layers, 36)
	if o.Each == 0 {
		o.Each = 500 * time.Millisecond
	}
	// Sizes, depths and times are as for Read.
	r, err := ReadOptions{Path: o.Path, Span: o.Span, Sizes: o.Sizes, Depths: o.Depths, Rounds: o.Rounds, Each: o.Each, Progress: o.Progress}.withDefaults()
	o.Progress = r.Progress
	switch {
	case err != nil:
		return o, err
	case o.Span%device.Align != 0:
		return o, fmt.Errorf("a span of %d bytes; want a multiple of %d", o.Span, device.Align)
	case o.SyncBytes < slices.Max(o.Sizes):
		return o, fmt.Errorf("syncs every %d bytes; want at least the largest write's %d", o.SyncBytes, slices.Max(o.Sizes))
	case o.Blocks < storeBatch || o.Blocks > 1<<20:
		return o, fmt.Errorf("a store of %d blocks; want %d to %d", o.Blocks, storeBatch, 1<<20)
	case o.Layers < 1 || o.Layers > 1000:
		return o, fmt.Errorf("%d layers; want 1 to 1000", o.Layers)
	}
	return o, nil
}

// WriteResult is what Write measured.
type WriteResult struct {
	Machine  Machine     `json:"machine"`
	Fio      string      `json:"fio,omitempty"` // its version
	Path     string      `json:"path"`
	Kind     string      `json:"kind"`
	Degraded string      `json:"degraded,omitempty"`
	Span     int64       `json:"span_bytes"`
	Rounds   int         `json:"rounds"`
	Each     float64     `json:"seconds_each"`
	Cells    []WriteCell `json:"cells"`
	Store    StoreResult `json:"store"`
}

// WriteCell is one kind of write: medians over the rounds.
type WriteCell struct {
	Size       int64 `json:"size_bytes"`
	Depth      int   `json:"depth"`
	Sequential bool  `json:"sequential"`
	// Fresh: into extents that were preallocated and never written.
	Fresh     bool  `json:"fresh"`
	SyncBytes int64 `json:"bytes_between_syncs,omitempty"`

	BytesPerSec float64 `json:"bytes_per_second"`
	CPUPerGB    float64 `json:"cpu_seconds_per_gb"`
	Calls       float64 `json:"submission_calls_per_write"`
	P99         float64 `json:"p99_seconds"`

	FioBytesPerSec float64 `json:"fio_bytes_per_second,omitempty"`
	FioCPUPerGB    float64 `json:"fio_cpu_seconds_per_gb,omitempty"`
	FioTuning      string  `json:"fio_settings,omitempty"`
	Ratio          float64 `json:"ratio,omitempty"` // of bandwidths, ours over fio's; and its quartiles
	Low            float64 `json:"ratio_quartile_1,omitempty"`
	High           float64 `json:"ratio_quartile_3,omitempty"`
}

// kind says what a cell writes.
func (c *WriteCell) kind() string {
	name := "random"
	if c.Sequential {
		name = "sequential"
	}
	switch {
	case c.Fresh:
		return name + ", never written before"
	case c.SyncBytes > 0:
		return fmt.Sprintf("%s, a sync each %s", name, size(c.SyncBytes))
	}
	return name
}

// cells are what is measured: every size and depth, in order and at random; and
// with most in flight what a store also does (syncs), and what it avoids (extents
// that were never written, which a block device has none of).
func (o WriteOptions) cells(kind device.Kind) []WriteCell {
	var out []WriteCell
	deep := slices.Max(o.Depths)
	for _, n := range o.Sizes {
		for _, depth := range o.Depths {
			out = append(out, WriteCell{Size: n, Depth: depth, Sequential: true}, WriteCell{Size: n, Depth: depth})
		}
		out = append(out, WriteCell{Size: n, Depth: deep, Sequential: true, SyncBytes: o.SyncBytes})
		if kind == device.File {
			out = append(out, WriteCell{Size: n, Depth: deep, Sequential: true, Fresh: true})
		}
	}
	return out
}

// Write compares writes by our engine with those by fio at its best settings, and
// what a store writes with what the engine can.
func Write(ctx context.Context, opt WriteOptions) (res *WriteResult, err error) {
	opt, err = opt.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("bench disk write: %w", err)
	}
	res = &WriteResult{Machine: machine(), Path: opt.Path, Span: opt.Span, Rounds: opt.Rounds, Each: opt.Each.Seconds()}
	if !opt.Alone {
		if res.Fio, err = fioVersion(ctx); err != nil {
			return nil, err
		}
	}
	made, err := makeRoom(ctx, opt)
	if err != nil {
		return nil, err
	}
	if made {
		defer func() { err = errors.Join(err, os.Remove(opt.Path)) }()
	}
	if err := opt.cellsOf(ctx, res); err != nil {
		return nil, err
	}
	opt.Progress("a store")
	res.Store, err = storeWrites(ctx, opt)
	return res, err
}

// makeRoom makes the file that is written to, all of it written once, and says
// whether it did.
func makeRoom(ctx context.Context, opt WriteOptions) (made bool, err error) {
	if _, err := os.Lstat(opt.Path); err == nil && !opt.Force {
		return false, fmt.Errorf("%s exists, and what it holds would be overwritten: give another name, or force", opt.Path)
	}
	_, err = os.Stat(opt.Path)
	made = errors.Is(err, os.ErrNotExist)
	return made, prepare(ctx, opt.Path, max(opt.Span, opt.storeSize()), opt.Progress)
}

func (o WriteOptions) cellsOf(ctx context.Context, res *WriteResult) (err error) {
	s, err := openSet([]Spec{{Path: o.Path}}, true, slices.Max(o.Sizes)*int64(slices.Max(o.Depths)), 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	info := s.devs[0].Info()
	res.Kind, res.Degraded = string(info.Kind), s.degraded()
	if info.Size < o.Span {
		return fmt.Errorf("%s has %d bytes, want a span of %d", o.Path, info.Size, o.Span)
	}
	for i := range s.mem {
		s.mem[i] = byte(i>>12 ^ i*7) // not zeros, which disks may not write
	}
	for _, c := range o.cells(info.Kind) {
		if err := o.cell(ctx, s, &c); err != nil {
			return fmt.Errorf("writes of %s, %d in flight, %s: %w", size(c.Size), c.Depth, c.kind(), err)
		}
		res.Cells = append(res.Cells, c)
	}
	return nil
}

func (o WriteOptions) cell(ctx context.Context, s *set, c *WriteCell) error {
	l := load{span: o.Span, block: c.Size, depth: c.Depth, write: true, sequential: c.Sequential, syncEvery: int(c.SyncBytes / c.Size)}
	d := duel{path: o.Path, load: l, rounds: o.Rounds, each: o.Each, alone: o.Alone}
	d.say = func(what string) {
		o.Progress(fmt.Sprintf("writes of %s, %d in flight, %s: %s", size(c.Size), c.Depth, c.kind(), what))
	}
	if c.Fresh {
		d.before = func() error { return unwrite(o.Path, o.Span) }
	}
	err := d.run(ctx, func(round int) (sample, error) { return s.measure(ctx, 0, l, o.Each, uint64(round)) })
	if err != nil {
		return err
	}
	if c.Fresh { // the next ones find it written
		if err := rewrite(ctx, o.Path, o.Span); err != nil {
			return err
		}
	}
	var r ReadCell
	r.summarise(d.ours, d.theirs)
	c.BytesPerSec, c.CPUPerGB, c.Calls, c.P99 = r.BytesPerSec, r.CPUPerGB, r.Calls, r.P99
	c.FioBytesPerSec, c.FioCPUPerGB, c.FioTuning = r.FioBytesPerSec, r.FioCPUPerGB, d.best.Name
	c.Ratio, c.Low, c.High = r.Ratio, r.Low, r.High
	return nil
}

// unwrite makes n bytes of a file what preallocation leaves: extents of which
// nothing was written.
func unwrite(path string, n int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_ZERO_RANGE, 0, n); err != nil {
		return fmt.Errorf("%s: preallocate: %w", path, err)
	}
	return f.Sync()
}

// rewrite writes n bytes of a file.
func rewrite(ctx context.Context, path string, n int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(fill(ctx, f, n, nothing), f.Close())
}
