package sim

import (
	"cmp"
	"fmt"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/master"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/scheduler"
	"github.com/kvlend/kvlend/worker"
)

// storeShare is the part of a lease that must be left when a store begins, as in
// the running system.
const storeShare = 10

// world is one server: its processes, devices and links.
type world struct {
	kernel
	sys     *planner.System
	hw      Hardware
	devices map[string]*device
	wires   wires
	links   []*link // in the order of their making
	disks   []*disk
	procs   []*process // by model
	lenders map[*planner.Model]*lender
	masters map[*planner.Model]*master.Cache
	workers map[*planner.Model]*workerCache
	control Control
	arenas  map[*planner.Model]*arena
	tables  map[*planner.Model]*elastic.UnitTable
	lent    *series
}

// workerCache is a worker's book.
type workerCache struct {
	units *elastic.Units
	cache *worker.Cache
}

func newWorld(sys *planner.System, hw Hardware) (*world, error) {
	w := &world{
		sys: sys, hw: hw, devices: map[string]*device{}, wires: wires{}, lenders: map[*planner.Model]*lender{},
		masters: map[*planner.Model]*master.Cache{}, workers: map[*planner.Model]*workerCache{},
		arenas: map[*planner.Model]*arena{}, tables: map[*planner.Model]*elastic.UnitTable{},
		lent: newSeries(),
	}
	for i, m := range sys.Models {
		p := &process{clock: clock{k: &w.kernel}, model: m, device: w.device(m.Config.Device)}
		var err error
		if p.engine, err = hw.Engine(m); err != nil {
			return nil, fmt.Errorf("models[%d] (%s): %w", i, m.Config.Name, err)
		}
		p.conf = engine.Config{Name: m.Config.Name, Layers: m.Geometry.Layers, MaxContext: hw.Context(m), Vocab: vocabulary}
		w.procs = append(w.procs, p)
		w.arenas[m] = &arena{m.Config.Name, p.device, m.AllocBytes()}
	}
	for _, p := range w.procs {
		if p.model.Config.Role != configs.RoleMaster {
			if err := w.addWorker(p); err != nil {
				return nil, fmt.Errorf("models[%d] (%s): %w", p.model.Index, p.model.Config.Name, err)
			}
		}
	}
	for _, p := range w.procs {
		if p.model.Config.Role == configs.RoleMaster {
			if err := w.addMaster(p); err != nil {
				return nil, fmt.Errorf("models[%d] (%s): %w", p.model.Index, p.model.Config.Name, err)
			}
		}
	}
	return w, nil
}

// device finds or makes a device.
func (w *world) device(name string) *device {
	d := w.devices[name]
	if d == nil {
		d = &device{name: name, hbm: w.hw.Memory(name)}
		w.devices[name] = d
	}
	return d
}

// link finds or makes the link from one device to another; limit bounds its
// bandwidth, 0: nothing does.
func (w *world) link(from, to *device, limit configs.Rate) (*link, error) {
	key := [2]*device{from, to}
	if l := w.wires[key]; l != nil {
		return l, nil
	}
	model, err := w.hw.Link(from.name, to.name, limit)
	if err != nil {
		return nil, err
	}
	return w.connect(from, to, model), nil
}

// connect makes a link.
func (w *world) connect(from, to *device, model Mover) *link {
	l := &link{model: model, from: from, to: to}
	w.wires[[2]*device{from, to}] = l
	w.links = append(w.links, l)
	return l
}

func (w *world) options(m *planner.Model) scheduler.Options {
	c := m.Config
	return scheduler.Options{
		MaxRunning: c.MaxRunning, MaxBatchTokens: c.MaxBatchTokens, MaxWaiting: c.MaxWaiting,
		AdmissionTimeout: patience + time.Duration(w.sys.Config.Lending.ScaleDown.Window),
	}
}

// patience of the first request in the queue, beyond the window for which workers
// keep what they may need, as in the running system.
const patience = 30 * time.Second

// addWorker makes a worker's cache, or that of a model that neither lends nor
// borrows.
func (w *world) addWorker(p *process) error {
	m, lending := p.model, w.sys.Config.Lending
	mem := make([]byte, elastic.UnitTableBytes(m.Units))
	table, err := elastic.FormatUnitTable(mem, m.Unit, m.Arena, uint32(m.Index))
	if err != nil {
		return err
	}
	units, err := elastic.NewUnits(elastic.UnitsOptions{Geometry: m.Geometry, Spec: m.Unit, Floor: int64(m.Config.Floor), Table: table})
	if err != nil {
		return err
	}
	policy, err := elastic.NewScalePolicy(scaleOptions(lending.ScaleDown))
	if err != nil {
		return err
	}
	deadline := time.Duration(lending.ReclaimDeadline)
	l := &lender{p: p, deadline: deadline, borrowers: map[uint32]*borrower{}, away: units.Away}
	tokens, _ := m.MaxTokens()
	l.cache, err = worker.New(worker.Config{
		Units: units, Policy: policy, Arena: w.arenas[m], MaxBlocks: tokens / m.Geometry.BlockTokens,
		Need: l.need, Hold: 2 * deadline, Now: p.now,
		KeepFor: time.Duration(lending.KeepPrefix), MaxSlowdown: lending.MaxSlowdown.Fraction(),
	})
	if err != nil {
		return err
	}
	quota, weight := map[uint32]int{}, map[uint32]int{}
	for _, s := range m.Shares {
		quota[s.Owner], weight[s.Owner] = s.Quota, s.Weight
	}
	l.machine = coordinator.NewLender(0, coordinator.LenderOptions{
		Units: units, TTL: time.Duration(lending.Lease), Quota: quota, Weight: weight, Within: deadline,
		Spare: func(_ uint32, wish coordinator.Wish) int { return l.cache.Lendable(wish) },
	})
	l.changed = func() { w.lent.set(p.t, w.awayBytes()) }
	w.tables[m], w.lenders[m], w.workers[m] = table, l, &workerCache{units, l.cache}
	p.start(l.cache, w.options(m))
	return nil
}

