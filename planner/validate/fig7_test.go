package validate

import (
	"math"
	"testing"
	"time"
)

// TestFigure7Load: histories lie within their bounds, have the mean that they were
// drawn for, and a run gives the same figure again.
func TestFigure7Load(t *testing.T) {
	s := &SwiftCache{Efficiency: 0.9, Overhead: 20 * time.Millisecond}
	for _, m := range figure7Models {
		for _, p := range figure7Paper {
			c, err := newFigure7Case(m.name, p.Dataset, s)
			if err != nil {
				t.Fatal(err)
			}
			for i, h := range c.histories {
				if h < 20_000 || h > 195_000 || m.name != "LWM-1M-Text" && h > 36_000 || i > 0 && h < c.histories[i-1] {
					t.Errorf("%s, %s: history %d has %d tokens", m.name, p.Dataset, i, h)
				}
			}
			if len(c.histories) < 4 {
				t.Errorf("%s, %s: %d conversations", m.name, p.Dataset, len(c.histories))
			}
		}
	}
	c, err := newFigure7Case("Qwen3-14B", "L-Eval", s)
	if err != nil {
		t.Fatal(err)
	}
	answers, err := shareGPTAnswers()
	if err != nil {
		t.Fatal(err)
	}
	if len(answers) != 300 || mean(answers) != 652 {
		t.Errorf("%d answers, %d tokens in the mean", len(answers), mean(answers))
	}
	var last float64
	for range 2 {
		p99, err := c.run(t.Context(), "lending", c.load(0.2, answers))
		if err != nil || last != 0 && p99 != last || math.IsNaN(p99) {
			t.Fatalf("P99 %v after %v, %v", p99, last, err)
		}
		last = p99
	}
}
