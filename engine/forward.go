package engine

import (
	"context"
	"fmt"
	"math"

	"github.com/kvlend/kvlend/engine/kernels"
)

// buffers are the activations of a pass. They grow to the largest batch seen
// and are then reused, so that a steady stream of passes allocates nothing.
type buffers struct {
	x      []float32 // residual stream [rows][Hidden]
	h      []float32 // normalised x, and outputs of o and down [rows][Hidden]
	q      []float32 // [rows][Heads*HeadDim]
	k, v   []float32 // [rows][KVHeads*HeadDim]
	attn   []float32 // [rows][Heads*HeadDim]
	gate   []float32 // [rows][FFN]
	up     []float32 // [rows][FFN]
	cos    []float32 // [rows][HeadDim/2]
	sin    []float32 // the same
	logits []float32 // [rows with logits][Vocab]
	seqs   []kernels.AttnSeq
	last   []kernels.AttnSeq // seqs cut down to the rows that want logits
	rows   [][]float32
	out    Output
}

// pass is one forward pass over a batch.
type pass struct {
	*Model
	*buffers
	batch  []Sequence
	kv     KV
	mem    []byte
	tokens int // rows of the batch
	wanted int // rows that want logits
}

// Forward computes one pass over the batch: see Runner and KV. The history of
// layer l is asked for after the layer's projections, so that a load has the
// whole MLP of the layer before and the projections to hide behind. In the
// last layer only the rows that want logits go past the KV writes.
//
// Errors: ctx's cause, the KV's error from Layer as it is, or a description
// of what in the batch or in a block table is out of range. After an error
// the KV of the batch's new tokens is undefined; the model stays usable.
func (m *Model) Forward(ctx context.Context, batch []Sequence, kv KV) (*Output, error) {
	p := pass{Model: m, buffers: &m.buf, batch: batch, kv: kv}
	if err := p.check(); err != nil {
		return nil, err
	}
	p.grow()
	p.embedTokens()
	p.rotations()
	p.mem = kv.Memory()
	for l := range m.w.layers {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := p.layer(l); err != nil {
			return nil, err
		}
	}
	p.head()
	return &p.out, nil
}

// check validates the batch and counts its rows.
func (p *pass) check() error {
	if len(p.batch) == 0 {
		return fmt.Errorf("engine: the batch has no sequences, want at least 1")
	}
	for i := range p.batch {
		s := &p.batch[i]
		n := len(s.Tokens)
		if n == 0 {
			return fmt.Errorf("engine: sequence %d has no tokens, want at least 1", i)
		}
		if s.Start < 0 || s.Start > p.cfg.MaxContext-n {
			return fmt.Errorf("engine: sequence %d has tokens at positions %d to %d, want 0 to %d (the model's context)",
				i, s.Start, s.Start+n-1, p.cfg.MaxContext-1)
		}
		for j, t := range s.Tokens {
			if t < 0 || int(t) >= p.cfg.Vocab {
				return fmt.Errorf("engine: sequence %d, token %d is %d, want 0 to %d", i, j, t, p.cfg.Vocab-1)
			}
		}
		p.tokens += n
		switch s.Logits {
		case NoLogits:
		case LastLogits:
			p.wanted++
		case AllLogits:
			p.wanted += n
		default:
			return fmt.Errorf("engine: sequence %d has logits mode %d, want 0 to %d", i, s.Logits, AllLogits)
		}
	}
	return nil
}

// grow sizes the buffers for the batch.
func (p *pass) grow() {
	c, n := p.cfg, p.tokens
	qd, kd := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	for _, b := range []struct {
		buf *[]float32
		n   int
	}{
		{&p.x, n * c.Hidden}, {&p.h, n * c.Hidden}, {&p.q, n * qd}, {&p.k, n * kd}, {&p.v, n * kd},
		{&p.attn, n * qd}, {&p.gate, n * c.FFN}, {&p.up, n * c.FFN},
		{&p.cos, n * c.HeadDim / 2}, {&p.sin, n * c.HeadDim / 2}, {&p.logits, p.wanted * c.Vocab},
	} {
		if cap(*b.buf) < b.n {
			*b.buf = make([]float32, b.n)
		}
		*b.buf = (*b.buf)[:b.n]
	}
	p.seqs, p.last, p.rows = p.seqs[:0], p.last[:0], p.rows[:0]
	for i := range p.batch {
		s := &p.batch[i]
		p.seqs = append(p.seqs, kernels.AttnSeq{Rows: len(s.Tokens), Start: s.Start})
	}
}

func (p *pass) embedTokens() {
	row := 0
	for i := range p.batch {
		for _, t := range p.batch[i].Tokens {
			p.w.embed.Row(p.x[row*p.cfg.Hidden:][:p.cfg.Hidden], int(t))
			row++
		}
	}
}

