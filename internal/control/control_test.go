package control

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/coordinator/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a Handler that hands down one file and notes what it hears.
type recorder struct {
	file  *os.File
	err   error
	ready chan *wire.Ready
	gone  chan *wire.Join
}

func (r *recorder) Joined(j *wire.Join) (*wire.Welcome, []*os.File, error) {
	if r.err != nil {
		return nil, nil, r.err
	}
	w := &wire.Welcome{Config: []byte("version: 1\n"), Files: []wire.SharedFile{{Model: j.Model, Kind: "arena", Size: 5}}}
	return w, []*os.File{r.file}, nil
}
func (r *recorder) Ready(_ *wire.Join, m *wire.Ready) { r.ready <- m }
func (r *recorder) Gone(j *wire.Join)                 { r.gone <- j }

func serve(t *testing.T, r *recorder) (path string, stop func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s.sock")
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString("hello")
	r.file, r.ready, r.gone = f, make(chan *wire.Ready, 1), make(chan *wire.Join, 1)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, path, r) }()
	for { // the socket appears without a signal of its own
		if _, err := os.Stat(path); err == nil {
			break
		}
		select {
		case err := <-done:
			t.Fatal(err)
		case <-time.After(time.Millisecond):
		}
	}
	return path, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		f.Close()
	}
}

func TestJoinHandsDownFilesAndNoticesTheEnd(t *testing.T) {
	r := &recorder{}
	path, stop := serve(t, r)
	defer stop()
	c, err := Dial(context.Background(), path, &wire.Join{Model: "m", Role: "worker", PID: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Files) != 1 || string(c.Welcome.Config) != "version: 1\n" {
		t.Fatalf("got %d files, config %q", len(c.Files), c.Welcome.Config)
	}
	buf := make([]byte, 5)
	if n, err := unix.Pread(c.Files[0], buf, 0); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("the file says %q, %v", buf[:n], err)
	}
	unix.Close(c.Files[0])
	if err := c.Ready(&wire.Ready{Model: "m", Kernels: "go"}); err != nil {
		t.Fatal(err)
	}
	if m := <-r.ready; m.Kernels != "go" {
		t.Errorf("ready says %+v", m)
	}
	c.Close()
	if j := <-r.gone; j.Model != "m" {
		t.Errorf("%q is gone, want m", j.Model)
	}
}

func TestRefusalTellsWhy(t *testing.T) {
	r := &recorder{err: errors.New("no such model")}
	path, stop := serve(t, r)
	defer stop()
	_, err := Dial(context.Background(), path, &wire.Join{Model: "m", Role: "worker", PID: 1})
	if err == nil || err.Error() != "join refused: no such model" {
		t.Fatalf("error %v", err)
	}
}

func TestGoneWhenTheSupervisorStops(t *testing.T) {
	r := &recorder{}
	path, stop := serve(t, r)
	c, err := Dial(context.Background(), path, &wire.Join{Role: "gateway", PID: 1})
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(c.Files[0])
	stop()
	<-c.Gone()
	<-r.gone
	c.Close()
}

func TestNobodyThere(t *testing.T) {
	_, err := Dial(context.Background(), filepath.Join(t.TempDir(), "none.sock"), &wire.Join{Role: "gateway", PID: 1})
	if err == nil {
		t.Fatal("no error")
	}
}
