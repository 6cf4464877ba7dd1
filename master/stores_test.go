package master

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/route"
	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/placement"
	"github.com/kvlend/kvlend/overflow/store"
	"github.com/kvlend/kvlend/overflow/store/simdev"
	diskio "github.com/kvlend/kvlend/overflow/stream"
	"github.com/kvlend/kvlend/prefix"
	"github.com/kvlend/kvlend/scheduler"
)

// disk is a store on a simulated device.
type disk struct {
	dev   *simdev.Device
	lag   lagging // what is used
	arena *diskio.Arena
	store *store.Store
}

// purse is a Budget of so many blocks.
type purse struct{ left int }

func (p *purse) Take(int64) bool {
	p.left--
	return p.left >= 0
}

// noMemory has no staging buffers, so that streams use their own.
type noMemory struct{}

func (noMemory) TryGet(int) []byte { return nil }
func (noMemory) Put([]byte)        {}

func (w *world) storeOptions() store.Options {
	return store.Options{
		Layers: w.geo.Layers, LayerBytes: int(w.geo.LayerBlockBytes()), BlockTokens: w.geo.BlockTokens, Run: 4,
		Identity: []byte("toy"),
	}
}

// withStores puts stores behind everything else.
func (w *world) withStores(wc worldConfig, cfg *Config) {
	if len(wc.stores) == 0 {
		return
	}
	opt := w.storeOptions()
	for i, slots := range wc.stores {
		opt.Slots = slots
		d := &disk{dev: simdev.New(simdev.Options{Name: fmt.Sprint("disk", i), Size: 64 << 20, Async: true})}
		d.lag.Device = d.dev
		if err := store.Format(context.Background(), d.dev, opt); err != nil {
			w.t.Fatal(err)
		}
		w.disks = append(w.disks, d)
	}
	w.staging = mustArena(w.t, "staging", 3*w.geo.FullBlockBytes())
	w.openStores(cfg)
	for i := range cfg.Overflow.Stores {
		cfg.Overflow.Stores[i].Volatile = wc.volatile
	}
	far := func(c nvlink.Copy) int {
		for _, a := range []nvlink.Arena{c.Src.Arena, c.Dst.Arena} {
			if _, ok := a.(*diskio.Arena); ok {
				return 1
			}
		}
		return 0
	}
	cfg.Store = route.New(far, cfg.Store, w.diskStream("store"))
}

// openStores opens the stores, as after a restart.
func (w *world) openStores(cfg *Config) {
	policy, err := placement.ParsePolicy("bandwidth")
	if err != nil {
		w.t.Fatal(err)
	}
	o := &OverflowConfig{Missing: w.missing, Placement: policy, Move: w.diskStream("move"), Staging: w.staging}
	for i, d := range w.disks {
		if d.store, _, err = store.Open(context.Background(), &d.lag, w.storeOptions()); err != nil {
			w.t.Fatal(err)
		}
		if d.arena == nil {
			d.arena = diskio.NewArena(&d.lag)
		}
		o.Stores = append(o.Stores, StoreConfig{
			Name: fmt.Sprint("disk", i), Store: d.store, Arena: d.arena, Load: w.diskStream(fmt.Sprint("load", i)), Rate: float64(1+i) * 1e9, Budget: w.budget, Doubt: w.doubt,
		})
	}
	cfg.Overflow = o
}

