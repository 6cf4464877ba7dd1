package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/safetensors"
)

// Info is what a model directory holds, as far as its headers tell.
type Info struct {
	Config          *Config
	Generation      GenerationDefaults
	Architecture    string           // as config.json spells it
	Params          int64            // distinct parameters
	Tensors         int              // that the architecture uses
	Elements        map[string]int64 // parameters by element type
	CheckpointBytes int64            // of all tensors in the files
	Files           []string         // the checkpoint's files
	Ignored         []string         // tensors that are present and not used
}

// KVBytesPerToken is the KV cache of one token over all layers.
func (c *Config) KVBytesPerToken(dtype kernels.DType) int64 {
	return 2 * int64(c.Layers) * int64(c.KVHeads) * int64(c.HeadDim) * int64(dtype.Size())
}

// Params is the number of distinct parameters.
func (c *Config) Params() int64 {
	var n int64
	for _, s := range new(weights).slots(c) {
		n += s.elems()
	}
	return n
}

// Inspect checks a model directory's configuration and the presence, shape
// and dtype of every tensor. It maps the files but reads only their headers.
// All tensors that are wrong are reported, joined.
func Inspect(dir string) (_ *Info, err error) {
	cfg, gen, err := LoadConfig(dir)
	if err != nil {
		return nil, err
	}
	files, err := safetensors.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	src := checkpoint{files, filepath.Clean(dir)}
	slots := new(weights).slots(cfg)
	info := &Info{Config: cfg, Generation: gen, Architecture: cfg.hfName(), Tensors: len(slots),
		Elements: map[string]int64{}, CheckpointBytes: files.Bytes(), Files: files.Files()}
	errs := []error{src.refuseUnknown(cfg, slots)}
	for i := range slots {
		t, err := src.tensor(&slots[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		info.Elements[string(t.DType)] += slots[i].elems()
		info.Params += slots[i].elems()
	}
	for _, name := range files.Names() {
		if ignorable(cfg, name) {
			info.Ignored = append(info.Ignored, name)
		}
	}
	return info, errors.Join(errs...)
}

// Verification is the result of Verify.
type Verification struct {
	Config  *Config // with WeightsDigest and WeightBytes
	Values  int64   // weights that were looked at
	Load    time.Duration
	Forward time.Duration // of a pass over Tokens tokens
	Tokens  int
	ISA     string
}

// ValueError is a weight that no model has.
type ValueError struct {
	Tensor *safetensors.Tensor // name, shape and file; no data
	Index  []int
	Value  float32
}

func (e *ValueError) Error() string {
	return fmt.Sprintf("%s: tensor %q: element %v is %v, want a finite number", e.Tensor.File, e.Tensor.Name, e.Index, e.Value)
}

// Verify loads a model directory whole, looks for NaN and infinity in every
// tensor, and runs a short pass whose logits must be finite and equal, to the
// bit, to those of the same tokens computed one by one.
func Verify(ctx context.Context, dir string, opt Options) (_ *Verification, err error) {
	var v Verification
	var values atomic.Int64
	start := time.Now()
	m, err := load(dir, opt, func(t *safetensors.Tensor) error {
		values.Add(int64(t.Elems()))
		return finiteTensor(t)
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	v.Config, v.ISA, v.Values, v.Load = m.Config(), m.ISA(), values.Load(), time.Since(start)
	start = time.Now()
	v.Tokens, err = m.selfTest(ctx)
	v.Forward = time.Since(start)
	return &v, err
}

// finiteTensor returns a *ValueError for the first NaN or infinity.
func finiteTensor(t *safetensors.Tensor) error {
	for i := range t.Elems() {
		v := element(t, i)
		if !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) {
			continue
		}
		where := *t
		where.Data = nil
		index := make([]int, len(t.Shape))
		for d := len(t.Shape) - 1; d >= 0; d-- {
			index[d], i = i%t.Shape[d], i/t.Shape[d]
		}
		return &ValueError{Tensor: &where, Index: index, Value: v}
	}
	return nil
}

// selfTest compares a pass over a few tokens with the same tokens one by one.
func (m *Model) selfTest(ctx context.Context) (int, error) {
	n := min(20, m.cfg.MaxContext)
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(i * 7919 % m.cfg.Vocab)
	}
	out, err := m.Forward(ctx, []Sequence{{Tokens: tokens, Logits: LastLogits}}, NewSimpleKV(m, n))
	if err != nil {
		return n, err
	}
	want := slices.Clone(out.Logits[0])
	for i, v := range want {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return n, fmt.Errorf("model %s: the logit of token %d after a pass over %d tokens is %v, want a finite number", m.cfg.Name, i, n, v)
		}
	}
	kv := NewSimpleKV(m, n)
	for i := range tokens {
		if out, err = m.Forward(ctx, []Sequence{{Tokens: tokens[i : i+1], Start: i, Logits: LastLogits}}, kv); err != nil {
			return n, err
		}
	}
	for i, v := range out.Logits[0] {
		if v != want[i] {
			return n, fmt.Errorf("model %s: the logit of token %d is %v computed at once and %v token by token", m.cfg.Name, i, want[i], v)
		}
	}
	return n, nil
}
