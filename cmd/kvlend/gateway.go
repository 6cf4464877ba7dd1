package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/api/upstream"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/internal/logq"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/internal/supervisor"
	"github.com/kvlend/kvlend/planner"
)

// drainTime is how long the gateway lets requests finish when it is stopped.
const drainTime = 2 * time.Second

func gatewayCmd(stderr *logq.Writer) *cobra.Command {
	var runDir, addr string
	c := &cobra.Command{
		Use:     "gateway",
		Short:   "Run the HTTP gateway of a system ('kvlend up' does this for you)",
		Example: "  kvlend up --no-spawn --run-dir /run/kvlend &\n  kvlend gateway --run-dir /run/kvlend",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := join(cmd.Context(), runDir, supervisor.GatewayName, "", stderr)
			if err != nil {
				return err
			}
			defer p.conn.Close()
			return p.gateway(cmd.Context(), addr)
		},
	}
	c.SetErr(stderr)
	c.Flags().StringVar(&runDir, "run-dir", "", "the system's run directory")
	c.Flags().StringVar(&addr, "listen", "", "address to listen on, instead of gateway.listen")
	return c
}

func (p *process) gateway(ctx context.Context, addr string) error {
	ctx, cancel := p.while(ctx)
	defer cancel()
	cfg := p.sys.Config.Gateway
	opt := api.Options{
		Version: version(), Links: adminLinks(p.sys.Config), MaxBody: int64(cfg.MaxBody), MaxHeader: int(cfg.MaxHeader), MaxConnections: cfg.MaxConnections,
		ReadTimeout: time.Duration(cfg.ReadTimeout), RequestTimeout: time.Duration(cfg.RequestTimeout), Logger: p.log,
		Restarts: p.conn.Welcome.Restarts, Auto: cfg.Auto,
	}
	keys, err := cfg.Keys()
	if err != nil {
		return err
	}
	for _, k := range keys {
		opt.APIKeys = append(opt.APIKeys, api.APIKey{Key: k.Value, Tenant: k.Tenant, MaxInflight: k.MaxInflight})
	}
	hello := p.hello(supervisor.GatewayName, supervisor.GatewayName)
	var ups []*upstream.Upstream
	for _, m := range p.sys.Models {
		am, up, err := p.served(m, hello)
		if err != nil {
			return fmt.Errorf("model %s: %w", m.Config.Name, err)
		}
		defer up.Close()
		opt.Models = append(opt.Models, am)
		ups = append(ups, up)
	}
	g, err := api.New(opt)
	if err != nil {
		return err
	}
	p.warnConnections(cfg.MaxConnections)
	p.listenGone(func(gone *wire.Gone) {
		for i, m := range p.sys.Models {
			if m.Config.Name == gone.Model {
				ups[i].Lost()
			}
		}
	})
	return p.listen(ctx, g, cmp.Or(addr, cfg.Listen), ups)
}

// spareFiles is how many open files the gateway needs beside its connections:
// links, sockets, standard streams.
const spareFiles = 64

// warnConnections says at the start what would otherwise show as connections
// that cannot be accepted under load.
func (p *process) warnConnections(most int) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		p.log.Warn("the limit of open files is not known", "error", err)
		return
	}
	if uint64(most)+spareFiles > l.Cur {
		p.log.Warn("more connections are allowed than this process may have open files (ulimit -n): the last ones will not be accepted",
			"gateway.max_connections", most, "open files", l.Cur)
	}
}

// served describes a model to the gateway and opens the link to its process.
func (p *process) served(m *planner.Model, hello wire.Hello) (*api.Model, *upstream.Upstream, error) {
	text, err := source.LoadText(m.Config)
	if err != nil {
		return nil, nil, err
	}
	d, err := p.links.Dialer(m.Config.Name, supervisor.GatewayName)
	if err != nil {
		return nil, nil, err
	}
	up, err := upstream.Open(m.Config.Name, d, hello)
	if err != nil {
		return nil, nil, err
	}
	tokens, _ := m.MaxTokens()
	tokens = min(tokens, text.Config.MaxContext)
	stop := text.Defaults.EOS
	if len(stop) == 0 {
		stop = text.Config.EOS
	}
	am := &api.Model{
		Name: m.Config.Name, Role: m.Config.Role, MaxTokens: func() int { return tokens },
		BlockTokens: m.Config.BlockTokens, MaxRunning: m.Config.MaxRunning, MaxWaiting: m.Config.MaxWaiting,
		Vocab: text.Config.Vocab, Tokenizer: text.Tokenizer, StopIDs: stop, Upstream: up,
		Defaults: samplingDefaults(text),
	}
	if text.Template != nil {
		am.Template = text.Template
	}
	return am, up, nil
}

// samplingDefaults are the model's own where its generation_config.json has any.
func samplingDefaults(t *source.Text) sampling.Params {
	d := sampling.Default()
	g := t.Defaults
	if g.Temperature != nil {
		d.Temperature = float32(*g.Temperature)
	}
	if g.DoSample != nil && !*g.DoSample {
		d.Temperature = 0
	}
	if g.TopP != nil {
		d.TopP = float32(*g.TopP)
	}
	if g.TopK != nil {
		d.TopK = *g.TopK
	}
	if g.MinP != nil {
		d.MinP = float32(*g.MinP)
	}
	if g.RepetitionPenalty != nil {
		d.RepetitionPenalty = float32(*g.RepetitionPenalty)
	}
	return d
}

// listen serves the API and the admin socket until ctx ends.
func (p *process) listen(ctx context.Context, g *api.Gateway, addr string, ups []*upstream.Upstream) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("gateway.listen: %w", err)
	}
	path := supervisor.AdminSocket(p.dir)
	os.Remove(path)
	adminLn, err := net.Listen("unix", path)
	if err != nil {
		ln.Close()
		return fmt.Errorf("admin socket: %w", err)
	}
	admin := &http.Server{Handler: g.AdminHandler(), ReadHeaderTimeout: 5 * time.Second}
	errc := make(chan error, 2)
	go func() { errc <- admin.Serve(adminLn) }()
	go func() { errc <- g.Serve(ln) }()
	err = p.announce(ctx, ln.Addr().String(), ups, errc)
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	g.Shutdown(sctx)
	admin.Close()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// announce tells the supervisor that the gateway is ready, once every model has
// answered: a client that saw `kvlend up` say so is never told that a model is
// not running. It returns when ctx ends or a listener fails.
func (p *process) announce(ctx context.Context, addr string, ups []*upstream.Upstream, failed <-chan error) error {
	for _, u := range ups {
		select {
		case <-u.Met():
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		}
	}
	if err := p.conn.Send(&wire.Ready{Listen: addr}); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}
