package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kvlend/kvlend/overflow/placement"
)

// The ways to restore a context, in the order of the result.
const (
	// Pooled: as the pool serves, by a checked copy stream; see streamed.
	Pooled = "pool"
	// Raw: layer runs over all disks read by the engine alone, nothing checked.
	Raw = "pool, reads alone"
	// OneDisk is the ordinary way: one file per block on one disk, buffered
	// reads, one thread for the request.
	OneDisk = "files, 1 disk"
	// AllDisks: the same, as many files on each disk.
	AllDisks = "files, all disks"
	// Threads: the same, with a thread for each disk.
	Threads = "files, all disks, a thread each"
)

// RestoreOptions say what Restore measures. Zero fields have the defaults named.
type RestoreOptions struct {
	// Dirs are directories, each on a disk of its own, with the limits that the
	// disks are emulated with.
	Dirs   []Spec
	Tokens int // of the context, whole blocks of 16; 8192
	Layers int // 36, as Qwen3-8B has
	Ahead  int // layers on their way at once; 2
	Rounds int // 3
	// Keep leaves the files for another run with the same options.
	Keep     bool
	Progress func(string)
}

const blockTokens = 16

func (o RestoreOptions) withDefaults() (RestoreOptions, error) {
	if o.Tokens == 0 {
		o.Tokens = 8192
	}
	if o.Layers == 0 {
		o.Layers = 36
	}
	if o.Ahead == 0 {
		o.Ahead = 2
	}
	if o.Rounds == 0 {
		o.Rounds = 3
	}
	if o.Progress == nil {
		o.Progress = nothing
	}
	switch {
	case len(o.Dirs) == 0:
		return o, errors.New("no directories to restore from")
	case o.Tokens < blockTokens || o.Tokens%blockTokens != 0 || o.Tokens > 1<<20:
		return o, fmt.Errorf("%d tokens; want a multiple of %d, at most %d", o.Tokens, blockTokens, 1<<20)
	case o.Layers < 1 || o.Layers > 1000:
		return o, fmt.Errorf("%d layers; want 1 to 1000", o.Layers)
	case o.Ahead < 1 || o.Ahead > 64:
		return o, fmt.Errorf("%d layers ahead; want 1 to 64", o.Ahead)
	case o.Rounds < 1 || o.Rounds > 1000:
		return o, fmt.Errorf("rounds is %d; want 1 to 1000", o.Rounds)
	}
	return o, nil
}

func (o RestoreOptions) blocks() int { return o.Tokens / blockTokens }

// RestoreResult is what Restore measured.
type RestoreResult struct {
	Machine  Machine      `json:"machine"`
	Emulated bool         `json:"emulated"`
	Dirs     []Spec       `json:"disks"`
	Degraded string       `json:"degraded,omitempty"`
	Tokens   int          `json:"tokens"`
	Layers   int          `json:"layers"`
	Bytes    int64        `json:"bytes"`
	Rounds   int          `json:"rounds"`
	Ways     []RestoreWay `json:"ways"`
}

// RestoreWay is one way: medians over the rounds.
type RestoreWay struct {
	Name        string  `json:"name"`
	Seconds     float64 `json:"seconds"`
	FirstLayer  float64 `json:"first_layer_seconds"` // until layer 0 is whole
	BytesPerSec float64 `json:"bytes_per_second"`
	CPUPerGB    float64 `json:"cpu_seconds_per_gb"`
	// Ratio is the median of this way's time over the pool's in the same round.
	Ratio float64 `json:"time_over_pool"`
	// FromDisk is the smallest share of the bytes that came from the disk and
	// not from the page cache.
	FromDisk float64 `json:"share_from_disk"`
}

// trial is one restoration.
type trial struct{ seconds, first, cpu, fromDisk float64 }

// Restore measures how long the KV of a context of Qwen3-8B's shape takes to
// come back from disks, in the pool's way and in ordinary ones.
func Restore(ctx context.Context, opt RestoreOptions) (res *RestoreResult, err error) {
	opt, err = opt.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("bench disk restore: %w", err)
	}
	f := newFiles(opt)
	if !opt.Keep {
		defer func() { err = errors.Join(err, f.remove()) }()
	}
	if err := f.write(ctx); err != nil {
		return nil, err
	}
	s, err := openSet(f.pools(), false, int64(opt.Ahead)*int64(opt.blocks())*layerUnit, staging)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r, err := newRestoration(opt, f, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.stream.close()) }()
	res = &RestoreResult{Machine: machine(), Emulated: emulated(opt.Dirs), Dirs: opt.Dirs, Degraded: s.degraded(),
		Tokens: opt.Tokens, Layers: opt.Layers, Bytes: f.bytes(), Rounds: opt.Rounds}
	ways := []string{Pooled, Raw, OneDisk}
	if len(opt.Dirs) > 1 {
		ways = append(ways, AllDisks, Threads)
	}
	trials, err := r.rounds(ctx, ways)
	if err != nil {
		return nil, err
	}
	for _, w := range ways {
		res.Ways = append(res.Ways, summariseWay(w, trials[w], trials[Pooled], res.Bytes))
	}
	return res, nil
}

