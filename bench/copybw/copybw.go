// Package copybw measures what the shm fabric makes of the memory bandwidth:
// copies of pieces from 64 KiB to 8 MiB as a share of a plain memory copy of
// the same pieces, and the cost of a piece where pieces are small.
//
// Every variant is measured next to the plain copy, over and over in turn, each
// time just after an uncounted run of itself, and shares are medians over the rounds: what else the machine does hits both.
// Pieces are shuffled, so that the fabric cannot join neighbours.
package copybw

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/shm"
)

// Config says what to measure. Zero values stand for the defaults.
type Config struct {
	// Pieces are the sizes of pieces in bytes; 256 B, 4 KiB, and 64 KiB to
	// 8 MiB in steps of 2.
	Pieces []int64
	// Bytes is the size of each arena, which bounds what one measurement
	// moves; 64 MiB. It must hold at least one piece of each size.
	Bytes int64
	// MaxPieces bounds the list of one measurement; 10,000.
	MaxPieces int
	// Rounds is how often everything is measured; 9.
	Rounds int
}

func (c Config) withDefaults() (Config, error) {
	if len(c.Pieces) == 0 {
		c.Pieces = []int64{256, 4 << 10}
		for n := int64(64 << 10); n <= 8<<20; n *= 2 {
			c.Pieces = append(c.Pieces, n)
		}
	}
	if c.Bytes == 0 {
		c.Bytes = 64 << 20
	}
	if c.MaxPieces == 0 {
		c.MaxPieces = 10_000
	}
	if c.Rounds == 0 {
		c.Rounds = 9
	}
	if c.Rounds < 1 || c.MaxPieces < 1 || c.Bytes < 1 {
		return c, fmt.Errorf("copybw: Rounds %d, MaxPieces %d, Bytes %d; want at least 1 each", c.Rounds, c.MaxPieces, c.Bytes)
	}
	for _, n := range c.Pieces {
		if n < 1 || n > c.Bytes {
			return c, fmt.Errorf("copybw: piece of %d bytes; want 1 to %d, the size of the arenas", n, c.Bytes)
		}
	}
	return c, nil
}

// The variants, in the order of the report. "plain" is the plain copy.
const (
	Plain   = "plain"   // copy() in a loop, on the measuring goroutine
	Batched = "batched" // one CopyBatch of all pieces
	Single  = "single"  // a CopyBatch for each piece, one event at the end
	Waited  = "waited"  // a CopyBatch and an event for each piece
	Cross   = "cross"   // batched, between mappings that were opened by descriptor
	Cold    = "cold"    // as cross, after Forget: each page is mapped anew
	Split   = "split"   // batched, over two goroutines
)

// variants lists the names in the order of the report.
var variants = []string{Plain, Batched, Single, Waited, Cross, Cold, Split}

// Result is one variant at one size of pieces.
type Result struct {
	// GBPerSec is the median of bytes moved per second, in 1e9.
	GBPerSec float64 `json:"gb_per_sec"`
	// Share is the median, over rounds, of plain time over this time.
	Share float64 `json:"share_of_plain"`
	// ExtraNanos is the median of what a piece costs beyond its plain copy.
	ExtraNanos float64 `json:"extra_ns_per_piece"`
}

// Row is one size of pieces.
type Row struct {
	PieceBytes int64             `json:"piece_bytes"`
	Pieces     int               `json:"pieces"`
	Results    map[string]Result `json:"results"`
}

// Report is what Run measured.
type Report struct {
	Go     string `json:"go"`
	Arch   string `json:"arch"`
	Cores  int    `json:"cores"`
	Rounds int    `json:"rounds"`
	Rows   []Row  `json:"rows"`
}

// Run measures. It takes about ten seconds with the defaults, and twice
// Config.Bytes of memory.
func Run(ctx context.Context, cfg Config) (rep *Report, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	b, err := newBench(cfg)
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	defer func() { err = errors.Join(err, b.close()) }()
	rep = &Report{Go: runtime.Version(), Arch: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(), Rounds: cfg.Rounds}
	for _, n := range cfg.Pieces {
		row, err := b.row(ctx, n)
		if err != nil {
			return nil, fmt.Errorf("copybw: pieces of %d bytes: %w", n, err)
		}
		rep.Rows = append(rep.Rows, row)
	}
	return rep, nil
}

type bench struct {
	cfg        Config
	src, dst   *shm.Arena
	src2, dst2 *shm.Arena // the same memory, mapped once more
	fabrics    []*shm.Fabric
	one, two   nvlink.Stream // with one and two workers
}

func newBench(cfg Config) (*bench, error) {
	b := &bench{cfg: cfg}
	var err error
	if b.src, err = shm.Create("copybw-src", "gpu1", cfg.Bytes); err != nil {
		return b, err
	}
	if b.dst, err = shm.Create("copybw-dst", "gpu0", cfg.Bytes); err != nil {
		return b, err
	}
	if b.src2, err = reopen(b.src); err != nil {
		return b, err
	}
	if b.dst2, err = reopen(b.dst); err != nil {
		return b, err
	}
	if b.one, err = b.stream(1); err != nil {
		return b, err
	}
	b.two, err = b.stream(2)
	return b, err
}

