//go:build cuda && cgo

package cuda

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/nvlink"
)

// borrowerEnv marks a test binary that was started as a borrower.
const borrowerEnv = "KVLEND_CUDATEST_BORROWER"

// borrowerMain is a process that opens two arenas, whose handles it reads, one a
// line, from descriptor 3, a Unix socket, with a file for each that has one.
// Then it copies for ever from the first to the second.
func borrowerMain() bool {
	if os.Getenv(borrowerEnv) == "" {
		return false
	}
	if err := borrow(); err != nil {
		fmt.Println("error", err)
	}
	return true
}

func borrow() error {
	sock := os.NewFile(3, "socket")
	conn, err := net.FileConn(sock)
	if err != nil {
		return err
	}
	f, err := New(Config{Library: os.Getenv(libraryEnv), Crossover: 64 << 10})
	if err != nil {
		return err
	}
	var arenas []*Arena
	for range 2 {
		a, err := receiveArena(f, conn.(*net.UnixConn))
		if err != nil {
			return err
		}
		arenas = append(arenas, a)
	}
	s, err := f.Stream("gpu0", "borrower")
	if err != nil {
		return err
	}
	fmt.Println("copying")
	for {
		if err := s.CopyBatch([]nvlink.Copy{piece(arenas[1], 0, arenas[0], 0, arenas[0].Size()/2)}); err != nil {
			return err
		}
		if err := wait(s); err != nil {
			return err
		}
	}
}

func receiveArena(f *Fabric, conn *net.UnixConn) (*Arena, error) {
	text, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := conn.ReadMsgUnix(text, rights)
	if err != nil {
		return nil, err
	}
	h, err := ParseHandle(string(text[:n]))
	if err != nil {
		return nil, err
	}
	var file *os.File
	if m > 0 {
		msgs, err := unix.ParseSocketControlMessage(rights[:m])
		if err != nil {
			return nil, err
		}
		fds, err := unix.ParseUnixRights(&msgs[0])
		if err != nil {
			return nil, err
		}
		file = os.NewFile(uintptr(fds[0]), "arena")
		defer file.Close()
	}
	return f.Open(h, file, "borrowed")
}

func sendArena(conn *net.UnixConn, a *Arena) error {
	h, file, err := a.Export()
	if err != nil {
		return err
	}
	var rights []byte
	if file != nil {
		defer file.Close()
		rights = unix.UnixRights(int(file.Fd()))
	}
	_, _, err = conn.WriteMsgUnix([]byte(h.String()), rights, nil)
	return err
}

// startBorrower starts a borrower and gives it the arenas over a Unix socket.
func startBorrower(t *testing.T, arenas ...*Arena) *exec.Cmd {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	c, err := net.FileConn(ours)
	must(t, err)
	defer c.Close()
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), borrowerEnv+"=1")
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	for _, a := range arenas {
		must(t, sendArena(c.(*net.UnixConn), a))
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "copying" {
		t.Fatalf("the borrower says %q, %v", line, err)
	}
	return cmd
}

// TestBorrowerKilledInMidCopy: the owner's arenas, streams and other bytes are
// none the worse, and the memory can be freed.
func TestBorrowerKilledInMidCopy(t *testing.T) {
	const size = 16 << 20
	for _, kind := range kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			f := newTestFabric(t, Config{Memory: kind, Crossover: 64 << 10})
			devs := testDevices()
			src, dst := mustArena(t, f, "src", devs[1], size), mustArena(t, f, "dst", devs[0], size)
			want, old := fill(t, src, 1), fill(t, dst, 2)
			if f.Emulated() {
				// A copy of 8 MiB takes 4 s: the kill comes in the middle of one.
				t.Setenv("KVLEND_FAKE_BYTES_PER_SEC", "2000000")
			}
			cmd := startBorrower(t, src, dst)
			t.Setenv("KVLEND_FAKE_BYTES_PER_SEC", "")
			some, half := make([]byte, 1<<16), make([]byte, size/2)
			for !bytes.Equal(some, want[:len(some)]) { // until it has begun
				_, err := dst.ReadAt(some, 0)
				must(t, err)
			}
			must(t, cmd.Process.Signal(syscall.SIGKILL))
			_ = cmd.Wait()
			_, err := dst.ReadAt(half, 0)
			must(t, err)
			if f.Emulated() && bytes.Equal(half, want[:size/2]) {
				t.Error("the copy was over before the kill")
			}
			got := contents(t, dst)
			if !bytes.Equal(got[size/2:], old[size/2:]) || !bytes.Equal(contents(t, src), want) {
				t.Error("a killed borrower changed what it had not to copy")
			}
			s := mustStream(t, f, devs[0])
			must(t, s.CopyBatch([]nvlink.Copy{piece(dst, 0, src, 0, size)}))
			must(t, wait(s))
			if !bytes.Equal(contents(t, dst), want) {
				t.Error("the owner's own copy is wrong afterwards")
			}
			must(t, s.Close())
			must(t, src.Close())
			must(t, dst.Close())
		})
	}
}
