package roofline

import (
	"bytes"
	"testing"

	"github.com/kvlend/kvlend/engine/kernels"
)

// TestMeasure checks that figures are there and plausible: a share above one
// means that the roof was measured wrong.
func TestMeasure(t *testing.T) {
	r := Measure(2)
	t.Logf("%+v", r)
	if r.ReadOne <= 0 || r.ReadAll <= 0 || r.FloatOne <= 0 || r.FloatAll <= 0 {
		t.Errorf("a figure is missing: %+v", r)
	}
}

// TestOperators runs each measurement once, small.
func TestOperators(t *testing.T) {
	k, err := kernels.New(kernels.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	roof := Roof{Threads: 2, ReadAll: 1e9, FloatAll: 1e9}
	rs, err := MatMul(k, roof, 16, 1)
	if err != nil || len(rs) != len(shapes) {
		t.Fatalf("MatMul: %d results, error %v", len(rs), err)
	}
	for _, c := range [][2]int{{64, 2}, {30000, 1}} {
		r, err := Attention(k, roof, c[0], c[1], 1)
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	for _, r := range rs {
		if r.Time <= 0 || r.Bytes <= 0 || r.Flops <= 0 || (r.OfPeak > 0) == (r.OfRead > 0) {
			t.Errorf("implausible: %+v", r)
		}
		t.Log(r)
	}
}

// BenchmarkReport prints the whole report once.
func BenchmarkReport(b *testing.B) {
	for _, threads := range []int{1, 2} {
		var out bytes.Buffer
		if err := Report(&out, kernels.Options{Threads: threads}, 20); err != nil {
			b.Fatal(err)
		}
		b.Log("\n" + out.String())
	}
}
