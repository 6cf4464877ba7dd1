package device

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLockFault: a limit that is too low is named with what is needed.
func TestLockFault(t *testing.T) {
	low := func() (uint64, error) { return 8 << 20, nil }
	refused := fmt.Errorf("register 1 regions of memory: %w", unix.ENOMEM)
	text := lockFault(refused, 32<<20, low)
	for _, want := range []string{"RLIMIT_MEMLOCK is 8192 KiB", "32768 KiB", "ulimit -l", "LimitMEMLOCK"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
	other := errors.New("other")
	if text := lockFault(other, 1, low); text != "other" {
		t.Errorf("another error: %q", text)
	}
	if text := lockFault(refused, 1, func() (uint64, error) { return math.MaxUint64, nil }); text != refused.Error() {
		t.Errorf("without a limit: %q", text)
	}
	if _, err := memlock(); err != nil {
		t.Error(err)
	}
}