// reopen maps an arena as another process would.
func reopen(a *shm.Arena) (*shm.Arena, error) {
	fd, err := unix.FcntlInt(a.File().Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate descriptor of %q: %w", a.Name(), err)
	}
	again, err := shm.Open(fd, a.Name(), a.Device(), a.Size())
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return again, nil
}

func (b *bench) stream(workers int) (nvlink.Stream, error) {
	f, err := shm.New(shm.Config{Workers: workers})
	if err != nil {
		return nil, err
	}
	b.fabrics = append(b.fabrics, f)
	return f.NewStream("gpu0", "copybw")
}

func (b *bench) close() error {
	var errs []error
	for _, f := range b.fabrics {
		errs = append(errs, f.Close())
	}
	for _, a := range []*shm.Arena{b.src2, b.dst2, b.src, b.dst} {
		if a != nil {
			errs = append(errs, a.Close())
		}
	}
	return errors.Join(errs...)
}

// row measures all variants with pieces of n bytes.
func (b *bench) row(ctx context.Context, n int64) (Row, error) {
	count := min(int(b.cfg.Bytes/n), b.cfg.MaxPieces)
	list, cross := b.lists(n, count)
	times := map[string][]time.Duration{}
	for round := range b.cfg.Rounds + 1 {
		for i := range variants {
			v := variants[(i+round)%len(variants)]
			if err := ctx.Err(); err != nil {
				return Row{}, err
			}
			d, err := b.warm(ctx, v, list, cross)
			if err != nil {
				return Row{}, fmt.Errorf("%s: %w", v, err)
			}
			if round > 0 { // the first round maps pages and grows buffers
				times[v] = append(times[v], d)
			}
		}
	}
	row := Row{PieceBytes: n, Pieces: count, Results: map[string]Result{}}
	for _, v := range variants {
		row.Results[v] = summarise(times[v], times[Plain], n, count)
	}
	return row, nil
}

// lists are the shuffled pieces, within this process's first mapping and
// from and to the second ones.
func (b *bench) lists(n int64, count int) (list, cross []nvlink.Copy) {
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	from, to := rng.Perm(count), rng.Perm(count)
	for i := range count {
		so, do := int64(from[i])*n, int64(to[i])*n
		list = append(list, nvlink.Copy{Dst: nvlink.Span{Arena: b.dst, Off: do, Len: n}, Src: nvlink.Span{Arena: b.src, Off: so, Len: n}})
		cross = append(cross, nvlink.Copy{Dst: nvlink.Span{Arena: b.dst2, Off: do, Len: n}, Src: nvlink.Span{Arena: b.src2, Off: so, Len: n}})
	}
	return list, cross
}

// warm measures one variant just after a run of it that does not count, so
// that none pays for address translations that another one pushed out.
func (b *bench) warm(ctx context.Context, variant string, list, cross []nvlink.Copy) (time.Duration, error) {
	if _, err := b.measure(ctx, variant, list, cross); err != nil {
		return 0, err
	}
	return b.measure(ctx, variant, list, cross)
}

// measure runs one variant once.
func (b *bench) measure(ctx context.Context, variant string, list, cross []nvlink.Copy) (time.Duration, error) {
	if variant == Cold {
		if err := errors.Join(b.src2.Forget(0, b.cfg.Bytes), b.dst2.Forget(0, b.cfg.Bytes)); err != nil {
			return 0, err
		}
	}
	var err error
	began := time.Now()
	switch variant {
	case Plain:
		plain(b.dst.Bytes(), b.src.Bytes(), list)
	case Batched:
		err = enqueue(ctx, b.one, list, len(list), false)
	case Single:
		err = enqueue(ctx, b.one, list, 1, false)
	case Waited:
		err = enqueue(ctx, b.one, list, 1, true)
	case Cross, Cold:
		err = enqueue(ctx, b.one, cross, len(cross), false)
	case Split:
		err = enqueue(ctx, b.two, list, len(list), false)
	}
	return time.Since(began), err
}

func plain(dst, src []byte, list []nvlink.Copy) {
	for i := range list {
		p := &list[i]
		copy(dst[p.Dst.Off:][:p.Dst.Len], src[p.Src.Off:][:p.Src.Len])
	}
}

// enqueue copies list in batches of size pieces and waits, for each batch or
// at the end.
func enqueue(ctx context.Context, s nvlink.Stream, list []nvlink.Copy, size int, each bool) error {
	for len(list) > 0 {
		if err := s.CopyBatch(list[:size]); err != nil {
			return err
		}
		list = list[size:]
		if each || len(list) == 0 {
			e, err := s.Record()
			if err != nil {
				return err
			}
			if err := e.Wait(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func summarise(times, plain []time.Duration, n int64, count int) Result {
	var bw, share, extra []float64
	for i, d := range times {
		bw = append(bw, float64(n)*float64(count)/d.Seconds()/1e9)
		share = append(share, plain[i].Seconds()/d.Seconds())
		extra = append(extra, float64(d-plain[i])/float64(count))
	}
	return Result{GBPerSec: median(bw), Share: median(share), ExtraNanos: median(extra)}
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	if n := len(x); n%2 == 0 {
		return (x[n/2-1] + x[n/2]) / 2
	}
	return x[len(x)/2]
}
