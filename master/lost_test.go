package master

import (
	"slices"
	"testing"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

// releases is an Asker that writes down what is released.
type releases struct {
	Asker
	units []wire.UnitEpoch
}

func (r *releases) Release(units []wire.UnitEpoch) {
	r.units = append(r.units, units...)
	r.Asker.Release(units)
}

// TestLostAfterReturn: a loss that crosses a return names units that have been
// released already. Only the others are released then: a release with a unit
// that is not held is refused as a whole, and the rest would never come home.
func TestLostAfterReturn(t *testing.T) {
	w := newWorld(t, worlds[0])
	if err := w.reserve(1, w.cache.MaxTokens()); err != nil {
		t.Fatal(err)
	}
	held := w.cache.Holdings()[0].Units
	if len(held) < 2 {
		t.Fatalf("%d units held, the test needs 2", len(held))
	}
	asker := &releases{Asker: w.lend[0]}
	w.cache.pools[0].cfg.Ask = asker
	w.cache.Reclaim(0, 1, func(int) {})
	returned := asker.units[0]
	for _, u := range held {
		if u != returned {
			if _, err := w.lend[0].units.Fence(0, elastic.UnitEpoch(u)); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.cache.Lost(0, held)
	got := slices.Clone(asker.units)
	slices.SortFunc(got, func(a, b wire.UnitEpoch) int { return int(a.Unit) - int(b.Unit) })
	if !slices.Equal(got, held) {
		t.Errorf("released %v, want each of %v once", got, held)
	}
	if n := len(w.cache.Holdings()[0].Units); n != 0 {
		t.Errorf("%d units are still held", n)
	}
}