func (w *world) awayBytes() float64 {
	sum := 0.0
	for m, c := range w.workers {
		sum += float64(c.units.Away()) * float64(m.Unit.Bytes)
	}
	return sum
}

func scaleOptions(d configs.ScaleDown) elastic.ScaleOptions {
	return elastic.ScaleOptions{
		Down: elastic.ScaleDownPolicy(d.Policy), Window: time.Duration(d.Window),
		Quantile: d.Quantile.Fraction(), Low: d.Low.Fraction(), High: d.High.Fraction(),
	}
}

// addMaster makes a master's cache over what its workers can lend.
func (w *world) addMaster(p *process) error {
	m, lending := p.model, w.sys.Config.Lending
	stream := func() *stream { return &stream{clock: &p.clock, wires: w.wires} }
	p.passes = &passes{clock: &p.clock, layers: m.Geometry.Layers, buffers: m.Config.LSC.Buffers, bytes: m.Geometry.LayerBlockBytes()}
	cfg := master.Config{
		Geometry: m.Geometry, ArenaBytes: m.Arena, Tails: m.Tails, Buffers: m.Config.LSC.Buffers,
		MaxBlocks: m.Capacity.Blocks, MaxLent: m.Capacity.NLSC, Local: w.arenas[m],
		Store: stream(), Move: stream(), Passes: p.passes, Later: later{&p.clock, p.nudge},
		IdleReturn: time.Duration(lending.IdleReturn), StoreLimit: time.Duration(lending.Lease) / storeShare,
		Now: p.now, Wall: p.Now, Verify: master.VerifyOff,
	}
	ends := make([]*borrower, len(m.Lenders))
	for i, l := range m.Lenders {
		ends[i] = &borrower{p: p, machine: coordinator.NewBorrower(coordinator.BorrowerOptions{}), lender: w.lenders[l.Worker], owner: uint32(m.Index), control: &w.control}
		load, store, err := w.pair(w.device(l.Worker.Config.Device), p.device, lending.LinkBudget)
		if err != nil {
			return err
		}
		p.passes.loads, p.passes.store = append(p.passes.loads, load), append(p.passes.store, store)
		cfg.Lender = append(cfg.Lender, master.LenderConfig{
			Name: l.Worker.Config.Name, Owner: uint32(m.Index), Spec: l.Worker.Unit, MaxUnits: l.Units,
			Arena: w.arenas[l.Worker], ArenaBytes: l.Worker.Arena, Table: w.tables[l.Worker], Ask: ends[i], Load: stream(),
		})
	}
	if h := m.Config.Host; h.Bytes > 0 {
		at := w.device(cmp.Or(h.Device, configs.HostDevice))
		load, store, err := w.pair(at, p.device, 0)
		if err != nil {
			return err
		}
		p.passes.loads, p.passes.store = append(p.passes.loads, load), append(p.passes.store, store)
		cfg.Host = &master.HostConfig{Arena: &arena{"host-" + m.Config.Name, at, int64(h.Bytes)}, Load: stream(), Sync: h.Sync}
	}
	if err := w.addPool(p, &cfg, stream); err != nil {
		return err
	}
	cache, err := master.New(cfg)
	if err != nil {
		return err
	}
	w.masters[m] = cache
	p.start(cache, w.options(m))
	for i, b := range ends {
		b.tenant = master.Tenant{Cache: cache, Lender: i}
		l := b.lender
		l.borrowers[b.owner] = b
		l.do(func(now time.Duration) { l.machine.Up(now, b.owner) })
		b.do(b.machine.Up)
	}
	p.every(time.Duration(lending.IdleReturn)/4, cache.ReturnIdle)
	return nil
}

// pair is the links from a device and back; none on the same device, where a copy
// is as fast as its memory.
func (w *world) pair(far, near *device, limit configs.Rate) (load, store *link, err error) {
	if load, err = w.link(far, near, limit); err == nil {
		store, err = w.link(near, far, limit)
	}
	return load, store, err
}
