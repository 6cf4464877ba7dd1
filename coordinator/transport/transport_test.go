package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network is what the behaviour suite needs of a transport.
type network interface {
	dialer(server, client string) Dialer
	listen(server, client string) Listener
}

type simNet struct{ s *Sim }

func (n simNet) dialer(s, c string) Dialer   { return n.s.Dialer(s, c) }
func (n simNet) listen(s, c string) Listener { return n.s.Listen(s, c) }

type zmqNet struct {
	t *testing.T
	d *Dir
}

func (n zmqNet) dialer(s, c string) Dialer {
	d, err := n.d.Dialer(s, c)
	if err != nil {
		n.t.Fatal(err)
	}
	return d
}

func (n zmqNet) listen(s, c string) Listener {
	l, err := n.d.Listen(s, c)
	if err != nil {
		n.t.Fatal(err)
	}
	return l
}

// socketDir is short: t.TempDir can exceed what a socket path may hold.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func openDir(t testing.TB, o Options) *Dir {
	t.Helper()
	d, err := OpenDir(socketDir(t), o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// connect returns both ends of a new connection.
func connect(t *testing.T, l Listener, d Dialer) (client, server Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	client, err := d.Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	return client, server
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestBehaviour is what every transport promises.
func TestBehaviour(t *testing.T) {
	nets := map[string]func(t *testing.T) network{
		"sim": func(*testing.T) network { return simNet{NewSim(1, Faults{})} },
		"zmq": func(t *testing.T) network { return zmqNet{t, openDir(t, Options{})} },
	}
	for name, open := range nets {
		t.Run(name, func(t *testing.T) {
			n := open(t)
			t.Run("both ways in order", func(t *testing.T) { testOrder(t, n) })
			t.Run("sizes", func(t *testing.T) { testSizes(t, n) })
			t.Run("close reaches the peer", func(t *testing.T) { testClose(t, n) })
			t.Run("reconnect", func(t *testing.T) { testReconnect(t, n) })
			t.Run("contexts", func(t *testing.T) { testContexts(t, n) })
			t.Run("links are apart", func(t *testing.T) { testApart(t, n) })
		})
	}
}

func testOrder(t *testing.T, n network) {
	l := n.listen("order", "c")
	defer l.Close()
	client, server := connect(t, l, n.dialer("order", "c"))
	const count = 500
	send := func(c Conn) error {
		for i := range count {
			if err := c.Send(fmt.Append(nil, i)); err != nil {
				return err
			}
		}
		return nil
	}
	errs := make(chan error, 2)
	go func() { errs <- send(client) }()
	go func() { errs <- send(server) }()
	for _, c := range []Conn{server, client} {
		for i := range count {
			f, err := c.Recv()
			must(t, err)
			if string(f) != fmt.Sprint(i) {
				t.Fatalf("frame %d is %q", i, f)
			}
		}
	}
	must(t, <-errs)
	must(t, <-errs)
}

func testSizes(t *testing.T, n network) {
	l := n.listen("sizes", "c")
	defer l.Close()
	client, server := connect(t, l, n.dialer("sizes", "c"))
	if err := client.Send(make([]byte, MaxFrame+1)); !errors.Is(err, ErrTooLong) {
		t.Fatalf("a frame over the limit: %v", err)
	}
	for _, size := range []int{0, 1, 255, 256, bufferBytes - 1, bufferBytes, 1 << 20, MaxFrame} {
		want := bytes.Repeat([]byte{byte(size), 7}, size/2+1)[:size]
		errs := make(chan error, 1)
		go func() { errs <- client.Send(want) }()
		got, err := server.Recv()
		must(t, err)
		must(t, <-errs)
		if !bytes.Equal(got, want) {
			t.Fatalf("a frame of %d bytes arrived as %d", size, len(got))
		}
	}
}

func testClose(t *testing.T, n network) {
	l := n.listen("close", "c")
	defer l.Close()
	client, server := connect(t, l, n.dialer("close", "c"))
	must(t, client.Send([]byte("last words")))
	must(t, client.Close())
	must(t, client.Close())
	f, err := server.Recv()
	must(t, err)
	if string(f) != "last words" {
		t.Fatalf("got %q", f)
	}
	if _, err := server.Recv(); !errors.Is(err, ErrClosed) {
		t.Fatalf("Recv from a closed peer: %v", err)
	}
	if _, err := client.Recv(); !errors.Is(err, ErrClosed) {
		t.Fatalf("Recv after Close: %v", err)
	}
	if err := client.Send([]byte("x")); !errors.Is(err, ErrClosed) {
		t.Fatalf("Send after Close: %v", err)
	}
}

func testReconnect(t *testing.T, n network) {
	d := n.dialer("again", "c")
	if _, err := d.Dial(t.Context()); err == nil {
		t.Fatal("dialed where nobody listens")
	}
	l := n.listen("again", "c")
	for range 10 {
		client, server := connect(t, l, d)
		must(t, client.Send([]byte("hi")))
		_, err := server.Recv()
		must(t, err)
		must(t, client.Close())
	}
	must(t, l.Close())
	must(t, l.Close())
	if _, err := l.Accept(t.Context()); !errors.Is(err, ErrClosed) {
		t.Fatalf("Accept after Close: %v", err)
	}
	if _, err := d.Dial(t.Context()); err == nil {
		t.Fatal("dialed a closed listener")
	}
	l = n.listen("again", "c")
	defer l.Close()
	connect(t, l, d)
}

func testContexts(t *testing.T, n network) {
	l := n.listen("ctx", "c")
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Accept(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Accept: %v", err)
	}
	if _, err := n.dialer("ctx", "c").Dial(ctx); err == nil {
		t.Errorf("Dial ignored its context")
	}
}

func testApart(t *testing.T, n network) {
	a, b := n.listen("w", "a"), n.listen("w", "b")
	defer a.Close()
	defer b.Close()
	ca, sa := connect(t, a, n.dialer("w", "a"))
	cb, sb := connect(t, b, n.dialer("w", "b"))
	must(t, ca.Send([]byte("from a")))
	must(t, cb.Send([]byte("from b")))
	for c, want := range map[Conn]string{sa: "from a", sb: "from b"} {
		f, err := c.Recv()
		must(t, err)
		if string(f) != want {
			t.Errorf("got %q, want %q", f, want)
		}
	}
}
