package overlap

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func even(n int, attention, ffn float64) pass {
	p := pass{buffers: 1}
	for range n {
		p.attention, p.ffn = append(p.attention, attention), append(p.ffn, ffn)
	}
	return p
}

// TestBoundIsTheFormula: for equal layers the schedule that is played through
// stalls as the formulas say.
func TestBoundIsTheFormula(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) float64 { return float64(rapid.IntRange(1, 1000).Draw(t, name)) }
		n := rapid.IntRange(3, 30).Draw(t, "layers")
		attention, ffn, load := draw("attention"), draw("ffn"), draw("load")
		p := even(n, attention, ffn)
		p.streamed = load
		near := func(what string, got, want float64) {
			t.Helper()
			if math.Abs(got-want) > 1e-6*max(1, math.Abs(want)) {
				t.Fatalf("%s: %v, want %v", what, got, want)
			}
		}
		one := p.stalls()
		near("first layer", one[0], load)
		for l := 1; l < n; l++ {
			near("one buffer", one[l], max(0, load-ffn))
		}
		p.buffers = 2
		two := p.stalls()
		near("first layer, two buffers", two[0], load)
		for l := 2; l < n; l++ {
			near("two buffers", two[l], max(0, load-attention-ffn))
		}
		// While the first layer waited, nothing could be loaded for the third;
		// the second load follows the first at once.
		near("second layer, two buffers", two[1], max(0, load-attention-ffn))

		p.streamed, p.promoted = 0, load
		home, elapsed := p.stalls(), 0.0
		for l := range n {
			near("promoted", home[l], max(0, float64(l+1)*load-elapsed))
			elapsed += home[l] + attention + ffn
		}
		p.lead = float64(n) * load
		near("promoted while it queued", sum(p.stalls()), 0)
		p.promoted, p.streamed, p.lead = 0, load, load
		near("first layer while it queued", p.stalls()[0], 0)
	})
}

// TestMixedBound: both kinds on one link take at least as long as either, and
// no longer than if the link did one after the other.
func TestMixedBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) float64 { return float64(rapid.IntRange(1, 1000).Draw(t, name)) }
		n := rapid.IntRange(1, 20).Draw(t, "layers")
		p := pass{buffers: rapid.IntRange(1, 2).Draw(t, "buffers"), embed: draw("embed")}
		for range n {
			p.attention, p.ffn = append(p.attention, draw("attention")), append(p.ffn, draw("ffn"))
		}
		a, b := draw("streamed"), draw("promoted")
		stall := func(s, w float64) float64 {
			q := p
			q.streamed, q.promoted = s, w
			out := q.stalls()
			if len(out) != n {
				t.Fatalf("%d stalls of %d layers", len(out), n)
			}
			return sum(out)
		}
		both := stall(a, b)
		if least := max(stall(a, 0), stall(0, b)); both < least-1e-6 {
			t.Fatalf("mixed stalls %v, one kind alone %v", both, least)
		}
		if most := float64(n) * (a + b); both > most+1e-6 {
			t.Fatalf("mixed stalls %v, all loads together take %v", both, most)
		}
	})
}