// rotations fills cos and sin for every row. Angles are float64: a float32
// angle has errors of 0.004 radians at position 65,536.
func (p *pass) rotations() {
	half, row := len(p.invFreq), 0
	for i := range p.batch {
		s := &p.batch[i]
		for j := range s.Tokens {
			pos := float64(s.Start + j)
			cos, sin := p.cos[row*half:][:half], p.sin[row*half:][:half]
			for k, f := range p.invFreq {
				y, x := math.Sincos(pos * f)
				cos[k], sin[k] = float32(x*p.attnMul), float32(y*p.attnMul)
			}
			row++
		}
	}
}

// layer runs layer l.
func (p *pass) layer(l int) error {
	c, w, r := p.cfg, &p.w.layers[l], p.run
	n := p.tokens
	r.RMSNorm(p.h, p.x, w.inNorm, n, c.Hidden, c.NormEps)
	p.linear(p.q, p.h, n, &w.q)
	p.linear(p.k, p.h, n, &w.k)
	p.linear(p.v, p.h, n, &w.v)
	if c.QKNorm {
		r.RMSNorm(p.q, p.q, w.qNorm, n*c.Heads, c.HeadDim, c.NormEps)
		r.RMSNorm(p.k, p.k, w.kNorm, n*c.KVHeads, c.HeadDim, c.NormEps)
	}
	r.Rope(p.q, n, c.Heads, c.HeadDim, p.cos, p.sin)
	r.Rope(p.k, n, c.KVHeads, c.HeadDim, p.cos, p.sin)
	tables, err := p.kv.Layer(l)
	if err != nil {
		return err
	}
	if len(tables) != len(p.seqs) {
		return fmt.Errorf("engine: layer %d: %d block tables for %d sequences", l, len(tables), len(p.seqs))
	}
	for i := range p.seqs {
		p.seqs[i].Table = tables[i]
	}
	if err := r.StoreKV(p.layout, p.mem, p.seqs, p.k, p.v); err != nil {
		return fmt.Errorf("engine: layer %d: %w", l, err)
	}
	p.kv.Written(l)
	seqs := p.seqs
	if l == c.Layers-1 {
		seqs, n = p.keepWanted(), p.wanted
	}
	scale := float32(1 / math.Sqrt(float64(c.HeadDim)))
	if err := r.Attention(p.attn, p.q, c.Heads, scale, p.layout, p.mem, seqs); err != nil {
		return fmt.Errorf("engine: layer %d: %w", l, err)
	}
	p.kv.Done(l)
	p.mlp(w, n)
	return nil
}

// mlp adds the attention's output to the residual stream and runs the gated
// MLP on n rows.
func (p *pass) mlp(w *layerWeights, n int) {
	if n == 0 {
		return
	}
	c, r := p.cfg, p.run
	p.linear(p.h, p.attn, n, &w.o)
	r.Add(p.x, p.h[:n*c.Hidden])
	r.RMSNorm(p.h, p.x, w.postNorm, n, c.Hidden, c.NormEps)
	p.linear(p.gate, p.h, n, &w.gate)
	p.linear(p.up, p.h, n, &w.up)
	r.SiLUMul(p.gate[:n*c.FFN], p.gate, p.up)
	p.linear(p.h, p.gate, n, &w.down)
	r.Add(p.x, p.h[:n*c.Hidden])
}

// linear is y = x*W^T + bias for n rows.
func (p *pass) linear(y, x []float32, n int, w *linear) {
	p.run.MatMul(y, x, n, w.w)
	if w.bias != nil {
		p.run.AddBias(y, w.bias, n, w.w.N())
	}
}

// keepWanted moves the rows of q and x that want logits to the front and
// returns the sequences cut down to them.
func (p *pass) keepWanted() []kernels.AttnSeq {
	qd, hidden := p.cfg.Heads*p.cfg.HeadDim, p.cfg.Hidden
	row, kept := 0, 0
	for i := range p.batch {
		n := len(p.batch[i].Tokens)
		keep := 0
		switch p.batch[i].Logits {
		case LastLogits:
			keep = 1
		case AllLogits:
			keep = n
		}
		if keep > 0 {
			from := row + n - keep
			copy(p.q[kept*qd:(kept+keep)*qd], p.q[from*qd:])
			copy(p.x[kept*hidden:(kept+keep)*hidden], p.x[from*hidden:])
			s := p.seqs[i]
			s.Start, s.Rows = s.Start+n-keep, keep
			p.last = append(p.last, s)
		}
		row, kept = row+n, kept+keep
	}
	return p.last
}

// head computes the logits of the wanted rows, which are at the front of x.
func (p *pass) head() {
	c := p.cfg
	if p.wanted > 0 {
		p.run.RMSNorm(p.h, p.x, p.w.norm, p.wanted, c.Hidden, c.NormEps)
		p.run.MatMul(p.logits, p.h, p.wanted, p.w.head)
	}
	for i := range p.wanted {
		p.rows = append(p.rows, p.logits[i*c.Vocab:(i+1)*c.Vocab:(i+1)*c.Vocab])
	}
	p.out = Output{Vocab: c.Vocab, Logits: p.rows}
}
