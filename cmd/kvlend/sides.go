package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/coordinator/agent"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/internal/fabrics"
	"github.com/kvlend/kvlend/master"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/worker"
)

// storeShare is the part of a lease that must be left when a store begins.
const storeShare = 10

// asker lets a cache and the agents of its lenders know each other.
type asker struct{ agent *agent.Borrower }

func (a *asker) Want(w coordinator.Wish)        { a.agent.Want(w) }
func (a *asker) Release(units []wire.UnitEpoch) { a.agent.Release(units) }

func (p *process) masterSide(ctx context.Context, m *planner.Model, mem *memory, fab fabrics.Fabric, identity []byte) (cacheSide, error) {
	lending := p.sys.Config.Lending
	cfg := master.Config{
		Geometry: m.Geometry, ArenaBytes: m.Arena, Tails: m.Tails, Buffers: m.Config.LSC.Buffers,
		MaxBlocks: m.Capacity.Blocks, MaxLent: m.Capacity.NLSC, Local: mem.arenas[m.Config.Name],
		IdleReturn: time.Duration(lending.IdleReturn), StoreLimit: time.Duration(lending.Lease) / storeShare, Now: agent.Now,
		Verify: master.Verify(lending.Verify), Recorder: &p.timeline, Log: p.log,
	}
	for name, s := range map[string]*nvlink.Stream{"store": &cfg.Store, "move": &cfg.Move} {
		var err error
		if *s, err = fab.NewStream(m.Config.Device, name); err != nil {
			return cacheSide{}, err
		}
	}
	var others []string
	for _, l := range m.Lenders {
		others = append(others, l.Worker.Config.Device)
	}
	detours := fab.Detours(m.Config.Device, others)
	for _, d := range detours {
		p.log.Warn("fabric", "problem", d)
	}
	askers, err := lendersOf(m, mem, fab, &cfg)
	if err != nil {
		return cacheSide{}, err
	}
	if err := p.hostMemory(m, fab, &cfg); err != nil {
		return cacheSide{}, err
	}
	disks, err := p.openOverflow(ctx, m, identity, fab, &cfg)
	if err != nil {
		return cacheSide{}, err
	}
	cache, err := master.New(cfg)
	if err != nil {
		return cacheSide{}, errors.Join(err, disks.close())
	}
	disks.serve(cache, p.log)
	side := cacheSide{cache: cache}
	side.describe = func(st *wire.Status) {
		cache.Describe(st)
		st.LinkBudget = int64(lending.LinkBudget)
		for _, d := range detours {
			st.Degraded = append(st.Degraded, wire.Clip("fabric: "+d, wire.MaxText))
		}
		for _, a := range askers {
			a.agent.Describe(st)
		}
		disks.describe(st)
	}
	side.check = func(r *wire.CheckReport) { checkMaster(r, cache, askers) }
	side.drain = func(on, idle bool) int { return drainMaster(cache, on, idle) }
	if disks != nil {
		side.unload, side.lack = disks.unload, disks.lack
	}
	stopIdle := every(time.Duration(lending.IdleReturn)/4, cache.ReturnIdle)
	side.close = func() {
		stopIdle()
		disks.end(p.log) // which keeps borrowed blocks too: before they go home
		for _, a := range askers {
			if a.agent != nil {
				a.agent.Close()
			}
		}
	}
	for i, l := range m.Lenders {
		d, err := p.links.Dialer(l.Worker.Config.Name, m.Config.Name)
		if err == nil {
			askers[i].agent, err = agent.OpenBorrower(agent.BorrowerConfig{
				Worker: l.Worker.Config.Name, Dialer: d, Self: p.hello(configs.RoleMaster, m.Config.Name),
				Tenant: master.Tenant{Cache: cache, Lender: i}, Log: p.log,
			})
		}
		if err != nil {
			side.close()
			return cacheSide{}, err
		}
	}
	return side, nil
}

// lendersOf adds the workers that a master may borrow from to its configuration.
// Their agents are still to be opened.
func lendersOf(m *planner.Model, mem *memory, fab fabrics.Fabric, cfg *master.Config) ([]*asker, error) {
	askers := make([]*asker, len(m.Lenders))
	for i, l := range m.Lenders {
		w := l.Worker
		table, err := elastic.OpenUnitTable(mem.tables[w.Config.Name].Bytes())
		if err != nil {
			return nil, fmt.Errorf("unit table of %s: %w", w.Config.Name, err)
		}
		load, err := fab.NewStream(m.Config.Device, "load from "+w.Config.Name)
		if err != nil {
			return nil, err
		}
		askers[i] = &asker{}
		cfg.Lender = append(cfg.Lender, master.LenderConfig{
			Name: w.Config.Name, Owner: uint32(m.Index), Spec: w.Unit, MaxUnits: l.Units,
			Arena: mem.arenas[w.Config.Name], ArenaBytes: w.Arena, Table: table, Ask: askers[i], Load: load,
		})
	}
	return askers, nil
}

// hostMemory gives a master the host memory of its configuration. It is the
// process's own: what is kept there ends with it.
func (p *process) hostMemory(m *planner.Model, fab fabrics.Fabric, cfg *master.Config) error {
	h := m.Config.Host
	if h.Bytes == 0 {
		return nil
	}
	arena, err := fab.Host("host-"+m.Config.Name, h.Device, int64(h.Bytes))
	if err != nil {
		return fmt.Errorf("host memory of %s: %w", m.Config.Name, err)
	}
	load, err := fab.NewStream(m.Config.Device, "load from host")
	if err != nil {
		return err
	}
	cfg.Host = &master.HostConfig{Arena: arena, Load: load, Sync: h.Sync}
	return nil
}

