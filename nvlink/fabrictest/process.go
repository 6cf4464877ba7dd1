package fabrictest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/nvlink"
)

// childEnv marks a test binary that was started as the second process.
const childEnv = "KVLEND_FABRICTEST_CHILD"

// Processes is how the suite shares an arena with a second process.
type Processes struct {
	// Export prepares an arena for a child: its files become descriptors 3,
	// 4, ... there, and handle is passed on as text.
	Export func(t testing.TB, a nvlink.Arena) (files []*os.File, handle string)
	// Open runs in the child: it makes a fabric of its own and opens the
	// arena of the handle, and makes an arena of the same size for itself.
	Open func(handle string, size int64) (f nvlink.Fabric, shared, own nvlink.Arena, err error)
}

// Main is a TestMain's first call: in a child process it serves the parent
// and reports true, and TestMain must return.
func Main(p Processes) (child bool) {
	if os.Getenv(childEnv) == "" {
		return false
	}
	if err := serve(p, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stdout, "error", err)
	}
	return true
}

// RunProcesses starts this test binary once more as a child, which opens an
// arena of the parent and copies into and out of it on its own streams.
func RunProcesses(t *testing.T, h Harness, p Processes) {
	r := newRig(t, h)
	const size = 1 << 20
	a := r.arena("shared", 1, size)
	want := r.fill(a, 20)
	c := startChild(t, r, p, a)

	// What the parent wrote, the child reads; it copies it to an arena of
	// its own and from there, reversed by halves, back.
	c.ask(t, "load", "ok")
	c.ask(t, "store", "ok")
	want = append(bytes.Clone(want[size/2:]), want[:size/2]...)
	if !bytes.Equal(r.read(a, 0, size), want) {
		t.Fatal("the parent does not see what the child stored")
	}

	// Once more with what the parent's own stream writes now.
	src := r.arena("src", 0, size)
	want = r.fill(src, 21)
	s := r.stream("s")
	r.must(s.CopyBatch([]nvlink.Copy{piece(a, 0, src, 0, size)}))
	r.must(r.sync(s))
	c.ask(t, "load", "ok")
	r.fill(a, 22)
	c.ask(t, "store", "ok")
	want = append(bytes.Clone(want[size/2:]), want[:size/2]...)
	if !bytes.Equal(r.read(a, 0, size), want) {
		t.Fatal("the child did not see the parent's second copy")
	}
	c.ask(t, "close", "ok")

	// A child that dies takes nothing with it.
	dying := startChild(t, r, p, a)
	dying.ask(t, "load", "ok")
	if err := dying.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(r.read(a, 0, size), want) {
		t.Fatal("the arena changed when a child died")
	}
}

type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(t *testing.T, r *rig, p Processes, a nvlink.Arena) *child {
	t.Helper()
	exe, err := os.Executable()
	r.must(err)
	files, handle := p.Export(t, a)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.ExtraFiles = files
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	r.must(err)
	out, err := cmd.StdoutPipe()
	r.must(err)
	r.must(cmd.Start())
	t.Cleanup(func() {
		in.Close()
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Errorf("child: %v", err)
		}
	})
	c := &child{cmd: cmd, in: in, out: bufio.NewReader(out)}
	c.ask(t, fmt.Sprintf("open %d %s", a.Size(), handle), "ok")
	return c
}

// ask sends a line and compares the answer.
func (c *child) ask(t *testing.T, line, want string) {
	t.Helper()
	if _, err := fmt.Fprintln(c.in, line); err != nil {
		t.Fatalf("child, %q: %v", line, err)
	}
	got, err := c.out.ReadString('\n')
	if err != nil || strings.TrimSpace(got) != want {
		t.Fatalf("child answers %q with %q, %v", line, got, err)
	}
}

// serve is the child: one command per line, one answer per command.
func serve(p Processes, in io.Reader, out io.Writer) error {
	var c childState
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if err := c.do(p, lines.Text()); err != nil {
			return err
		}
		fmt.Fprintln(out, "ok")
	}
	return lines.Err()
}

type childState struct {
	f           nvlink.Fabric
	s           nvlink.Stream
	shared, own nvlink.Arena
}

func (c *childState) do(p Processes, line string) (err error) {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "open":
		var size int64
		var handle string
		if _, err := fmt.Sscanf(rest, "%d %s", &size, &handle); err != nil {
			return err
		}
		if c.f, c.shared, c.own, err = p.Open(handle, size); err != nil {
			return err
		}
		c.s, err = c.f.NewStream(c.own.Device(), "child")
		return err
	case "load":
		return c.copy([]nvlink.Copy{piece(c.own, 0, c.shared, 0, c.own.Size())})
	case "store":
		half := c.own.Size() / 2
		return c.copy([]nvlink.Copy{piece(c.shared, 0, c.own, half, half), piece(c.shared, half, c.own, 0, half)})
	case "close":
		return errors.Join(c.f.Close(), c.shared.Close(), c.own.Close())
	}
	return fmt.Errorf("unknown command %q", line)
}

func (c *childState) copy(pieces []nvlink.Copy) error {
	if err := c.s.CopyBatch(pieces); err != nil {
		return err
	}
	e, err := c.s.Record()
	if err != nil {
		return err
	}
	return e.Wait(context.Background())
}
