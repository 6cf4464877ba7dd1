// Package control is the socket between the supervisor and the processes of a
// system: a process joins, is handed the configuration and the memory that it
// may map, and says when it serves. The connection stays open; its end tells
// either side that the other is gone.
package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// maxFiles bounds the descriptors in one message (the kernel's own limit is 253).
const maxFiles = 128

// maxFrame bounds a control message; a resolved configuration is a few KiB.
const maxFrame = 128 << 10

// joinTimeout is the time a process has to say who it is.
const joinTimeout = 5 * time.Second

// Handler is the supervisor's side.
type Handler interface {
	// Joined answers a join. The files are not closed by the server. The peer
	// may be written to until Left is called.
	Joined(j *wire.Join, p *Peer) (*wire.Welcome, []*os.File, error)
	// Received is called for every message of a joined process.
	Received(j *wire.Join, m wire.Message)
	// Left is called when a joined process closed its connection or died.
	Left(j *wire.Join)
}

// Peer is a joined process as the supervisor sees it.
type Peer struct {
	c   *net.UnixConn
	pid int
}

// PID is the process's id, as the kernel says.
func (p *Peer) PID() int { return p.pid }

// Send sends a message to the process. It is safe for concurrent use.
func (p *Peer) Send(m wire.Message) error {
	p.c.SetWriteDeadline(time.Now().Add(joinTimeout)) // a stopped process reads nothing
	return send(p.c, m, nil)
}

// Listen opens the socket at path, for processes of the same user. They may
// join as soon as it exists; they are answered when Serve runs.
func Listen(path string) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return l, nil
}

// Serve accepts processes on the socket until ctx ends. It removes the socket
// and hangs up on everybody before it returns.
func Serve(ctx context.Context, l *net.UnixListener, h Handler) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("control socket: %w", err)
		}
		conns.Go(func() { serveOne(ctx, c, h) })
	}
}

func serveOne(ctx context.Context, c *net.UnixConn, h Handler) {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	defer c.Close()
	pid, err := sameUser(c)
	if err != nil {
		return
	}
	c.SetReadDeadline(time.Now().Add(joinTimeout))
	m, _, err := receive(c)
	j, ok := m.(*wire.Join)
	if err != nil || !ok {
		return
	}
	c.SetReadDeadline(time.Time{})
	w, files, err := h.Joined(j, &Peer{c, pid})
	if err != nil {
		send(c, &wire.Welcome{Error: err.Error()}, nil)
		return
	}
	if err := send(c, w, files); err != nil {
		h.Left(j)
		return
	}
	defer h.Left(j)
	for {
		m, extra, err := receive(c)
		closeFDs(extra)
		if err != nil {
			return
		}
		h.Received(j, m)
	}
}

// sameUser refuses peers of other users (root may always look) and returns the
// peer's process id.
func sameUser(c *net.UnixConn) (pid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if cerr != nil {
		return 0, cerr
	}
	if int(cred.Uid) != os.Getuid() && cred.Uid != 0 {
		return 0, fmt.Errorf("peer has uid %d, want %d", cred.Uid, os.Getuid())
	}
	return int(cred.Pid), nil
}

// Conn is a process's side of the socket.
type Conn struct {
	Welcome *wire.Welcome
	// Files are the descriptors of Welcome.Files, in order, -1 for one without.
	// Whoever maps them owns them from then on.
	Files []int

	c    *net.UnixConn
	gone chan struct{}
	recv func(wire.Message)
}

// Dial joins the supervisor at path. received is called, on one goroutine, for
// every message that follows the welcome.
func Dial(ctx context.Context, path string, j *wire.Join, received func(wire.Message)) (*Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unixpacket", path)
	if err != nil {
		return nil, fmt.Errorf("no supervisor answers at %s (is `kvlend up` running?): %w", path, err)
	}
	c := nc.(*net.UnixConn)
	if err := send(c, j, nil); err != nil {
		c.Close()
		return nil, fmt.Errorf("join: %w", err)
	}
	c.SetReadDeadline(time.Now().Add(joinTimeout))
	m, files, err := receive(c)
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("join: %w", err)
	}
	c.SetReadDeadline(time.Time{})
	w, ok := m.(*wire.Welcome)
	switch {
	case !ok:
		err = fmt.Errorf("join: unexpected %T", m)
	case w.Error != "":
		err = fmt.Errorf("join refused: %s", w.Error)
	case announced(w) != len(files):
		err = fmt.Errorf("join: %d descriptors came, %d were announced", len(files), announced(w))
	}
	if err != nil {
		closeFDs(files)
		c.Close()
		return nil, err
	}
	for i, f := range w.Files {
		if f.NoFile {
			files = slices.Insert(files, i, -1)
		}
	}
	conn := &Conn{Welcome: w, Files: files, c: c, gone: make(chan struct{}), recv: received}
	go conn.watch()
	return conn, nil
}

// announced is how many descriptors travel with a welcome.
func announced(w *wire.Welcome) (n int) {
	for _, f := range w.Files {
		if !f.NoFile {
			n++
		}
	}
	return n
}

// watch reads until the supervisor hangs up.
func (c *Conn) watch() {
	defer close(c.gone)
	for {
		m, files, err := receive(c.c)
		closeFDs(files)
		if err != nil {
			return
		}
		c.recv(m)
	}
}

// Gone is closed when the supervisor is gone or the Conn was closed.
func (c *Conn) Gone() <-chan struct{} { return c.gone }

// Send sends a message to the supervisor. It is safe for concurrent use.
func (c *Conn) Send(m wire.Message) error { return send(c.c, m, nil) }

// Close hangs up and waits for the watcher.
func (c *Conn) Close() error {
	err := c.c.Close()
	<-c.gone
	return err
}

func send(c *net.UnixConn, m wire.Message, files []*os.File) error {
	if len(files) > maxFiles {
		return fmt.Errorf("%d descriptors in one message, at most %d", len(files), maxFiles)
	}
	b, err := wire.Append(nil, m)
	if err != nil {
		return err
	}
	if len(b) > maxFrame {
		return fmt.Errorf("control message of %d bytes, at most %d", len(b), maxFrame)
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err = c.WriteMsgUnix(b, oob, nil)
	return err
}

var errHungUp = errors.New("the other side hung up")

func receive(c *net.UnixConn) (wire.Message, []int, error) {
	buf := make([]byte, maxFrame)
	oob := make([]byte, unix.CmsgSpace(maxFiles*4))
	n, on, _, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return nil, nil, err
	}
	files, err := descriptors(oob[:on])
	if err != nil {
		return nil, nil, err
	}
	if n == 0 {
		closeFDs(files)
		return nil, nil, errHungUp
	}
	m, err := wire.Parse(buf[:n])
	if err != nil {
		closeFDs(files)
		return nil, nil, err
	}
	return m, files, nil
}

func descriptors(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var out []int
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue // not descriptors
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			out = append(out, fd)
		}
	}
	return out, nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
