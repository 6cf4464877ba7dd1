package engine

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"strings"

	"github.com/kvlend/kvlend/engine/safetensors"
)

// generator is a source of random weights that are the same on every machine:
// integers from a counter-based generator, scaled by one correctly rounded
// multiplication and rounded to bfloat16.
//
// Weights are drawn so that activations stay near one over depth (each linear
// map keeps the variance, the two that feed the residual stream divide it by
// twice the layers) and so that the text is readable. Two channels of the
// residual stream are kept apart for that:
//
//	channel 0  every embedding row has the same value here, and no layer writes it
//	channel 1  layer 0's first value dimension copies channel 0 into it
//
// The output row of each token has a preference in channel 1, so its logit
// gets a constant bias: high for a space and small letters, lower for other
// printable ASCII, a little for <|im_end|>. Rows of control bytes, of bytes
// that are not ASCII and of reserved ids are nearly zero. None of it is learned
// language; it only keeps terminals sane.
type generator struct {
	cfg  *Config
	seed uint64
}

// The ids of the byte-level vocabulary, which the tokenizer's WriteByteLevel
// writes: ids below 256 are the bytes themselves. The rest is reserved.
const (
	idEndOfText = 256
	idImEnd     = 258
	byteVocab   = 320
)

// The channels with a meaning.
const (
	constChannel = 0
	biasChannel  = 1
)

// preference is how much the output likes a token, in units of the strongest
// bias, and whether its row has random content at all.
func preference(id int) (bias float32, live bool) {
	switch {
	case id == idImEnd:
		return 0.75, true
	case id == ' ':
		return 1.125, true
	case id >= 'a' && id <= 'z':
		return 1, true
	case id >= 'A' && id <= 'Z':
		return 0.75, true
	case id > ' ' && id <= '~', id == '\n':
		return 0.625, true
	}
	return 0, false
}

// tensor generates the tensor of a slot.
func (g *generator) tensor(s *slot) (*safetensors.Tensor, error) {
	t := &safetensors.Tensor{Name: s.name, DType: safetensors.BF16, Shape: s.shape, File: g.cfg.Name}
	t.Data = make([]byte, 2*s.elems())
	r := newRandom(g.seed, s.name)
	last := s.shape[len(s.shape)-1]
	switch {
	case strings.HasSuffix(s.name, ".bias"):
		r.fill(t.Data, 0, 0.02)
	case s.vec != nil:
		g.normWeights(t.Data, s, r)
	case s.name == "model.embed_tokens.weight" || s.name == "lm_head.weight":
		g.tokenRows(t.Data, s, r)
	default:
		std := math.Sqrt(1 / float64(last))
		if strings.HasSuffix(s.name, "o_proj.weight") || strings.HasSuffix(s.name, "down_proj.weight") {
			std *= math.Sqrt(float64(residualGain) / float64(2*g.cfg.Layers))
		}
		r.fill(t.Data, 0, std)
		g.channels(t.Data, s)
	}
	return t, nil
}

const (
	residualGain = 8     // variance that all layers together add to the residual stream, about
	tokenStd     = 0.125 // of embedding rows and output rows
	biasGain     = 8     // final norm weight of the bias channel: the strongest bias is about 10
)

// normWeights draws norm weights near one.
func (g *generator) normWeights(data []byte, s *slot, r *random) {
	mean := float32(1)
	switch {
	case strings.HasSuffix(s.name, ".q_norm.weight"):
		mean = 2 // attention that prefers some positions over others
	case s.name == "model.norm.weight":
		mean = 0.5 // logits that leave a choice between letters
	}
	r.fill(data, mean, 0.05)
	if s.name == "model.norm.weight" {
		putBF16(data, constChannel, 0)
		putBF16(data, biasChannel, biasGain)
	}
}

// tokenRows draws embedding or output rows.
func (g *generator) tokenRows(data []byte, s *slot, r *random) {
	n := s.shape[1]
	output := g.cfg.TiedEmbed || s.name == "lm_head.weight"
	r.fill(data, 0, tokenStd)
	for id := range g.cfg.Vocab {
		row := data[2*n*id:][:2*n]
		bias, live := preference(id)
		if output && !live {
			for i := range n {
				putBF16(row, i, getBF16(row, i)/16)
			}
		}
		putBF16(row, constChannel, 1)
		putBF16(row, biasChannel, bias)
	}
}

// channels keeps the two special channels apart from the random ones.
func (g *generator) channels(data []byte, s *slot) {
	n := s.shape[1]
	set := func(row, col int, v float32) { putBF16(data, row*n+col, v) }
	switch {
	case strings.HasSuffix(s.name, "o_proj.weight") || strings.HasSuffix(s.name, "down_proj.weight"):
		clear(data[:2*n*(biasChannel+1)])
		if s.name == "model.layers.0.self_attn.o_proj.weight" {
			// Every query head of the first KV head has the copy.
			group := g.cfg.Heads / g.cfg.KVHeads
			for h := range group {
				set(biasChannel, h*g.cfg.HeadDim, 0.5/float32(group))
			}
		}
	case s.name == "model.layers.0.self_attn.v_proj.weight":
		clear(data[:2*n])
		set(0, constChannel, 1)
	}
}

// random is SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom
// number generators", 2014), seeded by a number and a name.
type random struct{ state uint64 }

func newRandom(seed uint64, name string) *random {
	h := fnv.New64a()
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, seed))
	_, _ = h.Write([]byte(name))
	return &random{h.Sum64()}
}

func (r *random) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// fill writes bfloat16 values of about normal distribution: the sum of four
// 16-bit numbers, whose standard deviation is sqrt(4/12) * 65536.
func (r *random) fill(data []byte, mean float32, std float64) {
	scale := float32(std / (math.Sqrt(4.0/12) * 65536))
	for i := range len(data) / 2 {
		z := r.next()
		sum := int32(z&0xffff) + int32(z>>16&0xffff) + int32(z>>32&0xffff) + int32(z>>48)
		// The conversion keeps the compiler from fusing the two operations.
		v := float32(float32(sum-2*65535) * scale)
		putBF16(data, i, mean+v)
	}
}

// putBF16 stores v, rounded to nearest even, as element i.
func putBF16(data []byte, i int, v float32) {
	b := math.Float32bits(v)
	binary.LittleEndian.PutUint16(data[2*i:], uint16((b+0x7fff+b>>16&1)>>16))
}

func getBF16(data []byte, i int) float32 {
	return math.Float32frombits(uint32(binary.LittleEndian.Uint16(data[2*i:])) << 16)
}
