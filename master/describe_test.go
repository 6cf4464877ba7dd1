package master

import (
	"testing"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/prefix"
	"github.com/kvlend/kvlend/scheduler"
)

// TestDescribeStreamed: blocks that a request streams from a store are counted
// there, and not as borrowed.
func TestDescribeStreamed(t *testing.T) {
	wc := worlds[0]
	wc.workers, wc.stores = nil, []int{100}
	w := newWorld(t, wc)
	tokens := make([]int32, w.cache.MaxTokens())
	root := prefix.Root()
	w.tokensOf(1, root, tokens)
	if _, err := w.admit(scheduler.Admission{ID: 1, Root: root, Tokens: tokens, Room: len(tokens)}); err != nil {
		t.Fatal(err)
	}
	if err := w.run([]scheduler.StepSeq{{ID: 1, New: len(tokens), Tokens: tokens}}, nil); err != nil {
		t.Fatal(err)
	}
	st := wire.Status{ID: 1}
	w.cache.Describe(&st)
	b := st.Blocks
	if all := len(tokens) / w.geo.BlockTokens; b.PoolUsed == 0 || b.LocalUsed+b.PoolUsed != all || b.BorrowedUsed != 0 || b.BorrowedKept != 0 {
		t.Errorf("%+v of %d blocks", b, all)
	}
	if err := st.Validate(); err != nil {
		t.Error(err)
	}
	w.cache.Release(1)
	w.check()
}
