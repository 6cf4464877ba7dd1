package master

import (
	"testing"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/prefix"
)

// blocks are where all blocks are.
func (w *world) blocks() wire.BlockStatus {
	var st wire.Status
	w.cache.Describe(&st)
	return st.Blocks
}

// TestDrainIdle: the drain of stores ends while nobody asks for anything, whether the
// blocks fit elsewhere or not. What was used last is what is left of the one store.
func TestDrainIdle(t *testing.T) {
	for name, wc := range map[string]struct {
		stores []int
		host   int
		drain  []int
	}{
		"the only one":     {[]int{100}, 0, []int{0}},
		"both":             {[]int{60, 60}, 0, []int{0, 1}},
		"with host memory": {[]int{100}, 5, []int{0}},
		"another is full":  {[]int{60, 8}, 0, []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			c := worlds[0]
			c.workers, c.stores, c.hostBlocks = nil, wc.stores, wc.host
			w := newWorld(t, c)
			root := prefix.Root()
			const chats, per = 16, 4
			for i := range int32(chats) {
				if _, err := w.answer(uint64(i+1), root, w.numbered(per, 1+10000*i)); err != nil {
					t.Fatal(err)
				}
				w.now.Add(1e9)
				w.check()
			}
			st := w.blocks()
			if st.PoolKept < 4*per {
				t.Fatalf("%+v: too little is stored", st)
			}
			left := 0
			for _, i := range wc.drain {
				for range 200 {
					if left = w.cache.DrainStore(i, false); left == 0 {
						break
					}
					w.check() // which lets everything land
				}
				if left != 0 {
					t.Fatalf("%d blocks are left in store %d: %+v", left, i, w.blocks())
				}
			}
			w.check()
			if st = w.blocks(); st.LocalFree+st.HostFree > 3 {
				t.Errorf("more was dropped than had to be: %+v", st)
			}
			last := w.numbered(per, 1+10000*(chats-1))
			if n := len(w.cache.index.Match(root, last, nil)); n == 0 && len(wc.drain) == 1 {
				t.Error("what was used last is gone")
			}
			if n := w.cache.DrainStore(wc.drain[0], true); n != 0 {
				t.Errorf("%d blocks after the drain was undone", n)
			}
		})
	}
}
