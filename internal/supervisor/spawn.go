package supervisor

import (
	"os/exec"
	"runtime"
	"syscall"
)

// spawner starts processes from one thread that lives as long as the
// supervisor: the kernel sends a child its parent-death signal when the
// *thread* that started it ends.
type spawner struct {
	jobs chan func()
	done chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		runtime.LockOSThread()
		defer close(s.done)
		for job := range s.jobs {
			job()
		}
		// Ending without UnlockOSThread ends the thread too.
	}()
	return s
}

// start starts cmd so that it dies with the supervisor and does not see the
// terminal's signals: the supervisor tells its children when to stop.
func (s *spawner) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	errc := make(chan error, 1)
	s.jobs <- func() { errc <- cmd.Start() }
	return <-errc
}

func (s *spawner) close() {
	close(s.jobs)
	<-s.done
}
