package master

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/store/simdev"
	"github.com/kvlend/kvlend/prefix"
	"github.com/kvlend/kvlend/scheduler"
)

// lagging is a device that does not answer for a while, not to Cancel either.
type lagging struct {
	*simdev.Device
	mu   sync.Mutex
	from int64 // writes from this offset on are held; 0: none are
	read bool  // reads are held, too
	held []*device.IO
	kept chan struct{} // has one when a write was held
}

func (d *lagging) Submit(ios []*device.IO) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.from > 0 && (ios[0].Write || d.read) && ios[0].Off >= d.from {
		d.held = append(d.held, ios...)
		select {
		case d.kept <- struct{}{}:
		default:
		}
		return nil
	}
	return d.Device.Submit(ios)
}

// hold makes the device keep writes of a store's blocks.
func (d *disk) hold() {
	d.lag.mu.Lock()
	defer d.lag.mu.Unlock()
	d.lag.from, d.lag.kept = d.store.Off(0, 0), make(chan struct{}, 1)
}

// land does what was held, and returns how much that was.
func (d *disk) land(t *testing.T) int {
	d.lag.mu.Lock()
	ios := d.lag.held
	d.lag.held, d.lag.from, d.lag.read = nil, 0, false
	d.lag.mu.Unlock()
	var landed sync.WaitGroup
	for _, io := range ios {
		landed.Add(1)
		tell := io.Done
		io.Done = func(io *device.IO) { io.Done = tell; tell(io); landed.Done() }
	}
	if len(ios) > 0 {
		if err := d.dev.Submit(ios); err != nil {
			t.Fatal(err)
		}
	}
	landed.Wait()
	if err := d.dev.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	return len(ios)
}

// answer has a conversation's turn computed, with what is cached of it.
func (w *world) answer(id uint64, root prefix.Key, tokens []int32) (scheduler.Receipt, error) {
	w.tokensOf(id, root, tokens)
	cached, err := w.admit(scheduler.Admission{ID: id, Root: root, Tokens: tokens, Room: len(tokens)})
	if err != nil {
		return scheduler.Receipt{}, err
	}
	r := w.cache.Receipt(id)
	err = w.run([]scheduler.StepSeq{{ID: id, Start: cached, New: len(tokens) - cached, Tokens: tokens[cached:]}}, nil)
	w.cache.Evicted()
	w.cache.Release(id)
	return r, err
}

func (w *world) numbered(blocks int, first int32) []int32 {
	tokens := make([]int32, blocks*w.geo.BlockTokens+1)
	for i := range tokens {
		tokens[i] = first + int32(i)
	}
	return tokens
}

// TestStuckDisk: while a disk answers nothing, units go home when their lender
// wants them, and what is asked of the cache is answered. The test hangs where
// anybody waits for the disk.
func TestStuckDisk(t *testing.T) {
	for i, wc := range worlds {
		wc.stores = []int{400}
		w := newWorld(t, wc)
		w.disks[0].hold()
		w.stuck = true
		root := prefix.Root()
		// More than fits into the own arena: some blocks are borrowed.
		tokens := w.numbered(w.cache.MaxTokens()*2/3/w.geo.BlockTokens, 1)
		tokens = tokens[:min(len(tokens), w.lendable()*w.geo.BlockTokens)]
		if _, err := w.answer(1, root, tokens); err != nil {
			t.Fatalf("world %d: %v", i, err)
		}
		<-w.disks[0].lag.kept
		for lender := range w.lend {
			returned := -1
			w.cache.Reclaim(lender, 1000, func(n int) { returned = n })
			if held := len(w.cache.lenders()[lender].epochs); returned < 0 || held != 0 {
				t.Errorf("world %d: %d units went home, %d are held", i, returned, held)
			}
		}
		// What the disk is about to take may be in its way.
		if _, err := w.answer(2, root, w.numbered(2, 1000)); err != nil && !errors.Is(err, scheduler.ErrWait) {
			t.Errorf("world %d: %v", i, err)
		}
		w.disks[0].land(t)
		w.check()
		w.stuck = false
		if _, err := w.answer(3, root, w.numbered(2, 1000)); err != nil {
			t.Errorf("world %d: %v", i, err)
		}
	}
}

// lendable is how many blocks the lenders have.
func (w *world) lendable() int {
	n := 0
	for _, l := range w.cfg.Lender {
		n += l.Spec.BlocksPer(w.geo, l.MaxUnits)
	}
	return n
}

// TestLateWrite: a write that was under way when its process ended reaches the
// disk after its place was given to another block. Its checksum says so.
func TestLateWrite(t *testing.T) {
	wc := worlds[0]
	wc.stores = []int{4}
	w := newWorld(t, wc)
	w.ioTimeout = 20 * time.Millisecond
	w.cfg.Overflow.Move.Close()
	w.cfg.Overflow.Move = w.diskStream("move")
	w.disks[0].hold()
	root := prefix.Root()
	if _, err := w.answer(1, root, w.numbered(4, 1)); err != nil {
		t.Fatal(err)
	}
	w.reboot(false)
	late := w.disks[0].lag.held
	w.disks[0].lag.held, w.disks[0].lag.from = nil, 0
	second := w.numbered(4, 1000)
	if _, err := w.answer(2, root, second); err != nil {
		t.Fatal(err)
	}
	if got := w.reboot(true); got.Blocks != 4 {
		t.Fatalf("%+v, want 4 blocks", got)
	}
	w.disks[0].lag.held = late
	if n := w.disks[0].land(t); n == 0 {
		t.Fatal("no write was late")
	}
	r, err := w.answer(3, root, second)
	var lost *scheduler.LostError
	if r.Pool == 0 || !errors.As(err, &lost) || w.cache.Stores()[0].Corrupt == 0 {
		t.Fatalf("%+v, %v, %+v: want damage that is seen", r, err, w.cache.Stores())
	}
	for id := uint64(4); err != nil; id++ {
		if _, err = w.answer(id, root, second); err != nil && !errors.As(err, &lost) || id > 9 {
			t.Fatal(err)
		}
	}
}

// TestLessWithoutStore: what is longer than all that is left when a store is out of
// use is refused, rather than made to wait.
func TestLessWithoutStore(t *testing.T) {
	wc := worlds[0]
	plain := newWorld(t, wc).cache.MaxTokens()
	wc.stores = []int{400}
	w := newWorld(t, wc)
	limit := w.cache.MaxTokens()
	if limit <= plain {
		t.Fatalf("%d tokens with a store, %d without", limit, plain)
	}
	w.cache.StoreFault(0, &device.Error{Device: "disk0", Op: "read", Err: device.ErrGone})
	w.cache.mu.Lock()
	w.cache.noteFaults()
	w.cache.mu.Unlock()
	if got := w.cache.MaxTokens(); got != plain {
		t.Errorf("%d tokens without the store, want %d", got, plain)
	}
	if _, err := w.answer(1, prefix.Root(), w.numbered(limit/w.geo.BlockTokens-1, 1)); !errors.Is(err, scheduler.ErrNever) {
		t.Errorf("%v, want ErrNever", err)
	}
}