// rounds tries all ways in turn, after one that learns the checksums.
func (r *restoration) rounds(ctx context.Context, ways []string) (map[string][]trial, error) {
	trials := map[string][]trial{}
	r.opt.Progress("learning checksums")
	if _, err := r.try(ctx, Pooled); err != nil {
		return nil, fmt.Errorf("%s: %w", Pooled, err)
	}
	for round := range r.opt.Rounds {
		for i := range ways {
			way := ways[(i+round)%len(ways)]
			r.opt.Progress(fmt.Sprintf("round %d of %d: %s", round+1, r.opt.Rounds, way))
			t, err := r.try(ctx, way)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", way, err)
			}
			trials[way] = append(trials[way], t)
		}
	}
	return trials, nil
}

func summariseWay(name string, list, pool []trial, bytes int64) RestoreWay {
	w := RestoreWay{Name: name, FromDisk: 1}
	var seconds, first, cpu, ratio []float64
	for i, t := range list {
		seconds, first, cpu = append(seconds, t.seconds), append(first, t.first), append(cpu, t.cpu)
		ratio = append(ratio, t.seconds/pool[i].seconds)
		w.FromDisk = min(w.FromDisk, t.fromDisk)
	}
	w.Seconds, w.FirstLayer, w.Ratio = median(seconds), median(first), median(ratio)
	w.BytesPerSec = float64(bytes) / w.Seconds
	w.CPUPerGB = median(cpu) / float64(bytes) * 1e9
	return w
}

// PrepareRestore writes what Restore reads, and leaves it. Restore with Keep
// then writes nothing, so that the disks may be read-only.
func PrepareRestore(ctx context.Context, opt RestoreOptions) error {
	opt, err := opt.withDefaults()
	if err != nil {
		return fmt.Errorf("bench disk restore: %w", err)
	}
	return newFiles(opt).write(ctx)
}

// restoration is what the ways share.
type restoration struct {
	opt    RestoreOptions
	files  *files
	s      *set
	plan   layers
	stream *streamed
}

// newRestoration spreads every layer's blocks over the pool's files by their
// disks' limits, equally where there are none.
func newRestoration(opt RestoreOptions, f *files, s *set) (*restoration, error) {
	units, err := opt.units()
	if err != nil {
		return nil, err
	}
	r := &restoration{opt: opt, files: f, s: s}
	if r.plan, err = spread(opt.Layers, layerUnit, s.maxIO(pieceBytes), units, 0, s.sizes()); err != nil {
		return nil, err
	}
	r.stream, err = newStreamed(s, opt.Layers, opt.Ahead, units)
	return r, err
}

// units is how many of a layer's blocks lie on each disk.
func (o RestoreOptions) units() ([]int, error) {
	rates := make([]float64, len(o.Dirs))
	for i, d := range o.Dirs {
		if rates[i] = d.Limit; d.Limit == 0 {
			return share(placement.Uniform, o.blocks(), first(len(o.Dirs)))
		}
	}
	return share(placement.Bandwidth, o.blocks(), rates)
}

func first(n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = 1
	}
	return out
}

// try restores the context once, with nothing of it in the page cache.
func (r *restoration) try(ctx context.Context, way string) (trial, error) {
	if err := r.files.forget(); err != nil {
		return trial{}, err
	}
	if err := r.drain(ctx); err != nil {
		return trial{}, err
	}
	disk, err := diskReads()
	if err != nil {
		return trial{}, err
	}
	cpu, err := cpuTime()
	if err != nil {
		return trial{}, err
	}
	var t trial
	switch way {
	case Pooled:
		t, err = r.stream.restore(ctx)
	case Raw:
		t, err = r.raw(ctx)
	case OneDisk:
		t, err = readFiles(ctx, r.files.one, 1)
	case AllDisks:
		t, err = readFiles(ctx, r.files.all, 1)
	case Threads:
		t, err = readFiles(ctx, r.files.all, len(r.opt.Dirs))
	}
	if err != nil {
		return trial{}, err
	}
	cpuAfter, err := cpuTime()
	if err != nil {
		return trial{}, err
	}
	diskAfter, err := diskReads()
	if err != nil {
		return trial{}, err
	}
	t.cpu = (cpuAfter - cpu).Seconds()
	t.fromDisk = float64(diskAfter-disk) / float64(r.files.bytes())
	if t.fromDisk < 0.95 && way != Pooled && way != Raw {
		return trial{}, fmt.Errorf("only %.0f %% of the bytes came from the disk: the page cache was not cold", 100*t.fromDisk)
	}
	return t, nil
}

// credit is more than an emulated disk may exceed its limit for after a rest: a
// tenth of a second.
const credit = 0.15

