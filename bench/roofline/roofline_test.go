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
