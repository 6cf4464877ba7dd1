package master

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/shm"
	"github.com/kvlend/kvlend/nvlink/topology"
	"github.com/kvlend/kvlend/scheduler"
)

// world is a master's cache over two workers' real arenas, with lenders that
// the test controls, and a stand-in for the engine that stamps every token's
// place in every layer and checks the stamps of the whole history.
type world struct {
	t     testing.TB
	geo   elastic.Geometry
	cache *Cache
	now   atomic.Int64 // nanoseconds
	fab   *shm.Fabric
	lend  []*fakeLender
	seqs  map[uint64]int // tokens computed so far
	gen   map[uint64]int // raised when a sequence starts over
	// past holds, for sequences that were admitted with their tokens, a hash of
	// all tokens up to each position.
	past map[uint64][]uint64
	log  warnings
	// tolerant counts wrong stamps in wrong instead of failing.
	tolerant bool
	wrong    int
	disks    []*disk
	budget   *purse // of writes to disks
	staging  nvlink.Arena
	stuck    bool // the disks are
	missing  bool // one of the disks is
	asked    uint64
	doubt    int64 // StoreConfig.Doubt
	// ioTimeout is the disks' streams'; 0: there is none.
	ioTimeout time.Duration
	cfg       Config
}

// warnings counts what the cache logs, by unit.
type warnings map[string]int

func (w warnings) Warn(_ string, args ...any) { w[fmt.Sprint(args...)]++ }

type fakeLender struct {
	w      *world
	index  int
	units  *elastic.Units
	refuse bool

	mu     sync.Mutex // what has landed may ask at any time
	wanted int
}

// Want implements Asker.
func (f *fakeLender) Want(w coordinator.Wish) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wanted = max(f.wanted, w.Units)
}

// Release implements Asker.
func (f *fakeLender) Release(units []wire.UnitEpoch) {
	for _, u := range units {
		// Units that were taken without consent have another epoch by now.
		if err := f.units.Return(0, elastic.UnitEpoch(u)); err != nil && !errors.Is(err, elastic.ErrStaleEpoch) {
			f.w.t.Errorf("return of unit %d: %v", u.Unit, err)
		}
	}
}

// answer grants what was asked for, or refuses.
func (f *fakeLender) answer() {
	f.mu.Lock()
	n := f.wanted
	f.wanted = 0
	f.mu.Unlock()
	if n == 0 {
		return
	}
	got, err := f.units.Grant(0, 1, n, 1<<50)
	if err != nil || f.refuse {
		for _, u := range got {
			f.units.Return(0, u)
		}
		f.w.cache.Denied(f.index, 0, 0)
		return
	}
	out := make([]wire.UnitEpoch, len(got))
	for i, u := range got {
		out[i] = wire.UnitEpoch(u)
	}
	f.w.cache.Granted(f.index, out)
}

type worldConfig struct {
	geo             elastic.Geometry // zero: a small one of layers
	layers, buffers int
	arenaLayers     int // K_master
	workers         []int64
	policy          elastic.Policy
	tails           int
	verify          Verify
	hostBlocks      int
	hostSync        bool
	hostRate        float64 // bytes per second, emulated; 0: as fast as memory
	stores          []int   // slots of each
	volatile        bool    // the stores are
	later           Later
}

func newWorld(t testing.TB, wc worldConfig) *world {
	geo := elastic.Geometry{Name: "m", Layers: wc.layers, BlockTokens: 16, KVHeads: 1, HeadDim: 16, ElemBytes: 2}
	if wc.geo.Layers > 0 {
		geo = wc.geo
	}
	fab, err := shm.New(fabricOf(t, wc))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, geo: geo, fab: fab, seqs: map[uint64]int{}, gen: map[uint64]int{}, past: map[uint64][]uint64{}, log: warnings{}, budget: &purse{left: math.MaxInt}}
	w.now.Store(int64(time.Second))
	cfg := Config{
		Geometry: geo, ArenaBytes: int64(wc.arenaLayers) * geo.LayerBlockBytes(), Tails: wc.tails, Buffers: wc.buffers,
		IdleReturn: time.Second, StoreLimit: time.Millisecond, Now: w.clock,
		Verify: wc.verify, Log: w.log, Later: wc.later,
	}
	cfg.Local = mustArena(t, "m", cfg.ArenaBytes+int64(wc.tails)*geo.FullBlockBytes())
	cfg.Store, cfg.Move = stream(t, fab, "store"), stream(t, fab, "move")
	var lendable []int
	for i, bytes := range wc.workers {
		wg := elastic.Geometry{Name: fmt.Sprintf("w%d", i), Layers: 2, BlockTokens: 16, KVHeads: 1, HeadDim: 16, ElemBytes: 2}
		spec, err := elastic.NewUnitSpec(wc.policy, 0.25, wg, geo)
		if err != nil {
			t.Fatal(err)
		}
		n, _ := spec.Divide(bytes)
		table, err := elastic.FormatUnitTable(make([]byte, elastic.UnitTableBytes(n)), spec, bytes, uint32(i+1))
		if err != nil {
			t.Fatal(err)
		}
		units, err := elastic.NewUnits(elastic.UnitsOptions{Geometry: wg, Spec: spec, Table: table})
		if err != nil {
			t.Fatal(err)
		}
		f := &fakeLender{w: w, index: i, units: units}
		w.lend = append(w.lend, f)
		cfg.Lender = append(cfg.Lender, LenderConfig{
			Name: wg.Name, Owner: 0, Spec: spec, MaxUnits: units.MaxLent(), Arena: mustArena(t, wg.Name, bytes),
			ArenaBytes: bytes, Table: table, Ask: f, Load: stream(t, fab, "load "+wg.Name),
		})
		lendable = append(lendable, spec.BlocksPer(geo, units.MaxLent()))
	}
	lendable = append(lendable, wc.stores...) // what is there is streamed where need be
	capacity, err := elastic.NewCapacity(geo, cfg.ArenaBytes, lendable, wc.buffers)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Host = w.hostOf(t, wc.hostBlocks, wc.hostSync)
	cfg.MaxBlocks, cfg.MaxLent = capacity.Blocks, capacity.NLSC
	w.withStores(wc, &cfg)
	w.cfg = cfg
	w.cache, err = New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.check()
		w.closeStores()
		if err := fab.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// fabricOf paces the way to the device "host" if the world says so.
