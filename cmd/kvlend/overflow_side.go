package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/internal/fabrics"
	"github.com/kvlend/kvlend/master"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/route"
	"github.com/kvlend/kvlend/overflow"
	"github.com/kvlend/kvlend/overflow/admission"
	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/placement"
	"github.com/kvlend/kvlend/overflow/store"
	"github.com/kvlend/kvlend/overflow/stream"
	"github.com/kvlend/kvlend/planner"
)

const (
	// flushEntries and flushEvery are how soon what is stored becomes durable.
	flushEntries = 256
	flushEvery   = time.Second
	// stepShare of a reclaim's deadline is how long a disk may keep a step: what
	// lenders want back waits for the end of the step. A disk that does not answer
	// costs a step this and a quarter more.
	stepShare = 0.6
	// stagingBytes is about how much memory blocks have on their way to the disks,
	// and stagingLeast how many of them fit in any case.
	stagingBytes = 16 << 20
	stagingLeast = 4
	// persistTime is how long an ending process may spend on keeping what it has.
	persistTime = 10 * time.Second
	// doorWindow is how many uses the doorkeeper remembers per block that fits.
	doorWindow = 4
)

// overflowSide is a master's part of the overflow pool.
type overflowSide struct {
	pool    *overflow.Pool
	cache   atomic.Pointer[master.Cache] // nil until it is there
	streams []*stream.Stream
	devices []overflow.DeviceOptions // as configured
}

// poolOptions says how the devices of a model are opened.
func poolOptions(m *planner.Model, identity []byte) overflow.Options {
	c := m.Config.Overflow
	o := overflow.Options{
		Model: m.Config.Name,
		Store: store.Options{
			Layers: m.Geometry.Layers, LayerBytes: int(m.Geometry.LayerBlockBytes()), BlockTokens: m.Geometry.BlockTokens,
			Identity: identity, FlushEntries: flushEntries, FlushEvery: flushEvery,
		},
		Engine:  device.EngineOptions{Memory: int64(c.Buffers) / device.Align * device.Align, Portable: c.Portable},
		Timeout: time.Duration(c.Timeout),
	}
	for _, d := range c.Devices {
		o.Devices = append(o.Devices, overflow.DeviceOptions{
			Name: d.Name, Path: d.Path, Block: d.Block, Size: int64(d.Size), NUMANode: d.NUMANode,
			Budget: admission.BudgetOptions{PerDay: int64(d.WriteBudget), Rated: int64(d.RatedWrites)},
		})
	}
	return o
}

// openOverflow opens a model's disks and puts them behind its other memory. A disk
// that cannot be opened is reported, and done without.
func (p *process) openOverflow(ctx context.Context, m *planner.Model, identity []byte, fab fabrics.Fabric, cfg *master.Config) (*overflowSide, error) {
	c := m.Config.Overflow
	if len(c.Devices) == 0 {
		return nil, nil
	}
	o := poolOptions(m, identity)
	o.Create = true
	last := time.Now()
	o.Progress = func(name string, done, total int64) {
		if done == total || time.Since(last) > 5*time.Second {
			last = time.Now()
			p.log.Info("a file of the overflow pool is being made", "device", name, "bytes", configs.Bytes(done).String(), "of", configs.Bytes(total).String())
		}
	}
	side := &overflowSide{devices: o.Devices}
	o.Store.OnFail = func(err error) { side.failed(err) }
	pool, err := overflow.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	side.pool = pool
	for name, err := range pool.Out {
		p.log.Error("a device of the overflow pool cannot be used: what it holds is computed again", "device", name, "error", err)
	}
	for name, text := range pool.Odd {
		p.log.Warn("a device of the overflow pool is not as configured", "device", name, "problem", text)
	}
	step := time.Duration(c.Timeout)
	if len(m.Lenders) > 0 {
		step = min(step, time.Duration(float64(p.sys.Config.Lending.ReclaimDeadline)*stepShare))
	}
	if err := side.attach(m, step, fab, cfg); err != nil {
		return nil, errors.Join(err, side.close())
	}
	return side, nil
}

