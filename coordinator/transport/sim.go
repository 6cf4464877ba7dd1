package transport

import (
	"container/heap"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Faults of a simulated network. Probabilities are per frame, in [0, 1].
type Faults struct {
	Loss, Duplicate, Reorder float64
	// A frame arrives between MinDelay and MaxDelay after it was sent. One
	// that is reordered may overtake others by up to MaxDelay.
	MinDelay, MaxDelay time.Duration
}

// Sim is a network in memory. It uses only channels and timers, so it runs
// inside testing/synctest. Each direction of each connection draws its faults
// from the seed alone, in the order in which frames are sent.
type Sim struct {
	seed uint64

	mu     sync.Mutex
	faults Faults              // guarded by mu
	links  map[string]*simLink // guarded by mu
}

// NewSim makes a network without links.
func NewSim(seed uint64, f Faults) *Sim {
	return &Sim{seed: seed, faults: f, links: map[string]*simLink{}}
}

// SetFaults changes the faults of frames that are sent from now on.
func (s *Sim) SetFaults(f Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
}

func (s *Sim) current() Faults {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults
}

func (s *Sim) link(server, client string) *simLink {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := server + "\x00" + client
	l := s.links[name]
	if l == nil {
		l = &simLink{sim: s, salt: uint64(len(s.links)) << 32}
		s.links[name] = l
	}
	return l
}

// Dialer returns the client's end of the link (server, client).
func (s *Sim) Dialer(server, client string) Dialer { return s.link(server, client) }

// Listen serves the link (server, client). A second Listen takes over from the
// first, as a restarted process does.
func (s *Sim) Listen(server, client string) Listener {
	l := s.link(server, client)
	sl := &simListener{ready: make(chan Conn, readyConns), done: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listener = sl
	return sl
}

// Partition makes a link swallow every frame, and connecting fail, until it
// is healed. Connections stay open: neither end is told.
func (s *Sim) Partition(server, client string, cut bool) {
	l := s.link(server, client)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partitioned = cut
}

// Cut breaks the connections of a link, as a crash does; what is in flight is
// lost. Reconnecting works.
func (s *Sim) Cut(server, client string) {
	l := s.link(server, client)
	l.mu.Lock()
	conns := l.conns
	l.conns = nil
	l.mu.Unlock()
	for _, c := range conns {
		c.in.clear()
		c.out.clear()
		_ = c.Close()
	}
}

type simLink struct {
	sim  *Sim
	salt uint64

	mu          sync.Mutex
	listener    *simListener // guarded by mu
	partitioned bool         // guarded by mu
	dialed      uint64       // guarded by mu
	conns       []*simConn   // guarded by mu; client ends
}

func (l *simLink) isCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.partitioned
}

// Dial implements Dialer.
func (l *simLink) Dial(ctx context.Context) (Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener == nil || l.partitioned || l.listener.isClosed() {
		return nil, fmt.Errorf("dial: %w", ErrUnreachable)
	}
	l.dialed++
	done := make(chan struct{})
	once := new(sync.Once)
	up := newPipe(l, l.salt+2*l.dialed, done)
	down := newPipe(l, l.salt+2*l.dialed+1, done)
	client := &simConn{in: down, out: up, done: done, once: once}
	server := &simConn{in: up, out: down, done: done, once: once}
	select {
	case l.listener.ready <- server:
	default:
		return nil, fmt.Errorf("dial: nobody accepts: %w", ErrUnreachable)
	}
	l.conns = append(slices.DeleteFunc(l.conns, (*simConn).isClosed), client)
	return client, nil
}

type simListener struct {
	ready chan Conn
	done  chan struct{}
	once  sync.Once
}

func (s *simListener) isClosed() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// Accept implements Listener.
func (s *simListener) Accept(ctx context.Context) (Conn, error) {
	select {
	case <-s.done:
		return nil, ErrClosed
	default:
	}
	select {
	case c := <-s.ready:
		return c, nil
	case <-s.done:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close implements Listener.
func (s *simListener) Close() error {
	s.once.Do(func() { close(s.done) })
	return nil
}

// simConn is one end of a simulated connection.
type simConn struct {
	in, out *pipe
	done    chan struct{} // shared by both ends
	once    *sync.Once
}

func (c *simConn) isClosed() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// Send implements Conn.
func (c *simConn) Send(frame []byte) error {
	if len(frame) > MaxFrame {
		return fmt.Errorf("%d bytes, at most %d are accepted: %w", len(frame), MaxFrame, ErrTooLong)
	}
	if c.isClosed() {
		return ErrClosed
	}
	c.out.push(frame)
	return nil
}

// Recv implements Conn. What arrived before the connection ended is received.
func (c *simConn) Recv() ([]byte, error) {
	for {
		frame, wait, ok := c.in.pop(time.Now())
		if ok {
			return frame, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-c.in.news:
		case <-timer.C:
		case <-c.done:
			timer.Stop()
			if frame, _, ok := c.in.pop(time.Now()); ok {
				return frame, nil
			}
			return nil, fmt.Errorf("%w: %w", ErrClosed, io.EOF)
		}
		timer.Stop()
	}
}

// Close implements Conn.
func (c *simConn) Close() error {
	c.once.Do(func() { close(c.done) })
	return nil
}

// pipe is one direction of a connection.
type pipe struct {
	link *simLink
	done chan struct{}
	news chan struct{} // capacity 1

	mu     sync.Mutex
	rng    *rand.Rand // guarded by mu
	flight flight     // guarded by mu
	count  uint64     // guarded by mu
	last   time.Time  // guarded by mu; arrival of the newest frame in order
}

func newPipe(l *simLink, salt uint64, done chan struct{}) *pipe {
	return &pipe{link: l, done: done, news: make(chan struct{}, 1), rng: rand.New(rand.NewPCG(l.sim.seed, salt))}
}

func (p *pipe) push(frame []byte) {
	f, cut := p.link.sim.current(), p.link.isCut()
	p.mu.Lock()
	lost := p.rng.Float64() < f.Loss
	copies := 1
	if p.rng.Float64() < f.Duplicate {
		copies = 2
	}
	for range copies {
		at := time.Now().Add(f.MinDelay)
		if spread := f.MaxDelay - f.MinDelay; spread > 0 {
			at = at.Add(time.Duration(p.rng.Int64N(int64(spread) + 1)))
		}
		if p.rng.Float64() < f.Reorder {
			at = at.Add(time.Duration(p.rng.Int64N(int64(f.MaxDelay) + 1)))
		} else {
			if at.Before(p.last) {
				at = p.last
			}
			p.last = at
		}
		if lost || cut {
			continue
		}
		p.count++
		heap.Push(&p.flight, flying{at: at, n: p.count, frame: append([]byte(nil), frame...)})
	}
	p.mu.Unlock()
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// pop takes the frame that is due, or says how long to wait for one.
func (p *pipe) pop(now time.Time) (frame []byte, wait time.Duration, ok bool) {
	const forever = 1000 * time.Hour
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.flight) == 0 {
		return nil, forever, false
	}
	if wait := p.flight[0].at.Sub(now); wait > 0 {
		return nil, wait, false
	}
	return heap.Pop(&p.flight).(flying).frame, 0, true
}

func (p *pipe) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flight = nil
}

// flying is a frame on its way.
type flying struct {
	at    time.Time
	n     uint64
	frame []byte
}

// flight is a heap by arrival.
type flight []flying

func (f flight) Len() int { return len(f) }
func (f flight) Less(i, j int) bool {
	if !f[i].at.Equal(f[j].at) {
		return f[i].at.Before(f[j].at)
	}
	return f[i].n < f[j].n
}
func (f flight) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flight) Push(x any)   { *f = append(*f, x.(flying)) }
func (f *flight) Pop() any {
	old := *f
	x := old[len(old)-1]
	*f = old[:len(old)-1]
	return x
}
