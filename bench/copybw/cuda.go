//go:build cuda && cgo

package copybw

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"text/tabwriter"
	"time"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/cuda"
)

// CUDAConfig says what to measure on GPUs. Zero values stand for the defaults.
type CUDAConfig struct {
	Pieces []int64 // sizes in bytes; 256 B, 4 KiB, and 16 KiB to 16 MiB in steps of 4
	// Bytes is the size of each arena; 1 GiB.
	Bytes     int64
	MaxPieces int // of one list; 100,000
	Rounds    int // how often everything is measured; 9
	Fabric    cuda.Config
	// Open opens an arena's handle in another process, Rounds times, and says
	// how long each took. file is nil for IPC. Nil: that is not measured.
	Open func(ctx context.Context, handle string, file *os.File, rounds int) ([]time.Duration, error)
}

func (c CUDAConfig) withDefaults() (CUDAConfig, error) {
	if len(c.Pieces) == 0 {
		c.Pieces = []int64{256, 4 << 10}
		for n := int64(16 << 10); n <= 16<<20; n *= 4 {
			c.Pieces = append(c.Pieces, n)
		}
	}
	if c.Bytes == 0 {
		c.Bytes = 1 << 30
	}
	if c.MaxPieces == 0 {
		c.MaxPieces = 100_000
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

// The variants on GPUs. The limit is the same bytes in one run, by the copy
// engine or the kernel, whichever is faster in that round.
const (
	Limit  = "limit"
	Auto   = "auto"   // one list, by the fabric's own crossover
	Gather = "gather" // one list, all by the kernel
	Engine = "engine" // one list, all by the copy engine
	Each   = "single" // a list for each piece, one event at the end
	Synced = "waited" // a list and an event for each piece
)

var cudaVariants = []string{Limit, Auto, Gather, Engine, Each, Synced}

// singles bounds the pieces that are copied one list each.
const singles = 500

// CUDAPath is the measurement of one pair of devices.
type CUDAPath struct {
	From string        `json:"from"`
	To   string        `json:"to"` // the stream's device
	Kind cuda.PathKind `json:"kind"`
	Why  string        `json:"why,omitempty"`
	Rows []Row         `json:"rows"`
}

// CUDAOpen is how long another process took to open an arena.
type CUDAOpen struct {
	Kind         cuda.MemoryKind `json:"kind"`
	MedianMicros float64         `json:"median_us"`
	Failed       string          `json:"failed,omitempty"` // why it could not; empty: it could
}

// CUDAReport is what RunCUDA measured.
type CUDAReport struct {
	Info   cuda.Info  `json:"info"`
	Rounds int        `json:"rounds"`
	Paths  []CUDAPath `json:"paths"`
	Opens  []CUDAOpen `json:"opens"`
}

// RunCUDA measures every pair of devices towards each, and each device within
// itself.
func RunCUDA(ctx context.Context, cfg CUDAConfig) (rep *CUDAReport, err error) {
	if cfg, err = cfg.withDefaults(); err != nil {
		return nil, err
	}
	f, err := cuda.New(cfg.Fabric)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	rep = &CUDAReport{Rounds: cfg.Rounds}
	for _, p := range f.Paths() {
		path, err := cudaPath(ctx, f, cfg, p)
		if err != nil {
			return nil, fmt.Errorf("copybw: %s to %s: %w", p.From, p.To, err)
		}
		rep.Paths = append(rep.Paths, path)
	}
	if rep.Opens, err = cudaOpens(ctx, f, cfg); err != nil {
		return nil, err
	}
	rep.Info = f.Info()
	return rep, nil
}

// cudaBench is the arenas and streams of one pair.
type cudaBench struct {
	cfg      CUDAConfig
	src, dst *cuda.Arena
	streams  map[string]*cuda.Stream
}

func cudaPath(ctx context.Context, f *cuda.Fabric, cfg CUDAConfig, p cuda.Path) (out CUDAPath, err error) {
	b := &cudaBench{cfg: cfg, streams: map[string]*cuda.Stream{}}
	defer func() { err = errors.Join(err, b.close()) }()
	if b.src, err = f.NewArena("copybw-src", p.From, cfg.Bytes); err != nil {
		return out, err
	}
	if b.dst, err = f.NewArena("copybw-dst", p.To, cfg.Bytes); err != nil {
		return out, err
	}
	for name, crossover := range map[string]int64{Auto: 0, Gather: 1 << 40, Engine: 1} {
		if b.streams[name], err = f.StreamAt(p.To, name, crossover); err != nil {
			return out, err
		}
	}
	out = CUDAPath{From: p.From, To: p.To}
	for _, n := range cfg.Pieces {
		row, err := b.row(ctx, n)
		if err != nil {
			return out, fmt.Errorf("pieces of %d bytes: %w", n, err)
		}
		out.Rows = append(out.Rows, row)
	}
	for _, now := range f.Paths() { // the driver may have refused since
		if now.From == p.From && now.To == p.To {
			out.Kind, out.Why = now.Kind, now.Why
		}
	}
	return out, nil
}

func (b *cudaBench) close() error {
	var errs []error
	for _, s := range b.streams {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	for _, a := range []*cuda.Arena{b.src, b.dst} {
		if a != nil {
			errs = append(errs, a.Close())
		}
	}
	return errors.Join(errs...)
}

// row measures all variants with pieces of n bytes, in turn.
func (b *cudaBench) row(ctx context.Context, n int64) (Row, error) {
	count := min(int(b.cfg.Bytes/n), b.cfg.MaxPieces)
	list := b.list(n, count)
	times := map[string][]time.Duration{}
	for round := range b.cfg.Rounds + 1 {
		for i := range cudaVariants {
			v := cudaVariants[(i+round)%len(cudaVariants)]
			if err := ctx.Err(); err != nil {
				return Row{}, err
			}
			d, err := b.measure(ctx, v, list, n)
			if err != nil {
				return Row{}, fmt.Errorf("%s: %w", v, err)
			}
			if round > 0 { // the first round grows buffers
				times[v] = append(times[v], d)
			}
		}
	}
	row := Row{PieceBytes: n, Pieces: count, Results: map[string]Result{}}
	for _, v := range cudaVariants {
		row.Results[v] = summarise(times[v], times[Limit], n, count)
	}
	return row, nil
}

func (b *cudaBench) list(n int64, count int) []nvlink.Copy {
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	from, to := rng.Perm(count), rng.Perm(count)
	list := make([]nvlink.Copy, count)
	for i := range list {
		list[i] = b.piece(int64(to[i])*n, int64(from[i])*n, n)
	}
	return list
}

func (b *cudaBench) piece(dst, src, n int64) nvlink.Copy {
	return nvlink.Copy{Dst: nvlink.Span{Arena: b.dst, Off: dst, Len: n}, Src: nvlink.Span{Arena: b.src, Off: src, Len: n}}
}

// measure runs one variant once. Where it copies fewer pieces than the list has,
// its time is scaled up.
func (b *cudaBench) measure(ctx context.Context, variant string, list []nvlink.Copy, n int64) (time.Duration, error) {
	switch variant {
	case Limit:
		whole := []nvlink.Copy{b.piece(0, 0, n*int64(len(list)))}
		engine, err := timed(ctx, b.streams[Engine], whole, 1, false)
		if err != nil {
			return 0, err
		}
		kernel, err := timed(ctx, b.streams[Gather], whole, 1, false)
		return min(engine, kernel), err
	case Each, Synced:
		part := list[:min(len(list), singles)]
		d, err := timed(ctx, b.streams[Auto], part, 1, variant == Synced)
		return time.Duration(float64(d) * float64(len(list)) / float64(len(part))), err
	}
	return timed(ctx, b.streams[variant], list, len(list), false)
}

func timed(ctx context.Context, s nvlink.Stream, list []nvlink.Copy, size int, each bool) (time.Duration, error) {
	began := time.Now()
	err := enqueue(ctx, s, list, size, each)
	return time.Since(began), err
}

// cudaOpens measures how long another process takes to open an arena of each kind.
func cudaOpens(ctx context.Context, f *cuda.Fabric, cfg CUDAConfig) ([]CUDAOpen, error) {
	if cfg.Open == nil {
		return nil, nil
	}
	kinds := []cuda.MemoryKind{cuda.IPC}
	dev := f.Info().Devices[0]
	if dev.VMM {
		kinds = append(kinds, cuda.VMM)
	}
	var out []CUDAOpen
	for _, kind := range kinds {
		took, err := cudaOpen(ctx, cfg, kind, dev.Name)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil { // containers may forbid it; the copies were measured all the same
			out = append(out, CUDAOpen{Kind: kind, Failed: err.Error()})
			continue
		}
		var us []float64
		for _, d := range took {
			us = append(us, float64(d)/1e3)
		}
		out = append(out, CUDAOpen{Kind: kind, MedianMicros: median(us)})
	}
	return out, nil
}

func cudaOpen(ctx context.Context, cfg CUDAConfig, kind cuda.MemoryKind, dev string) (took []time.Duration, err error) {
	cfg.Fabric.Memory = kind
	f, err := cuda.New(cfg.Fabric)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	a, err := f.NewArena("copybw-open", dev, cfg.Bytes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	h, file, err := a.Export()
	if err != nil {
		return nil, err
	}
	if file != nil {
		defer file.Close()
	}
	return cfg.Open(ctx, h.String(), file, cfg.Rounds)
}

// WriteTable prints the report for people.
func (r *CUDAReport) WriteTable(w io.Writer) error {
	emulated := ""
	if r.Info.Fake {
		emulated = " EMULATED by the fake driver: no figure says anything about a GPU"
	}
	fmt.Fprintf(w, "cuda fabric, driver %d.%d, median of %d rounds%s\n", r.Info.Version/1000, r.Info.Version%1000/10, r.Rounds, emulated)
	for _, d := range r.Info.Devices {
		fmt.Fprintf(w, "%s: %s, %s, crossover %s (%s)\n", d.Name, d.Model, d.UUIDText(), size(d.Crossover), d.How)
	}
	if r.Info.Batchless != "" {
		fmt.Fprintf(w, "copies go to the copy engine one by one: %s\n", r.Info.Batchless)
	}
	for _, p := range r.Paths {
		if err := p.write(w); err != nil {
			return err
		}
	}
	for _, o := range r.Opens {
		if o.Failed != "" {
			fmt.Fprintf(w, "\nopening an arena of %s memory in another process failed: %s", o.Kind, o.Failed)
			continue
		}
		fmt.Fprintf(w, "\nopening an arena of %s memory in another process takes %.0f us (median)", o.Kind, o.MedianMicros)
	}
	_, err := fmt.Fprint(w, cudaLegend)
	return err
}

func (p CUDAPath) write(w io.Writer) error {
	fmt.Fprintf(w, "\n%s to %s, %s %s\n\n", p.From, p.To, p.Kind, p.Why)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "piece\tpieces\tlimit GB/s\t")
	for _, v := range cudaVariants[1:] {
		fmt.Fprintf(tw, "%s\t", v)
	}
	fmt.Fprint(tw, "gather ns/piece\tengine ns/piece\tsingle ns/piece\twaited ns/piece\t\n")
	for _, row := range p.Rows {
		fmt.Fprintf(tw, "%s\t%d\t%.1f\t", size(row.PieceBytes), row.Pieces, row.Results[Limit].GBPerSec)
		for _, v := range cudaVariants[1:] {
			fmt.Fprintf(tw, "%.0f%%\t", 100*row.Results[v].Share)
		}
		for _, v := range []string{Gather, Engine, Each, Synced} {
			fmt.Fprintf(tw, "%+.0f\t", row.Results[v].ExtraNanos)
		}
		fmt.Fprintln(tw)
	}
	// Writes to tw cannot fail before Flush.
	return tw.Flush()
}

const cudaLegend = `
Shares are of the limit: the same bytes in one run, by copy engine or kernel, whichever
was faster in that round; from CopyBatch to the event, with all that the host does.
auto: one list, by the crossover; gather: one list, all by the kernel; engine: one list,
all by the copy engine; single: a list per piece; waited: a list and an event per piece.
ns/piece: what a piece costs beyond its share of the limit.
`

// WriteJSON writes the report as indented JSON.
func (r *CUDAReport) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
