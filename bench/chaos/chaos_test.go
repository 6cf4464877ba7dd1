package chaos

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestChaos attacks a real system for 20 s, or for $KVLEND_CHAOS (such as 10m),
// with a seed that changes by the day.
func TestChaos(t *testing.T) {
	d := 20 * time.Second
	if v := os.Getenv("KVLEND_CHAOS"); v != "" {
		var err error
		if d, err = time.ParseDuration(v); err != nil {
			t.Fatalf("KVLEND_CHAOS: %v", err)
		}
	} else if testing.Short() {
		t.Skip("skipped in -short mode: half a minute of real processes")
	}
	binary := filepath.Join(t.TempDir(), "kvlend")
	c := exec.Command("go", "build", "-o", binary, "github.com/kvlend/kvlend/cmd/kvlend")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build of kvlend: %v\n%s", err, out)
	}
	r, err := Run(t.Context(), Options{Binary: binary, Duration: d, Seed: uint64(time.Now().Unix() / 86400)})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WriteTable(t.Output()); err != nil {
		t.Fatal(err)
	}
	if err := r.Err(); err != nil {
		t.Errorf("%v\ntimeline:\n%v\nend of the log:\n%s", err, r.Timeline, tail(r.Log, 100))
	}
	if faults := total(r.Faults); faults < int(d/(3*time.Second)) || r.Outcomes[string(right)] < 20 {
		t.Errorf("%d faults and %d right answers in %v: the test shows too little", faults, r.Outcomes[string(right)], d)
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
