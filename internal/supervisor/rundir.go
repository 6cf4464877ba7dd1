package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxRunDir keeps socket paths below the 108 bytes that Unix sockets allow.
const maxRunDir = 60

// markCreated in the lock file says that the directory is to be removed in the end.
const markCreated = "created"

// RunDir is the directory of a system's sockets and lock: dir, or if that is
// empty $XDG_RUNTIME_DIR/kvlend where that exists, or kvlend-UID in the temporary directory.
func RunDir(dir string) (string, error) {
	if dir == "" {
		// Under sudo and in containers it may name what is not there.
		x := os.Getenv("XDG_RUNTIME_DIR")
		if st, err := os.Stat(x); x != "" && err == nil && st.IsDir() {
			dir = filepath.Join(x, "kvlend")
		} else {
			dir = filepath.Join(os.TempDir(), "kvlend-"+strconv.Itoa(os.Getuid()))
		}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if len(dir) > maxRunDir {
		return "", fmt.Errorf("run_dir: %q has %d bytes, at most %d (Unix sockets live in it)", dir, len(dir), maxRunDir)
	}
	return dir, nil
}

// ControlSocket is the supervisor's socket in a run directory.
func ControlSocket(dir string) string { return filepath.Join(dir, "supervisor.sock") }

// AdminSocket is the gateway's admin listener in a run directory.
func AdminSocket(dir string) string { return filepath.Join(dir, "admin.sock") }

// LinkDir is the directory of the links' sockets in a run directory.
func LinkDir(dir string) string { return filepath.Join(dir, "links") }

// runDir is a run directory that this process holds.
type runDir struct {
	path    string
	lock    *os.File
	created bool
}

// holdRunDir creates the directory if need be, makes sure that it is private,
// and locks it: two systems in one directory would answer each other's calls.
func holdRunDir(path string) (*runDir, error) {
	d := &runDir{path: path}
	err := os.Mkdir(path, 0o700)
	switch {
	case err == nil:
		d.created = true
	case !errors.Is(err, os.ErrExist):
		return nil, fmt.Errorf("run_dir: %w", err)
	}
	st, err := os.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("run_dir: %w", err)
	}
	var sys unix.Stat_t
	if err := unix.Lstat(path, &sys); err != nil {
		return nil, fmt.Errorf("run_dir: %w", err)
	}
	if !st.IsDir() || st.Mode().Perm()&0o077 != 0 || int(sys.Uid) != os.Getuid() {
		return nil, fmt.Errorf("run_dir: %s must be a directory of user %d with mode 0700, it is %s of user %d",
			path, os.Getuid(), st.Mode(), sys.Uid)
	}
	d.lock, err = os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("run_dir: %w", err)
	}
	before, _ := os.ReadFile(d.lock.Name())
	holder, mark, _ := strings.Cut(strings.TrimSpace(string(before)), " ")
	if err := unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		d.lock.Close()
		return nil, fmt.Errorf("run_dir: %s is in use by another kvlend (pid %s): stop it or choose another run_dir", path, holder)
	}
	// A system that was killed could not remove a directory that it had made.
	d.created = d.created || mark == markCreated
	note := strconv.Itoa(os.Getpid())
	if d.created {
		note += " " + markCreated
	}
	d.lock.Truncate(0)
	d.lock.WriteAt([]byte(note+"\n"), 0)
	d.sweep()
	return d, nil
}

// sweep removes sockets, ours or those of a system that was killed.
func (d *runDir) sweep() {
	socks, _ := filepath.Glob(filepath.Join(d.path, "*.sock"))
	for _, s := range socks {
		os.Remove(s)
	}
	os.RemoveAll(LinkDir(d.path))
}

func (d *runDir) release() {
	d.sweep()
	os.Remove(d.lock.Name())
	d.lock.Close()
	if d.created {
		os.Remove(d.path) // fails, rightly, if somebody put a file there
	}
}
