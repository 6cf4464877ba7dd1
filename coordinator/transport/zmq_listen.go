package transport

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	readyConns  = 4  // connections that wait for Accept; the newest are kept
	maxPending  = 16 // handshakes at a time; the newest are kept
	acceptPause = 20 * time.Millisecond
)

// zmqListener accepts in one goroutine and shakes hands in one more for each
// connection, so that silent clients delay nobody.
type zmqListener struct {
	l     *net.UnixListener
	opts  Options
	ready chan Conn
	done  chan struct{}
	once  sync.Once
	wg    sync.WaitGroup

	mu      sync.Mutex
	pending []net.Conn // guarded by mu; oldest first
	closed  bool       // guarded by mu
}

// Accept implements Listener.
func (z *zmqListener) Accept(ctx context.Context) (Conn, error) {
	select {
	case c := <-z.ready:
		return c, nil
	case <-z.done:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close implements Listener.
func (z *zmqListener) Close() error {
	var err error
	z.once.Do(func() {
		close(z.done)
		err = z.l.Close()
		z.mu.Lock()
		z.closed = true
		for _, c := range z.pending {
			_ = c.Close()
		}
		z.mu.Unlock()
		z.wg.Wait()
		for {
			select {
			case c := <-z.ready:
				_ = c.Close()
			default:
				return
			}
		}
	})
	return err
}

func (z *zmqListener) acceptLoop() {
	defer z.wg.Done()
	for {
		c, err := z.l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of file descriptors, most likely: it passes.
			select {
			case <-z.done:
				return
			case <-time.After(acceptPause):
			}
			continue
		}
		if z.admit(c) {
			go z.handshake(c)
		}
	}
}

// admit notes a connection that is about to shake hands. Of too many the
// oldest goes: it is the likeliest to be silent.
func (z *zmqListener) admit(c net.Conn) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.closed {
		_ = c.Close()
		return false
	}
	if len(z.pending) == maxPending {
		_ = z.pending[0].Close()
		z.pending = slices.Delete(z.pending, 0, 1)
	}
	z.pending = append(z.pending, c)
	z.wg.Add(1)
	return true
}

func (z *zmqListener) handshake(c net.Conn) {
	defer z.wg.Done()
	conn, err := handshake(c, z.opts, true)
	z.mu.Lock()
	defer z.mu.Unlock()
	if i := slices.Index(z.pending, c); i >= 0 {
		z.pending = slices.Delete(z.pending, i, i+1)
	}
	if err != nil || z.closed {
		_ = c.Close()
		return
	}
	for {
		select {
		case z.ready <- conn:
			return
		default:
		}
		select {
		case old := <-z.ready:
			_ = old.Close()
		default:
		}
	}
}
