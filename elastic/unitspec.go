package elastic

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Policies lists the unit policies.
func Policies() []Policy { return []Policy{PolicyLCM, PolicyLayerLCM, PolicyPadded} }

// maxPaddedSteps bounds the search for a padded unit. A step passes one
// block of one model, and at 1/waste blocks per model every size is accepted,
// so that only absurdly small wastes reach the bound.
const maxPaddedSteps = 1 << 22

// NewUnitSpec computes the unit that worker and all masters agree on.
//
// Under PolicyLCM it is the least common multiple of everybody's full blocks
// (Eq. 8, counted in bytes so that element types may differ); under
// PolicyLayerLCM that of the layer blocks; under PolicyPadded the smallest size
// of which no model wastes more than maxWaste (a share, 0 <= maxWaste < 1;
// ignored by the other policies). Geometry names must differ.
func NewUnitSpec(policy Policy, maxWaste float64, worker Geometry, masters ...Geometry) (UnitSpec, error) {
	models := append([]Geometry{worker}, masters...)
	spec := UnitSpec{Policy: policy, PerUnit: make(map[string]int, len(models))}
	pieces := make([]int64, len(models))
	for i, g := range models {
		if err := g.Validate(); err != nil {
			return UnitSpec{}, err
		}
		if slices.ContainsFunc(models[:i], func(o Geometry) bool { return o.Name == g.Name }) {
			return UnitSpec{}, fmt.Errorf("two models are called %q", g.Name)
		}
		pieces[i] = spec.piece(g)
	}
	var err error
	switch policy {
	case PolicyLCM, PolicyLayerLCM:
		spec.Bytes, err = lcmAll(pieces)
	case PolicyPadded:
		spec.Bytes, err = paddedUnit(pieces, maxWaste)
	default:
		err = fmt.Errorf("unknown unit policy %q, want one of %q", policy, Policies())
	}
	if err != nil {
		return UnitSpec{}, fmt.Errorf("unit of %q: %w", worker.Name, err)
	}
	for i, g := range models {
		n := spec.Bytes / pieces[i]
		if n > math.MaxInt32 {
			return UnitSpec{}, fmt.Errorf("unit of %q: %d blocks of %q in one unit, want at most %d", worker.Name, n, g.Name, math.MaxInt32)
		}
		spec.PerUnit[g.Name] = int(n)
		spec.Waste = max(spec.Waste, waste(spec.Bytes, pieces[i]))
	}
	return spec, nil
}

// Within is the smallest multiple of the unit of which an arena has at most most:
// under PolicyLayerLCM units are tiny, and an arena of a GPU would have millions.
// A multiple is a whole number of the same blocks, and wastes the same share.
func (s UnitSpec) Within(arena int64, most int) UnitSpec {
	n := (arena/s.Bytes + int64(most) - 1) / int64(most)
	if n <= 1 {
		return s
	}
	out := s
	out.Bytes *= n
	out.PerUnit = make(map[string]int, len(s.PerUnit))
	for name, per := range s.PerUnit {
		out.PerUnit[name] = int(min(int64(per)*n, math.MaxInt32))
	}
	return out
}

// piece is the size of what PerUnit counts of a model.
func (s UnitSpec) piece(g Geometry) int64 {
	if s.Policy == PolicyLayerLCM {
		return g.LayerBlockBytes()
	}
	return g.FullBlockBytes()
}

// BlocksPer returns how many full blocks of g n units hold together. Under
// PolicyLayerLCM a block may span units, so that this is not a multiple of n.
func (s UnitSpec) BlocksPer(g Geometry, n int) int {
	total := int64(n) * int64(s.PerUnit[g.Name])
	if s.Policy == PolicyLayerLCM {
		total /= int64(g.Layers)
	}
	return int(min(total, math.MaxInt32))
}

// UnitsFor returns how many units hold blocks full blocks of g: the inverse of
// BlocksPer, rounded up.
func (s UnitSpec) UnitsFor(g Geometry, blocks int) int {
	per := int64(s.PerUnit[g.Name])
	if blocks <= 0 || per == 0 {
		return 0
	}
	pieces := int64(blocks)
	if s.Policy == PolicyLayerLCM {
		pieces *= int64(g.Layers)
	}
	return int(min((pieces-1)/per+1, math.MaxInt32))
}

// Divide splits an arena into whole units and a remainder that is never lent.
func (s UnitSpec) Divide(arena int64) (units int, remainder int64) {
	if s.Bytes <= 0 || arena <= 0 {
		return 0, max(arena, 0)
	}
	units = int(min(arena/s.Bytes, MaxUnits))
	return units, arena - int64(units)*s.Bytes
}

// Lendable is the largest number of units that may be away at once: what stays
// in the arena, the remainder included, never falls below floor bytes.
func (s UnitSpec) Lendable(arena, floor int64) int {
	units, _ := s.Divide(arena)
	if s.Bytes <= 0 || floor >= arena {
		return 0
	}
	return int(min(int64(units), (arena-max(floor, 0))/s.Bytes))
}

// waste is the share of a unit that whole pieces leave unused.
func waste(unit, piece int64) float64 { return float64(unit%piece) / float64(unit) }

func lcmAll(sizes []int64) (int64, error) {
	unit := int64(1)
	for _, n := range sizes {
		var err error
		if unit, err = LCM(unit, n); err != nil {
			return 0, err
		}
	}
	return unit, nil
}

// paddedUnit finds the smallest acceptable size. Between two multiples of a
// piece its waste only grows, so the smallest acceptable size is a multiple of
// some piece: from a size that one model refuses, the next candidate is that
// model's next multiple.
func paddedUnit(sizes []int64, maxWaste float64) (int64, error) {
	if !(maxWaste >= 0 && maxWaste < 1) {
		return 0, fmt.Errorf("max_waste is %v, want at least 0 and less than 1", maxWaste)
	}
	if maxWaste == 0 {
		return lcmAll(sizes)
	}
	unit := slices.Max(sizes)
	for range maxPaddedSteps {
		next := unit
		for _, piece := range sizes {
			if waste(unit, piece) > maxWaste {
				next = max(next, (unit/piece+1)*piece)
			}
		}
		if next == unit {
			return unit, nil
		}
		if unit = next; unit > math.MaxInt64/2 {
			return 0, ErrOverflow
		}
	}
	return 0, errors.New("max_waste is too small: no unit of sensible size wastes so little")
}