// drain takes the credit of emulated disks away, so that all begin at their
// limit.
func (r *restoration) drain(ctx context.Context) error {
	limits := sumLimits(r.opt.Dirs)
	if limits == 0 {
		return nil
	}
	var n int64
	some := r.plan[:0:0]
	for l := 0; float64(n) < credit*limits; l++ {
		layer := r.plan[l%len(r.plan) : l%len(r.plan)+1]
		some, n = append(some, layer...), n+layer.bytes()
	}
	reader, err := newLayerReader(r.s.devs, some, r.opt.Ahead, r.s.mem)
	if err != nil {
		return err
	}
	_, err = reader.run(ctx)
	return err
}

func (r *restoration) raw(ctx context.Context) (trial, error) {
	l, err := newLayerReader(r.s.devs, r.plan, r.opt.Ahead, r.s.mem)
	if err != nil {
		return trial{}, err
	}
	began, err := l.run(ctx)
	if err != nil {
		return trial{}, err
	}
	return trial{seconds: l.ended[len(l.ended)-1].Sub(began).Seconds(), first: l.ended[0].Sub(began).Seconds()}, nil
}

// readFiles reads files in threads, each as many neighbours into one buffer.
// Layer 0 is whole when the last file is.
func readFiles(ctx context.Context, paths []string, threads int) (trial, error) {
	errs := make(chan error, threads)
	began := time.Now()
	for th := range threads {
		go func() {
			var buf []byte
			for i := th * len(paths) / threads; i < (th+1)*len(paths)/threads; i++ {
				if err := ctx.Err(); err != nil {
					errs <- err
					return
				}
				var err error
				if buf, err = readFile(paths[i], buf); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	var err error
	for range threads {
		err = errors.Join(err, <-errs)
	}
	d := time.Since(began).Seconds()
	return trial{seconds: d, first: d}, err
}

// readFile reads a whole file into buf, which it grows as needed.
func readFile(path string, buf []byte) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return buf, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return buf, err
	}
	if int64(cap(buf)) < st.Size() {
		buf = make([]byte, st.Size())
	}
	buf = buf[:st.Size()]
	for n := 0; n < len(buf); {
		m, err := f.Read(buf[n:])
		if err != nil {
			return buf, fmt.Errorf("%s: %w", path, err)
		}
		n += m
	}
	return buf, nil
}

// files are what a context is restored from: a file for the pool in every
// directory, and a file per block, once on the first disk and once on all.
type files struct {
	opt      RestoreOptions
	one, all []string
}

// subdir is what everything that the benchmark writes lies in.
const subdir = "kvlend-bench-disk"

func newFiles(opt RestoreOptions) *files {
	f := &files{opt: opt}
	for b := range opt.blocks() {
		name := fmt.Sprintf("%06d.kv", b)
		// Neighbours lie on one disk: in turn over all, an emulated disk would
		// rest between two files and serve each with the credit of its rest.
		on := opt.Dirs[b*len(opt.Dirs)/opt.blocks()].Path
		f.one = append(f.one, filepath.Join(opt.Dirs[0].Path, subdir, "one", name))
		f.all = append(f.all, filepath.Join(on, subdir, "all", name))
	}
	return f
}

func (f *files) perBlock() int64 { return int64(f.opt.Layers) * layerUnit }
func (f *files) bytes() int64    { return f.perBlock() * int64(f.opt.blocks()) }

func (f *files) pools() []Spec {
	var out []Spec
	for _, d := range f.opt.Dirs {
		out = append(out, Spec{Path: filepath.Join(d.Path, subdir, "pool"), Limit: d.Limit})
	}
	return out
}

// write makes whatever is not there, and makes it durable.
func (f *files) write(ctx context.Context) error {
	units, err := f.opt.units()
	if err != nil {
		return err
	}
	for i, p := range f.pools() {
		for _, d := range []string{"", "one", "all"} {
			if err := os.MkdirAll(filepath.Join(filepath.Dir(p.Path), d), 0o700); err != nil {
				return err
			}
		}
		n := storeBytes(f.opt.Layers, max(1, units[i]))
		if err := prepare(ctx, p.Path, n, f.opt.Progress); err != nil {
			return err
		}
	}
	list := f.one
	if len(f.opt.Dirs) > 1 {
		list = append(list[:len(list):len(list)], f.all...)
	}
	for i, path := range list {
		if i%64 == 0 {
			f.opt.Progress(fmt.Sprintf("writing files, %d of %d", i, len(list)))
		}
		if err := prepare(ctx, path, f.perBlock(), nothing); err != nil {
			return err
		}
	}
	return nil
}

// forget drops all files from the page cache. Names and inodes stay in memory,
// which is to the advantage of files.
func (f *files) forget() error {
	list := append(f.one[:len(f.one):len(f.one)], f.all...)
	if len(f.opt.Dirs) == 1 {
		list = f.one
	}
	for _, path := range list {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		if err := errors.Join(forget(file), file.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (f *files) remove() error {
	var errs []error
	for _, d := range f.opt.Dirs {
		errs = append(errs, os.RemoveAll(filepath.Join(d.Path, subdir)))
	}
	return errors.Join(errs...)
}
