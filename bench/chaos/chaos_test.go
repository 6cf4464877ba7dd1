package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestChaos attacks a real system, and one with disks, for 20 s each, or for
// $KVLEND_CHAOS (such as 10m), with a seed that changes by the day.
func TestChaos(t *testing.T) {
	d := 20 * time.Second
	if v := os.Getenv("KVLEND_CHAOS"); v != "" {
		var err error
		if d, err = time.ParseDuration(v); err != nil {
			t.Fatalf("KVLEND_CHAOS: %v", err)
		}
	} else if testing.Short() {
		t.Skip("skipped in -short mode: a minute of real processes")
	}
	binary := filepath.Join(t.TempDir(), "kvlend")
	c := exec.Command("go", "build", "-o", binary, "github.com/kvlend/kvlend/cmd/kvlend")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build of kvlend: %v\n%s", err, out)
	}
	for _, overflow := range []bool{false, true} {
		t.Run(fmt.Sprintf("overflow=%t", overflow), func(t *testing.T) {
			attack(t, Options{Binary: binary, Duration: d, Seed: uint64(time.Now().Unix() / 86400), Overflow: overflow})
		})
	}
}

func attack(t *testing.T, opt Options) {
	r, err := Run(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WriteTable(t.Output()); err != nil {
		t.Fatal(err)
	}
	if err := r.Err(); err != nil {
		t.Errorf("%v\ntimeline:\n%v\nend of the log:\n%s", err, r.Timeline, tail(r.Log, 100))
	}
	if faults := total(r.Faults); faults < int(opt.Duration/(3*time.Second)) || r.Outcomes[string(right)] < 20 {
		t.Errorf("%d faults and %d right answers in %v: the test shows too little", faults, r.Outcomes[string(right)], opt.Duration)
	}
	if opt.Overflow && r.Pool == 0 {
		t.Error("no answer began with tokens from the disks")
	}
}

func total(faults map[string]map[string]int) (n int) {
	for _, kinds := range faults {
		for _, k := range kinds {
			n += k
		}
	}
	return n
}
