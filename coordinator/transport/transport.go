// Package transport moves frames, byte strings of bounded length, between two
// processes. A link is one ordered pair (server, client): the server listens
// for that client alone, so a peer that is silent, slow or malicious disturbs
// no other link.
//
// # ZeroMQ
//
// Dir makes links of ZMTP 3.0 connections between DEALERs over Unix sockets in
// a private directory. They interoperate with any ZeroMQ DEALER, and are made
// with go-zeromq's connections rather than its sockets. A socket of that
// library drops what is sent after a disconnect without an error, sends to
// every peer that connects, performs handshakes in its accept loop where one
// silent client stops all others, panics on malformed handshakes and on huge
// lengths, and logs to stderr. A connection of our own is subject to none of
// that: handshakes run side by side under a deadline, every write has a
// deadline, a frame's length is checked before memory is allocated for it,
// and an error ends the connection. Reconnecting is the session's business.
//
// # Simulation
//
// Sim makes links in memory, with seeded loss, duplication, reordering, delay
// and partitions, for tests inside testing/synctest.
package transport

import (
	"context"
	"errors"
)

// Conn is one connection. Its methods may be called at the same time, but Recv
// by one goroutine only. After an error the connection is of no more
// use, except that Send refuses a frame that is too long and lives on.
type Conn interface {
	// Send sends a frame and does not keep it. A nil error does not mean
	// that the peer received it.
	Send(frame []byte) error
	// Recv waits for the next frame, which is the caller's to keep.
	Recv() ([]byte, error)
	// Close ends Send and Recv, here and at the peer. It may be repeated.
	Close() error
}

// Dialer is the client's end of a link. It does not retry.
type Dialer interface {
	Dial(ctx context.Context) (Conn, error)
}

// Listener is the server's end of a link.
type Listener interface {
	// Accept waits for the next connection. A client that reconnects may do
	// so before its old connection is seen to fail.
	Accept(ctx context.Context) (Conn, error)
	// Close ends Accept. Connections live on.
	Close() error
}

// Errors. They are wrapped: use errors.Is.
var (
	// ErrClosed: this end was closed.
	ErrClosed = errors.New("connection closed")
	// ErrTooLong: a frame exceeds the link's limit.
	ErrTooLong = errors.New("frame too long")
	// ErrProtocol: the peer does not speak ZMTP as we do.
	ErrProtocol = errors.New("ZMTP protocol violation")
	// ErrPeer: the peer runs as another user.
	ErrPeer = errors.New("peer refused")
	// ErrInUse: another process listens on this link.
	ErrInUse = errors.New("link already served")
	// ErrUnreachable: a simulated link is cut.
	ErrUnreachable = errors.New("peer unreachable")
)

// MaxFrame is the default limit of a frame in bytes.
const MaxFrame = 16 << 20
