package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/safetensors"
	"golang.org/x/sync/errgroup"
)

// weights are a model's parameters, packed for the kernels.
type weights struct {
	embed  *kernels.Matrix // [Vocab][Hidden]
	head   *kernels.Matrix // [Vocab][Hidden]; embed itself when tied
	norm   []float32
	layers []layerWeights
}

type layerWeights struct {
	inNorm, postNorm []float32 // before attention, before the MLP
	qNorm, kNorm     []float32 // [HeadDim], only with QKNorm
	q, k, v, o       linear
	gate, up, down   linear
}

// linear is y = x*W^T + bias.
type linear struct {
	w    *kernels.Matrix
	bias []float32 // nil without
}

// slot is where one tensor of a checkpoint goes: a matrix or a vector.
type slot struct {
	name  string
	shape []int
	mat   **kernels.Matrix
	vec   *[]float32
}

func (s *slot) elems() int64 {
	n := int64(1)
	for _, d := range s.shape {
		n *= int64(d)
	}
	return n
}

// slots lists the tensors of the architecture by their Hugging Face names, in
// a fixed order, with the places in w that they fill.
func (w *weights) slots(c *Config) []slot {
	w.layers = make([]layerWeights, c.Layers)
	var out []slot
	mat := func(name string, rows, cols int, dst **kernels.Matrix) {
		out = append(out, slot{name: name + ".weight", shape: []int{rows, cols}, mat: dst})
	}
	vec := func(name string, n int, dst *[]float32) {
		out = append(out, slot{name: name, shape: []int{n}, vec: dst})
	}
	lin := func(name string, rows, cols int, bias bool, dst *linear) {
		mat(name, rows, cols, &dst.w)
		if bias {
			vec(name+".bias", rows, &dst.bias)
		}
	}
	mat("model.embed_tokens", c.Vocab, c.Hidden, &w.embed)
	for i := range w.layers {
		l, p := &w.layers[i], fmt.Sprintf("model.layers.%d.", i)
		vec(p+"input_layernorm.weight", c.Hidden, &l.inNorm)
		lin(p+"self_attn.q_proj", c.Heads*c.HeadDim, c.Hidden, c.AttnBias, &l.q)
		lin(p+"self_attn.k_proj", c.KVHeads*c.HeadDim, c.Hidden, c.AttnBias, &l.k)
		lin(p+"self_attn.v_proj", c.KVHeads*c.HeadDim, c.Hidden, c.AttnBias, &l.v)
		if c.QKNorm {
			vec(p+"self_attn.q_norm.weight", c.HeadDim, &l.qNorm)
			vec(p+"self_attn.k_norm.weight", c.HeadDim, &l.kNorm)
		}
		lin(p+"self_attn.o_proj", c.Hidden, c.Heads*c.HeadDim, c.AttnBias, &l.o)
		vec(p+"post_attention_layernorm.weight", c.Hidden, &l.postNorm)
		lin(p+"mlp.gate_proj", c.FFN, c.Hidden, c.MLPBias, &l.gate)
		lin(p+"mlp.up_proj", c.FFN, c.Hidden, c.MLPBias, &l.up)
		lin(p+"mlp.down_proj", c.Hidden, c.FFN, c.MLPBias, &l.down)
	}
	vec("model.norm.weight", c.Hidden, &w.norm)
	if !c.TiedEmbed {
		mat("lm_head", c.Vocab, c.Hidden, &w.head)
	}
	return out
}

// matrices calls f for each distinct packed matrix.
func (w *weights) matrices(f func(*kernels.Matrix)) {
	f(w.embed)
	if w.head != w.embed {
		f(w.head)
	}
	for i := range w.layers {
		l := &w.layers[i]
		for _, x := range []linear{l.q, l.k, l.v, l.o, l.gate, l.up, l.down} {
			f(x.w)
		}
	}
}

// source yields the tensors of a model. Calls may be concurrent.
type source interface {
	tensor(s *slot) (*safetensors.Tensor, error)
}

// checkpoint is a source over files.
type checkpoint struct {
	*safetensors.Checkpoint
	dir string
}

