package sampling

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatalf("the default is refused: %v", err)
	}
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		change func(*Params)
		want   string // "" means accepted
	}{
		"greedy":            {func(p *Params) { p.Temperature = 0 }, ""},
		"negative heat":     {func(p *Params) { p.Temperature = -0.1 }, "temperature is -0.1: it must be in [0, 100]"},
		"heat NaN":          {func(p *Params) { p.Temperature = nan }, "temperature is NaN"},
		"heat Inf":          {func(p *Params) { p.Temperature = float32(math.Inf(1)) }, "temperature is +Inf"},
		"top_p 0":           {func(p *Params) { p.TopP = 0 }, "top_p is 0: it must be in (0, 1]"},
		"top_p 1":           {func(p *Params) { p.TopP = 1 }, ""},
		"top_p above":       {func(p *Params) { p.TopP = 1.01 }, "top_p is 1.01"},
		"min_p":             {func(p *Params) { p.MinP = 1 }, ""},
		"min_p above":       {func(p *Params) { p.MinP = 2 }, "min_p is 2: it must be in [0, 1]"},
		"top_k off":         {func(p *Params) { p.TopK = -1 }, ""},
		"top_k below":       {func(p *Params) { p.TopK = -2 }, "top_k is -2"},
		"repetition 0":      {func(p *Params) { p.RepetitionPenalty = 0 }, "repetition_penalty is 0"},
		"repetition":        {func(p *Params) { p.RepetitionPenalty = 1.1 }, ""},
		"presence":          {func(p *Params) { p.PresencePenalty = 2.5 }, "presence_penalty is 2.5: it must be in [-2, 2]"},
		"frequency":         {func(p *Params) { p.FrequencyPenalty = -2.5 }, "frequency_penalty is -2.5"},
		"logprobs":          {func(p *Params) { p.Logprobs = MaxLogprobs }, ""},
		"logprobs above":    {func(p *Params) { p.Logprobs = MaxLogprobs + 1 }, "logprobs is 21: it must be from 0 to 20"},
		"logprobs below":    {func(p *Params) { p.Logprobs = -2 }, "logprobs is -2"},
		"bias":              {func(p *Params) { p.LogitBias = map[int32]float32{3: -100} }, ""},
		"bias above":        {func(p *Params) { p.LogitBias = map[int32]float32{3: 101} }, "logit_bias[3] is 101"},
		"bias NaN":          {func(p *Params) { p.LogitBias = map[int32]float32{3: nan} }, "logit_bias[3] is NaN"},
		"bias of id -1":     {func(p *Params) { p.LogitBias = map[int32]float32{-1: 1} }, "logit_bias[-1]"},
		"bias for too many": {func(p *Params) { p.LogitBias = manyBiases(MaxLogitBias + 1) }, "logit_bias is 1025 entries"},
	} {
		t.Run(name, func(t *testing.T) {
			p := Default()
			c.change(&p)
			err := p.Validate()
			if c.want == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			var pe *ParamError
			if !errors.As(err, &pe) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want a ParamError with %q", err, c.want)
			}
		})
	}
}

func manyBiases(n int) map[int32]float32 {
	m := map[int32]float32{}
	for i := range n {
		m[int32(i)] = 1
	}
	return m
}
