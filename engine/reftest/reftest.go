// Package reftest is a slow float64 transformer for tests: Qwen3 and Llama as
// Hugging Face transformers defines them, written for reading. It shares no
// code with package engine, so that an error in one does not hide in the
// other.
//
// Matrices are [][]float64, one slice per row; a weight matrix has one row per
// output, as in checkpoints.
package reftest

import (
	"fmt"
	"math"
)

// Geometry is a model's configuration under the names of config.json.
type Geometry struct {
	ModelType         string // "qwen3" or "llama"
	NumHiddenLayers   int
	HiddenSize        int
	NumAttentionHeads int
	NumKeyValueHeads  int
	HeadDim           int
	VocabSize         int
	RMSNormEps        float64
	TieWordEmbeddings bool
	Rope              Rope
}

// Rope is rope_theta with the entries of rope_scaling.
type Rope struct {
	Theta                         float64
	Type                          string // "", "linear", "llama3" or "yarn"
	Factor                        float64
	OriginalMaxPositionEmbeddings float64
	LowFreqFactor, HighFreqFactor float64 // llama3
	BetaFast, BetaSlow            float64 // yarn
	AttentionFactor               float64 // yarn; 0: the default of Factor
}

// Weights are a checkpoint's tensors by name, row-major.
type Weights map[string][]float64

// matrix cuts a tensor in rows of n elements.
func (w Weights) matrix(name string, n int) [][]float64 {
	data, ok := w[name]
	if !ok || len(data)%n != 0 {
		panic(fmt.Sprintf("reftest: %s has %d elements, want rows of %d", name, len(data), n))
	}
	var rows [][]float64
	for ; len(data) > 0; data = data[n:] {
		rows = append(rows, data[:n])
	}
	return rows
}

// Linear is x*W^T + bias; bias may be nil.
func Linear(x, weight [][]float64, bias []float64) [][]float64 {
	y := make([][]float64, len(x))
	for i := range x {
		y[i] = make([]float64, len(weight))
		for o, w := range weight {
			var sum float64
			for k, v := range x[i] {
				sum += v * w[k]
			}
			if bias != nil {
				sum += bias[o]
			}
			y[i][o] = sum
		}
	}
	return y
}

// RMSNorm normalises one row.
func RMSNorm(x, weight []float64, eps float64) []float64 {
	var mean float64
	for _, v := range x {
		mean += v * v / float64(len(x))
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = weight[i] * (v / math.Sqrt(mean+eps))
	}
	return y
}

// SiLU is x * sigmoid(x).
func SiLU(x float64) float64 { return x / (1 + math.Exp(-x)) }

// Rotate applies the rotary embedding to one head at a position:
// x*cos + rotate_half(x)*sin with cos and sin repeated over both halves.
func (r Rope) Rotate(x []float64, position int) []float64 {
	freq, factor := r.frequencies(len(x))
	half := len(x) / 2
	y := make([]float64, len(x))
	for i := range x {
		angle := float64(position) * freq[i%half]
		rotated := x[(i+half)%len(x)]
		if i < half {
			rotated = -rotated
		}
		y[i] = x[i]*math.Cos(angle)*factor + rotated*math.Sin(angle)*factor
	}
	return y
}

// frequencies are the dim/2 inverse frequencies and the attention factor.
func (r Rope) frequencies(dim int) ([]float64, float64) {
	freq := make([]float64, dim/2)
	for i := range freq {
		freq[i] = math.Pow(r.Theta, -2*float64(i)/float64(dim))
	}
	switch r.Type {
	case "":
		return freq, 1
	case "linear":
		for i := range freq {
			freq[i] /= r.Factor
		}
		return freq, 1
	case "llama3":
		for i, f := range freq {
			turns := r.OriginalMaxPositionEmbeddings * f / (2 * math.Pi)
			// 0 where the frequency is scaled, 1 where it is kept
			keep := (turns - r.LowFreqFactor) / (r.HighFreqFactor - r.LowFreqFactor)
			keep = math.Max(0, math.Min(1, keep))
			freq[i] = keep*f + (1-keep)*f/r.Factor
		}
		return freq, 1
	case "yarn":
		return r.yarn(freq, dim)
	}
	panic("reftest: unknown rope type " + r.Type)
}

func (r Rope) yarn(freq []float64, dim int) ([]float64, float64) {
	// the dimension whose frequency makes that many turns in the original context
	where := func(turns float64) float64 {
		return float64(dim) / 2 * math.Log(r.OriginalMaxPositionEmbeddings/(turns*2*math.Pi)) / math.Log(r.Theta)
	}
	first := math.Max(math.Floor(where(r.BetaFast)), 0)
	last := math.Min(math.Ceil(where(r.BetaSlow)), float64(dim-1))
	for i, f := range freq {
		interpolate := 0.0
		switch {
		case float64(i) >= last:
			interpolate = 1
		case float64(i) > first:
			interpolate = (float64(i) - first) / (last - first)
		}
		freq[i] = f*(1-interpolate) + f/r.Factor*interpolate
	}
	if r.AttentionFactor != 0 {
		return freq, r.AttentionFactor
	}
	return freq, 0.1*math.Log(r.Factor) + 1
}

