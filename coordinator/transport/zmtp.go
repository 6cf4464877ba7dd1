package transport

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"time"
)

// ZMTP 3.0 framing (https://rfc.zeromq.org/spec/23): a greeting of 64 bytes,
// then frames of flags, length (1 byte, or 8 when long) and body.
const (
	greetingLen  = 64
	flagMore     = 1
	flagLong     = 2
	flagCommand  = 4
	maxHandshake = 1024 // bytes of the handshake's command; READY needs about 40
	bufferBytes  = 32 << 10
)

// guard is a net.Conn that watches the incoming ZMTP stream: a frame that is
// too long or of a kind that we never send is an error before go-zeromq sees
// its header, since go-zeromq allocates whatever a header asks for. Every
// write has a deadline.
type guard struct {
	net.Conn
	limit int64

	// The reader's.
	r    *bufio.Reader
	left int64 // bytes of the greeting, header or body that still may be read
	err  error // sticky: the stream is beyond repair

	// open is set once, between the handshake and first use.
	open bool
	w    *bufio.Writer // the writer's, when open
}

// newGuard guards a connection whose handshake must end by the deadline.
func newGuard(c net.Conn, limit int, deadline time.Time) (*guard, error) {
	if err := c.SetDeadline(deadline); err != nil {
		return nil, err
	}
	return &guard{Conn: c, limit: int64(limit), left: greetingLen, r: bufio.NewReaderSize(c, bufferBytes)}, nil
}

// established ends the handshake: from here on writes are buffered until
// Flush, each has its own deadline, and commands are refused.
func (g *guard) established(writeTimeout time.Duration) error {
	g.w = bufio.NewWriterSize(deadlineWriter{g.Conn, writeTimeout}, bufferBytes)
	g.open = true
	return g.Conn.SetReadDeadline(time.Time{})
}

// Read returns bytes of one frame at most.
func (g *guard) Read(p []byte) (int, error) {
	if g.err != nil {
		return 0, g.err
	}
	if g.left == 0 {
		if g.left, g.err = g.nextFrame(); g.err != nil {
			return 0, g.err
		}
	}
	n, err := g.r.Read(p[:min(int64(len(p)), g.left)])
	g.left -= int64(n)
	return n, err
}

// nextFrame peeks at a header and returns the length of the frame with it.
func (g *guard) nextFrame() (int64, error) {
	h, err := g.r.Peek(2)
	if err != nil {
		return 0, err
	}
	header, size := int64(2), uint64(h[1])
	flags := h[0]
	if flags&flagLong != 0 {
		if h, err = g.r.Peek(9); err != nil {
			return 0, err
		}
		header, size = 9, binary.BigEndian.Uint64(h[1:])
	}
	limit := g.limit
	switch {
	case flags&^(flagMore|flagLong|flagCommand) != 0:
		return 0, fmt.Errorf("frame flags %#02x: %w", flags, ErrProtocol)
	case flags&flagMore != 0:
		return 0, fmt.Errorf("multipart message: %w", ErrProtocol)
	case !g.open && flags&flagCommand == 0:
		return 0, fmt.Errorf("message before the end of the handshake: %w", ErrProtocol)
	case g.open && flags&flagCommand != 0:
		return 0, fmt.Errorf("command after the handshake: %w", ErrProtocol)
	case !g.open:
		limit = maxHandshake
	}
	if size > uint64(limit) {
		return 0, fmt.Errorf("peer announces %d bytes, at most %d are accepted: %w", size, limit, ErrTooLong)
	}
	return header + int64(size), nil
}

// Write buffers once the handshake is over, so that a frame's header and body
// leave in one system call.
func (g *guard) Write(p []byte) (int, error) {
	if g.open {
		return g.w.Write(p)
	}
	return g.Conn.Write(p)
}

// Flush writes what is buffered.
func (g *guard) Flush() error { return g.w.Flush() }

// deadlineWriter bounds every write.
type deadlineWriter struct {
	c     net.Conn
	limit time.Duration
}

func (d deadlineWriter) Write(p []byte) (int, error) {
	if err := d.c.SetWriteDeadline(time.Now().Add(d.limit)); err != nil {
		return 0, err
	}
	return d.c.Write(p)
}
