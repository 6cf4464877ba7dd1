package plan

import (
	"strings"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/planner/facts"
)

// Shape is what the size and the speed of a model depend on, beyond its KV
// geometry.
type Shape struct {
	Layers, QHeads, KVHeads, HeadDim int
	Hidden, Vocab                    int
	// FFN is the intermediate size that one token passes: of all active
	// experts together.
	FFN int
	// FFNWeights is the elements of one layer's feed-forward part that a
	// step reads when all experts are in use.
	FFNWeights  int64
	WeightBytes int64 // in memory
	MaxContext  int   // tokens it was trained for
	Note        string
}

// weightElem is bytes per weight in 16-bit types.
const weightElem = 2

// ShapeFunc finds a model's shape by Model.Source.
type ShapeFunc func(source string) (Shape, error)

// Shapes is the ShapeFunc of catalog models, built-in models and model
// directories. Of a directory it reads headers only, and config.json alone will
// do: weights that are not there yet count 16 bits each.
func Shapes(source string) (Shape, error) {
	if name, ok := strings.CutPrefix(source, configs.SourceCatalog); ok {
		m, err := facts.LookupModel(name)
		if err != nil {
			return Shape{}, err
		}
		return catalogShape(m), nil
	}
	if name, ok := strings.CutPrefix(source, configs.SourceBuiltin); ok {
		c, err := engine.BuiltinConfig(name)
		if err != nil {
			return Shape{}, err
		}
		return engineShape(c, c.Params()*weightElem), nil
	}
	if info, err := engine.Inspect(source); err == nil {
		return engineShape(info.Config, info.CheckpointBytes), nil
	}
	c, _, err := engine.LoadConfig(source)
	if err != nil {
		return Shape{}, err
	}
	return engineShape(c, c.Params()*weightElem), nil
}

func catalogShape(m facts.Model) Shape {
	s := Shape{
		Layers: m.Layers, QHeads: m.QHeads, KVHeads: m.KVHeads, HeadDim: m.HeadDim, Hidden: m.Hidden, Vocab: m.Vocab,
		FFN: m.FFN, FFNWeights: 3 * int64(m.Hidden) * int64(m.FFN),
		WeightBytes: m.WeightBytes(weightElem), MaxContext: m.MaxContext, Note: m.Note,
	}
	if e := m.Experts; e != nil {
		s.FFN = e.Active * e.FFN
		s.FFNWeights = 3 * int64(m.Hidden) * int64(e.FFN) * int64(e.Count)
	}
	return s
}

func engineShape(c *engine.Config, weights int64) Shape {
	return Shape{
		Layers: c.Layers, QHeads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Hidden: c.Hidden, Vocab: c.Vocab,
		FFN: c.FFN, FFNWeights: 3 * int64(c.Hidden) * int64(c.FFN), WeightBytes: weights, MaxContext: c.MaxContext,
	}
}

// ActivationBytes estimates the largest intermediate tensors of a step of
// tokens tokens in 16 bits, of which rows end in logits. Alive at once are the
// residual stream and its normalised copy (2 x hidden), and the larger of
// queries, keys, values and attention output, or gate, up and their product
// (3 x FFN); then logits of rows x vocabulary in 32 bits.
func (s Shape) ActivationBytes(tokens, rows int) int64 {
	return int64(tokens)*s.activationPerToken() + int64(rows)*int64(s.Vocab)*4
}

func (s Shape) activationPerToken() int64 {
	attention := int64(2*s.QHeads+2*s.KVHeads) * int64(s.HeadDim)
	return 2 * (2*int64(s.Hidden) + max(attention, 3*int64(s.FFN)))
}

// ffnFLOPs is the arithmetic of one layer's feed-forward part per token.
func (s Shape) ffnFLOPs() float64 { return 6 * float64(s.Hidden) * float64(s.FFN) }

// projectionElems is the weights of one layer's attention projections.
func (s Shape) projectionElems() float64 {
	return float64(s.Hidden) * float64(2*s.QHeads+2*s.KVHeads) * float64(s.HeadDim)
}

// attentionFLOPs is the arithmetic of one layer's attention for fresh tokens
// behind history ones: projections, and scores and sums over what each sees.
func (s Shape) attentionFLOPs(fresh, history float64) float64 {
	pair := 4 * float64(s.QHeads) * float64(s.HeadDim)
	return 2*fresh*s.projectionElems() + pair*fresh*(history+fresh/2)
}
