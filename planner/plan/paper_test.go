package plan

import (
	"math"
	"strings"
	"testing"
)

// TestFig9 pins what explains the paper's range, and by how much it misses.
func TestFig9(t *testing.T) {
	f, err := NewFig9()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "fig9.txt", f.WriteText)
	s := f.Sets[f.Nearest]
	if math.Abs(s.Low.Miss) > 0.02 || math.Abs(s.High.Miss) > 0.02 {
		t.Errorf("the nearest set misses by %+.3f and %+.3f", s.Low.Miss, s.High.Miss)
	}
	for _, c := range f.Cases {
		// The closed form that holds while a regular cache remains.
		l := map[string]float64{"LWM-1M-Text": 32, "Qwen3-8B": 36, "Qwen3-14B": 40, "Qwen3-32B": 64}[c.Master]
		if want := 1 + (l-1)/l*float64(c.Cw)/float64(c.Cm); c.Chunked > 10000 && math.Abs(c.Ratio/want-1) > 0.005 {
			t.Errorf("%s: %.3fx, the closed form says %.3fx", c.name(), c.Ratio, want)
		}
		if c.Whole >= c.Chunked && c.Chunked > 10000 {
			t.Errorf("%s: without chunks %d tokens, with chunks %d", c.name(), c.Whole, c.Chunked)
		}
	}
}

// TestFig9Configs: the printed configurations plan to the ratios of the figure.
func TestFig9Configs(t *testing.T) {
	f, err := NewFig9()
	if err != nil {
		t.Fatal(err)
	}
	s := f.Sets[f.Nearest]
	for _, c := range []struct {
		text string
		end  Fig9End
	}{{f.LowConfig, s.Low}, {f.HighConfig, s.High}} {
		p := mustPlan(t, c.text)
		if m := p.Model("master"); math.Abs(m.Master.Ratio/c.end.Ratio-1) > 0.002 || !p.Fits {
			t.Errorf("%s: planned %.3fx, the figure says %.3fx; %v", c.end.Case, m.Master.Ratio, c.end.Ratio, p.Findings)
		}
		if !strings.Contains(c.text, c.end.Case) {
			t.Errorf("%q is not the configuration of %s", c.text, c.end.Case)
		}
	}
}
