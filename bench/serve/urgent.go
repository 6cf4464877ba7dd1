package serve

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// urgentNice is the niceness of the generator while it plays.
const urgentNice = -15

// urgent makes the generator's threads more important than those of the servers
// that it shares the machine with: a request that leaves late because the cores
// are busy would be a fault of the measurement. It reports false where the
// system does not allow it; restore ends it. What is started before restore is
// called becomes as important.
func urgent() (restore func(), ok bool) {
	before, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil || !renice(urgentNice) {
		return func() {}, false
	}
	// The system call's result is 20 less the niceness.
	return func() { renice(20 - before) }, true
}

// renice sets the niceness of every thread of this process. New ones inherit
// it. A thread that has just ended does not matter.
func renice(nice int) bool {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return false
	}
	ok := false
	for _, t := range tasks {
		if id, err := strconv.Atoi(t.Name()); err == nil && unix.Setpriority(unix.PRIO_PROCESS, id, nice) == nil {
			ok = true
		}
	}
	return ok
}
