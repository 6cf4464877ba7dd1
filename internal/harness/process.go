package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/internal/supervisor"
)

// Process is one process of a system as /proc shows it.
type Process struct {
	Name string // of the model, supervisor.GatewayName, or "supervisor"
	PID  int
}

func (p Process) String() string { return fmt.Sprintf("%s (pid %d)", p.Name, p.PID) }

// Processes lists the system's processes that have not ended: all whose
// command line names the run directory, whoever started them.
func (s *System) Processes() []Process {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var out []Process
	for _, d := range dirs {
		pid, err := strconv.Atoi(filepath.Base(d))
		if err != nil {
			continue
		}
		if name := s.nameOf(pid); name != "" {
			out = append(out, Process{name, pid})
		}
	}
	return out
}

// nameOf is the name of a process, "" if it is none of this system's or has
// ended (a zombie has no command line).
func (s *System) nameOf(pid int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	var args []string
	for a := range bytes.SplitSeq(raw, []byte{0}) {
		args = append(args, string(a))
	}
	value := func(flag string) string {
		if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
			return args[i+1]
		}
		return ""
	}
	if len(args) < 2 || value("--run-dir") != s.RunDir {
		return ""
	}
	switch args[1] {
	case "up":
		return "supervisor"
	case supervisor.GatewayName:
		return supervisor.GatewayName
	default:
		return value("--model")
	}
}

// ErrGone says that a process is not there at the moment.
var ErrGone = errors.New("no such process at the moment")

// Find returns the process with a name; ErrGone if there is none.
func (s *System) Find(name string) (Process, error) {
	for _, p := range s.Processes() {
		if p.Name == name {
			return p, nil
		}
	}
	return Process{}, fmt.Errorf("%s: %w", name, ErrGone)
}

// Signal sends a signal to a process, never to another that got its number.
func (s *System) Signal(p Process, sig unix.Signal) error { return s.signal(p, sig) }

func (s *System) signal(p Process, sig unix.Signal) error {
	fd, err := s.open(p)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		return fmt.Errorf("%v to %v: %w", sig, p, err)
	}
	return nil
}

// open returns a pidfd of p.
func (s *System) open(p Process) (int, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err == nil && s.nameOf(p.PID) != p.Name {
		unix.Close(fd)
		err = ErrGone
	}
	if err != nil {
		return -1, fmt.Errorf("%v: %w", p, err)
	}
	return fd, nil
}

// Cut shuts down connections of a process, so that both ends see them break:
// its links to other processes, the clients' if it is the gateway, and with
// control also its connection to the supervisor. pick chooses among them; nil
// means all. It returns how many were cut. The process is not asked: the
// kernel must allow pidfd_getfd, as it does for one's own processes.
func (s *System) Cut(p Process, control bool, pick func() bool) (int, error) {
	pidfd, err := s.open(p)
	if err != nil {
		return 0, err
	}
	defer unix.Close(pidfd)
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID))
	if err != nil {
		return 0, fmt.Errorf("%v: %w", p, err)
	}
	n := 0
	for _, e := range entries {
		number, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", p.PID, number))
		if !strings.HasPrefix(to, "socket:") {
			continue
		}
		fd, err := unix.PidfdGetfd(pidfd, number, 0)
		if err == unix.EBADF {
			continue // closed meanwhile
		}
		if err != nil {
			return n, fmt.Errorf("descriptor %d of %v: %w", number, p, err)
		}
		if s.cuttable(fd, control) && (pick == nil || pick()) && unix.Shutdown(fd, unix.SHUT_RDWR) == nil {
			n++
		}
		unix.Close(fd)
	}
	return n, nil
}

// cuttable reports whether a socket is a connection that may be cut.
func (s *System) cuttable(fd int, control bool) bool {
	if listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || listens != 0 {
		return false
	}
	local, err := unix.Getsockname(fd)
	if err != nil {
		return false
	}
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return false
	}
	for _, a := range []unix.Sockaddr{local, peer} {
		if u, ok := a.(*unix.SockaddrUnix); ok && u.Name == supervisor.ControlSocket(s.RunDir) {
			return control
		}
	}
	return true
}

// Alive reports whether a process has not ended.
func (s *System) Alive(p Process) bool { return s.nameOf(p.PID) == p.Name }

// Units is how many units a worker's arena has, 0 if it is no worker.
func (v View) Units(worker string) int {
	for _, l := range v.Lending {
		if l.Worker == worker {
			return l.Units
		}
	}
	return 0
}