func (w *world) diskStream(name string) *diskio.Stream {
	s, err := diskio.New(diskio.Options{Name: name, Memory: noMemory{}, Timeout: w.ioTimeout, OnError: func(e *device.Error) {
		for i, d := range w.disks {
			if d.dev.Info().Name == e.Device && w.cache != nil {
				w.cache.StoreFault(i, e)
			}
		}
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) closeStores() {
	if len(w.disks) == 0 {
		return
	}
	w.cache.mu.Lock()
	w.cache.settle()
	w.cache.mu.Unlock()
	w.cfg.Store.Close()
	w.cfg.Overflow.Move.Close()
	for i, d := range w.disks {
		w.cfg.Overflow.Stores[i].Load.Close()
		d.store.Close(context.Background())
	}
}

// reboot ends the master's process and starts it anew: what was borrowed goes
// home, what is in the stores stays.
func (w *world) reboot(persist bool) Restored {
	w.shut(persist)
	return w.boot()
}

// shut ends the master's process.
func (w *world) shut(persist bool) {
	c := w.cache
	if persist {
		if err := c.Persist(context.Background()); err != nil {
			w.t.Fatal(err)
		}
	}
	w.check()
	c.mu.Lock()
	c.settle()
	for i, p := range c.lenders() {
		var all []wire.UnitEpoch
		for u, e := range p.epochs {
			all = append(all, wire.UnitEpoch{Unit: u, Epoch: e})
		}
		w.lend[i].Release(all)
		w.lend[i].wanted = 0
	}
	c.mu.Unlock()
	w.cfg.Overflow.Move.Close()
	for i, d := range w.disks {
		w.cfg.Overflow.Stores[i].Load.Close()
		if err := d.store.Close(context.Background()); err != nil {
			w.t.Fatal(err)
		}
	}
}

// boot starts it anew.
func (w *world) boot() Restored {
	w.openStores(&w.cfg)
	var err error
	if w.cache, err = New(w.cfg); err != nil {
		w.t.Fatal(err)
	}
	return w.cache.Restored()
}

// TestStores: conversations as in TestConversations, with stores of several
// sizes behind them, restarts, and devices that fail.
func TestStores(t *testing.T) {
	var hits scheduler.Receipt
	var restored Restored
	fenced := 0
	for i, wc := range worlds {
		for seed := range uint64(24) {
			t.Run(fmt.Sprintf("%d/%d", i, seed), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 177+uint64(i)))
				wc.verify = []Verify{VerifyOff, VerifySample, VerifyAll}[seed%3]
				wc.hostBlocks = []int{0, 6}[seed/3%2]
				wc.stores = [][]int{{400}, {12, 8}, {40, 4, 100}}[seed/6%3]
				w := newWorld(t, wc)
				if seed%4 == 3 {
					w.budget.left = r.IntN(20)
				}
				h := &history{w: w, r: r, chats: make([]*chat, 4), hits: &hits}
				for j := range h.chats {
					h.chats[j] = &chat{root: prefix.Root([]byte{byte(j % 2)})}
				}
				for n := range 120 {
					switch k := r.IntN(60); {
					case k == 0:
						for _, c := range h.chats {
							h.end(c)
						}
						got := w.reboot(r.IntN(2) == 0)
						restored.Blocks += got.Blocks
						restored.Orphans += got.Orphans
					case k == 1 && n > 60:
						w.trouble(r)
					}
					h.op()
					if r.IntN(3) == 0 {
						w.check() // which lets everything land
					}
				}
				for _, c := range h.chats {
					h.end(c)
				}
				w.check()
				for _, p := range w.cache.shelves {
					if p.shelf.fenced != nil {
						fenced++
					}
				}
			})
		}
	}
	t.Logf("tokens reused: %+v; restored %+v; %d stores out of use at the end", hits, restored, fenced)
	if hits.Pool == 0 || restored.Blocks == 0 || fenced == 0 {
		t.Errorf("the histories prove too little: tokens reused by tier %+v, restored %+v, %d stores out of use", hits, restored, fenced)
	}
}

// trouble makes a device fail some reads and writes of data, or all from now on.
func (w *world) trouble(r *rand.Rand) {
	d := w.disks[r.IntN(len(w.disks))]
	data := d.store.Off(0, 0)
	some, left := r.IntN(2) == 0, 2
	d.dev.Fault(func(op simdev.Op) error {
		if op.Off < data || op.Kind == "sync" {
			return nil
		}
		if some {
			if left--; left < 0 {
				return nil
			}
		}
		return device.ErrIO
	})
}