func (c checkpoint) tensor(s *slot) (*safetensors.Tensor, error) {
	t, ok := c.Tensor(s.name)
	if !ok {
		want := fmt.Sprintf("a tensor of shape %v", s.shape)
		if s.name == "lm_head.weight" {
			want += `, or "tie_word_embeddings": true in config.json`
		}
		return nil, &safetensors.FormatError{File: c.dir, Tensor: s.name, Field: "tensor", Value: "missing", Want: want}
	}
	if !slices.Equal(t.Shape, s.shape) {
		return nil, &safetensors.FormatError{File: t.File, Tensor: s.name, Field: "shape",
			Value: fmt.Sprint(t.Shape), Want: fmt.Sprintf("%v by config.json", s.shape)}
	}
	if _, ok := kernelDType(t.DType); !ok {
		return nil, &safetensors.FormatError{File: t.File, Tensor: s.name, Field: "dtype",
			Value: string(t.DType), Want: "BF16, F16 or F32"}
	}
	return t, nil
}

// refuseUnknown reports tensors that the architecture has no place for: a
// checkpoint with them is not what its config.json says.
func (c checkpoint) refuseUnknown(cfg *Config, slots []slot) error {
	known := make(map[string]bool, len(slots))
	for i := range slots {
		known[slots[i].name] = true
	}
	for _, name := range c.Names() {
		if known[name] || ignorable(cfg, name) {
			continue
		}
		return &safetensors.FormatError{File: c.dir, Tensor: name, Field: "tensor", Value: "present",
			Want: "only tensors of a " + cfg.hfName() + " with this config.json"}
	}
	return nil
}

// ignorable is a tensor that old checkpoints carry and nothing needs.
func ignorable(c *Config, name string) bool {
	return strings.HasSuffix(name, ".rotary_emb.inv_freq") || (c.TiedEmbed && name == "lm_head.weight")
}

func kernelDType(d safetensors.DType) (kernels.DType, bool) {
	switch d {
	case safetensors.BF16:
		return kernels.BF16, true
	case safetensors.F16:
		return kernels.F16, true
	case safetensors.F32:
		return kernels.F32, true
	}
	return 0, false
}

// load fetches, digests and packs every tensor, up to threads at a time, and
// returns the digests in slot order. each, if not nil, inspects every tensor.
func (w *weights) load(c *Config, src source, threads int, each func(*safetensors.Tensor) error) ([][32]byte, error) {
	slots := w.slots(c)
	digests := make([][32]byte, len(slots))
	var g errgroup.Group
	g.SetLimit(max(1, threads))
	for i := range slots {
		g.Go(func() error {
			t, err := src.tensor(&slots[i])
			if err != nil {
				return err
			}
			if each != nil {
				if err := each(t); err != nil {
					return err
				}
			}
			digests[i] = tensorDigest(t)
			return slots[i].fill(t)
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if c.TiedEmbed {
		w.head = w.embed
	}
	return digests, nil
}

// fill packs t into the slot's place.
func (s *slot) fill(t *safetensors.Tensor) error {
	dt, ok := kernelDType(t.DType)
	if !ok {
		return errors.New("BUG: dtype was not checked")
	}
	if s.vec != nil {
		*s.vec = widen(t)
		return nil
	}
	n, k := s.shape[0], s.shape[1]
	stride := k * t.DType.Size()
	m, err := kernels.Pack(dt, n, k, func(i int) []byte { return t.Data[i*stride : (i+1)*stride] }, dt)
	if err != nil {
		return fmt.Errorf("pack %s: %w", s.name, err)
	}
	*s.mat = m
	return nil
}

// widen converts a tensor's elements to float32.
func widen(t *safetensors.Tensor) []float32 {
	out := make([]float32, t.Elems())
	for i := range out {
		out[i] = element(t, i)
	}
	return out
}

// element is element i of t as float32; t is F32, BF16 or F16.
func element(t *safetensors.Tensor, i int) float32 {
	switch t.DType {
	case safetensors.F32:
		return math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
	case safetensors.BF16:
		return math.Float32frombits(uint32(binary.LittleEndian.Uint16(t.Data[2*i:])) << 16)
	}
	return halfValue(binary.LittleEndian.Uint16(t.Data[2*i:]))
}
