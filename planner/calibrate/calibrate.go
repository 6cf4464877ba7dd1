// Package calibrate measures this machine for the simulator: how long the steps of
// each model's engine take, as the roofline of package perf, and what the rest of
// the system adds to a request (package bench/simcheck measures that, since it needs
// real processes).
//
// Steps are measured one by one, outside of any system: prefill chunks of several
// sizes at several depths, decode of several sequences at several depths, and both
// in one step. Every round runs every case once, in another order, so that a
// disturbance hits all alike; the median over the rounds counts. An engine that
// serves is idle between requests, and slower after it: caches are cold, and its
// threads have to be woken. So a few steps at a time follow a rest, here as well.
// KV lies in shared memory, as the fabric's does.
package calibrate

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/planner/perf"
	"github.com/kvlend/kvlend/planner/sim"
)

// Options of a calibration. Zero fields have the defaults named.
type Options struct {
	Rounds   int           // 5
	Budget   time.Duration // a model's rounds end after the one in which it is used up, but not before the third; 20 s
	Progress func(string)  // told what is being done; may be nil
}

// LeastRounds have a median that one disturbance does not move; MostRounds are enough.
const (
	LeastRounds = 3
	MostRounds  = 1000
)

func (o *Options) defaults() error {
	if o.Rounds == 0 {
		o.Rounds = 5
	}
	if o.Budget == 0 {
		o.Budget = 20 * time.Second
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Rounds < LeastRounds || o.Rounds > MostRounds {
		return fmt.Errorf("calibrate: Rounds is %d, want %d to %d", o.Rounds, LeastRounds, MostRounds)
	}
	if o.Budget < 0 {
		return fmt.Errorf("calibrate: Budget is %s, want 0 (the default) or more", o.Budget)
	}
	return nil
}

// Fit is what was found about one model's engine.
type Fit struct {
	Model      string         `json:"model"`
	Source     string         `json:"source"`
	Calibrated sim.Calibrated `json:"calibrated"`
	Residuals  perf.Residuals `json:"residuals"`
	Samples    []perf.Sample  `json:"-"`
}

// Engines measures the engine of every model of a configuration, each source once.
// The Machine that it returns has nothing but them. Errors name the model.
func Engines(ctx context.Context, cfg *configs.Config, opt Options) (sim.Machine, []Fit, error) {
	m := sim.Machine{Models: map[string]sim.Calibrated{}}
	if err := opt.defaults(); err != nil {
		return m, nil, err
	}
	sys, err := planner.Resolve(cfg, source.Geometry)
	if err != nil {
		return m, nil, err
	}
	var fits []Fit
	for _, r := range sys.Models {
		if _, ok := m.Models[r.Config.Source]; ok {
			continue
		}
		f, err := one(ctx, r, opt)
		if err != nil {
			return m, nil, fmt.Errorf("models[%d] (%s): %w", r.Index, r.Config.Name, err)
		}
		m.Models[r.Config.Source] = f.Calibrated
		fits = append(fits, f)
	}
	return m, fits, nil
}

// one measures a model's engine and fits it.
func one(ctx context.Context, r *planner.Model, opt Options) (Fit, error) {
	c := r.Config
	f := Fit{Model: c.Name, Source: c.Source}
	opt.Progress("building " + c.Name)
	e, err := source.Engine(c)
	if err != nil {
		return f, err
	}
	defer e.Close()
	most, _ := r.MaxTokens()
	grid := NewGrid(min(most, e.Config().MaxContext), c.MaxBatchTokens, c.MaxRunning, c.BlockTokens, kvTokens(e))
	f.Samples, err = Measure(ctx, e, grid, opt)
	if err != nil {
		return f, err
	}
	shape, err := sim.ShapeOf(r)
	if err != nil {
		return f, err
	}
	gpu, cal, res, err := perf.FitMachine(c.Name, f.Samples, shape)
	if err != nil {
		return f, err
	}
	f.Residuals = res
	f.Calibrated = sim.Calibrated{FLOPS: gpu.FLOPS, Bandwidth: gpu.MemoryBandwidth, Calibration: cal}
	return f, nil
}

// kvMemory bounds the KV of a measurement.
const kvMemory = 512 << 20

// kvTokens is how many tokens' KV that memory holds.
func kvTokens(e engine.Runner) int {
	l := e.KVLayout()
	return int(kvMemory / (int64(e.Config().Layers) * l.LayerBlockBytes()) * int64(l.BlockTokens))
}

// Measure runs every batch of a grid in every round, and returns the median
// duration of each.
func Measure(ctx context.Context, e engine.Runner, grid [][]perf.Seq, opt Options) ([]perf.Sample, error) {
	if err := opt.defaults(); err != nil {
		return nil, err
	}
	if len(grid) == 0 {
		return nil, fmt.Errorf("calibrate: no batches to measure")
	}
	s, err := newSubject(e, grid)
	if err != nil {
		return nil, err
	}
	defer s.close()
	took := make([][]time.Duration, len(grid))
	began := time.Now()
	for round := -1; round < opt.Rounds; round++ { // the first is not counted: buffers grow, memory is touched
		if round >= LeastRounds && time.Since(began) > opt.Budget {
			break
		}
		opt.Progress(fmt.Sprintf("%s: round %d of %d", e.Config().Name, max(0, round)+1, opt.Rounds))
		if err := s.round(ctx, grid, round < 0, took); err != nil {
			return nil, err
		}
	}
	out := make([]perf.Sample, len(grid))
	for i, d := range took {
		out[i] = perf.Sample{Batch: grid[i], Duration: median(d)}
	}
	return out, nil
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// subject is an engine over KV that is there already, to any depth.
type subject struct {
	e      engine.Runner
	kv     *engine.SimpleKV
	tokens []int32
	batch  []engine.Sequence
	use    []int
	mem    []byte
	rng    *rand.Rand
}

const (
	// burst is how many steps follow each other, rest what an engine has before
	// them: about what a request takes, and what may lie between two.
	burst = 6
	rest  = 100 * time.Millisecond
)

// round runs every batch of a grid once, in some order, and appends what each took.
// A warm-up rests nowhere and counts for nothing.
func (s *subject) round(ctx context.Context, grid [][]perf.Seq, warmUp bool, took [][]time.Duration) error {
	for n, i := range s.rng.Perm(len(grid)) {
		if n%burst == 0 && !warmUp {
			t := time.NewTimer(rest)
			select {
			case <-ctx.Done():
				t.Stop()
				return context.Cause(ctx)
			case <-t.C:
			}
		}
		d, err := s.run(ctx, grid[i])
		if err != nil {
			return err
		}
		if !warmUp {
			took[i] = append(took[i], d)
		}
	}
	return nil
}

// sharedKV is a SimpleKV whose bytes lie in shared memory.
type sharedKV struct {
	*engine.SimpleKV
	mem []byte
}

// Memory is the arena.
func (k sharedKV) Memory() []byte { return k.mem }

func newSubject(e engine.Runner, grid [][]perf.Seq) (*subject, error) {
	seqs, long := 1, 1
	for _, batch := range grid {
		seqs = max(seqs, len(batch))
		for _, q := range batch {
			long = max(long, q.Start+q.New)
		}
	}
	s := &subject{e: e, kv: engine.NewSimpleKVs(e, seqs, long), tokens: make([]int32, long)}
	var err error
	s.mem, err = unix.Mmap(-1, 0, len(s.kv.Memory()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("calibrate: %d bytes of shared memory: %w", len(s.kv.Memory()), err)
	}
	s.rng = rand.New(rand.NewPCG(1, 1))
	fill(s.mem, s.rng)
	for i := range s.tokens {
		s.tokens[i] = int32(s.rng.IntN(e.Config().Vocab))
	}
	return s, nil
}

func (s *subject) close() { unix.Munmap(s.mem) } // of what Mmap returned

// fill writes numbers that are small and normal in both types of KV: bf16 of
// magnitude 0.125 to 0.5, and so the upper half of every f32.
func fill(mem []byte, rng *rand.Rand) {
	for i := 0; i+8 <= len(mem); i += 8 {
		binary.LittleEndian.PutUint64(mem[i:], rng.Uint64()&0x80ff80ff80ff80ff|0x3e003e003e003e00)
	}
}

// run computes a batch once. Every sequence wants its last logits, as those do
// that decode and those whose prompt ends.
func (s *subject) run(ctx context.Context, batch []perf.Seq) (time.Duration, error) {
	s.batch, s.use = s.batch[:0], s.use[:0]
	for i, q := range batch {
		s.batch = append(s.batch, engine.Sequence{Tokens: s.tokens[q.Start : q.Start+q.New], Start: q.Start, Logits: engine.LastLogits})
		s.use = append(s.use, i)
	}
	s.kv.Use(s.use...)
	began := time.Now()
	_, err := s.e.Forward(ctx, s.batch, sharedKV{s.kv, s.mem})
	return time.Since(began), err
}
