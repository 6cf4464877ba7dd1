package overlap

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tiny is a model whose passes take microseconds.
func tiny() *engine.Config {
	c := Shape()
	c.Layers, c.Hidden, c.Heads, c.KVHeads, c.HeadDim, c.FFN, c.Vocab = 3, 32, 2, 1, 16, 64, 64
	return c
}

// TestRun: every case is there, all its passes were bit-equal to local ones
// (Run checks), and the figures fit each other and every output.
func TestRun(t *testing.T) {
	opt := Options{Model: tiny(), History: []int{32, 160}, New: []int{5, 16}, Links: []Link{{Name: "fast", Speed: 1}, {Name: "slow", Speed: 0.1}}, Rounds: 1, Tries: 1}
	r, err := Run(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cells) != 2*2*2*4*2 || !r.Emulated || len(r.Links) != 2 || r.Compute <= 0 {
		t.Fatalf("%d cells, %+v", len(r.Cells), r)
	}
	if f, s := r.Links[0].BytesPerSec, r.Links[1].BytesPerSec; f < 9.99*s || f > 10.01*s {
		t.Errorf("links of %v and %v bytes per second", f, s)
	}
	for _, c := range r.Cells {
		if c.Step <= 0 || c.Load <= 0 || c.Bound < 0 || c.Bound > c.Load+1e-3 || c.Stall > c.Step || c.Compute <= 0 {
			t.Errorf("%+v", c)
		}
	}
	var out bytes.Buffer
	if err := r.WriteTable(&out); err != nil || strings.Count(out.String(), "promoted") != 8 || !strings.Contains(out.String(), "emulated") {
		t.Errorf("%v\n%s", err, out.String())
	}
	out.Reset()
	var back Result
	if err := r.WriteJSON(&out); err != nil || json.Unmarshal(out.Bytes(), &back) != nil || len(back.Cells) != len(r.Cells) || !back.Emulated {
		t.Errorf("JSON: %v", err)
	}
	out.Reset()
	if err := r.WritePlot(&out, "svg"); err != nil {
		t.Fatal(err)
	}
	for dec := xml.NewDecoder(&out); ; {
		if _, err := dec.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("the plot is no XML: %v", err)
		}
	}
	if err := r.WritePlot(io.Discard, "bmp"); err == nil {
		t.Error("a plot as bmp")
	}
}

// TestWrongBytesAreNoticed: a lender with other bytes changes the logits.
func TestWrongBytesAreNoticed(t *testing.T) {
	opt := Options{Model: tiny(), History: []int{64}, New: []int{4}, Links: []Link{{Name: "l", Speed: 1}}}
	if err := opt.defaults(); err != nil {
		t.Fatal(err)
	}
	w, err := newWorld(&opt)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if err := w.openLinks([]Link{{Name: "l", BytesPerSec: 1e9}}); err != nil {
		t.Fatal(err)
	}
	for _, way := range []string{OneBuffer, TwoBuffers, Promoted, Mixed} {
		c := &Cell{Link: "l", History: 64, New: 4, Way: way}
		if _, err := w.measure(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		mem := w.links["l"].remote.Bytes()[w.offset(0, 1):][:w.layerBytes]
		for i := range mem {
			mem[i] ^= 0x80 // other signs
		}
		if _, err := w.measure(t.Context(), c); err == nil || !strings.Contains(err.Error(), "logits differ") {
			t.Errorf("%s: %v", way, err)
		}
		for i := range mem {
			mem[i] ^= 0x80
		}
	}
}

func TestCalmKeepsTheLeastDisturbed(t *testing.T) {
	for _, c := range []struct {
		waited           []float64
		kept             float64
		again, disturbed int
	}{
		{[]float64{0}, 0, 0, 0},
		{[]float64{0.5, 0.001, 0}, 0.001, 1, 0},
		{[]float64{0.5, 0.2, 0.3}, 0.2, 2, 1},
	} {
		var r Result
		cell, n := &Cell{}, 0
		err := r.calm(3, func() (run, error) { n++; return run{step: 1, waited: c.waited[n-1]}, nil }, cell)
		if err != nil || len(cell.runs) != 1 || cell.runs[0].waited != c.kept || r.Again != c.again || r.Disturbed != c.disturbed {
			t.Errorf("%v: kept %+v, again %d, disturbed %d, %v", c.waited, cell.runs, r.Again, r.Disturbed, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	for want, opt := range map[string]Options{
		"History": {History: []int{17}}, "New": {New: []int{0}}, "Rounds": {Rounds: -1}, "Tries": {Tries: -1},
		"Links": {Links: []Link{{Speed: 0}}},
	} {
		if _, err := Run(t.Context(), opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
