// Package perf says how long things take on hardware that need not be at hand:
// a step of a model on a GPU or CPU, a transfer over a link, an I/O of a disk.
// The simulator and the capacity planner reckon with it.
//
// Everything here is arithmetic: no clocks, no state, equal results for equal
// input. The calls that a simulator makes millions of times (Work.Add,
// Engine.Cost, Engine.Step, Link.Time, Disk.Read, Disk.Write) do not allocate,
// and their receivers may be used from many goroutines.
//
// # The model of a step
//
// A roofline per layer (Williams et al., CACM 52(4), 2009), for linear layers
// and attention apart, since they are bound by different things in one step:
//
//	linear    = max(flops / (peak * Linear),       weight bytes / (bandwidth * Weights))
//	attention = max(flops / (peak * Attention),    KV bytes read / (bandwidth * KV))
//	layer     = linear + attention + Layer
//	fixed     = head + Step + sequences * Seq + new tokens * Token
//	step      = layers * layer + fixed
//
// Where a Calibration is Serial, the two bounds are added instead.
//
// Weights are read once in a step, whatever its tokens. Of a mixture of experts
// those are read that some token needs; tokens choose experts independently and
// evenly (real routers prefer some, so fewer are read). Attention is causal:
// the token at position p attends to p+1 keys, its own included. The head and
// its weights are counted once per sequence and step. Left out: activations,
// norms, KV writes and sliding windows.
package perf

import (
	"errors"
	"fmt"
	"math"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/planner/facts"
)

// GPU is what computes. Engines use its FLOPS and MemoryBandwidth, links its
// NVLink and PCIeBandwidth. For a machine without such figures there is
// FitMachine.
type GPU = facts.GPU

// Shape is what of a model decides how long it computes.
type Shape struct {
	Layers, Hidden, Heads, KVHeads, HeadDim, FFN, Vocab int
	// A mixture of experts: how many there are, how many a token goes through,
	// and the intermediate size of one. FFN does not count then. All 0: dense.
	Experts, ActiveExperts, ExpertFFN int
	WeightBytes                       float64 // of one weight in memory, such as 2; 0.5 to 8
	KVBytes                           float64 // of one element of the KV cache; 0.5 to 8
}

// FromModel is the shape of a known model.
func FromModel(m facts.Model, weightBytes, kvBytes float64) Shape {
	s := Shape{
		Layers: m.Layers, Hidden: m.Hidden, Heads: m.QHeads, KVHeads: m.KVHeads, HeadDim: m.HeadDim, FFN: m.FFN, Vocab: m.Vocab,
		WeightBytes: weightBytes, KVBytes: kvBytes,
	}
	if m.Experts != nil {
		s.Experts, s.ActiveExperts, s.ExpertFFN = m.Experts.Count, m.Experts.Active, m.Experts.FFN
	}
	return s
}

// FromConfig is the shape of a model that kvlend's own engine serves.
func FromConfig(c *engine.Config, weightBytes, kvBytes float64) Shape {
	return Shape{
		Layers: c.Layers, Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, FFN: c.FFN, Vocab: c.Vocab,
		WeightBytes: weightBytes, KVBytes: kvBytes,
	}
}

// Validate reports every field that is out of range.
func (s Shape) Validate() error {
	var errs []error
	whole := func(field string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("shape: %s is %d, want %d to %d", field, v, low, high))
		}
	}
	whole("layers", s.Layers, 1, 1024)
	whole("hidden", s.Hidden, 1, 1<<17)
	whole("heads", s.Heads, 1, 1024)
	whole("KV heads", s.KVHeads, 1, 1024)
	whole("head dimension", s.HeadDim, 1, 1024)
	whole("vocabulary", s.Vocab, 1, 1<<24)
	if s.Experts == 0 && s.ActiveExperts == 0 && s.ExpertFFN == 0 {
		whole("FFN", s.FFN, 1, 1<<20)
	} else {
		whole("experts", s.Experts, 1, 1<<16)
		whole("active experts", s.ActiveExperts, 1, max(1, s.Experts))
		whole("FFN of an expert", s.ExpertFFN, 1, 1<<20)
	}
	errs = append(errs, within("shape: bytes of a weight", s.WeightBytes, 0.5, 8), within("shape: bytes of a KV element", s.KVBytes, 0.5, 8))
	return errors.Join(errs...)
}

