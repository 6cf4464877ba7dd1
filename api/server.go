package api

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
)

// Serve answers connections from ln, which it closes, until Shutdown. It
// returns nil after a Shutdown.
func (g *Gateway) Serve(ln net.Listener) error {
	room := newRoom(g.opt.MaxConnections)
	srv := &http.Server{
		Handler:           g.engine,
		ReadTimeout:       g.opt.ReadTimeout,
		ReadHeaderTimeout: g.opt.ReadTimeout,
		IdleTimeout:       g.opt.IdleTimeout,
		MaxHeaderBytes:    g.opt.MaxHeader,
		ErrorLog:          log.New(logWriter{g.opt.Logger}, "", 0),
		ConnContext:       room.connContext,
	}
	g.mu.Lock()
	if g.server != nil {
		g.mu.Unlock()
		return errors.Join(errors.New("the gateway serves a listener already"), ln.Close())
	}
	g.server = srv
	g.mu.Unlock()
	if g.hard.Err() != nil {
		return ln.Close()
	}
	if err := srv.Serve(room.listen(ln)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	}
	return nil
}

// Shutdown stops accepting, lets requests finish until ctx ends, then cancels
// those that are left and waits for the model processes' last words as long as
// ctx allows. The gateway cannot be used again.
func (g *Gateway) Shutdown(ctx context.Context) error {
	g.mu.Lock()
	srv := g.server
	g.mu.Unlock()
	var err error
	if srv != nil {
		err = srv.Shutdown(ctx)
	}
	g.hardStop()
	if srv != nil && err != nil {
		err = errors.Join(err, srv.Close())
	}
	select {
	case <-g.pumps.none():
	case <-ctx.Done():
	}
	return err
}

// logWriter hands net/http's complaints to the logger.
type logWriter struct{ l Logger }

// Write implements io.Writer.
func (w logWriter) Write(p []byte) (int, error) {
	w.l.Warn("http server", "message", strings.TrimSpace(string(p)))
	return len(p), nil
}