// attach makes the pool a part of a cache's configuration. step is how long a disk
// may take where a step waits for it.
func (s *overflowSide) attach(m *planner.Model, step time.Duration, fab fabrics.Fabric, cfg *master.Config) error {
	c := m.Config.Overflow
	out := &master.OverflowConfig{}
	var err error
	if out.Placement, err = placement.ParsePolicy(c.Placement); err != nil {
		return err
	}
	slots := 0
	for _, d := range s.pool.Devices {
		load, err := s.stream("load "+d.Info().Name, step)
		if err != nil {
			return err
		}
		out.Stores = append(out.Stores, master.StoreConfig{
			Name: d.Info().Name, Store: d.Store, Arena: d.Arena, Load: load, Rate: d.Rate(), Budget: d, Volatile: d.Volatile(), Doubt: d.Doubt,
			Achieved: func() float64 {
				if m := d.Meter(); m != nil {
					return m.Stats().Read.Rate
				}
				return 0
			},
		})
		slots += d.Store.Stats().Slots
	}
	if len(out.Stores) == 0 {
		return nil
	}
	if out.Door, err = admission.NewDoorkeeper(admission.DoorkeeperOptions{After: c.AdmitAfter, Window: max(1, min(doorWindow*slots, 1<<26))}); err != nil {
		return err
	}
	disks, err := s.stream("store", step)
	if err != nil {
		return err
	}
	cfg.Store = route.New(toDisk, cfg.Store, disks)
	if out.Move, err = s.stream("move", time.Duration(c.Timeout)); err != nil {
		return err
	}
	block := m.Geometry.FullBlockBytes()
	if out.Staging, err = fab.Host("staging-"+m.Config.Name, m.Config.Device, max(stagingLeast, stagingBytes/block)*block); err != nil {
		return fmt.Errorf("staging memory of %s: %w", m.Config.Name, err)
	}
	out.Missing = len(s.pool.Out) > 0
	cfg.Overflow = out
	return nil
}

// toDisk sends a piece with an end on a disk to the second of two streams.
func toDisk(c nvlink.Copy) int {
	for _, a := range []nvlink.Arena{c.Src.Arena, c.Dst.Arena} {
		if _, disk := a.(*stream.Arena); disk {
			return 1
		}
	}
	return 0
}

func (s *overflowSide) stream(name string, limit time.Duration) (*stream.Stream, error) {
	st, err := s.pool.Stream(name, limit, func(e *device.Error) { s.fault(e.Device, e) })
	if err == nil {
		s.streams = append(s.streams, st)
	}
	return st, err
}

// serve makes the cache hear of faults, and says what was found.
func (s *overflowSide) serve(c *master.Cache, log hclog.Logger) {
	if s == nil {
		return
	}
	s.cache.Store(c)
	for _, d := range s.pool.Devices {
		log.Info("a device of the overflow pool is open", "device", d.Info().Name, "blocks", d.Recovery.Entries, "recovery", d.Recovery.Took,
			"torn", d.Recovery.Torn, "read", configs.Rate(d.Rate()).String())
	}
	if e := s.pool.Engine(); e.Degraded != "" {
		log.Warn("the overflow pool works, more slowly than it could", "reason", e.Degraded)
	}
	r := c.Restored()
	if r.Orphans > 0 {
		log.Warn("blocks in the overflow pool whose predecessors are gone, or that were there twice, made way", "blocks", r.Orphans, "kept", r.Blocks)
	}
	if r.Waiting > 0 {
		log.Warn("blocks in the overflow pool cannot be used without those of a device that is missing or new: they stay until their places are needed",
			"blocks", r.Waiting, "usable", r.Blocks)
	}
}