// every calls f regularly until the returned function is called.
func every(d time.Duration, f func()) (stop func()) {
	if d <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(d)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				f()
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// openUnits opens a worker's book on its units.
func openUnits(m *planner.Model, mem *memory, fab fabrics.Fabric) (*elastic.Units, error) {
	name := m.Config.Name
	region := mem.tables[name]
	if region == nil {
		return nil, fmt.Errorf("the supervisor handed down no unit table for %s", name)
	}
	table, err := elastic.OpenUnitTable(region.Bytes())
	if err != nil {
		return nil, err
	}
	opt := elastic.UnitsOptions{Geometry: m.Geometry, Spec: m.Unit, Floor: int64(m.Config.Floor), Table: table}
	if m.Config.ZeroOnReturn {
		s, err := fab.NewStream(m.Config.Device, "zero "+name)
		if err != nil {
			return nil, err
		}
		if opt.OnChange, err = worker.Zero(mem.arenas[name], s, m.Unit.Bytes); err != nil {
			return nil, err
		}
	}
	return elastic.NewUnits(opt)
}

func (p *process) workerSide(m *planner.Model, mem *memory, fab fabrics.Fabric) (cacheSide, error) {
	name := m.Config.Name
	units, err := openUnits(m, mem, fab)
	if err != nil {
		return cacheSide{}, err
	}
	lending := p.sys.Config.Lending
	policy, err := elastic.NewScalePolicy(scaleOptions(lending.ScaleDown))
	if err != nil {
		return cacheSide{}, err
	}
	trail, err := openAudit(p.sys.Config, name, p.log)
	if err != nil {
		return cacheSide{}, err
	}
	var lender *agent.Lender
	drain := &workerDrain{}
	tokens, _ := m.MaxTokens()
	deadline := time.Duration(lending.ReclaimDeadline)
	cache, err := worker.New(worker.Config{
		Units: units, Policy: policy, Arena: mem.arenas[name], MaxBlocks: tokens / m.Geometry.BlockTokens,
		Need: func(n int) { lender.Need(n) }, Hold: 2 * deadline, Now: agent.Now,
		KeepFor: time.Duration(lending.KeepPrefix), MaxSlowdown: lending.MaxSlowdown.Fraction(), StepClock: cpuTime,
	})
	if err != nil {
		return cacheSide{}, err
	}
	quota, weight := sharesOf(m)
	lender = agent.NewLender(agent.LenderConfig{
		Units: units, Landlord: cache, Spare: drain.spare(cache.Lendable), Lease: time.Duration(lending.Lease), Deadline: deadline,
		Quota: quota, Weight: weight,
		Stuck: func(borrower, reason string) { p.conn.Send(&wire.FenceAsk{Model: borrower, Reason: reason}) },
		Replaced: func(borrower, reason string, successor int) {
			p.conn.Send(&wire.FenceAsk{Model: borrower, Reason: reason, Successor: successor})
		},
		Record: recordUnits(trail),
		Self:   p.hello(m.Config.Role, name), Log: p.log,
	})
	side := cacheSide{cache: cache}
	side.close = func() {
		lender.Close()
		trail.Close()
	}
	side.drain = func(on, _ bool) int { return drain.set(on, cache, units, lender) }
	var borrowers []worker.Borrower
	var owners []uint32
	for _, c := range p.sys.Config.Masters(m.Config) {
		owner := uint32(p.sys.Model(c.Name).Index)
		ln, err := p.links.Listen(name, c.Name)
		if err == nil {
			err = lender.Serve(c.Name, owner, ln)
		}
		if err != nil {
			side.close()
			return cacheSide{}, err
		}
		borrowers = append(borrowers, worker.Borrower{Name: c.Name, Owner: owner})
		owners = append(owners, owner)
	}
	side.check = func(r *wire.CheckReport) { checkWorker(r, cache, units, int64(m.Config.Floor), lender, owners) }
	side.describe = func(st *wire.Status) {
		cache.Describe(st, borrowers, lender.Version)
		lender.Describe(st)
		st.AuditLost = trail.Lost()
	}
	p.listenGone(func(g *wire.Gone) {
		for _, b := range borrowers {
			if b.Name == g.Model {
				lender.Ended(b.Owner, g.PID)
			}
		}
	})
	return side, nil
}

// sharesOf gives the masters' parts of what a worker can lend, by owner index.
func sharesOf(m *planner.Model) (quota, weight map[uint32]int) {
	quota, weight = map[uint32]int{}, map[uint32]int{}
	for _, s := range m.Shares {
		quota[s.Owner], weight[s.Owner] = s.Quota, s.Weight
	}
	return quota, weight
}

func scaleOptions(d configs.ScaleDown) elastic.ScaleOptions {
	return elastic.ScaleOptions{
		Down: elastic.ScaleDownPolicy(d.Policy), Window: time.Duration(d.Window),
		Quantile: d.Quantile.Fraction(), Low: d.Low.Fraction(), High: d.High.Fraction(),
	}
}
