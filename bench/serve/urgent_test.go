package serve

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestUrgent: what was raised is as it was afterwards.
func TestUrgent(t *testing.T) {
	nice := func() int {
		v, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
		if err != nil {
			t.Fatal(err)
		}
		return 20 - v
	}
	before := nice()
	restore, ok := urgent()
	if !ok {
		t.Logf("this user may not raise priorities")
		if nice() != before {
			t.Errorf("niceness %d, was %d", nice(), before)
		}
		return
	}
	if nice() != urgentNice {
		t.Errorf("niceness %d, want %d", nice(), urgentNice)
	}
	if restore(); nice() != before {
		t.Errorf("niceness %d, was %d", nice(), before)
	}
}
