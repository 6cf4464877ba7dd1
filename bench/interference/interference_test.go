package interference

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cores are two that this process may use.
func cores(t *testing.T) []int {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	var out []int
	for c := range runtime.NumCPU() * 64 {
		if set.IsSet(c) && len(out) < 2 {
			out = append(out, c)
		}
	}
	if len(out) < 2 {
		t.Skip("only one core can be used")
	}
	return out
}

func TestRun(t *testing.T) {
	var steps []string
	opt := Options{Model: "cedar", Cores: cores(t), Rounds: 3, Requests: 2, Prompt: 40, Tokens: 4, Lent: 4 << 20,
		Progress: func(s string) { steps = append(steps, s) }}
	res, err := Run(context.Background(), opt)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Modes) != 3 || res.Requests != 6 || len(steps) != 1+3*3 {
		t.Fatalf("result %+v, %q", res, steps)
	}
	for i, m := range res.Modes {
		for _, x := range []Times{m.TTFT, m.PerToken} {
			if !(x.P50 > 0 && x.P50 <= x.P99 && x.Ratio > 0 && x.P99Ratio > 0 && x.CPURatio > 0) || math.IsInf(x.Ratio, 0) {
				t.Errorf("%s: %+v", m.Name, x)
			}
			if i == 0 && (x.Ratio != 1 || x.P99Ratio != 1 || x.CPURatio != 1) {
				t.Errorf("alone against itself: %+v", x)
			}
		}
		if (m.BytesPerSec > 0) != (m.Name != Alone) {
			t.Errorf("%s: %g B/s", m.Name, m.BytesPerSec)
		}
	}
	if got := res.Modes[2].BytesPerSec; got > 1.2*0.1*res.Memory {
		t.Errorf("%g B/s with a budget of a tenth of %g", got, res.Memory)
	}
	var table, raw bytes.Buffer
	if err := res.WriteTable(&table); err != nil || strings.Count(table.String(), "link") != 2 {
		t.Errorf("%v\n%s", err, table.String())
	}
	var back Result
	if err := res.WriteJSON(&raw); err != nil || json.Unmarshal(raw.Bytes(), &back) != nil || back.Modes[1] != res.Modes[1] {
		t.Errorf("JSON: %v\n%s", err, raw.String())
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, bad := range []Options{
		{Model: "nobody"}, {Cores: []int{1}}, {Cores: []int{3, 3}}, {Cores: []int{-1, 0}}, {Rounds: -1}, {Tokens: 1}, {Lent: 5}, {Budget: 2},
	} {
		if _, err := Run(context.Background(), bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

func TestUnknownCoreIsAnError(t *testing.T) {
	opt := Options{Model: "cedar", Cores: []int{1000, cores(t)[0]}, Rounds: 1, Requests: 1, Prompt: 20, Tokens: 2, Lent: 1 << 20}
	if _, err := Run(context.Background(), opt); err == nil || !strings.Contains(err.Error(), "core 1000") {
		t.Errorf("error %v", err)
	}
}