// TestRestart: a conversation goes on after a restart with what was stored,
// however it was spread over the stores, and borrowed memory is part of that.
func TestRestart(t *testing.T) {
	for i, wc := range worlds {
		wc.stores, wc.verify = []int{100, 60}, []Verify{VerifyOff, VerifySample, VerifyAll}[i%3]
		w := newWorld(t, wc)
		b := w.geo.BlockTokens
		tokens := make([]int32, w.cache.MaxTokens()/2/b*b+1)
		for i := range tokens {
			tokens[i] = int32(i * i % 7)
		}
		root := prefix.Root([]byte("me"))
		w.tokensOf(1, root, tokens)
		a := scheduler.Admission{ID: 1, Root: root, Tokens: tokens, Room: len(tokens)}
		if _, err := w.admit(a); err != nil {
			t.Fatal(err)
		}
		if err := w.run([]scheduler.StepSeq{{ID: 1, New: len(tokens), Tokens: tokens}}, nil); err != nil {
			t.Fatal(err)
		}
		w.cache.Release(1)
		if got := w.reboot(true); got.Blocks != len(tokens)/b || got.Orphans != 0 {
			t.Errorf("world %d: %+v of %d blocks", i, got, len(tokens)/b)
		}
		a.ID, w.past[2] = 2, w.past[1]
		cached, err := w.admit(a)
		if r := w.cache.Receipt(2); err != nil || cached != len(tokens)-1 || r.Pool == 0 || r.Pool+r.Local != cached {
			t.Fatalf("world %d: %d of %d tokens are cached, %v, %+v", i, cached, len(tokens), err, r)
		}
		if err := w.run([]scheduler.StepSeq{{ID: 2, Start: cached, New: 1, Tokens: tokens[cached:]}}, nil); err != nil {
			t.Fatal(err)
		}
		w.cache.Release(2)
		// They are in the regular cache now, and in the stores still.
		if got := w.reboot(false); got.Blocks != len(tokens)/b {
			t.Errorf("world %d: %+v after they were used", i, got)
		}
		w.check()
	}
}

// TestDamagedStore: what a disk returns wrongly is a miss, and is computed again.
func TestDamagedStore(t *testing.T) {
	wc := worlds[0]
	wc.stores = []int{100}
	w := newWorld(t, wc)
	b := w.geo.BlockTokens
	tokens := make([]int32, 4*b+1)
	root := prefix.Root()
	w.tokensOf(1, root, tokens)
	a := scheduler.Admission{ID: 1, Root: root, Tokens: tokens, Room: len(tokens)}
	if _, err := w.admit(a); err != nil {
		t.Fatal(err)
	}
	if err := w.run([]scheduler.StepSeq{{ID: 1, New: len(tokens), Tokens: tokens}}, nil); err != nil {
		t.Fatal(err)
	}
	w.cache.Release(1)
	w.reboot(true)
	for e := range w.disks[0].store.Entries() {
		if !e.Root {
			w.disks[0].dev.Poke(w.disks[0].store.Off(e.Slot, 1)+5, []byte{1, 2, 3})
			break
		}
	}
	a.ID, w.past[2] = 2, w.past[1]
	cached, err := w.admit(a)
	if err != nil || cached != 4*b {
		t.Fatalf("%d tokens are cached, %v", cached, err)
	}
	err = w.run([]scheduler.StepSeq{{ID: 2, Start: cached, New: 1, Tokens: tokens[cached:]}}, nil)
	var lost *scheduler.LostError
	if !errors.As(err, &lost) || !slices.Equal(lost.IDs, []uint64{2}) {
		t.Fatalf("%v, want that sequence 2 is lost", err)
	}
	w.cache.Evicted()
	w.cache.Release(2)
	if st := w.cache.Stores()[0]; st.Corrupt != 1 || st.Reused != 0 || w.cache.Stats().CorruptBlocks != 0 {
		t.Errorf("%+v", st)
	}
	a.ID, w.past[3] = 3, w.past[1]
	cached, err = w.admit(a)
	if err != nil || cached != b {
		t.Fatalf("%d tokens are cached, %v: want what comes before the damaged block", cached, err)
	}
	if err := w.run([]scheduler.StepSeq{{ID: 3, Start: cached, New: len(tokens) - cached, Tokens: tokens[cached:]}}, nil); err != nil {
		t.Fatal(err)
	}
	w.cache.Release(3)
}

