package lending

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRun: every operation is measured, blocks are really moved (Run itself
// checks that), and nothing is left running.
func TestRun(t *testing.T) {
	r, err := Run(t.Context(), Options{Held: []int{8, 32}, Rounds: 16, Step: 4 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for _, held := range []int{8, 32} {
		for _, op := range operations {
			if x := r.row(held, op); x == nil || x.N == 0 || x.P50 <= 0 || x.P99 < x.P50 || x.Max < x.P99 {
				t.Errorf("%d held, %s: %+v", held, op, x)
			}
		}
		if step := r.row(held, stepTime); step.P50 < 4*time.Millisecond {
			t.Errorf("a step of at least 4ms took %v", step.P50)
		}
	}
	var text bytes.Buffer
	if err := r.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "growth of 'grant'") {
		t.Errorf("no growth in the report:\n%s", &text)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Held: []int{7}}, {Rounds: 9}, {Units: -1}, {Step: 1}} {
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}
