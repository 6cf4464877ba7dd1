package perf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Calibration is how far an engine is from its hardware's peaks, and what its
// software adds. It encodes as JSON, durations in nanoseconds.
type Calibration struct {
	// Shares of the peak arithmetic that linear operators and attention reach,
	// in (0, 1].
	Linear    float64 `json:"linear"`
	Attention float64 `json:"attention"`
	// Shares of the memory bandwidth that reading weights and KV reach, in (0, 1].
	Weights float64 `json:"weights"`
	KV      float64 `json:"kv"`
	// Overheads that come on top: once in a step, per layer, per sequence of a
	// step, and per new token. 0 to an hour.
	Step  time.Duration `json:"step_ns"`
	Layer time.Duration `json:"layer_ns"`
	Seq   time.Duration `json:"seq_ns"`
	Token time.Duration `json:"token_ns"`
	// Serial: reading and arithmetic do not overlap, so that their times add up
	// instead of the longer one counting. CPUs are like that: of a chunk's
	// attention every key is read and converted once, and then multiplied.
	Serial bool `json:"serial,omitempty"`
	// Source says what it was fitted to; free text.
	Source string `json:"source,omitempty"`
}

// DefaultCalibration is for hardware that nobody has measured: a guess.
func DefaultCalibration() Calibration {
	return Calibration{
		Linear: 0.7, Attention: 0.5, Weights: 0.8, KV: 0.7,
		Step: 2 * time.Millisecond, Seq: 10 * time.Microsecond,
		Source: "none: a guess for a server's GPU",
	}
}

// leastShare is the smallest efficiency that is not a mistake.
const leastShare = 1e-4

// Validate reports every field that is out of range.
func (c Calibration) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		v    float64
	}{{"linear", c.Linear}, {"attention", c.Attention}, {"weights", c.Weights}, {"kv", c.KV}} {
		errs = append(errs, within("calibration: "+f.name, f.v, leastShare, 1))
	}
	for _, f := range []struct {
		name string
		v    time.Duration
	}{{"step_ns", c.Step}, {"layer_ns", c.Layer}, {"seq_ns", c.Seq}, {"token_ns", c.Token}} {
		if f.v < 0 || f.v > time.Hour {
			errs = append(errs, fmt.Errorf("calibration: %s is %d (%s), want 0 to %d (%s)", f.name, f.v.Nanoseconds(), f.v, time.Hour.Nanoseconds(), time.Hour))
		}
	}
	return errors.Join(errs...)
}

// ParseCalibration reads the JSON of a Calibration and checks it. Fields that
// are unknown are errors, efficiencies that are missing too.
func ParseCalibration(text []byte) (Calibration, error) {
	var c Calibration
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return Calibration{}, fmt.Errorf("calibration: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Calibration{}, errors.New("calibration: text after the object")
	}
	if err := c.Validate(); err != nil {
		return Calibration{}, err
	}
	return c, nil
}
