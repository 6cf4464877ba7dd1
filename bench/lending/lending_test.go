package lending

import (
	"bytes"
	"fmt"
	"os"
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

// TestCompete: with shares two masters that need the same units have them long
// before one of them would return what it does not use.
func TestCompete(t *testing.T) {
	opt := CompeteOptions{Units: 20, Rounds: 1, Deadline: 100 * time.Millisecond, IdleReturn: 600 * time.Millisecond, Work: 10 * time.Millisecond}
	c, err := Compete(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range c.Rows {
		if len(x.FirstCome) != 1 || len(x.Shared) != 1 || x.FirstCome[0] < opt.IdleReturn/2 || x.Ratio() < 1.5 {
			t.Errorf("%+v", x)
		}
	}
	var text bytes.Buffer
	if err := c.WriteTable(&text); err != nil || !strings.Contains(text.String(), "each has half") {
		t.Errorf("%v\n%s", err, &text)
	}
	if _, err := Compete(t.Context(), CompeteOptions{Units: 3}); err == nil {
		t.Error("3 units were accepted")
	}
}

// BenchmarkCompete prints how long two masters wait for each other with a
// configuration's default times. Run it with -benchtime 1x; it takes a minute
// or two.
func BenchmarkCompete(b *testing.B) {
	for b.Loop() {
		c, err := Compete(b.Context(), CompeteOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if err := c.WriteTable(os.Stdout); err != nil {
			b.Fatal(err)
		}
		for i, x := range c.Rows {
			b.ReportMetric(x.Ratio(), fmt.Sprintf("ratio-%d", i+1))
		}
	}
}