// Attention is causal attention of one head over a whole sequence: row i of q
// sees rows 0..i of k and v.
func Attention(q, k, v [][]float64, scale float64) [][]float64 {
	out := make([][]float64, len(q))
	for i := range q {
		scores := make([]float64, i+1)
		largest := math.Inf(-1)
		for j := range scores {
			for d := range q[i] {
				scores[j] += q[i][d] * k[j][d] * scale
			}
			largest = math.Max(largest, scores[j])
		}
		var sum float64
		for j := range scores {
			scores[j] = math.Exp(scores[j] - largest)
			sum += scores[j]
		}
		out[i] = make([]float64, len(v[0]))
		for j := range scores {
			for d := range out[i] {
				out[i][d] += scores[j] / sum * v[j][d]
			}
		}
	}
	return out
}

// Logits runs the model over a sequence and returns the logits of each position.
func (g Geometry) Logits(w Weights, tokens []int32) [][]float64 {
	embed := w.matrix("model.embed_tokens.weight", g.HiddenSize)
	x := make([][]float64, len(tokens))
	for i, t := range tokens {
		x[i] = append([]float64(nil), embed[t]...)
	}
	for l := range g.NumHiddenLayers {
		p := fmt.Sprintf("model.layers.%d.", l)
		addRows(x, g.attention(w, p, normRows(x, w[p+"input_layernorm.weight"], g.RMSNormEps)))
		addRows(x, g.mlp(w, p, normRows(x, w[p+"post_attention_layernorm.weight"], g.RMSNormEps)))
	}
	x = normRows(x, w["model.norm.weight"], g.RMSNormEps)
	if g.TieWordEmbeddings {
		return Linear(x, embed, nil)
	}
	return Linear(x, w.matrix("lm_head.weight", g.HiddenSize), nil)
}

func (g Geometry) attention(w Weights, p string, x [][]float64) [][]float64 {
	project := func(name string, x [][]float64) [][]float64 {
		return Linear(x, w.matrix(p+"self_attn."+name+".weight", len(x[0])), w[p+"self_attn."+name+".bias"])
	}
	q, k, v := project("q_proj", x), project("k_proj", x), project("v_proj", x)
	joined := make([][]float64, len(x))
	for h := range g.NumAttentionHeads {
		kvHead := h * g.NumKeyValueHeads / g.NumAttentionHeads
		qh := g.head(q, h, w[p+"self_attn.q_norm.weight"], true)
		kh := g.head(k, kvHead, w[p+"self_attn.k_norm.weight"], true)
		vh := g.head(v, kvHead, nil, false)
		for i, row := range Attention(qh, kh, vh, 1/math.Sqrt(float64(g.HeadDim))) {
			joined[i] = append(joined[i], row...)
		}
	}
	return project("o_proj", joined)
}

// head cuts a head out of x, normalises it where the model does, and rotates it.
func (g Geometry) head(x [][]float64, h int, norm []float64, rotate bool) [][]float64 {
	out := make([][]float64, len(x))
	for i := range x {
		out[i] = x[i][h*g.HeadDim : (h+1)*g.HeadDim]
		if norm != nil && g.ModelType == "qwen3" {
			out[i] = RMSNorm(out[i], norm, g.RMSNormEps)
		}
		if rotate {
			out[i] = g.Rope.Rotate(out[i], i)
		}
	}
	return out
}

func (g Geometry) mlp(w Weights, p string, x [][]float64) [][]float64 {
	project := func(name string, x [][]float64) [][]float64 {
		return Linear(x, w.matrix(p+"mlp."+name+".weight", len(x[0])), w[p+"mlp."+name+".bias"])
	}
	gate, up := project("gate_proj", x), project("up_proj", x)
	for i := range gate {
		for j := range gate[i] {
			gate[i][j] = SiLU(gate[i][j]) * up[i][j]
		}
	}
	return project("down_proj", gate)
}

func normRows(x [][]float64, weight []float64, eps float64) [][]float64 {
	y := make([][]float64, len(x))
	for i := range x {
		y[i] = RMSNorm(x[i], weight, eps)
	}
	return y
}

func addRows(x, y [][]float64) {
	for i := range x {
		for j := range x[i] {
			x[i][j] += y[i][j]
		}
	}
}
