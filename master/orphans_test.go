package master

import (
	"testing"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/store"
	"github.com/kvlend/kvlend/overflow/store/simdev"
	"github.com/kvlend/kvlend/prefix"
)

// twoDisks is a world whose conversations are spread over two stores, and how many
// blocks a restart finds there.
func twoDisks(t *testing.T, slots ...int) (w *world, chat func(i int32) []int32, stored int) {
	wc := worlds[0]
	wc.workers, wc.stores = nil, slots
	w = newWorld(t, wc)
	chat = func(i int32) []int32 { return w.numbered(6, 1+10000*i) }
	for i := range int32(8) {
		w.ask(chat(i))
	}
	return w, chat, w.reboot(true).Blocks
}

// ask serves a request of these tokens, and says how many of them were cached.
func (w *world) ask(tokens []int32) int {
	w.t.Helper()
	n, err := w.tryAsk(tokens)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// tryAsk is ask where a device may fail meanwhile.
func (w *world) tryAsk(tokens []int32) (cached int, err error) {
	w.asked++
	r, err := w.answer(w.asked, prefix.Root(), tokens)
	w.check()
	return r.Local + r.Pool, err
}

// TestMissingDevice: while a device is missing, what continues its blocks elsewhere is
// kept, and found again when it is back.
func TestMissingDevice(t *testing.T) {
	w, chat, stored := twoDisks(t, 100, 100)
	w.shut(false)
	all := w.disks
	w.disks, w.missing = all[:1], true
	r := w.boot()
	if r.Waiting == 0 || r.Orphans != 0 || r.Blocks+r.Waiting != all[0].store.Stats().Live {
		t.Fatalf("%+v of %d blocks", r, all[0].store.Stats().Live)
	}
	w.check()
	w.ask(chat(20))
	if again := w.reboot(true); again.Waiting != r.Waiting || again.Orphans != 0 {
		t.Errorf("%+v after another start without it, %+v before", again, r)
	}
	w.shut(true)
	w.disks, w.missing = all, false
	if r := w.boot(); r.Blocks < stored || r.Orphans != 0 || r.Waiting != 0 {
		t.Errorf("%+v when it is back, %d blocks were stored", r, stored)
	}
	for i := range int32(8) {
		if n := w.ask(chat(i)); n != 6*w.geo.BlockTokens {
			t.Errorf("conversation %d: %d tokens are cached", i, n)
		}
	}
}

// TestDeviceMadeAnew: an empty device beside one that is not may stand in for one that
// is gone for a while. Once it holds something, orphans are none of its.
func TestDeviceMadeAnew(t *testing.T) {
	w, chat, _ := twoDisks(t, 100, 100)
	w.shut(false)
	w.disks[1].dev = simdev.New(simdev.Options{Name: "disk1", Size: 64 << 20, Async: true})
	w.disks[1].lag.Device = w.disks[1].dev
	opt := w.storeOptions()
	opt.Slots = 100
	if err := store.Format(t.Context(), w.disks[1].dev, opt); err != nil {
		t.Fatal(err)
	}
	if r := w.boot(); r.Waiting == 0 || r.Orphans != 0 {
		t.Fatalf("%+v", r)
	}
	w.check()
	for i := range int32(8) {
		w.ask(chat(30 + i))
	}
	if r := w.reboot(true); r.Waiting != 0 || r.Orphans == 0 {
		t.Errorf("%+v with two devices in use", r)
	}
}

// TestOrphansMakeWay: orphans go before anything else does, and a block that is
// computed again takes back its place.
func TestOrphansMakeWay(t *testing.T) {
	w, chat, _ := twoDisks(t, 60, 60)
	w.shut(false)
	all := w.disks
	w.disks, w.missing = all[:1], true
	waiting := w.boot().Waiting
	if n := w.ask(chat(7)); n == 6*w.geo.BlockTokens {
		t.Fatal("nothing of the conversation was missing")
	}
	left := len(w.cache.orphans.byKey)
	if left == waiting || left == 0 {
		t.Errorf("%d orphans, %d before one conversation was computed again", left, waiting)
	}
	if n := w.blocks().PoolKept; n > 60 {
		t.Errorf("%d blocks in 60 places", n)
	}
	for i := range int32(12) {
		w.ask(chat(20 + i))
	}
	if n := len(w.cache.orphans.byKey); n != 0 {
		t.Errorf("%d orphans are left in a store that is full", n)
	}
}

// TestFaultLeavesStores: when a device fails, what the others hold stays there, and
// what it holds itself is found at the next start if it can be read.
func TestFaultLeavesStores(t *testing.T) {
	w, chat, stored := twoDisks(t, 100, 100)
	d := w.disks[1]
	data := d.store.Off(0, 0)
	d.dev.Fault(func(op simdev.Op) error {
		if op.Off < data || op.Kind == "sync" {
			return nil
		}
		return device.ErrGone
	})
	for i := range int32(8) {
		w.tryAsk(chat(i))
	}
	fenced := 0
	for _, s := range w.cache.Stores() {
		if s.Fenced != "" {
			fenced++
		}
	}
	if fenced != 1 {
		t.Fatalf("%d stores are out of use", fenced)
	}
	w.shut(true)
	d.dev.Fault(nil)
	if r := w.boot(); r.Blocks < stored || r.Waiting != 0 {
		t.Errorf("%+v at the next start, %d blocks were stored", r, stored)
	}
	for i := range int32(8) {
		if n := w.ask(chat(i)); n < 5*w.geo.BlockTokens {
			t.Errorf("conversation %d: %d tokens are cached", i, n)
		}
	}
}
