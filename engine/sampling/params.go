package sampling

import (
	"fmt"
	"math"
)

// Limits of Params that Validate enforces.
const (
	MaxTemperature       = 100
	MaxLogprobs          = 20   // the OpenAI API's
	MaxLogitBias         = 1024 // entries
	MaxRepetitionPenalty = 100
	MinRepetitionPenalty = 0.01
)

// Default returns the OpenAI API's defaults: temperature 1, everything else off.
func Default() Params {
	return Params{Temperature: 1, TopP: 1, RepetitionPenalty: 1, Logprobs: -1}
}

// A ParamError says which sampling parameter is out of its range.
type ParamError struct {
	Field  string // the OpenAI API's name, such as "top_p"
	Value  any
	Accept string // the accepted range in words
}

// Error implements error.
func (e *ParamError) Error() string {
	return fmt.Sprintf("%s is %v: it must be %s", e.Field, e.Value, e.Accept)
}

// Validate reports the first parameter that is out of range as a *ParamError.
// Sample expects parameters that passed.
func (p Params) Validate() error {
	floats := []struct {
		field     string
		value     float32
		low, high float32
		openLow   bool
	}{
		{"temperature", p.Temperature, 0, MaxTemperature, false},
		{"top_p", p.TopP, 0, 1, true},
		{"min_p", p.MinP, 0, 1, false},
		{"repetition_penalty", p.RepetitionPenalty, MinRepetitionPenalty, MaxRepetitionPenalty, false},
		{"presence_penalty", p.PresencePenalty, -2, 2, false},
		{"frequency_penalty", p.FrequencyPenalty, -2, 2, false},
	}
	for _, f := range floats {
		// Written so that a NaN fails too.
		if f.value >= f.low && f.value <= f.high && !(f.openLow && f.value == f.low) {
			continue
		}
		open := "["
		if f.openLow {
			open = "("
		}
		return &ParamError{f.field, f.value, fmt.Sprintf("in %s%v, %v]", open, f.low, f.high)}
	}
	if p.TopK < -1 {
		return &ParamError{"top_k", p.TopK, "at least 1, or 0 or -1 for off"}
	}
	if p.Logprobs < -1 || p.Logprobs > MaxLogprobs {
		return &ParamError{"logprobs", p.Logprobs, fmt.Sprintf("from 0 to %d, or -1 for none", MaxLogprobs)}
	}
	return p.validateBias()
}

func (p Params) validateBias() error {
	if len(p.LogitBias) > MaxLogitBias {
		return &ParamError{"logit_bias", fmt.Sprintf("%d entries", len(p.LogitBias)),
			fmt.Sprintf("at most %d entries", MaxLogitBias)}
	}
	for id, v := range p.LogitBias {
		field := fmt.Sprintf("logit_bias[%d]", id)
		if id < 0 {
			return &ParamError{field, v, "for a token id of at least 0"}
		}
		if !(math.Abs(float64(v)) <= 100) {
			return &ParamError{field, v, "in [-100, 100]"}
		}
	}
	return nil
}
