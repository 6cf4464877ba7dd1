package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/internal/logq"
	"github.com/kvlend/kvlend/internal/node"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/internal/timeline"
	"github.com/kvlend/kvlend/nvlink/shm"
	"github.com/kvlend/kvlend/nvlink/topology"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/scheduler"
)

func modelProcessCmd(role string, stderr *logq.Writer) *cobra.Command {
	var runDir, model string
	c := &cobra.Command{
		Use:     role,
		Short:   "Run the process of one model with role " + role + " ('kvlend up' does this for you)",
		Example: fmt.Sprintf("  kvlend up --no-spawn --run-dir /run/kvlend &\n  kvlend %s --model NAME --run-dir /run/kvlend", role),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if model == "" {
				return usage("--model is missing: the name of a model of the configuration")
			}
			p, err := join(cmd.Context(), runDir, role, model, stderr)
			if err != nil {
				return err
			}
			defer p.conn.Close()
			return p.serveModel(cmd.Context(), p.sys.Model(model))
		},
	}
	c.SetErr(stderr)
	c.Flags().StringVar(&runDir, "run-dir", "", "the system's run directory")
	c.Flags().StringVar(&model, "model", "", "name of the model")
	return c
}

// patience is how long a request waits for KV memory, beyond the time for which
// workers may keep theirs after a long request of their own.
const patience = 60 * time.Second

// cacheSide is what differs between roles: a cache, what it reports, how it ends.
type cacheSide struct {
	cache    scheduler.Cache
	describe func(*wire.Status)
	check    func(*wire.CheckReport)
	drain    func(on, idle bool) (units int)                  // nil where there is nothing to lend or borrow
	unload   func(device string, undo bool) *wire.UnloadState // nil where there is no overflow pool
	lack     func() string                                    // nil there, too
	close    func()
}

func (p *process) serveModel(ctx context.Context, m *planner.Model) error {
	ctx, cancel := p.while(ctx)
	defer cancel()
	eng, err := source.Engine(m.Config)
	if err != nil {
		return fmt.Errorf("model %s: %w", m.Config.Name, err)
	}
	defer eng.Close()
	mem, err := p.openMemory(m)
	if err != nil {
		return err
	}
	defer mem.close()
	fab, err := p.fabric(m)
	if err != nil {
		return err
	}
	defer fab.Close()
	var side cacheSide
	if m.Config.Role == configs.RoleMaster {
		side, err = p.masterSide(ctx, m, mem, fab, node.Identity(eng))
	} else {
		side, err = p.workerSide(m, mem)
	}
	if err != nil {
		return err
	}
	defer side.close()
	return p.serveCache(ctx, m, eng, side)
}

func (p *process) serveCache(ctx context.Context, m *planner.Model, eng *engine.Model, side cacheSide) error {
	name := m.Config.Name
	n, err := node.Start(node.Options{
		Patience: patience + time.Duration(p.sys.Config.Lending.ScaleDown.Window),
		Model:    m, Engine: timeline.Watch(eng, &p.timeline), Timeline: &p.timeline, Kernels: eng.ISA(), Cache: side.cache, Links: p.links,
		Hello: p.hello(m.Config.Role, name), Describe: side.describe,
		Check: side.check, Drain: side.drain, Unload: side.unload, Lack: side.lack, Restarts: p.conn.Welcome.Restarts, Log: p.log,
	})
	if err != nil {
		return err
	}
	if err := p.conn.Send(&wire.Ready{Model: name, Kernels: eng.ISA()}); err != nil {
		return err
	}
	return n.Run(ctx)
}

// memory is what the supervisor handed down, by model.
type memory struct {
	arenas map[string]*shm.Arena
	tables map[string]*shm.Region
}

func (p *process) openMemory(m *planner.Model) (*memory, error) {
	mem := &memory{arenas: map[string]*shm.Arena{}, tables: map[string]*shm.Region{}}
	for i, f := range p.conn.Welcome.Files {
		owner := p.sys.Model(f.Model)
		if owner == nil {
			mem.close()
			return nil, fmt.Errorf("memory of %q: no such model", f.Model)
		}
		var err error
		if f.Kind == "arena" {
			mem.arenas[f.Model], err = shm.Open(p.conn.Files[i], f.Model, owner.Config.Device, owner.AllocBytes())
		} else {
			mem.tables[f.Model], err = shm.OpenRegion(p.conn.Files[i], "units-"+f.Model, f.Size)
		}
		if err != nil {
			mem.close()
			return nil, fmt.Errorf("memory of %s: %w", f.Model, err)
		}
	}
	if mem.arenas[m.Config.Name] == nil {
		mem.close()
		return nil, fmt.Errorf("the supervisor handed down no arena for %s", m.Config.Name)
	}
	return mem, nil
}

func (mem *memory) close() {
	for _, a := range mem.arenas {
		if a != nil {
			a.Close()
		}
	}
	for _, r := range mem.tables {
		if r != nil {
			r.Close()
		}
	}
}

// budgets limits what a master moves to and from the arenas of its lenders.
func (p *process) budgets(m *planner.Model) map[string]int64 {
	rate := int64(p.sys.Config.Lending.LinkBudget)
	if rate == 0 {
		return nil
	}
	budgets := make(map[string]int64, len(m.Lenders))
	for _, l := range m.Lenders {
		budgets[l.Worker.Config.Name] = rate
	}
	return budgets
}

// fabric opens the fabric of a model's process; a paced one crosses the
// configured links.
func (p *process) fabric(m *planner.Model) (*shm.Fabric, error) {
	cfg := p.sys.Config
	if cfg.Fabric.Kind != "shm" {
		return nil, fmt.Errorf("fabric.kind: %q is not part of this build, only shm", cfg.Fabric.Kind)
	}
	if !cfg.Fabric.Pace {
		return shm.New(shm.Config{Budgets: p.budgets(m)}) // as fast as the machine copies
	}
	var devices []string
	for _, d := range cfg.Devices {
		devices = append(devices, d.Name)
	}
	var links []topology.Link
	for _, l := range cfg.Links {
		one := topology.Link{From: l.From, To: l.To, BytesPerSec: float64(l.Bandwidth), Latency: time.Duration(l.Latency)}
		links = append(links, one)
		if !l.OneWay {
			one.From, one.To = l.To, l.From
			links = append(links, one)
		}
	}
	topo, err := topology.New(devices, links)
	if err != nil {
		return nil, fmt.Errorf("links: %w", err)
	}
	return shm.New(shm.Config{Topology: topo, Pace: true, Budgets: p.budgets(m)})
}
