package sim

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/master"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/overflow"
	"github.com/kvlend/kvlend/overflow/admission"
	"github.com/kvlend/kvlend/overflow/placement"
	"github.com/kvlend/kvlend/overflow/store"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/planner/perf"
)

const (
	// doorWindow and stagingBytes are those of the running system.
	doorWindow   = 4
	stagingBytes = 16 << 20
	// ioPiece and ioDepth are how the running system reads: a layer of a run of
	// blocks at a time, many of them in flight.
	ioDepth = 32
	// storeSlack is what a store keeps for itself, about.
	storeSlack = 0.02
)

// book is a store without a device: it says which slots are taken.
type book struct {
	geo    store.Geometry
	number byte
	free   []store.Slot // the next one last
	writes uint64
}

func newBook(m *planner.Model, size int64, number int) *book {
	g := store.Geometry{
		Layers: m.Geometry.Layers, LayerBytes: int(m.Geometry.LayerBlockBytes()), BlockTokens: m.Geometry.BlockTokens,
		Run: 1, Stride: m.Geometry.LayerBlockBytes(),
	}
	g.Slots = int(float64(size) * (1 - storeSlack) / float64(m.Geometry.FullBlockBytes()))
	b := &book{geo: g, number: byte(number + 1)}
	for i := g.Slots - 1; i >= 0; i-- {
		b.free = append(b.free, store.Slot(i))
	}
	return b
}

// Geometry implements master.Store.
func (b *book) Geometry() store.Geometry { return b.geo }

// Info implements master.Store.
func (b *book) Info() store.Info { return store.Info{Geometry: b.geo, UUID: [16]byte{b.number}} }

// Stats implements master.Store.
func (b *book) Stats() store.Stats {
	return store.Stats{Slots: b.geo.Slots, Free: len(b.free), Live: b.geo.Slots - len(b.free)}
}

// Off implements master.Store.
func (b *book) Off(slot store.Slot, layer int) int64 { return b.geo.Off(slot, layer) }

// AllocNear implements master.Store. Where slots lie makes no difference here.
func (b *book) AllocNear(dst []store.Slot, n int, _ store.Slot, _ bool) []store.Slot {
	for range min(n, len(b.free)) {
		dst = append(dst, b.free[len(b.free)-1])
		b.free = b.free[:len(b.free)-1]
	}
	return dst
}

// Free implements master.Store.
func (b *book) Free(slots []store.Slot) { b.free = append(b.free, slots...) }

// Commit implements master.Store.
func (b *book) Commit(*store.Entry) (uint64, error) {
	b.writes++
	return b.writes, nil
}

// Entries implements master.Store: every simulation begins with empty disks.
func (b *book) Entries() iter.Seq[store.Entry] { return func(func(store.Entry) bool) {} }

// Flush implements master.Store.
func (b *book) Flush(context.Context) error { return nil }

// disk is a device of the pool at work.
type disk struct {
	name   string
	device *device
	read   *link
	write  *link
	model  *perf.Disk
}

// reads and writes are a disk's two directions as links.
type reads struct{ *perf.Disk }

// Time implements Mover.
func (r reads) Time(bytes, piece int64) time.Duration { return r.Read(bytes, piece, ioDepth) }

type writes struct{ *perf.Disk }

// Time implements Mover.
func (w writes) Time(bytes, piece int64) time.Duration { return w.Write(bytes, piece, ioDepth) }

// slowest is a way over several links, of which the slowest counts.
type slowest [2]Mover

// Time implements Mover.
func (s slowest) Time(bytes, piece int64) time.Duration {
	return max(s[0].Time(bytes, piece), s[1].Time(bytes, piece))
}

// addPool gives a master the disks of its configuration.
func (w *world) addPool(p *process, cfg *master.Config, stream func() *stream) error {
	c := p.model.Config.Overflow
	if len(c.Devices) == 0 {
		return nil
	}
	out := &master.OverflowConfig{Move: stream()}
	var err error
	if out.Placement, err = placement.ParsePolicy(c.Placement); err != nil {
		return err
	}
	slots := 0
	for i, d := range c.Devices {
		one, err := w.addDisk(p, d)
		if err != nil {
			return fmt.Errorf("overflow.devices[%d] (%s): %w", i, d.Name, err)
		}
		budget, err := admission.NewBudget(admission.BudgetOptions{PerDay: int64(d.WriteBudget), Rated: int64(d.RatedWrites), Now: p.Now})
		if err != nil {
			return fmt.Errorf("overflow.devices[%d] (%s): %w", i, d.Name, err)
		}
		b := newBook(p.model, one.model.Capacity(), i)
		slots += b.geo.Slots
		out.Stores = append(out.Stores, master.StoreConfig{
			Name: d.Name, Store: b, Arena: &arena{"disk-" + d.Name, one.device, one.model.Capacity()}, Load: stream(),
			Rate: one.model.ReadRate(b.geo.Stride, ioDepth), Budget: budget, Volatile: d.Path == overflow.MemoryPath, Unchecked: true,
		})
		p.passes.loads, p.passes.store = append(p.passes.loads, one.read), append(p.passes.store, one.write)
	}
	out.Door, err = admission.NewDoorkeeper(admission.DoorkeeperOptions{After: c.AdmitAfter, Window: max(1, min(doorWindow*slots, 1<<26))})
	if err != nil {
		return err
	}
	block := p.model.Geometry.FullBlockBytes()
	out.Staging = &arena{"staging-" + p.model.Config.Name, p.device, max(1, stagingBytes/block) * block}
	cfg.Overflow = out
	return nil
}

// addDisk makes a device, and the links that lead to it.
func (w *world) addDisk(p *process, d configs.Disk) (*disk, error) {
	model, err := w.hw.Disk(d)
	if err != nil {
		return nil, err
	}
	at := w.device("disk " + p.model.Config.Name + "/" + d.Name)
	one := &disk{name: d.Name, device: at, model: model}
	// Its bytes pass through host memory.
	in, out, err := w.pair(w.device(configs.HostDevice), p.device, 0)
	if err != nil {
		return nil, err
	}
	one.read = w.connect(at, p.device, slowest{reads{model}, in.model})
	one.write = w.connect(p.device, at, slowest{writes{model}, out.model})
	w.disks = append(w.disks, one)
	return one, nil
}

var (
	_ master.Store  = (*book)(nil)
	_ nvlink.Stream = (*stream)(nil)
)
