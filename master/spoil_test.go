package master

import (
	"slices"
	"testing"

	"github.com/kvlend/kvlend/prefix"
)

// TestSpoilOrder: the places of blocks that are given up together come free in the
// same order each time, so that equal runs stay equal.
func TestSpoilOrder(t *testing.T) {
	var first []int32
	for range 8 {
		w := newWorld(t, worlds[0])
		for i := range int32(6) {
			if _, err := w.answer(uint64(i+1), prefix.Root(), w.numbered(2, 1+10000*i)); err != nil {
				t.Fatal(err)
			}
		}
		gone := map[*block]bool{}
		for n := range w.cache.index.All() {
			if n.Value.busy == nil {
				gone[n.Value] = true
			}
		}
		if len(gone) < 6 {
			t.Fatalf("%d blocks are kept, too few to come in an order", len(gone))
		}
		w.cache.mu.Lock()
		w.cache.spoil(gone)
		free := slices.Clone(w.cache.space.free)
		w.cache.mu.Unlock()
		w.check()
		if first == nil {
			first = free
		}
		if !slices.Equal(free, first) {
			t.Fatalf("chunks come free as %v, before as %v", free, first)
		}
	}
}