func (s *overflowSide) fault(name string, err error) {
	for i, d := range s.pool.Devices {
		if c := s.cache.Load(); d.Info().Name == name && c != nil {
			c.StoreFault(i, err)
		}
	}
}

func (s *overflowSide) failed(err error) {
	var f *store.FailedError
	if errors.As(err, &f) {
		s.fault(f.Device, err)
	}
}

// close keeps what the cache has, as far as there is time, and closes the disks.
func (s *overflowSide) close() error {
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), persistTime)
	defer cancel()
	var errs []error
	if c := s.cache.Load(); c != nil {
		errs = append(errs, c.Persist(ctx))
	}
	for _, st := range s.streams {
		errs = append(errs, st.Close())
	}
	return errors.Join(append(errs, s.pool.Close(ctx))...)
}

// end closes the disks of a process that ends.
func (s *overflowSide) end(log hclog.Logger) {
	if err := s.close(); err != nil {
		log.Warn("the overflow pool was not closed as it should be", "error", err)
	}
}

// describe fills in the devices of a status.
func (s *overflowSide) describe(st *wire.Status) {
	if s == nil {
		return
	}
	states := s.cache.Load().Stores()
	for i, d := range s.pool.Devices {
		info, c := d.Info(), d.Store.Stats()
		out := wire.DiskStatus{
			Name: info.Name, Kind: string(info.Kind), Path: info.Path, Degraded: info.Degraded,
			Slots: c.Slots, Live: c.Live, Free: c.Free, Lag: c.Lag, Rate: int64(d.Rate()),
			Fenced: wire.Clip(states[i].Fenced, wire.MaxText), Draining: states[i].Draining, Corrupt: states[i].Corrupt, Reused: states[i].Reused, Late: states[i].Late, Slow: states[i].Slow, Seen: int64(states[i].Rate),
		}
		if m := d.Meter(); m != nil {
			use := m.Stats()
			out.Read, out.Write = diskUsage(use.Read), diskUsage(use.Write)
			out.Errors, out.InFlight = use.Errors, use.InFlight
		}
		u := d.Budget.Usage()
		out.LifeDays = int64(max(0, u.Years*365))
		if u.PerDay > 0 {
			out.Budget, out.BudgetLeft = u.PerDay, u.Remaining
		}
		st.Disks = append(st.Disks, out)
	}
	for name, err := range s.pool.Out {
		st.Disks = append(st.Disks, wire.DiskStatus{Name: name, Fenced: wire.Clip(plainFault(err), wire.MaxText)})
	}
	s.identify(st.Disks)
	e := s.pool.Engine()
	if e.Degraded != "" {
		st.Degraded = append(st.Degraded, fmt.Sprintf("overflow pool: %s", e.Degraded))
	}
	for _, d := range st.Disks {
		if d.Fenced != "" {
			st.Degraded = append(st.Degraded, wire.Clip(fmt.Sprintf("device %s of the overflow pool is out of use: %s", d.Name, d.Fenced), wire.MaxText))
		} else if d.Corrupt > 0 {
			st.Degraded = append(st.Degraded, wire.Clip(fmt.Sprintf("device %s of the overflow pool: %d blocks were not what had been stored there", d.Name, d.Corrupt), wire.MaxText))
		} else if d.Slow {
			st.Degraded = append(st.Degraded, wire.Clip(fmt.Sprintf("device %s of the overflow pool answers too late: for a while what it holds is computed", d.Name), wire.MaxText))
		} else if d.Degraded != "" && d.Degraded != e.Degraded { // that was said
			st.Degraded = append(st.Degraded, wire.Clip(fmt.Sprintf("device %s of the overflow pool: %s", d.Name, d.Degraded), wire.MaxText))
		}
	}
}

func diskUsage(d device.Direction) wire.DiskUsage {
	return wire.DiskUsage{IOs: d.IOs, Bytes: d.Bytes, P50: d.P50, P99: d.P99, Rate: int64(d.Rate)}
}
