package engine

import (
	"fmt"
	"math"
)

// parseRope reads the rotary embedding and returns it with the longest
// context it serves. Three spellings are in use: rope_theta beside
// rope_scaling with "type" (old) or "rope_type", and rope_parameters, which
// holds both (new).
func parseRope(f *fields, positions int) (RopeConfig, int) {
	const maxTheta, maxFactor = 1e15, 1e6
	r := RopeConfig{Theta: f.float("rope_theta", 10000, maxTheta)}
	s := f.object("rope_parameters")
	if s != nil {
		r.Theta = s.float("rope_theta", r.Theta, maxTheta)
	} else {
		s = f.object("rope_scaling")
	}
	if r.Theta <= 1 {
		f.bad("rope_theta", fmt.Sprint(r.Theta), "a number above 1")
	}
	if s == nil {
		return r, positions
	}
	kind := s.str("rope_type", s.str("type", "default"))
	switch kind {
	case "default":
		return r, positions
	case "linear":
		r.Factor = s.factor(0)
		r.Scaling = kind
		return r, scaled(positions, r.Factor)
	case "llama3":
		r.Factor = s.factor(0)
		r.LowFreqFactor = s.float("low_freq_factor", 0, maxFactor)
		r.HighFreqFactor = s.float("high_freq_factor", 0, maxFactor)
		r.Original = s.int("original_max_position_embeddings", required, 1, 1<<26)
		r.Scaling = kind
		if r.HighFreqFactor <= r.LowFreqFactor {
			s.bad("high_freq_factor", fmt.Sprint(r.HighFreqFactor), "more than low_freq_factor, %g", r.LowFreqFactor)
		}
		return r, positions
	case "yarn":
		parseYarn(s, &r, positions)
		return r, max(positions, scaled(r.Original, r.Factor))
	}
	s.bad("rope_type", fmt.Sprintf("%q", kind), "default, linear, llama3 or yarn")
	return r, positions
}

// factor reads by how much a scaling stretches the context; def 0 means that
// it must be there.
func (f *fields) factor(def float64) float64 {
	x := f.float("factor", def, 1e6)
	if x < 1 {
		f.bad("factor", fmt.Sprint(x), "a number from 1 to 1e+06")
	}
	return x
}

// scaled is positions times factor, bounded where a bad factor would overflow.
func scaled(positions int, factor float64) int {
	return int(min(float64(positions)*factor, 1<<40))
}

// parseYarn reads YaRN's parameters with the defaults of transformers'
// _compute_yarn_parameters.
func parseYarn(s *fields, r *RopeConfig, positions int) {
	const limit = 1e6
	r.Scaling = "yarn"
	r.Original = s.int("original_max_position_embeddings", positions, 1, 1<<26)
	r.Factor = s.factor(float64(positions) / float64(r.Original))
	r.BetaFast = s.float("beta_fast", 32, limit)
	r.BetaSlow = s.float("beta_slow", 1, limit)
	r.NoTruncate = !s.bool("truncate", true)
	mscale := s.nonNegative("mscale")
	mscaleAll := s.nonNegative("mscale_all_dim")
	def := yarnMscale(r.Factor, 1)
	if mscale != 0 && mscaleAll != 0 {
		def = yarnMscale(r.Factor, mscale) / yarnMscale(r.Factor, mscaleAll)
	}
	r.AttentionFactor = s.float("attention_factor", def, limit)
	if r.BetaFast <= r.BetaSlow {
		s.bad("beta_fast", fmt.Sprint(r.BetaFast), "more than beta_slow, %g", r.BetaSlow)
	}
}

// nonNegative reads an optional number; absent is 0.
func (f *fields) nonNegative(key string) float64 {
	x, ok := f.number(key, "a number of at least 0")
	if ok && x < 0 {
		f.bad(key, shorten(f.raw[key]), "a number of at least 0")
	}
	return x
}

func yarnMscale(scale, mscale float64) float64 {
	if scale <= 1 {
		return 1
	}
	return 0.1*mscale*math.Log(scale) + 1
}

// InvFreq returns the headDim/2 inverse frequencies, in radians per position,
// and the factor by which cos and sin are multiplied. The formulas are those
// of Hugging Face transformers, modeling_rope_utils.py (linear: Chen et al.
// 2023; yarn: Peng et al. 2023, "by parts"; llama3: Llama 3.1's).
func (r RopeConfig) InvFreq(headDim int) (inv []float64, attention float64) {
	inv = make([]float64, headDim/2)
	for i := range inv {
		inv[i] = 1 / math.Pow(r.Theta, float64(2*i)/float64(headDim))
	}
	switch r.Scaling {
	case "linear":
		for i := range inv {
			inv[i] /= r.Factor
		}
	case "llama3":
		r.llama3(inv)
	case "yarn":
		r.yarn(inv, headDim)
		return inv, r.AttentionFactor
	}
	return inv, 1
}

// llama3 slows wavelengths longer than the original context allows, leaves
// short ones alone and blends between.
func (r RopeConfig) llama3(inv []float64) {
	low := float64(r.Original) / r.LowFreqFactor
	high := float64(r.Original) / r.HighFreqFactor
	for i, f := range inv {
		wavelen := 2 * math.Pi / f
		switch {
		case wavelen > low:
			inv[i] = f / r.Factor
		case wavelen >= high:
			smooth := (float64(r.Original)/wavelen - r.LowFreqFactor) / (r.HighFreqFactor - r.LowFreqFactor)
			inv[i] = (1-smooth)*f/r.Factor + smooth*f
		}
	}
}

// yarn interpolates dimensions that turn less than BetaSlow times over the
// original context, leaves those above BetaFast alone and blends between.
func (r RopeConfig) yarn(inv []float64, headDim int) {
	dim := float64(headDim)
	correction := func(rotations float64) float64 {
		return dim * math.Log(float64(r.Original)/(rotations*2*math.Pi)) / (2 * math.Log(r.Theta))
	}
	low, high := correction(r.BetaFast), correction(r.BetaSlow)
	if !r.NoTruncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, dim-1)
	if low == high {
		high += 0.001
	}
	for i, f := range inv {
		ramp := min(max((float64(i)-low)/(high-low), 0), 1)
		inv[i] = f/r.Factor*ramp + f*(1-ramp)
	}
}
