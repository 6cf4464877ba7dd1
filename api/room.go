package api

import (
	"container/list"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const fullBody = `{"error":{"message":"All connections of this server are in use; try again soon","type":"server_error","param":null,"code":"overloaded"}}`

// refusal answers a connection that finds no place. It is written without
// reading the request, which is all that can be done in no time.
func refusal() []byte {
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"+
		"Connection: close\r\nContent-Length: %d\r\n\r\n%s", len(fullBody), fullBody)
}

// room bounds the number of connections. When it is full, a newcomer takes the
// place of the connection that has waited longest without a complete request,
// idle or slow: so clients that only hold places cannot keep others out.
type room struct {
	mu     sync.Mutex // guards places
	places *list.List // of *place, oldest first
	most   int
}

// place is one connection's.
type place struct {
	net.Conn
	room    *room
	elem    *list.Element // nil once left; guarded by room.mu
	serving atomic.Bool   // a complete request is being answered
}

type placeKey struct{}

func newRoom(most int) *room { return &room{places: list.New(), most: most} }

// connContext lets handlers find their connection's place.
func (r *room) connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, placeKey{}, c)
}

func (r *room) listen(ln net.Listener) net.Listener { return &roomListener{ln, r} }

type roomListener struct {
	net.Listener
	room *room
}

// Accept implements net.Listener.
func (l *roomListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if p := l.room.enter(conn); p != nil {
			return p, nil
		}
		refuse(conn)
	}
}

// refuse never blocks: the text fits the empty send buffer of a new connection.
func refuse(conn net.Conn) {
	// Failing to tell a client that it is refused changes nothing for others.
	_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = conn.Write(refusal())
	_ = conn.Close()
}

// enter gives conn a place, or nil when everybody inside is being served.
func (r *room) enter(conn net.Conn) *place {
	p := &place{Conn: conn, room: r}
	r.mu.Lock()
	var out *place
	if r.places.Len() >= r.most {
		if out = r.oldestIdle(); out == nil {
			r.mu.Unlock()
			return nil
		}
		r.places.Remove(out.elem)
		out.elem = nil
	}
	p.elem = r.places.PushBack(p)
	r.mu.Unlock()
	if out != nil {
		// Its goroutine in net/http sees the closed connection and ends.
		_ = out.Conn.Close()
	}
	return p
}

// oldestIdle finds the place to give up; r.mu is held.
func (r *room) oldestIdle() *place {
	for e := r.places.Front(); e != nil; e = e.Next() {
		if p := e.Value.(*place); !p.serving.Load() {
			return p
		}
	}
	return nil
}

// rest moves a connection whose request was answered behind those that have
// waited longer.
func (p *place) rest() {
	p.serving.Store(false)
	p.room.mu.Lock()
	defer p.room.mu.Unlock()
	if p.elem != nil {
		p.room.places.MoveToBack(p.elem)
	}
}

// Close implements net.Conn.
func (p *place) Close() error {
	p.room.mu.Lock()
	if p.elem != nil {
		p.room.places.Remove(p.elem)
		p.elem = nil
	}
	p.room.mu.Unlock()
	return p.Conn.Close()
}
