package calibrate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/kvlend/kvlend/planner/sim"
)

// Load reads a Machine from a file. Errors name the file and the field.
func Load(path string) (sim.Machine, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return sim.Machine{}, err
	}
	m, err := Parse(raw)
	if err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// Parse reads the JSON of a Machine and checks it. Fields that are unknown are
// errors.
func Parse(text []byte) (sim.Machine, error) {
	var m sim.Machine
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return sim.Machine{}, fmt.Errorf("machine: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return sim.Machine{}, errors.New("machine: text after the object")
	}
	return m, Validate(m)
}

// Validate reports every field that is out of range.
func Validate(m sim.Machine) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(m.Models)) {
		c := m.Models[name]
		field := func(what string, v, low, high float64) {
			if v != 0 && !(v >= low && v <= high) {
				errs = append(errs, fmt.Errorf("machine: models[%q].%s is %g, want 0 (not known) or %g to %g", name, what, v, low, high))
			}
		}
		field("flops", c.FLOPS, 1e6, 1e18)
		field("bandwidth", c.Bandwidth, 1e6, 1e16)
		if err := c.Calibration.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("machine: models[%q]: %w", name, err))
		}
	}
	if v := m.Copies; v != 0 && !(v >= 1e6 && v <= 1e16) {
		errs = append(errs, fmt.Errorf("machine: copies is %g bytes/s, want 0 (not known) or 1e6 to 1e16", v))
	}
	if err := m.Front.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("machine: %w", err))
	}
	return errors.Join(errs...)
}
