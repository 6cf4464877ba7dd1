package lending

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/coordinator/agent"
	"github.com/kvlend/kvlend/coordinator/session"
	"github.com/kvlend/kvlend/coordinator/transport"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/internal/fabrics"
	"github.com/kvlend/kvlend/master"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/shm"
	"github.com/kvlend/kvlend/scheduler"
)

const (
	device      = "gpu0"
	layers      = 8
	blockTokens = 16
	lease       = 30 * time.Second
	deadline    = 5 * time.Second
	// opLimit is how long an operation may take before the run is given up.
	opLimit = 20 * time.Second
	owner   = 0 // the master's index in unit tables
	// seqBlocks is the length of a sequence in blocks; a step has few of them.
	seqBlocks = 16
	stepSeqs  = 4
)

// geometry makes full blocks of 16 KiB.
func geometry(name string) elastic.Geometry {
	return elastic.Geometry{Name: name, Layers: layers, BlockTokens: blockTokens, KVHeads: 1, HeadDim: 32, ElemBytes: 2}
}

type quiet struct{}

func (quiet) Debug(string, ...any) {}
func (quiet) Info(string, ...any)  {}
func (quiet) Warn(string, ...any)  {}

// world is a master that borrows from two lenders.
type world struct {
	ctx     context.Context
	held    int
	cache   *master.Cache
	lenders []*lender
	ping    *session.Link
	pong    chan struct{}
	seqs    []scheduler.StepSeq
	fab     fabrics.Fabric
	first   nvlink.Arena  // where the first bytes of a grant go
	reads   nvlink.Stream // which carries them
	closers []func()
}

func (w *world) onClose(f func()) { w.closers = append(w.closers, f) }

func (w *world) close() {
	for i := len(w.closers) - 1; i >= 0; i-- {
		w.closers[i]()
	}
}

// lender is a worker's side of one link, and the master's.
type lender struct {
	name    string
	units   *elastic.Units
	mu      sync.Mutex
	home    chan struct{} // capacity 1: units came home
	agent   *agent.Lender
	arena   nvlink.Arena
	asker   *agent.Borrower
	granted chan []wire.UnitEpoch
	master.Tenant
}

// Locked implements agent.Landlord.
func (l *lender) Locked(f func() bool) {
	l.mu.Lock()
	home := f()
	l.mu.Unlock()
	if home {
		select {
		case l.home <- struct{}{}:
		default:
		}
	}
}

func (l *lender) away() (n int) {
	l.Locked(func() bool { n = l.units.Away(); return false })
	return n
}

// Granted implements agent.Tenant: the cache gets the units first.
func (l *lender) Granted(units []wire.UnitEpoch) {
	l.Tenant.Granted(units)
	l.granted <- units
}

// Want and Release implement master.Asker.
func (l *lender) Want(w coordinator.Wish)        { l.asker.Want(w) }
func (l *lender) Release(units []wire.UnitEpoch) { l.asker.Release(units) }

// newWorld builds it. A world that comes with an error must be closed too.
func newWorld(ctx context.Context, dir string, fabric configs.Fabric, held, spare int) (*world, error) {
	w := &world{ctx: ctx, held: held, pong: make(chan struct{}, 1)}
	links, err := transport.OpenDir(filepath.Join(dir, "l"), transport.Options{})
	if err != nil {
		return w, err
	}
	w.fab, err = fabrics.Open(fabrics.Options{Log: hclog.NewNullLogger(), Config: &configs.Config{
		Fabric: fabric, Devices: []configs.Device{{Name: device}}, Models: []configs.Model{{Device: device}},
	}})
	if err != nil {
		return w, err
	}
	w.onClose(func() { w.fab.Close() })
	geo := geometry("m")
	if w.first, err = w.newArena("first", geo.LayerBlockBytes()); err != nil {
		return w, err
	}
	if w.reads, err = w.fab.NewStream(device, "first byte"); err != nil {
		return w, err
	}
	// Slots for all borrowed blocks, and one block of the regular cache.
	k := int64(2*held + layers)
	cfg := master.Config{
		Geometry: geo, ArenaBytes: k * geo.LayerBlockBytes(), Tails: 8, Buffers: 1, MaxBlocks: 4 * held, MaxLent: 2 * held,
		IdleReturn: time.Hour, StoreLimit: lease / 10, Now: agent.Now, Verify: master.VerifySample,
	}
	local, err := w.newArena("m", cfg.ArenaBytes+int64(cfg.Tails)*geo.FullBlockBytes())
	if err != nil {
		return w, err
	}
	cfg.Local = local
	for name, s := range map[string]*nvlink.Stream{"store": &cfg.Store, "move": &cfg.Move} {
		if *s, err = w.fab.NewStream(device, name); err != nil {
			return w, err
		}
	}
	for i := range 2 {
		l, lc, err := w.newLender(fmt.Sprintf("w%d", i), held+2*spare)
		if err != nil {
			return w, err
		}
		if lc.Load, err = w.fab.NewStream(device, "load from "+l.name); err != nil {
			return w, err
		}
		w.lenders, cfg.Lender = append(w.lenders, l), append(cfg.Lender, lc)
	}
	if w.cache, err = master.New(cfg); err != nil {
		return w, err
	}
	for i, l := range w.lenders {
		l.Tenant = master.Tenant{Cache: w.cache, Lender: i}
		if err := w.connect(links, l); err != nil {
			return w, err
		}
	}
	return w, w.openPing(links)
}

