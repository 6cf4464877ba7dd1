package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

func TestDirRefuses(t *testing.T) {
	base := socketDir(t)
	loose := filepath.Join(base, "loose")
	must(t, os.Mkdir(loose, 0o700))
	must(t, os.Chmod(loose, 0o750)) // Mkdir is subject to the umask
	file := filepath.Join(base, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	long := filepath.Join(base, strings.Repeat("d", 100))
	for path, text := range map[string]string{
		loose:                      "mode 0750, must be 0700",
		file:                       "not a directory",
		long:                       "at most 107",
		filepath.Join(base, "a/b"): "no such file",
	} {
		if _, err := OpenDir(path, Options{}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("OpenDir(%s): error %v, want %q", filepath.Base(path), err, text)
		}
	}
}

func TestSocketNames(t *testing.T) {
	d := openDir(t, Options{})
	seen := map[string]string{}
	for _, p := range [][2]string{{"a", "b"}, {"a.b", ""}, {"", "a.b"}, {"b", "a"}, {"Qwen/Qwen3-8B", "x"}, {"Qwen/Qwen3-14B", "x"}, {"../../etc", "x"}} {
		path, err := d.socket(p[0], p[1])
		must(t, err)
		if filepath.Dir(path) != d.path {
			t.Errorf("socket of %q lies outside of its directory: %s", p, path)
		}
		if other, dup := seen[path]; dup {
			t.Errorf("%q and %s share %s", p, other, path)
		}
		seen[path] = strings.Join(p[:], ",")
	}
}

func TestStaleSocket(t *testing.T) {
	d := openDir(t, Options{})
	path, err := d.socket("s", "c")
	must(t, err)
	// What a killed process leaves behind: a bound socket that nobody serves.
	u, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	u.SetUnlinkOnClose(false)
	must(t, u.Close())
	l, err := d.Listen("s", "c")
	must(t, err)
	if _, err := d.Listen("s", "c"); !errors.Is(err, ErrInUse) {
		t.Errorf("a second server: %v", err)
	}
	must(t, l.Close())
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there after Close: %v", err)
	}
	must(t, os.WriteFile(path, []byte("x"), 0o600))
	if _, err := d.Listen("s", "c"); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file in the way: %v", err)
	}
}

// TestSilentClients holds more connections open than handshakes are allowed
// at a time and says nothing on any.
func TestSilentClients(t *testing.T) {
	d := openDir(t, Options{HandshakeTimeout: time.Minute})
	l, err := d.Listen("s", "c")
	must(t, err)
	defer l.Close()
	path, _ := d.socket("s", "c")
	for range maxPending + 4 {
		c, err := net.Dial("unix", path)
		must(t, err)
		defer c.Close()
	}
	dialer, err := d.Dialer("s", "c")
	must(t, err)
	client, server := connect(t, l, dialer)
	must(t, client.Send([]byte("through")))
	f, err := server.Recv()
	must(t, err)
	if string(f) != "through" {
		t.Errorf("got %q", f)
	}
}

func TestSilentServer(t *testing.T) {
	d := openDir(t, Options{HandshakeTimeout: 50 * time.Millisecond})
	path, _ := d.socket("s", "c")
	u, err := net.Listen("unix", path)
	must(t, err)
	defer u.Close()
	dialer, err := d.Dialer("s", "c")
	must(t, err)
	var nerr net.Error
	if _, err := dialer.Dial(t.Context()); !errors.As(err, &nerr) || !nerr.Timeout() {
		t.Errorf("a silent server: %v", err)
	}
	slow := openDir(t, Options{HandshakeTimeout: time.Hour})
	slow.path = d.path
	dialer, _ = slow.Dialer("s", "c")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := dialer.Dial(ctx); err == nil {
		t.Errorf("Dial outlived its context")
	}
}

// greeting is a valid ZMTP 3.0 greeting for the NULL mechanism.
func greeting() []byte {
	g := make([]byte, greetingLen)
	g[0], g[9], g[10] = 0xff, 0x7f, 3
	copy(g[12:], "NULL")
	return g
}

func property(name, value string) []byte {
	b := append([]byte{byte(len(name))}, name...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return append(b, value...)
}

func command(name string, body []byte) []byte {
	b := append([]byte{byte(len(name))}, name...)
	b = append(b, body...)
	return append([]byte{flagCommand, byte(len(b))}, b...)
}

// TestMalformedHandshakes sends what makes go-zeromq's sockets panic or hang.
func TestMalformedHandshakes(t *testing.T) {
	ready := func(body []byte) []byte { return append(greeting(), command("READY", body)...) }
	cases := map[string][]byte{
		"not ZMTP":          []byte(strings.Repeat("GET / HTTP/1.1\r\n", 8)),
		"old version":       append(append(greeting()[:10:10], 2), greeting()[11:]...),
		"wrong mechanism":   append(append(greeting()[:12:12], "PLAIN"...), greeting()[17:]...),
		"empty command":     append(greeting(), flagCommand, 0),
		"short property":    ready([]byte{200, 'x'}),
		"no property value": ready([]byte{1, 'x'}),
		"huge value":        ready([]byte{1, 'x', 0xff, 0xff, 0xff, 0xff}),
		"another socket":    ready(property("Socket-Type", "SUB")),
		"huge command":      append(greeting(), flagCommand|flagLong, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"message first":     append(greeting(), 0, 1, 'x'),
		"unknown flags":     append(greeting(), 0xf0, 1, 'x'),
	}
	d := openDir(t, Options{})
	l, err := d.Listen("s", "c")
	must(t, err)
	defer l.Close()
	path, _ := d.socket("s", "c")
	for name, sent := range cases {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("unix", path)
			must(t, err)
			defer c.Close()
			_, err = c.Write(sent)
			must(t, err)
			must(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
			// Ours to read: their greeting and READY, then the end.
			if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, net.ErrClosed) {
				var nerr net.Error
				if errors.As(err, &nerr) && nerr.Timeout() {
					t.Fatal("the connection was kept")
				}
			}
		})
	}
	dialer, _ := d.Dialer("s", "c")
	connect(t, l, dialer)
}