// TestStoredSum: who checks a store without a cache finds what a cache has
// written right, and every byte that is not.
func TestStoredSum(t *testing.T) {
	wc := worlds[0]
	wc.stores = []int{100}
	w := newWorld(t, wc)
	tokens := make([]int32, 6*w.geo.BlockTokens+1)
	root := prefix.Root([]byte("tenant"))
	w.tokensOf(1, root, tokens)
	if _, err := w.admit(scheduler.Admission{ID: 1, Root: root, Tokens: tokens, Room: len(tokens)}); err != nil {
		t.Fatal(err)
	}
	if err := w.run([]scheduler.StepSeq{{ID: 1, New: len(tokens), Tokens: tokens}}, nil); err != nil {
		t.Fatal(err)
	}
	w.cache.Release(1)
	w.reboot(true)
	d := w.disks[0]
	check := func(uuid [16]byte) store.Report {
		t.Helper()
		o := w.storeOptions()
		o.Sum = StoredSum(uuid)
		s, _, err := store.Open(t.Context(), d.dev, o)
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Check(t.Context(), true)
		if err := errors.Join(err, s.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
		return r
	}
	uuid := d.store.Info().UUID
	if r := check(uuid); r.Verified != 6 || len(r.Bad) != 0 || len(r.Problems) != 0 {
		t.Fatalf("%+v", r)
	}
	if r := check([16]byte{1}); r.Verified != 0 {
		t.Errorf("%d blocks are right in a store of another name", r.Verified)
	}
	layer := w.geo.Layers - 1
	var hurt store.Entry
	for e := range d.store.Entries() {
		hurt = e
	}
	at := d.store.Off(hurt.Slot, layer) + w.geo.LayerBlockBytes() - 1
	old := make([]byte, 1)
	d.dev.Peek(at, old)
	d.dev.Poke(at, []byte{old[0] ^ 1})
	r := check(uuid)
	if r.Verified != 5 || len(r.Bad) != 1 || r.Bad[0].Slot != hurt.Slot || r.Bad[0].Layer != layer || r.Bad[0].Key != hurt.Key {
		t.Errorf("one bit of slot %d, layer %d is wrong: %+v", hurt.Slot, layer, r)
	}
}

// uses is a doorkeeper that lets nobody in and counts.
type uses map[prefix.Key]int

func (u uses) Admit(k prefix.Key) bool { u[k]++; return false }

// TestRefusalIsNoUse: what a request would have found counts as used when it is
// admitted, and not each time that it is refused.
func TestRefusalIsNoUse(t *testing.T) {
	wc := worlds[0]
	wc.stores = []int{100}
	w := newWorld(t, wc)
	door := uses{}
	w.cache.cfg.Overflow.Door = door
	b := w.geo.BlockTokens
	tokens := make([]int32, 2*b+1)
	a := scheduler.Admission{ID: 1, Tokens: tokens, Room: len(tokens)}
	serve := func(id uint64) {
		t.Helper()
		a.ID = id
		w.tokensOf(id, a.Root, tokens)
		cached, err := w.admit(a)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.run([]scheduler.StepSeq{{ID: id, Start: cached, New: len(tokens) - cached, Tokens: tokens[cached:]}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	serve(1)
	w.cache.Release(1)
	for _, f := range w.lend {
		f.refuse = true
	}
	other := make([]int32, b)
	other[0] = 1
	w.tokensOf(2, a.Root, other)
	if _, err := w.admit(scheduler.Admission{ID: 2, Tokens: other, Room: b}); err != nil {
		t.Fatal(err)
	}
	big := a
	big.ID, big.Room = 3, w.cache.MaxTokens()
	for range 3 {
		if _, err := w.admit(big); !errors.Is(err, scheduler.ErrWait) {
			t.Fatalf("%v, want a refusal", err)
		}
	}
	serve(4)
	w.cache.Release(4)
	w.cache.Release(2)
	for key, n := range door {
		if n != 2 {
			t.Errorf("block %v was used %d times, want 2: computed, and found once", key, n)
		}
	}
	if len(door) != 2 {
		t.Errorf("%d blocks were used", len(door))
	}
}
