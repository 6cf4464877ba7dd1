package perf

import (
	"errors"
	"math"
	"time"
)

// Engine reckons how long the steps of one model take on one device.
type Engine struct {
	shape Shape
	cal   Calibration

	tokenS, pairS, headS float64 // seconds of arithmetic; the first two in one layer
	weightS              float64 // seconds of reading a dense layer's weights; 0: a mixture
	byteS                float64 // seconds per byte of weights
	keyS, headReadS      float64 // seconds of reading the KV of a token in a layer, and the head
	layerS, stepS        float64
	seqS, newS           float64
}

// Cost is how long a step takes.
type Cost struct {
	Layer     time.Duration // each of the layers
	Attention time.Duration // its part of Layer
	Fixed     time.Duration // once: the head, and what comes per step, sequence and token
	Layers    int
}

// Total is the whole step.
func (c Cost) Total() time.Duration { return c.Fixed + time.Duration(c.Layers)*c.Layer }

// NewEngine checks its arguments. Of the GPU only FLOPS and MemoryBandwidth
// matter.
func NewEngine(s Shape, g GPU, c Calibration) (*Engine, error) {
	err := errors.Join(s.Validate(), checkGPU(g), c.Validate())
	if err != nil {
		return nil, err
	}
	e := &Engine{shape: s, cal: c}
	e.tokenS = s.LayerFLOPs() / (g.FLOPS * c.Linear)
	e.headS = s.HeadFLOPs() / (g.FLOPS * c.Linear)
	e.pairS = s.PairFLOPs() / (g.FLOPS * c.Attention)
	e.byteS = 1 / (g.MemoryBandwidth * c.Weights)
	e.headReadS = s.HeadBytes() * e.byteS
	e.keyS = s.KeyBytes() / (g.MemoryBandwidth * c.KV)
	if s.Experts == 0 {
		e.weightS = s.LayerWeightBytes(1) * e.byteS
	}
	e.layerS, e.stepS = c.Layer.Seconds(), c.Step.Seconds()
	e.seqS, e.newS = c.Seq.Seconds(), c.Token.Seconds()
	return e, nil
}

func checkGPU(g GPU) error {
	return errors.Join(
		within("GPU: arithmetic in FLOP/s", g.FLOPS, 1e6, 1e18),
		within("GPU: memory bandwidth in bytes/s", g.MemoryBandwidth, 1e6, 1e16),
	)
}

// Shape and Calibration are what the engine was made of.
func (e *Engine) Shape() Shape             { return e.shape }
func (e *Engine) Calibration() Calibration { return e.cal }

// Step is how long a batch takes.
func (e *Engine) Step(batch []Seq) Cost { return e.Cost(Sum(batch)) }

// Cost is how long a step with so much work takes. Without tokens there is no step.
func (e *Engine) Cost(w Work) Cost {
	c := Cost{Layers: e.shape.Layers}
	if w.Tokens <= 0 {
		return c
	}
	tokens, seqs := float64(w.Tokens), float64(w.Seqs)
	read := e.weightS
	if read == 0 {
		read = e.shape.LayerWeightBytes(w.Tokens) * e.byteS
	}
	linear := e.both(tokens*e.tokenS, read)
	attention := e.both(float64(w.Pairs)*e.pairS, float64(w.Keys)*e.keyS)
	head := e.both(seqs*e.headS, e.headReadS)
	c.Attention = duration(attention)
	c.Layer = c.Attention + duration(linear+e.layerS)
	c.Fixed = duration(head + e.stepS + seqs*e.seqS + tokens*e.newS)
	return c
}

// both is how long arithmetic and reading take together.
func (e *Engine) both(compute, read float64) float64 {
	if e.cal.Serial {
		return compute + read
	}
	return max(compute, read)
}

// duration rounds up to whole nanoseconds, and holds what is too long to say.
func duration(seconds float64) time.Duration {
	if seconds >= 9e9 {
		return math.MaxInt64 / 4096 // so that a thousand layers of it still add up
	}
	return time.Duration(math.Ceil(seconds * 1e9))
}