func fabricOf(t testing.TB, wc worldConfig) shm.Config {
	if wc.hostRate == 0 {
		return shm.Config{}
	}
	link := topology.Link{From: "cpu", To: "host", BytesPerSec: wc.hostRate}
	back := link
	back.From, back.To = link.To, link.From
	topo, err := topology.New([]string{"cpu", "host"}, []topology.Link{link, back})
	if err != nil {
		t.Fatal(err)
	}
	return shm.Config{Topology: topo, Pace: true}
}

func mustArena(t testing.TB, name string, size int64) *shm.Arena {
	device := "cpu"
	if name == "host" {
		device = name
	}
	a, err := shm.Create(name, device, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

func stream(t testing.TB, f *shm.Fabric, name string) nvlink.Stream {
	s, err := f.NewStream("cpu", name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (w *world) clock() time.Duration { return time.Duration(w.now.Load()) }

// check checks what is, and then what is once all has landed.
func (w *world) check() {
	w.t.Helper()
	for _, err := range w.cache.Check() {
		w.t.Errorf("with disks at work: %v", err)
	}
	st := wire.Status{ID: 1}
	if w.cache.Describe(&st); st.Validate() != nil {
		w.t.Errorf("its status cannot be sent: %v", st.Validate())
	}
	w.cache.mu.Lock()
	w.cache.settle()
	w.cache.mu.Unlock()
	for _, err := range w.cache.Check() {
		w.t.Error(err)
	}
	for _, f := range w.lend {
		for _, err := range f.units.Check() {
			w.t.Error(err)
		}
	}
}

// reserve makes room for tokens, letting every lender answer twice.
func (w *world) reserve(id uint64, tokens int) error {
	var err error
	for range 3 {
		if err = w.cache.Reserve(id, tokens); !errors.Is(err, scheduler.ErrComing) {
			return err
		}
		for _, f := range w.lend {
			f.answer()
		}
		w.now.Add(1)
	}
	return err
}

// stamp is what token pos of a sequence leaves in layer l: as with real KV, a
// function of the tokens up to it, where they are known.
func (w *world) stamp(id uint64, pos, l int) uint64 {
	if past := w.past[id]; past != nil {
		return past[pos]<<8 | uint64(l)
	}
	return id<<40 | uint64(w.gen[id])<<32 | uint64(pos)<<8 | uint64(l)
}

// at is where a token's stamp lies.
func (w *world) at(mem []byte, table []int64, pos int) []byte {
	size := int(w.geo.LayerBlockBytes()) / w.geo.BlockTokens
	return mem[int(table[pos/w.geo.BlockTokens])+pos%w.geo.BlockTokens*size:][:8]
}

// run computes a step. Between two layers it calls between, if not nil.
func (w *world) run(steps []scheduler.StepSeq, between func(l int)) error {
	st, err := w.cache.Begin(context.Background(), steps)
	if err != nil {
		return err
	}
	for l := range w.geo.Layers {
		tables, err := st.Layer(l)
		if err != nil {
			st.Abort()
			return err
		}
		for i, s := range steps {
			w.layer(st, tables[i], s, l)
		}
		st.Written(l)
		for i, s := range steps {
			w.verify(st, tables[i], s, l)
		}
		st.Done(l)
		if between != nil {
			between(l)
		}
	}
	if err := st.Commit(); err != nil {
		return err
	}
	for _, s := range steps {
		w.seqs[s.ID] = s.Start + s.New
	}
	return nil
}

func (w *world) layer(st scheduler.Step, table []int64, s scheduler.StepSeq, l int) {
	for pos := s.Start; pos < s.Start+s.New; pos++ {
		binary.LittleEndian.PutUint64(w.at(st.Memory(), table, pos), w.stamp(s.ID, pos, l))
	}
}

func (w *world) verify(st scheduler.Step, table []int64, s scheduler.StepSeq, l int) {
	for pos := range s.Start + s.New {
		got := binary.LittleEndian.Uint64(w.at(st.Memory(), table, pos))
		if want := w.stamp(s.ID, pos, l); got != want && w.tolerant {
			w.wrong++
		} else if got != want {
			w.t.Fatalf("sequence %d, token %d of %d, layer %d: stamp %x, want %x", s.ID, pos, s.Start+s.New, l, got, want)
		}
	}
}

// settle takes note of evictions.
func (w *world) settle() {
	for _, id := range w.cache.Evicted() {
		w.restart(id)
	}
}

func (w *world) restart(id uint64) {
	w.cache.Release(id)
	w.seqs[id] = 0
	w.gen[id]++
}

// next picks a step for a sequence as the scheduler would: block-aligned
// chunks, then single tokens.
func (w *world) next(r *rand.Rand, id uint64) scheduler.StepSeq {
	at := w.seqs[id]
	if at%w.geo.BlockTokens != 0 || r.IntN(3) == 0 {
		return scheduler.StepSeq{ID: id, Start: at, New: 1}
	}
	return scheduler.StepSeq{ID: id, Start: at, New: 1 + r.IntN(5*w.geo.BlockTokens)}
}