func (w *world) newArena(name string, size int64) (nvlink.Arena, error) {
	a, err := w.fab.Create(name, device, size)
	if err != nil {
		return nil, err
	}
	w.onClose(func() { a.Close() })
	if mem, ok := a.Arena.(*shm.Arena); ok {
		err = mem.Prefault(0, size) // page faults are not what is measured
	}
	return a.Arena, err
}

func (w *world) newLender(name string, n int) (*lender, master.LenderConfig, error) {
	geo := geometry(name)
	l := &lender{name: name, home: make(chan struct{}, 1), granted: make(chan []wire.UnitEpoch, 16)}
	var lc master.LenderConfig
	spec, err := elastic.NewUnitSpec(elastic.PolicyLCM, 0, geo, geometry("m"))
	if err != nil {
		return nil, lc, err
	}
	bytes := int64(n) * spec.Bytes
	region, err := shm.CreateRegion("units-"+name, elastic.UnitTableBytes(n))
	if err != nil {
		return nil, lc, err
	}
	w.onClose(func() { region.Close() })
	table, err := elastic.FormatUnitTable(region.Bytes(), spec, bytes, 1)
	if err != nil {
		return nil, lc, err
	}
	if l.units, err = elastic.NewUnits(elastic.UnitsOptions{Geometry: geo, Spec: spec, Table: table}); err != nil {
		return nil, lc, err
	}
	if l.arena, err = w.newArena(name, bytes); err != nil {
		return nil, lc, err
	}
	lc = master.LenderConfig{
		Name: name, Owner: owner, Spec: spec, MaxUnits: n, Arena: l.arena, ArenaBytes: bytes, Table: table, Ask: l,
	}
	return l, lc, nil
}

// connect opens both ends of a lender's link.
func (w *world) connect(links *transport.Dir, l *lender) error {
	l.agent = agent.NewLender(agent.LenderConfig{
		Units: l.units, Landlord: l, Spare: func(coordinator.Wish) int { return l.units.Grantable() }, Lease: lease, Deadline: deadline,
		Stuck: func(string, string) {}, Self: wire.Hello{Model: l.name, Role: "worker", ConfigHash: "c"}, Log: quiet{},
	})
	w.onClose(l.agent.Close)
	ln, err := links.Listen(l.name, "m")
	if err == nil {
		err = l.agent.Serve("m", owner, ln)
	}
	if err != nil {
		return err
	}
	d, err := links.Dialer(l.name, "m")
	if err != nil {
		return err
	}
	l.asker, err = agent.OpenBorrower(agent.BorrowerConfig{
		Worker: l.name, Dialer: d, Tenant: l, Log: quiet{}, Self: wire.Hello{Model: "m", Role: "master", ConfigHash: "c"},
	})
	if err == nil {
		w.onClose(l.asker.Close)
	}
	return err
}

// openPing opens a link that does nothing but echo.
func (w *world) openPing(links *transport.Dir) error {
	ln, err := links.Listen("echo", "m")
	if err != nil {
		return err
	}
	var echo *session.Link
	opened := make(chan struct{})
	echo, err = session.Open(session.Options{
		Listener: ln, Self: wire.Hello{Model: "echo", Role: "worker", ConfigHash: "c"},
		OnMessage: func(m wire.Message) {
			<-opened
			echo.TrySend(m)
		},
	})
	close(opened)
	if err != nil {
		return err
	}
	w.onClose(func() { echo.Close() })
	d, err := links.Dialer("echo", "m")
	if err != nil {
		return err
	}
	w.ping, err = session.Open(session.Options{
		Dialer: d, Self: wire.Hello{Model: "m", Role: "master", ConfigHash: "c"}, PeerModel: "echo",
		OnMessage: func(wire.Message) { w.pong <- struct{}{} },
	})
	if err != nil {
		return err
	}
	w.onClose(func() { w.ping.Close() })
	return w.await(w.pong, "the first round trip", func() error { return w.ping.Send(w.ctx, &wire.Renew{ID: 1}) })
}

