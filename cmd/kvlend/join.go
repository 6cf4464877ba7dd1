package main

import (
	"context"
	"os"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/coordinator/transport"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/internal/control"
	"github.com/kvlend/kvlend/internal/logq"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/internal/supervisor"
	"github.com/kvlend/kvlend/internal/timeline"
	"github.com/kvlend/kvlend/planner"
)

// process is what every process of a system starts from: its place at the
// supervisor and the configuration that it was handed.
type process struct {
	conn  *control.Conn
	sys   *planner.System
	links *transport.Dir
	dir   string
	log   hclog.Logger
	// timeline records steps, layers and transfers while somebody asks.
	timeline timeline.Recorder

	mu     sync.Mutex
	onGone func(*wire.Gone) // nil until somebody listens
	missed []*wire.Gone     // while nobody listened
}

// received handles what the supervisor says.
func (p *process) received(m wire.Message) {
	g, ok := m.(*wire.Gone)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.onGone == nil {
		p.missed = append(p.missed, g)
		return
	}
	p.onGone(g)
}

// listenGone calls f for every process that has ended since the join.
func (p *process) listenGone(f func(*wire.Gone)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onGone = f
	for _, g := range p.missed {
		f(g)
	}
	p.missed = nil
}

// join joins the supervisor of a run directory.
func join(ctx context.Context, runDir, role, model string, stderr *logq.Writer) (*process, error) {
	dir, err := supervisor.RunDir(runDir)
	if err != nil {
		return nil, &codeError{exitUsage, err}
	}
	p := &process{dir: dir}
	conn, err := control.Dial(ctx, supervisor.ControlSocket(dir), &wire.Join{Model: model, Role: role, PID: os.Getpid()}, p.received)
	if err != nil {
		return nil, err
	}
	p.conn = conn
	cfg, err := configs.Parse(conn.Welcome.Config, "supervisor")
	if err == nil {
		p.sys, err = planner.Resolve(cfg, source.Geometry)
	}
	if err == nil {
		p.links, err = transport.OpenDir(supervisor.LinkDir(dir), transport.Options{})
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	name := model
	if name == "" {
		name = role
	}
	p.log = newLogger(cfg, name, stderr)
	return p, nil
}

// while returns a context that also ends when the supervisor is gone.
func (p *process) while(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-p.conn.Gone():
			p.log.Warn("the supervisor has ended: this process does, too")
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// hello is what the process says of itself on its links.
func (p *process) hello(role, model string) wire.Hello {
	return wire.Hello{Model: model, Role: role, ConfigHash: p.sys.Config.Hash(), PID: os.Getpid()}
}
