package chaos

import (
	"strings"
	"testing"
)

// TestVerdict: a run that was interrupted does not claim what it did not check.
func TestVerdict(t *testing.T) {
	for interrupted, want := range map[bool]string{false: "nothing left behind", true: "were not looked for"} {
		var b strings.Builder
		if err := (&Result{Interrupted: interrupted}).WriteTable(&b); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), want) {
			t.Errorf("interrupted %v: no %q in %s", interrupted, want, b.String())
		}
	}
}