// raw makes an established connection whose client end is ours to misuse.
func raw(t *testing.T, o Options) (net.Conn, Conn) {
	t.Helper()
	d := openDir(t, o)
	l, err := d.Listen("s", "c")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	path, _ := d.socket("s", "c")
	c, err := net.Dial("unix", path)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_, err = c.Write(append(greeting(), command("READY", property("Socket-Type", "DEALER"))...))
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	server, err := l.Accept(ctx)
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	return c, server
}

func TestMalformedFrames(t *testing.T) {
	for name, c := range map[string]struct {
		sent []byte
		err  error
	}{
		"huge length":     {[]byte{flagLong, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, ErrTooLong},
		"negative length": {[]byte{flagLong, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, ErrTooLong},
		"over the limit":  {[]byte{flagLong, 0, 0, 0, 0, 0, 0, 4, 1}, ErrTooLong},
		"multipart":       {[]byte{flagMore, 1, 'x'}, ErrProtocol},
		"command":         {command("PING", nil), ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			peer, conn := raw(t, Options{MaxFrame: 1024})
			_, err := peer.Write(c.sent)
			must(t, err)
			if _, err := conn.Recv(); !errors.Is(err, c.err) {
				t.Errorf("error %v, want %v", err, c.err)
			}
			if _, err := conn.Recv(); err == nil {
				t.Errorf("the connection was used again")
			}
		})
	}
}

func TestWriteDeadline(t *testing.T) {
	_, conn := raw(t, Options{WriteTimeout: 50 * time.Millisecond})
	var nerr net.Error
	for range 1000 {
		if err := conn.Send(make([]byte, 1<<20)); err != nil {
			if !errors.As(err, &nerr) || !nerr.Timeout() {
				t.Errorf("error %v, want a timeout", err)
			}
			return
		}
	}
	t.Error("a peer that reads nothing never stopped Send")
}

// TestPlainDealer talks to an ordinary DEALER socket of go-zeromq.
func TestPlainDealer(t *testing.T) {
	d := openDir(t, Options{})
	l, err := d.Listen("s", "c")
	must(t, err)
	defer l.Close()
	path, _ := d.socket("s", "c")
	sock := zmq4.NewDealer(t.Context())
	must(t, sock.Dial("ipc://"+path))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := l.Accept(ctx)
	must(t, err)
	must(t, conn.Send([]byte("to you")))
	m, err := sock.Recv()
	must(t, err)
	must(t, sock.Send(zmq4.NewMsgString("to me")))
	f, err := conn.Recv()
	must(t, err)
	if string(m.Bytes()) != "to you" || string(f) != "to me" {
		t.Errorf("got %q and %q", m.Bytes(), f)
	}
	must(t, conn.Close())
	must(t, sock.Close())
}

// FuzzHandshake feeds bytes to a server as a whole conversation.
func FuzzHandshake(f *testing.F) {
	f.Add(append(greeting(), command("READY", property("Socket-Type", "DEALER"))...))
	f.Add(append(append(greeting(), command("READY", property("Socket-Type", "DEALER"))...), 0, 1, 'x'))
	f.Add(append(greeting(), command("READY", []byte{200, 'x'})...))
	f.Add(greeting())
	dir, err := OpenDir(socketDir(f), Options{HandshakeTimeout: 5 * time.Second, MaxFrame: 1024})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		a, b, err := unixPair(dir)
		must(t, err)
		defer a.Close()
		go func() {
			_, _ = a.Write(sent)
			_ = a.CloseWrite()
			_, _ = io.Copy(io.Discard, a)
		}()
		conn, err := handshake(b, dir.opts, true)
		if err != nil {
			_ = b.Close()
			return
		}
		defer conn.Close()
		for {
			frame, err := conn.Recv()
			if err != nil {
				return
			}
			if len(frame) > 1024 {
				t.Fatalf("a frame of %d bytes got through", len(frame))
			}
		}
	})
}

func unixPair(d *Dir) (a, b *net.UnixConn, err error) {
	addr := &net.UnixAddr{Name: filepath.Join(d.path, "fuzz"), Net: "unix"}
	l, err := net.ListenUnix("unix", addr)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if a, err = net.DialUnix("unix", nil, addr); err != nil {
		return nil, nil, err
	}
	b, err = l.AcceptUnix()
	return a, b, err
}

func BenchmarkRoundTrip(b *testing.B) {
	d := openDir(b, Options{})
	l, err := d.Listen("s", "c")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	dialer, _ := d.Dialer("s", "c")
	client, err := dialer.Dial(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		for {
			f, err := server.Recv()
			if err != nil || server.Send(f) != nil {
				return
			}
		}
	}()
	defer server.Close()
	frame := make([]byte, 64)
	for b.Loop() {
		if err := client.Send(frame); err != nil {
			b.Fatal(err)
		}
		if _, err := client.Recv(); err != nil {
			b.Fatal(err)
		}
	}
}
