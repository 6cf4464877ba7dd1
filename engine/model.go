package engine

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/safetensors"
)

// Options configure a model in memory. The zero value is usable.
type Options struct {
	Name        string        // Config.Name; "" takes the directory's or built-in's
	Threads     int           // goroutines that compute; 0: GOMAXPROCS
	ISA         string        // one of kernels.Available; "": the best
	KVDType     kernels.DType // element type of the KV cache: BF16 (0 too) or F32
	BlockTokens int           // B, a multiple of 16; 0: 16
}

// Model is a model in memory, ready for forward passes. It implements Runner.
// Forward is not safe for concurrent use; the other methods are.
type Model struct {
	cfg     *Config
	gen     GenerationDefaults
	layout  kernels.KVLayout
	w       weights
	run     *kernels.Runner
	invFreq []float64 // per pair of dimensions, radians per position
	attnMul float64   // multiplies cos and sin
	buf     buffers
}

var _ Runner = (*Model)(nil)

// Load reads a Hugging Face directory: config.json, generation_config.json
// and safetensors. The files are unmapped before it returns.
func Load(dir string, opt Options) (*Model, error) {
	return load(dir, opt, nil)
}

func load(dir string, opt Options, each func(*safetensors.Tensor) error) (_ *Model, err error) {
	cfg, gen, err := LoadConfig(dir)
	if err != nil {
		return nil, err
	}
	files, err := safetensors.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	return fromCheckpoint(cfg, gen, checkpoint{files, filepath.Clean(dir)}, opt, each)
}

func fromCheckpoint(cfg *Config, gen GenerationDefaults, src checkpoint, opt Options, each func(*safetensors.Tensor) error) (*Model, error) {
	if err := src.refuseUnknown(cfg, new(weights).slots(cfg)); err != nil {
		return nil, err
	}
	return build(cfg, gen, src, opt, each)
}

// build packs the tensors of src into a model.
func build(cfg *Config, gen GenerationDefaults, src source, opt Options, each func(*safetensors.Tensor) error) (*Model, error) {
	if opt.KVDType == 0 {
		opt.KVDType = kernels.BF16
	}
	if opt.BlockTokens == 0 {
		opt.BlockTokens = 16
	}
	if opt.Name != "" {
		cfg.Name = opt.Name
	}
	m := &Model{cfg: cfg, gen: gen, layout: cfg.KVLayout(opt.BlockTokens, opt.KVDType)}
	if err := m.layout.Validate(); err != nil {
		return nil, err
	}
	var err error
	if m.run, err = kernels.New(kernels.Options{ISA: opt.ISA, Threads: opt.Threads}); err != nil {
		return nil, err
	}
	digests, err := m.w.load(cfg, src, m.run.Threads(), each)
	if err != nil {
		m.run.Close()
		return nil, fmt.Errorf("load model %s: %w", cfg.Name, err)
	}
	cfg.WeightsDigest = modelDigest(cfg, digests)
	m.w.matrices(func(x *kernels.Matrix) { cfg.WeightBytes += x.Bytes() })
	m.invFreq, m.attnMul = cfg.Rope.InvFreq(cfg.HeadDim)
	return m, nil
}

// Config is the model's architecture. It is shared: do not change it.
func (m *Model) Config() *Config { return m.cfg }

// KVLayout is the layout of a layer block of the model's KV cache.
func (m *Model) KVLayout() kernels.KVLayout { return m.layout }

// Generation is what generation_config.json says, or the built-in's defaults.
func (m *Model) Generation() GenerationDefaults { return m.gen }

// ISA is the instruction set in use: "avx512", "avx2" or "go".
func (m *Model) ISA() string { return m.run.Name() }

// Threads is how many goroutines compute.
func (m *Model) Threads() int { return m.run.Threads() }

// Close ends the model's goroutines. Forward must not run or be called again.
func (m *Model) Close() error {
	m.run.Close()
	return nil
}
