package transport

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	"golang.org/x/sys/unix"
)

// maxSocketPath is what sun_path holds, less its terminating zero.
const maxSocketPath = 107

// Options of ZeroMQ links. Zero values mean the defaults.
type Options struct {
	MaxFrame         int           // bytes of a frame, both ways; default MaxFrame
	HandshakeTimeout time.Duration // default 2s
	// WriteTimeout bounds one write of a frame's piece into the socket;
	// default 5s. A peer that reads nothing for so long loses the connection.
	WriteTimeout time.Duration
}

func (o Options) withDefaults() Options {
	if o.MaxFrame <= 0 {
		o.MaxFrame = MaxFrame
	}
	if o.HandshakeTimeout <= 0 {
		o.HandshakeTimeout = 2 * time.Second
	}
	if o.WriteTimeout <= 0 {
		o.WriteTimeout = 5 * time.Second
	}
	return o
}

// Dir is a private directory of sockets, one per link.
type Dir struct {
	path string
	opts Options
}

// OpenDir prepares a directory of mode 0700 that belongs to us. It is created
// when missing (its parents are not), and refused when it is anybody else's or
// open to others.
func OpenDir(path string, opts Options) (*Dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("socket directory %s: %w", path, err)
	}
	if err := os.Mkdir(abs, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("socket directory: %w", err)
	}
	st, err := os.Lstat(abs)
	if err != nil {
		return nil, fmt.Errorf("socket directory: %w", err)
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case !st.IsDir():
		return nil, fmt.Errorf("socket directory %s: not a directory", abs)
	case st.Mode().Perm() != 0o700:
		return nil, fmt.Errorf("socket directory %s: mode %04o, must be 0700", abs, st.Mode().Perm())
	case ok && sys.Uid != uint32(os.Geteuid()):
		return nil, fmt.Errorf("socket directory %s: owned by user %d, must be %d", abs, sys.Uid, os.Geteuid())
	}
	d := &Dir{path: abs, opts: opts.withDefaults()}
	if _, err := d.socket("longest-name-part", "longest-name-part"); err != nil {
		return nil, err
	}
	return d, nil
}

// socket is the path of a link's socket: readable beginnings of both names,
// and a digest that tells apart what the beginnings do not.
func (d *Dir) socket(server, client string) (string, error) {
	sum := sha256.Sum256([]byte(server + "\x00" + client))
	name := readable(server) + "." + readable(client) + "." + hex.EncodeToString(sum[:6]) + ".sock"
	path := filepath.Join(d.path, name)
	if len(path) > maxSocketPath {
		return "", fmt.Errorf("socket path %s: %d bytes, the system accepts at most %d: choose a shorter run directory",
			path, len(path), maxSocketPath)
	}
	return path, nil
}

// readable keeps at most 12 harmless characters of a name.
func readable(name string) string {
	var b strings.Builder
	for _, r := range name {
		if b.Len() == 12 {
			break
		}
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-':
			b.WriteRune(r)
		default:
			b.WriteByte('_')
		}
	}
	return b.String()
}

// Dialer returns the client's end of the link (server, client).
func (d *Dir) Dialer(server, client string) (Dialer, error) {
	path, err := d.socket(server, client)
	if err != nil {
		return nil, err
	}
	return &zmqDialer{path: path, opts: d.opts}, nil
}

// Listen serves the link (server, client) until the Listener is closed. What
// a process that was killed left behind is removed; ErrInUse when somebody
// serves the link at this moment.
func (d *Dir) Listen(server, client string) (Listener, error) {
	path, err := d.socket(server, client)
	if err != nil {
		return nil, err
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("link of %s for %s: %w", server, client, err)
	}
	z := &zmqListener{l: l, opts: d.opts, done: make(chan struct{}), ready: make(chan Conn, readyConns)}
	z.wg.Add(1)
	go z.acceptLoop()
	return z, nil
}

func removeStale(path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("socket: %w", err)
	case st.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("socket %s: a file that is not a socket is in the way", path)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close()
		return fmt.Errorf("socket %s: %w", path, ErrInUse)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("stale socket: %w", err)
	}
	return nil
}

type zmqDialer struct {
	path string
	opts Options
}

// Dial implements Dialer.
func (z *zmqDialer) Dial(ctx context.Context) (Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", z.path)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	conn, err := handshake(c, z.opts, false)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return conn, nil
}

// handshake makes a ZMTP connection. go-zeromq panics on some malformed
// handshakes; here that is the peer's fault and ends only this connection.
func handshake(c net.Conn, o Options, server bool) (conn *zmqConn, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("malformed handshake (%v): %w", r, ErrProtocol)
		}
	}()
	if err := checkPeer(c); err != nil {
		return nil, err
	}
	g, err := newGuard(c, o.MaxFrame, time.Now().Add(o.HandshakeTimeout))
	if err != nil {
		return nil, err
	}
	z, err := zmq4.Open(g, null.Security(), zmq4.Dealer, nil, server, nil)
	if err != nil {
		return nil, err
	}
	if err := g.established(o.WriteTimeout); err != nil {
		return nil, err
	}
	return &zmqConn{g: g, z: z, limit: o.MaxFrame}, nil
}

// checkPeer refuses processes of other users. The directory's mode keeps them
// out already; this holds also when somebody loosens it.
func checkPeer(c net.Conn) error {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return fmt.Errorf("%T has no credentials: %w", c, ErrPeer)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return fmt.Errorf("credentials of the peer: %w", credErr)
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("process %d of user %d, must be user %d: %w", cred.Pid, cred.Uid, os.Geteuid(), ErrPeer)
	}
	return nil
}

// zmqConn is an established ZMTP connection.
type zmqConn struct {
	g     *guard
	z     *zmq4.Conn
	limit int

	send  sync.Mutex // one frame at a time
	close sync.Once
	done  error // of Close
}

// Send implements Conn.
func (c *zmqConn) Send(frame []byte) error {
	if len(frame) > c.limit {
		return fmt.Errorf("%d bytes, at most %d are accepted: %w", len(frame), c.limit, ErrTooLong)
	}
	c.send.Lock()
	defer c.send.Unlock()
	if err := c.z.SendMsg(zmq4.NewMsg(frame)); err != nil {
		return closedErr(err)
	}
	return closedErr(c.g.Flush())
}

// Recv implements Conn.
func (c *zmqConn) Recv() ([]byte, error) {
	m, err := c.z.RecvMsg()
	if err != nil {
		return nil, closedErr(err)
	}
	return m.Frames[0], nil
}

// Close implements Conn.
func (c *zmqConn) Close() error {
	c.close.Do(func() { c.done = c.z.Close() })
	return c.done
}

// closedErr makes the end of a connection one error, whoever noticed it.
func closedErr(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, zmq4.ErrClosedConn) || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return err
}