// attentionWeights, expertWeights and headWeights count weights: the four
// projections of one layer with the router of a mixture, one FFN of a layer,
// and the output embedding.
func (s Shape) attentionWeights() float64 {
	return float64(s.Hidden) * (float64(2*s.Heads+2*s.KVHeads)*float64(s.HeadDim) + float64(s.Experts))
}

func (s Shape) expertWeights() float64 {
	ffn := s.FFN
	if s.Experts > 0 {
		ffn = s.ExpertFFN
	}
	return 3 * float64(s.Hidden) * float64(ffn)
}

func (s Shape) headWeights() float64 { return float64(s.Hidden) * float64(s.Vocab) }

// LayerFLOPs is the arithmetic of one token in the linear operators of one layer.
func (s Shape) LayerFLOPs() float64 {
	return 2 * (s.attentionWeights() + float64(max(1, s.ActiveExperts))*s.expertWeights())
}

// PairFLOPs is the arithmetic of one token that attends to one key, in one layer.
func (s Shape) PairFLOPs() float64 { return 4 * float64(s.Heads) * float64(s.HeadDim) }

// HeadFLOPs is the arithmetic of one row of logits.
func (s Shape) HeadFLOPs() float64 { return 2 * s.headWeights() }

// LayerWeightBytes is what a layer's linear operators read of their weights in
// a step of so many tokens: all of a dense layer, the expected part of a mixture.
func (s Shape) LayerWeightBytes(tokens int64) float64 {
	return (s.attentionWeights() + s.experts(tokens)*s.expertWeights()) * s.WeightBytes
}

// experts is how many FFNs of a layer some token goes through, in expectation.
func (s Shape) experts(tokens int64) float64 {
	switch {
	case s.Experts == 0:
		return 1
	case s.ActiveExperts == s.Experts:
		return float64(s.Experts)
	}
	missed := math.Exp(float64(tokens) * math.Log1p(-float64(s.ActiveExperts)/float64(s.Experts)))
	return float64(s.Experts) * (1 - missed)
}

// HeadBytes is what a row of logits, or many in one step, read of the weights.
func (s Shape) HeadBytes() float64 { return s.headWeights() * s.WeightBytes }

// KeyBytes is the KV of one token in one layer.
func (s Shape) KeyBytes() float64 { return 2 * float64(s.KVHeads) * float64(s.HeadDim) * s.KVBytes }

// Seq is one sequence's part of a step: New tokens at the positions
// [Start, Start+New).
type Seq struct{ Start, New int }

// Work is what a step computes, summed over its sequences. A simulator can keep
// the sums of a batch up to date rather than add them up again.
type Work struct {
	Seqs   int64 // sequences with new tokens
	Tokens int64 // new tokens
	Pairs  int64 // (token, key) pairs of causal attention, per layer
	Keys   int64 // lengths of the sequences, new tokens included: what attention reads
}

// Add counts one more sequence. One without new tokens is none.
func (w *Work) Add(s Seq) {
	if s.New <= 0 {
		return
	}
	start, n := int64(max(0, s.Start)), int64(s.New)
	w.Seqs++
	w.Tokens += n
	w.Pairs += n*start + n*(n+1)/2
	w.Keys += start + n
}

// Sum is the work of a batch.
func Sum(batch []Seq) Work {
	var w Work
	for _, s := range batch {
		w.Add(s)
	}
	return w
}

func within(what string, v, low, high float64) error {
	if v >= low && v <= high {
		return nil
	}
	return fmt.Errorf("%s is %g, want %g to %g", what, v, low, high)
}
