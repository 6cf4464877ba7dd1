package master

import (
	"math"
	"strings"
	"testing"
)

// damaged is a world after a restart whose stores hold nothing as it was.
func damaged(t *testing.T, doubt int64) (w *world, chat func(int32) []int32) {
	w, chat, _ = twoDisks(t, 200)
	w.shut(false)
	w.doubt = doubt
	w.boot()
	d := w.disks[0]
	for e := range d.store.Entries() {
		d.dev.Poke(d.store.Off(e.Slot, 1)+5, []byte{1, 2, 3})
	}
	return w, chat
}

// TestBadDevice: a device that returns blocks that are not what was stored is put out
// of use, by name, and nothing borrowed is blamed.
func TestBadDevice(t *testing.T) {
	w, chat := damaged(t, 0)
	for i := range int32(8) {
		for again := true; again; {
			_, err := w.tryAsk(chat(i))
			again = err != nil
		}
	}
	st := w.cache.Stores()[0]
	if st.Corrupt < maxDamaged || st.Reused != 0 || w.cache.Stats().CorruptBlocks != 0 {
		t.Errorf("%+v, %+v", st, w.cache.Stats())
	}
	if !strings.Contains(st.Fenced, "disk0") || !strings.Contains(st.Fenced, "not what had been stored") {
		t.Errorf("out of use: %q", st.Fenced)
	}
}

// TestReusedPlaces: what was stored before a crash and is no longer there is computed
// again, and no fault of the device. What is stored from then on is.
func TestReusedPlaces(t *testing.T) {
	w, chat := damaged(t, math.MaxInt64)
	for i := range int32(8) {
		for again := true; again; {
			_, err := w.tryAsk(chat(i))
			again = err != nil
		}
	}
	st := w.cache.Stores()[0]
	if st.Corrupt != 0 || st.Reused < maxDamaged || st.Fenced != "" {
		t.Errorf("%+v", st)
	}
	d, reused := w.disks[0], st.Reused
	w.check()
	for e := range d.store.Entries() {
		d.dev.Poke(d.store.Off(e.Slot, 1)+5, []byte{4, 5, 6})
	}
	for i := range int32(8) {
		w.tryAsk(chat(i))
	}
	if st := w.cache.Stores()[0]; st.Corrupt == 0 || st.Reused != reused {
		t.Errorf("%+v after what was stored since was damaged", st)
	}
}
