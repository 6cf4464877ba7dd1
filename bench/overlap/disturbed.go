package overlap

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// waitedForCore is how long threads of this process have been runnable without
// a core since they began (/proc/self/task/*/schedstat, Linux). On a machine
// that others use too, a pass that had to wait for a core says nothing about
// overlap. 0 where the kernel does not tell.
func waitedForCore() time.Duration {
	files, err := filepath.Glob("/proc/self/task/*/schedstat")
	if err != nil {
		return 0
	}
	var total int64
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		var ran, waited int64
		if n, _ := fmt.Sscan(string(b), &ran, &waited); n == 2 {
			total += waited
		}
	}
	return time.Duration(total)
}
