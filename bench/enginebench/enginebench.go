// Package enginebench measures forward passes, prefill and decode, as tokens
// per second and as a share of what the machine could do at best: the roofline
// of package roofline, measured in the same run.
//
// For each case the work that a pass cannot avoid is counted: operations of
// the products and of attention, and bytes of weights and KV read once. The
// roof is the longer of operations over the arithmetic peak and bytes over the
// memory bandwidth; the share is the roof over the time measured. A model
// whose weights stay in cache can pass 100 % of a roof that memory sets.
//
// Cases are interleaved: every round measures the machine and runs each case
// once. Medians over the rounds are reported, so that a disturbance hits all
// cases alike; of the machine's figures the best counts.
package enginebench

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvlend/kvlend/bench/roofline"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
)

// Options say what to measure. Zero fields have the defaults named.
type Options struct {
	Models      []*engine.Config // random bf16 weights; Default
	Threads     int              // GOMAXPROCS
	ISA         string           // the best
	Rounds      int              // 3
	Prefill     []int            // prompt lengths at depth 0; 128, 512, 2048
	Depths      []int            // of decode, and of a 512-token prefill where above 0; 0, 2048, 8192
	DecodeSteps int              // tokens of one decode measurement; 16
	Chunk       int              // most tokens of one pass; 512
	BlockTokens int              // 16
	MinTime     time.Duration    // a case is repeated for so long in each round; 200 ms
	Progress    func(string)     // told what is being done; may be nil
}

// Result is a run of the benchmark.
type Result struct {
	ISA     string        `json:"isa"`
	Roof    roofline.Roof `json:"roof"`
	Rounds  int           `json:"rounds"`
	Chunk   int           `json:"chunk_tokens"`
	Cases   []Case        `json:"cases"`
	Seconds float64       `json:"seconds"` // of the whole run
}

// Case is one measurement: Tokens new tokens behind Depth cached ones.
type Case struct {
	Model        string    `json:"model"`
	Kind         string    `json:"kind"` // "prefill" or "decode"
	Depth        int       `json:"depth"`
	Tokens       int       `json:"tokens"`            // decode: one by one
	Seconds      []float64 `json:"seconds"`           // one pass over the case, by round
	TokensPerSec float64   `json:"tokens_per_second"` // of the median round
	BestPerSec   float64   `json:"best_tokens_per_second"`
	Flops        float64   `json:"flops"`
	Bytes        float64   `json:"bytes"`
	Bound        string    `json:"bound"` // "arithmetic" or "memory"
	Share        float64   `json:"share_of_roof"`
}

// Qwen3Small is the shape of Qwen3-0.6B.
func Qwen3Small() *engine.Config {
	return &engine.Config{Name: "qwen3-0.6b", Arch: engine.ArchQwen3, Layers: 28, Hidden: 1024, Heads: 16, KVHeads: 8,
		HeadDim: 128, FFN: 3072, Vocab: 151936, MaxContext: 40960, NormEps: 1e-6, QKNorm: true, TiedEmbed: true,
		Rope: engine.RopeConfig{Theta: 1e6}}
}

