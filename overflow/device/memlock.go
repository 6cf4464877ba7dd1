package device

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// lockFault says why memory could not be registered, of which the kernel locks need
// bytes: most often it may not lock so much for this user.
func lockFault(err error, need int64, limit func() (uint64, error)) string {
	most, limitErr := limit()
	if !errors.Is(err, unix.ENOMEM) || limitErr != nil || most >= 1<<62 {
		return err.Error()
	}
	return fmt.Sprintf("%d KiB of memory for I/O are not registered, so that each operation maps its own: "+
		"RLIMIT_MEMLOCK is %d KiB, for all rings of the user (ulimit -l; LimitMEMLOCK= of a systemd unit; --ulimit memlock= of a container)", need>>10, most>>10)
}

// memlock is how many bytes this user's processes may lock.
func memlock() (uint64, error) {
	var l unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l)
	return l.Cur, err
}
