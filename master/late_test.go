package master

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kvlend/kvlend/prefix"
	"github.com/kvlend/kvlend/scheduler"
)

// byHand is a Later whose time passes when the test says so.
type byHand struct {
	goroutines
	mu   sync.Mutex
	work []func()
	set  chan struct{} // has one when something waits
}

func newByHand() *byHand { return &byHand{set: make(chan struct{}, 1)} }

func (l *byHand) After(_ time.Duration, f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.work = append(l.work, f)
	select {
	case l.set <- struct{}{}:
	default:
	}
}

// pass lets all the time pass that is waited for.
func (l *byHand) pass() {
	l.mu.Lock()
	work := l.work
	l.work = nil
	l.mu.Unlock()
	for _, f := range work {
		f()
	}
}

// TestLateWriteIsNotWaitedFor: a request whose room is taken by blocks that leave for
// a disk waits for them as long as they should take, and then goes on without them.
func TestLateWriteIsNotWaitedFor(t *testing.T) {
	for i, wc := range worlds {
		wc.workers = nil
		wc.arenaLayers = 20 * wc.layers
		later := newByHand()
		wc.stores, wc.volatile, wc.later = []int{400}, true, later // copies in advance go to no volatile store
		w := newWorld(t, wc)
		w.disks[0].hold()
		w.stuck = true
		root := prefix.Root()
		half := w.cache.space.chunks / 2
		if _, err := w.answer(1, root, w.numbered(half, 1)); err != nil {
			t.Fatalf("world %d: %v", i, err)
		}
		if _, err := w.answer(2, root, w.numbered(half, 1000)); !errors.Is(err, scheduler.ErrComing) {
			t.Fatalf("world %d: %v, want to wait for the disk", i, err)
		}
		<-w.disks[0].lag.kept
		for _, err := range w.cache.Check() {
			t.Errorf("world %d: while the disk is stuck: %v", i, err)
		}
		later.pass()
		if _, err := w.answer(3, root, w.numbered(half, 1000)); err != nil {
			t.Errorf("world %d: %v: the disk is still waited for", i, err)
		}
		if w.disks[0].land(t) == 0 {
			t.Errorf("world %d: nothing was written", i)
		}
		w.check()
		w.stuck = false
		if r, err := w.answer(4, root, w.numbered(half, 5000)); err != nil || r.Local != 0 {
			t.Errorf("world %d: %+v, %v", i, r, err)
		}
	}
}

// TestLateReadIsComputed: reads that take several times as long as they should are
// given up, and what they were for is computed. Nothing is lost, and after a while
// the device is read from again.
func TestLateReadIsComputed(t *testing.T) {
	wc := worlds[0]
	later := newByHand()
	wc.stores, wc.later = []int{100}, later
	w := newWorld(t, wc)
	w.ioTimeout = time.Hour
	root, tokens := prefix.Root(), w.numbered(4, 1)
	if _, err := w.answer(1, root, tokens); err != nil {
		t.Fatal(err)
	}
	w.reboot(true)
	d := w.disks[0]
	d.hold()
	d.lag.mu.Lock()
	d.lag.read = true
	d.lag.mu.Unlock()
	ended := make(chan error, 1)
	go func() {
		r, err := w.answer(2, root, tokens)
		if r.Pool == 0 {
			err = errors.Join(err, errors.New("nothing was to be read"))
		}
		ended <- err
	}()
	<-d.lag.kept
	<-later.set
	later.pass()
	var lost *scheduler.LostError
	if err := <-ended; !errors.As(err, &lost) {
		t.Fatalf("%v, want that the sequence is lost", err)
	}
	if st := w.cache.Stores()[0]; !st.Slow || st.Late != 1 || st.Fenced != "" {
		t.Errorf("%+v, want one late answer", st)
	}
	if r, err := w.answer(3, root, tokens); err != nil || r.Pool != 0 {
		t.Errorf("%+v, %v, want all to be computed", r, err)
	}
	d.land(t)
	if got := w.reboot(false); got.Blocks != 4 {
		t.Errorf("%+v, want 4 blocks still to be there", got)
	}
	if r, err := w.answer(4, root, tokens); err != nil || r.Pool == 0 {
		t.Errorf("%+v, %v, want it to be read again", r, err)
	}
}

// TestSpillLocksNothing: while a disk keeps blocks in use that have to leave the
// regular cache, the cache answers.
func TestSpillLocksNothing(t *testing.T) {
	wc := worlds[0]
	wc.stores = []int{400}
	w := newWorld(t, wc)
	w.disks[0].hold()
	w.stuck = true
	tokens := w.numbered(w.cache.MaxTokens()/w.geo.BlockTokens-1, 1)
	waited := false
	w.tokensOf(1, prefix.Root(), tokens)
	a := scheduler.Admission{Root: prefix.Root()}
	for id := range uint64(5) {
		// A part of it is computed, and the rest has to find room beside it.
		n := w.geo.BlockTokens * (4 + 3*int(id))
		a.ID, a.Room, a.Tokens = id+1, n, tokens[:n]
		w.past[a.ID] = w.past[1]
		cached, err := w.admit(a)
		if err == nil {
			err = w.run([]scheduler.StepSeq{{ID: a.ID, Start: cached, New: n - cached, Tokens: tokens[cached:n]}}, nil)
		}
		if err == nil {
			err = w.reserve(a.ID, len(tokens))
		}
		waited = waited || errors.Is(err, scheduler.ErrComing)
		if w.cache.seqs[a.ID] != nil {
			w.cache.Release(a.ID)
		}
		returned := false
		w.cache.Reclaim(0, 1, func(int) { returned = true })
		if !returned {
			t.Errorf("sequence %d: a reclaim waits", a.ID)
		}
	}
	if !waited {
		t.Error("nothing had to leave for the disk")
	}
	w.disks[0].land(t)
	w.check()
}

// TestHostGivesWay: what is colder in host memory than what leaves the regular cache
// goes to a store.
func TestHostGivesWay(t *testing.T) {
	wc := worlds[0]
	wc.workers, wc.arenaLayers = nil, 8*wc.layers
	wc.hostBlocks, wc.stores, wc.volatile = 6, []int{100}, true
	w := newWorld(t, wc)
	root := prefix.Root()
	const n = 6
	for id := range uint64(n) {
		if _, err := w.answer(id+1, root, w.numbered(4, 1000*int32(id+1))); err != nil {
			t.Fatal(err)
		}
		w.check()
		w.now.Add(int64(time.Second))
	}
	tier := func(id uint64) (r scheduler.Receipt) {
		w.cache.mu.Lock()
		defer w.cache.mu.Unlock()
		all := w.cache.match(scheduler.Admission{Root: root, Tokens: w.numbered(4, 1000*int32(id))})
		return w.cache.account(all, len(all), r)
	}
	for id := uint64(1); id <= 2; id++ {
		if r := tier(id); r.Pool != 4*w.geo.BlockTokens {
			t.Errorf("conversation %d of %d: %+v, want it to be in the store", id, n, r)
		}
	}
	if r := tier(n - 1); r.Host == 0 {
		t.Errorf("the last but one: %+v, want it to be in host memory", r)
	}
	if st := w.cache.Stats(); st.MovedBlocks["dropped"] != 0 {
		t.Errorf("%d blocks were dropped", st.MovedBlocks["dropped"])
	}
}
