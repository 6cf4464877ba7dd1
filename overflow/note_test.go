package overflow

import (
	"os"
	"testing"
	"time"

	"github.com/kvlend/kvlend/overflow/admission"
	"github.com/kvlend/kvlend/overflow/store"
	"github.com/kvlend/kvlend/prefix"
)

// TestDoubt: a start knows whether the last user ended in good order, and since when
// what is stored can be relied on. The budget outlives both.
func TestDoubt(t *testing.T) {
	o, d := rig(t)
	o.Devices[0].Budget = admission.BudgetOptions{PerDay: 1 << 40}
	format(t, o, d)
	var first, written int64
	with(t, o, func(p *Pool) {
		dev := p.Devices[0]
		first = dev.Doubt
		e := store.Entry{Slot: dev.Store.Alloc(nil, 1)[0], Key: prefix.Key{Lo: 1}, Root: true, Tokens: make([]int32, o.Store.BlockTokens), Sums: make([]uint64, o.Store.Layers)}
		if _, err := dev.Store.Commit(&e); err != nil {
			t.Fatal(err)
		}
	})
	if first != 0 {
		t.Errorf("%d of an empty store", first)
	}
	var killed []byte // what a crash would leave
	with(t, o, func(p *Pool) {
		dev := p.Devices[0]
		if dev.Doubt != first {
			t.Errorf("%d after an end in good order, %d before", dev.Doubt, first)
		}
		if !dev.Take(1 << 20) {
			t.Fatal("no budget")
		}
		if err := dev.SaveState(); err != nil {
			t.Fatal(err)
		}
		written = dev.Budget.Usage().Written
		var err error
		if killed, err = os.ReadFile(d.Path); err != nil {
			t.Fatal(err)
		}
	})
	if err := os.WriteFile(d.Path, killed, 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now().Unix()
	with(t, o, func(p *Pool) {
		dev := p.Devices[0]
		if dev.Doubt < began || dev.Doubt > time.Now().Unix() {
			t.Errorf("%d after a crash, it is %d", dev.Doubt, began)
		}
		if got := dev.Budget.Usage().Written; got != written {
			t.Errorf("%d bytes of the budget were used, want %d", got, written)
		}
	})
}