// await waits for something to arrive after f has been called.
func (w *world) await(c <-chan struct{}, what string, f func() error) error {
	if err := f(); err != nil {
		return err
	}
	t := time.NewTimer(opLimit)
	defer t.Stop()
	select {
	case <-c:
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	case <-t.C:
		return fmt.Errorf("%s did not happen within %v", what, opLimit)
	}
}

// trip measures round trips of the session.
func (w *world) trip(s samples) error {
	for range 2 {
		start := time.Now()
		if err := w.await(w.pong, "a round trip", func() error { return w.ping.Send(w.ctx, &wire.Renew{ID: 1}) }); err != nil {
			return err
		}
		s.add(roundTrip, time.Since(start))
	}
	return nil
}

// borrow measures a grant: from the wish to the cache's having the units.
func (w *world) borrow(l *lender, n int) (time.Duration, error) {
	d, _, err := w.borrowed(l, n)
	return d, err
}

// borrowed measures a grant, and tells one of its units.
func (w *world) borrowed(l *lender, n int) (d time.Duration, unit uint32, err error) {
	start := time.Now()
	t := time.NewTimer(opLimit)
	defer t.Stop()
	for got := 0; got < n; {
		l.Want(coordinator.Wish{Units: n - got})
		select {
		case units := <-l.granted:
			got, unit = got+len(units), units[len(units)-1].Unit
		case <-w.ctx.Done():
			return 0, 0, w.ctx.Err()
		case <-t.C:
			return 0, 0, fmt.Errorf("a grant of %d units did not come within %v, %d came", n, opLimit, got)
		}
	}
	return time.Since(start), unit, nil
}

// read copies a layer block out of a unit.
func (w *world) read(l *lender, unit uint32) error {
	n := w.first.Size()
	piece := nvlink.Copy{
		Dst: nvlink.Span{Arena: w.first, Len: n},
		Src: nvlink.Span{Arena: l.arena, Off: int64(unit) * l.units.Spec().Bytes, Len: n},
	}
	if err := w.reads.CopyBatch([]nvlink.Copy{piece}); err != nil {
		return err
	}
	ev, err := w.reads.Record()
	if err != nil {
		return err
	}
	return ev.Wait(w.ctx)
}

// reclaim measures a reclaim: from the need to the units' being home.
func (w *world) reclaim(l *lender, n int) (time.Duration, error) {
	target := l.away() - n
	select {
	case <-l.home: // of before
	default:
	}
	start := time.Now()
	l.Locked(func() bool { l.agent.Need(n); return false })
	for l.away() > target {
		if err := w.await(l.home, fmt.Sprintf("return of %d units", n), func() error { return nil }); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// fill uses every borrowed block but those that one reclaim needs as refuge,
// and writes them.
func (w *world) fill() error {
	const tokens = seqBlocks * blockTokens
	total := 2*w.held + 1 // one fits into the regular cache
	for id := uint64(1); total > 0; id++ {
		n := min(total, seqBlocks)
		if err := w.cache.Reserve(id, n*blockTokens); err != nil {
			return fmt.Errorf("sequence %d: %w", id, err)
		}
		total -= n
		s := scheduler.StepSeq{ID: id, New: n * blockTokens}
		if end := w.pass([]scheduler.StepSeq{s}, 0, nil); end.err != nil {
			return end.err
		}
		if n == seqBlocks && len(w.seqs) < stepSeqs {
			w.seqs = append(w.seqs, scheduler.StepSeq{ID: id, Start: tokens - blockTokens, New: blockTokens})
		}
	}
	var st wire.Status
	w.cache.Describe(&st)
	if st.Blocks.BorrowedUsed != 2*w.held {
		return fmt.Errorf("%d borrowed blocks in use, want %d: %+v", st.Blocks.BorrowedUsed, 2*w.held, st.Blocks)
	}
	return nil
}

// stepEnd is when a step ended and how long it took.
type stepEnd struct {
	at   time.Time
	took time.Duration
	err  error
}

// step runs a step over a few sequences: real loads and stores, and an engine
// that computes nothing for a known time.
func (w *world) step(compute time.Duration, started chan<- struct{}) stepEnd {
	return w.pass(w.seqs, compute/layers, started)
}

func (w *world) pass(seqs []scheduler.StepSeq, layer time.Duration, started chan<- struct{}) (end stepEnd) {
	start := time.Now()
	defer func() { end.at, end.took = time.Now(), time.Since(start) }()
	st, err := w.cache.Begin(w.ctx, seqs)
	if started != nil {
		close(started)
	}
	if err != nil {
		return stepEnd{err: err}
	}
	for l := range layers {
		if _, err := st.Layer(l); err != nil {
			st.Abort()
			return stepEnd{err: err}
		}
		st.Written(l)
		if layer > 0 {
			time.Sleep(layer)
		}
		st.Done(l)
	}
	return stepEnd{err: st.Commit()}
}