// Default is Qwen3-0.6B's shape and the built-in models.
func Default() ([]*engine.Config, error) {
	out := []*engine.Config{Qwen3Small()}
	for _, name := range engine.BuiltinNames() {
		c, err := engine.BuiltinConfig(name)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

func (o *Options) defaults() error {
	if o.Models == nil {
		models, err := Default()
		if err != nil {
			return err
		}
		o.Models = models
	}
	set := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	set(&o.Rounds, 3)
	set(&o.DecodeSteps, 16)
	set(&o.Chunk, 512)
	if o.MinTime == 0 {
		o.MinTime = 200 * time.Millisecond
	}
	if o.Prefill == nil {
		o.Prefill = []int{128, 512, 2048}
	}
	if o.Depths == nil {
		o.Depths = []int{0, 2048, 8192}
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	for name, v := range map[string]int{"Rounds": o.Rounds, "DecodeSteps": o.DecodeSteps, "Chunk": o.Chunk} {
		if v < 1 {
			return fmt.Errorf("enginebench: %s is %d, want at least 1", name, v)
		}
	}
	for name, list := range map[string][]int{"Prefill": o.Prefill, "Depths": o.Depths} {
		for _, v := range list {
			if v < 0 || (v == 0 && name == "Prefill") {
				return fmt.Errorf("enginebench: %s has %d, want lengths above 0", name, v)
			}
		}
	}
	return nil
}

// subject is a model under test with a cache that is filled to any depth.
type subject struct {
	m      *engine.Model
	kv     *engine.SimpleKV
	tokens []int32
	cases  []*Case
}

// Run measures. It keeps all models in memory at once: the defaults need 4 GB.
func Run(ctx context.Context, opt Options) (*Result, error) {
	if err := opt.defaults(); err != nil {
		return nil, err
	}
	start := time.Now()
	var subjects []*subject
	defer func() {
		for _, s := range subjects {
			s.m.Close() // never fails
		}
	}()
	for _, cfg := range opt.Models {
		opt.Progress("building " + cfg.Name)
		s, err := newSubject(cfg, &opt)
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, s)
	}
	res := &Result{Rounds: opt.Rounds, Chunk: opt.Chunk}
	for round := range opt.Rounds {
		opt.Progress(fmt.Sprintf("round %d of %d: the roof", round+1, opt.Rounds))
		res.Roof = better(res.Roof, roofline.Measure(opt.Threads))
		for _, s := range subjects {
			res.ISA = s.m.ISA()
			for _, c := range s.cases {
				opt.Progress(fmt.Sprintf("round %d of %d: %s %s, depth %d, %d tokens", round+1, opt.Rounds, c.Model, c.Kind, c.Depth, c.Tokens))
				if err := s.measure(ctx, c, opt.Chunk, opt.MinTime); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, s := range subjects {
		for _, c := range s.cases {
			c.finish(s.m.Config(), s.m.KVLayout(), res.Roof)
			res.Cases = append(res.Cases, *c)
		}
	}
	res.Seconds = time.Since(start).Seconds()
	return res, nil
}

// better takes the higher of each figure: a roof is what the machine can do.
func better(a, b roofline.Roof) roofline.Roof {
	return roofline.Roof{Threads: b.Threads, ReadOne: max(a.ReadOne, b.ReadOne), ReadAll: max(a.ReadAll, b.ReadAll),
		FloatOne: max(a.FloatOne, b.FloatOne), FloatAll: max(a.FloatAll, b.FloatAll),
		DotOne: max(a.DotOne, b.DotOne), DotAll: max(a.DotAll, b.DotAll)}
}

func newSubject(cfg *engine.Config, opt *Options) (*subject, error) {
	m, err := engine.Random(cfg, 1, engine.Options{Threads: opt.Threads, ISA: opt.ISA, BlockTokens: opt.BlockTokens})
	if err != nil {
		return nil, err
	}
	s := &subject{m: m}
	longest := 0
	add := func(kind string, depth, tokens int) {
		if depth+tokens <= cfg.MaxContext {
			s.cases = append(s.cases, &Case{Model: cfg.Name, Kind: kind, Depth: depth, Tokens: tokens})
			longest = max(longest, depth+tokens)
		}
	}
	for _, n := range opt.Prefill {
		add("prefill", 0, n)
	}
	for _, d := range opt.Depths {
		if d > 0 {
			add("prefill", d, 512)
		}
	}
	for _, d := range opt.Depths {
		add("decode", d, opt.DecodeSteps)
	}
	s.kv = engine.NewSimpleKV(m, longest)
	rng := rand.New(rand.NewPCG(1, 1))
	fillKV(s.kv.Memory(), rng)
	s.tokens = make([]int32, longest)
	for i := range s.tokens {
		s.tokens[i] = int32(rng.IntN(cfg.Vocab))
	}
	return s, nil
}

// fillKV writes random bf16 numbers of magnitude 0.125 to 0.5 all over a
// cache, so that decode at a depth needs no prefill of that length.
func fillKV(mem []byte, rng *rand.Rand) {
	for i := 0; i+8 <= len(mem); i += 8 {
		// Sign, mantissa and the last bit of the exponent are random.
		v := rng.Uint64()&0x80ff80ff80ff80ff | 0x3e003e003e003e00
		binary.LittleEndian.PutUint64(mem[i:], v)
	}
}

// measure runs a case for one round.
func (s *subject) measure(ctx context.Context, c *Case, chunk int, least time.Duration) error {
	if c.Kind == "decode" {
		chunk = 1
		// One step that is not counted pages in what the case reads.
		if err := s.pass(ctx, c.Depth, 1, engine.LastLogits); err != nil {
			return err
		}
	}
	start, runs := time.Now(), 0
	for runs == 0 || time.Since(start) < least {
		if err := s.run(ctx, c, chunk); err != nil {
			return err
		}
		runs++
	}
	c.Seconds = append(c.Seconds, time.Since(start).Seconds()/float64(runs))
	return nil
}

// run goes once over the case's tokens.
func (s *subject) run(ctx context.Context, c *Case, chunk int) error {
	for done := 0; done < c.Tokens; done += chunk {
		n := min(chunk, c.Tokens-done)
		mode := engine.NoLogits
		if c.Kind == "decode" || done+n == c.Tokens {
			mode = engine.LastLogits
		}
		if err := s.pass(ctx, c.Depth+done, n, mode); err != nil {
			return err
		}
	}
	return nil
}

func (s *subject) pass(ctx context.Context, at, n int, mode engine.LogitsMode) error {
	_, err := s.m.Forward(ctx, []engine.Sequence{{Tokens: s.tokens[at : at+n], Start: at, Logits: mode}}, s.kv)
	return err
}

// finish computes the medians and shares of a case.
func (c *Case) finish(cfg *engine.Config, l kernels.KVLayout, roof roofline.Roof) {
	sorted := slices.Sorted(slices.Values(c.Seconds))
	median := sorted[len(sorted)/2]
	c.TokensPerSec, c.BestPerSec = float64(c.Tokens)/median, float64(c.Tokens)/sorted[0]
	c.Flops, c.Bytes = work(cfg, l.DType, c)
	peak := roof.DotAll
	if peak == 0 {
		peak = roof.FloatAll
	}
	arithmetic, memory := c.Flops/peak, c.Bytes/roof.ReadAll
	c.Bound = "arithmetic"
	if memory > arithmetic {
		c.Bound = "memory"
	}
	c.Share = max(arithmetic, memory) / median
}

// work counts what the case cannot avoid: operations, and bytes of weights and
// KV. A prefill reads the weights once; a decode once per token.
func work(cfg *engine.Config, dtype kernels.DType, c *Case) (flops, bytes float64) {
	hidden, q, kv := float64(cfg.Hidden), float64(cfg.Heads*cfg.HeadDim), float64(cfg.KVHeads*cfg.HeadDim)
	head := hidden * float64(cfg.Vocab)
	layer := hidden*(2*q+2*kv) + 3*hidden*float64(cfg.FFN)
	layers, n := float64(cfg.Layers), float64(c.Tokens)
	weights := float64(cfg.WeightBytes)
	if !cfg.TiedEmbed {
		weights -= 2 * head // only rows of the embedding are read
	}
	kvToken := float64(cfg.KVBytesPerToken(dtype))
	pairs := n*float64(c.Depth) + n*(n+1)/2 // (query, key) of a head
	if c.Kind == "decode" {
		return 2*n*(layers*layer+head) + 4*layers*q*pairs, n*weights + kvToken*pairs
	}
	// The last layer computes one row past its keys and values.
	last := hidden * (q + 2*kv)
	flops = 2*n*((layers-1)*layer+last) + 2*(layer-last+head) + 4*(layers-1)*q*pairs + 4*q*float64(c.Depth+c.Tokens)
	return flops, weights + kvToken*float64(c.Depth+c.Tokens)
}
