package overlap

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"strings"
	"testing"
)

// TestRunDecode: every case is there, all logits were bit-equal to those over
// local KV (the sampler checks), and the figures fit each other and every output.
func TestRunDecode(t *testing.T) {
	opt := DecodeOptions{Model: tiny(), History: []int{32, 64}, Batch: []int{1, 3}, Tokens: 4, Rounds: 1, Tries: 1}
	r, err := RunDecode(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cells) != 2*(3+5) || !r.Emulated || r.Compute <= 0 {
		t.Fatalf("%d cells, %+v", len(r.Cells), r)
	}
	for _, c := range r.Cells {
		n := c.streaming()
		if c.Step <= 0 || c.Least <= 0 || c.Rate <= 0 || (c.Bound == 0) != (c.Way == MixedInTurns) ||
			(c.Stream > 0) != (n > 0) || (c.Streamed > 0) != (n > 0) || (c.AtHome > 0) != (n < c.Batch) {
			t.Errorf("%+v", c)
		}
		if c.Way == Resident && (c.AtHomeRatio != 1 || c.Link != "") || c.Way != Resident && c.Link != "NVLink" {
			t.Errorf("%+v", c)
		}
	}
	var out bytes.Buffer
	if err := r.WriteTable(&out); err != nil || strings.Count(out.String(), MixedInTurns) != 2 || !strings.Contains(out.String(), "emulated") {
		t.Errorf("%v\n%s", err, out.String())
	}
	out.Reset()
	var back DecodeResult
	if err := r.WriteJSON(&out); err != nil || json.Unmarshal(out.Bytes(), &back) != nil || len(back.Cells) != len(r.Cells) {
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
}

// TestTurnsAreTaken: on a link so slow that streams outlast computing, sequences
// at home draw several tokens for each of a streamed one in turns, and as many
// without.
func TestTurnsAreTaken(t *testing.T) {
	opt := DecodeOptions{Model: tiny(), History: []int{64}, Batch: []int{2}, Tokens: 6, Links: []Link{{Name: "slow", Speed: 0.005}}, Rounds: 1, Tries: 1}
	r, err := RunDecode(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Cells {
		switch ratio := c.Streamed / c.AtHome; c.Way {
		case MixedAlways:
			if ratio < 1-1e-9 || ratio > 1+1e-9 {
				t.Errorf("streamed over at home is %v: %+v", ratio, c)
			}
		case MixedInTurns:
			if ratio < 1.5 {
				t.Errorf("streamed over at home is %v: %+v", ratio, c)
			}
		}
	}
}

// TestDecodeNoticesWrongBytes: a lender with other bytes changes the logits.
func TestDecodeNoticesWrongBytes(t *testing.T) {
	opt := DecodeOptions{Model: tiny(), History: []int{64}, Batch: []int{2}, Tokens: 2}
	if err := opt.defaults(); err != nil {
		t.Fatal(err)
	}
	w, err := newWorld(&Options{Model: opt.Model, History: []int{2 * 64}, New: []int{2 * opt.room()}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if err := w.openLinks([]Link{{Name: "NVLink", BytesPerSec: 1e9}}); err != nil {
		t.Fatal(err)
	}
	mem := w.links["NVLink"].remote.Bytes()[w.offset(4, 1):][:w.layerBytes] // of sequence 1
	for i := range mem {
		mem[i] ^= 0x80 // other signs
	}
	d := &decoder{world: w, opt: &opt, expected: map[[2]int][]uint64{}}
	for _, c := range decodeCells(&opt) {
		_, err := d.measure(t.Context(), c)
		// In the mixed batches sequence 1 is the one at home.
		if wrong := c.Way == OneBuffer || c.Way == TwoBuffers; wrong != (err != nil && strings.Contains(err.Error(), "logits differ")) {
			t.Errorf("%s: %v", c.Way, err)
		}
	}
}

func TestDecodeRefusals(t *testing.T) {
	for want, opt := range map[string]DecodeOptions{
		"History": {History: []int{17}}, "Batch": {Batch: []int{0}}, "Rounds": {Rounds: -1}, "Tries": {Tries: -1},
		"Tokens": {Tokens: -1}, "Links": {Links: []Link{{Speed: 0}}},
	} {
		if _, err := RunDecode(t.Context(), opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
