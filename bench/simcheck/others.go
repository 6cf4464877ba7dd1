package simcheck

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// others watches how much processor time goes to processes that are neither this
// one nor its children. Children count once they have ended.
type others struct {
	began time.Time
	busy  time.Duration // of the machine
	mine  time.Duration
}

func newOthers() others { return others{time.Now(), busyTime(), ownTime()} }

// share of the machine's processor time that others took since; 0 where the system
// does not tell.
func (o others) share() float64 {
	all := time.Since(o.began) * time.Duration(runtime.NumCPU())
	taken := busyTime() - o.busy - (ownTime() - o.mine)
	return min(1, max(0, taken.Seconds()/all.Seconds())) // ticks are coarse
}

// tick is the unit of /proc/stat: USER_HZ, which is 100 on every architecture that
// Go supports.
const tick = 10 * time.Millisecond

// busyTime is what all processors together have been busy (/proc/stat, Linux).
func busyTime() time.Duration {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	var user, nice, system, idle, wait, irq, soft, steal int64
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &wait, &irq, &soft, &steal); err != nil {
		return 0
	}
	return time.Duration(user+nice+system+irq+soft+steal) * tick
}

func ownTime() time.Duration {
	var sum time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err == nil {
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return sum
}
