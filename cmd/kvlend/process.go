package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/internal/fabrics"
	"github.com/kvlend/kvlend/internal/hostkv"
	"github.com/kvlend/kvlend/internal/logq"
	"github.com/kvlend/kvlend/internal/node"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/internal/timeline"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/shm"
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
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	eng, err := source.Engine(m.Config)
	if err != nil {
		return fmt.Errorf("model %s: %w", m.Config.Name, err)
	}
	defer eng.Close()
	fab, err := fabrics.Open(fabrics.Options{Config: p.sys.Config, Device: m.Config.Device, Budgets: p.budgets(m), Log: p.log,
		Lost: func(err error) { lost(&lostGPU{err}) },
	})
	if err != nil {
		return err
	}
	mem, err := p.openMemory(m, fab)
	if err != nil {
		return errors.Join(err, fab.Close())
	}
	defer mem.close()
	defer fab.Close()
	run, done, err := engineFor(m, eng, mem.arenas[m.Config.Name], fab)
	if err != nil {
		return err
	}
	defer done()
	var side cacheSide
	if m.Config.Role == configs.RoleMaster {
		side, err = p.masterSide(ctx, m, mem, fab, node.Identity(eng))
	} else {
		side, err = p.workerSide(m, mem, fab)
	}
	if err != nil {
		return err
	}
	defer side.close()
	err = p.serveCache(ctx, m, run, eng.ISA(), side)
	if gone := (*lostGPU)(nil); err == nil && errors.As(context.Cause(ctx), &gone) {
		return gone
	}
	return err
}

// lostGPU ends a process: only the next one gets a context that works.
type lostGPU struct{ err error }

func (e *lostGPU) Error() string {
	return "a GPU is lost to this process, which ends: " + e.err.Error()
}
func (e *lostGPU) Unwrap() error { return e.err }

// engineFor is an engine for a model's KV. Where that is in memory that the host
// cannot address, layers come to the host to be computed.
func engineFor(m *planner.Model, eng *engine.Model, arena nvlink.Arena, fab fabrics.Fabric) (run engine.Runner, done func() error, err error) {
	if arena.Bytes() != nil {
		return eng, func() error { return nil }, nil
	}
	s, err := fab.NewStream(m.Config.Device, "layers of "+m.Config.Name)
	if err != nil {
		return nil, nil, err
	}
	r, err := hostkv.New(eng, hostkv.Options{
		Arena: arena, Stream: s,
		Host: func(size int64) (nvlink.Arena, error) { return fab.Host("layers-"+m.Config.Name, "", size) },
	})
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return r, func() error { return errors.Join(s.Close(), r.Close()) }, nil
}

func (p *process) serveCache(ctx context.Context, m *planner.Model, run engine.Runner, kernels string, side cacheSide) error {
	name := m.Config.Name
	n, err := node.Start(node.Options{
		Patience: patience + time.Duration(p.sys.Config.Lending.ScaleDown.Window),
		Model:    m, Engine: timeline.Watch(run, &p.timeline), Timeline: &p.timeline, Kernels: kernels, Cache: side.cache, Links: p.links,
		Hello: p.hello(m.Config.Role, name), Describe: side.describe,
		Check: side.check, Drain: side.drain, Unload: side.unload, Lack: side.lack, Restarts: p.conn.Welcome.Restarts, Log: p.log,
	})
	if err != nil {
		return err
	}
	if err := p.conn.Send(&wire.Ready{Model: name, Kernels: kernels}); err != nil {
		return err
	}
	return n.Run(ctx)
}

// memory is what the supervisor handed down, by model.
type memory struct {
	arenas map[string]nvlink.Arena
	tables map[string]*shm.Region
}

func (p *process) openMemory(m *planner.Model, fab fabrics.Fabric) (*memory, error) {
	mem := &memory{arenas: map[string]nvlink.Arena{}, tables: map[string]*shm.Region{}}
	for i, f := range p.conn.Welcome.Files {
		owner := p.sys.Model(f.Model)
		if owner == nil {
			mem.close()
			return nil, fmt.Errorf("memory of %q: no such model", f.Model)
		}
		var err error
		if f.Kind == "arena" {
			var a nvlink.Arena
			if a, err = fab.Open(f.Handle, p.conn.Files[i], f.Model, owner.Config.Device, owner.AllocBytes()); err == nil {
				mem.arenas[f.Model] = a
			}
		} else {
			var r *shm.Region
			if r, err = shm.OpenRegion(p.conn.Files[i], "units-"+f.Model, f.Size); err == nil {
				mem.tables[f.Model] = r
			}
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
		a.Close()
	}
	for _, r := range mem.tables {
		r.Close()
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
