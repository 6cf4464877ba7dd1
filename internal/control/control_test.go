package control

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/coordinator/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a Handler that hands down one file and notes what it hears.
type recorder struct {
	file  *os.File
	peer  *Peer
	err   error
	ready chan *wire.Ready
	gone  chan *wire.Join
}

func (r *recorder) Joined(j *wire.Join, p *Peer) (*wire.Welcome, []*os.File, error) {
	if r.err != nil {
		return nil, nil, r.err
	}
	r.peer = p
	w := &wire.Welcome{Config: []byte("version: 1\n"), Files: []wire.SharedFile{
		{Model: "other", Kind: "arena", Size: 5, Handle: "words", NoFile: true}, {Model: j.Model, Kind: "arena", Size: 5},
	}}
	return w, []*os.File{r.file}, nil
}
func (r *recorder) Received(_ *wire.Join, m wire.Message) { r.ready <- m.(*wire.Ready) }
func (r *recorder) Left(j *wire.Join)                     { r.gone <- j }

func ignore(wire.Message) {}

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
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, r) }()
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
	c, err := Dial(context.Background(), path, &wire.Join{Model: "m", Role: "worker", PID: 1}, ignore)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Files) != 2 || c.Files[0] != -1 || c.Welcome.Files[0].Handle != "words" || string(c.Welcome.Config) != "version: 1\n" {
		t.Fatalf("got %d files, config %q", len(c.Files), c.Welcome.Config)
	}
	buf := make([]byte, 5)
	if n, err := unix.Pread(c.Files[1], buf, 0); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("the file says %q, %v", buf[:n], err)
	}
	unix.Close(c.Files[1])
	if err := c.Send(&wire.Ready{Model: "m", Kernels: "go"}); err != nil {
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
	_, err := Dial(context.Background(), path, &wire.Join{Model: "m", Role: "worker", PID: 1}, ignore)
	if err == nil || err.Error() != "join refused: no such model" {
		t.Fatalf("error %v", err)
	}
}

func TestGoneWhenTheSupervisorStops(t *testing.T) {
	r := &recorder{}
	path, stop := serve(t, r)
	c, err := Dial(context.Background(), path, &wire.Join{Role: "gateway", PID: 1}, ignore)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(c.Files[1])
	stop()
	<-c.Gone()
	<-r.gone
	c.Close()
}

func TestNobodyThere(t *testing.T) {
	_, err := Dial(context.Background(), filepath.Join(t.TempDir(), "none.sock"), &wire.Join{Role: "gateway", PID: 1}, ignore)
	if err == nil {
		t.Fatal("no error")
	}
}

// TestSupervisorSpeaks: what the supervisor sends after the welcome arrives.
func TestSupervisorSpeaks(t *testing.T) {
	r := &recorder{}
	path, stop := serve(t, r)
	defer stop()
	got := make(chan wire.Message, 1)
	c, err := Dial(context.Background(), path, &wire.Join{Model: "m", Role: "worker", PID: 1}, func(m wire.Message) { got <- m })
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(c.Files[1])
	if err := c.Send(&wire.Ready{Model: "m"}); err != nil {
		t.Fatal(err)
	}
	<-r.ready // the peer is known by now
	if err := r.peer.Send(&wire.Gone{Model: "x", PID: 5}); err != nil {
		t.Fatal(err)
	}
	if g, ok := (<-got).(*wire.Gone); !ok || g.Model != "x" || g.PID != 5 {
		t.Errorf("got %+v", g)
	}
	c.Close()
	<-r.gone
}
