package master

import (
	"fmt"
	"testing"

	"github.com/kvlend/kvlend/prefix"
	"github.com/kvlend/kvlend/scheduler"
)

// TestLongerThanEverything: a conversation whose second turn is longer than the
// own arena and all that is lent together, with every length of the first.
func TestLongerThanEverything(t *testing.T) {
	for i, wc := range worlds {
		wc.stores = []int{400}
		for first := 1; first < 40; first += 3 {
			for _, budget := range []int{0, 1000} {
				t.Run(fmt.Sprint(i, first, budget), func(t *testing.T) {
					w := newWorld(t, wc)
					w.budget.left = budget
					limit := w.cache.MaxTokens()
					tokens := make([]int32, limit)
					for i := range tokens {
						tokens[i] = int32(i * i % 11)
					}
					root := prefix.Root()
					w.tokensOf(1, root, tokens)
					at := 0
					for id, n := range []int{min(limit, first*w.geo.BlockTokens), limit} {
						id := uint64(id + 1)
						w.past[id] = w.past[1]
						a := scheduler.Admission{ID: id, Root: root, Tokens: tokens[:n], Room: n}
						cached, err := w.admit(a)
						if err != nil {
							t.Fatalf("turn %d: %v", id, err)
						}
						w.check()
						for at = cached; at < n; {
							k := min(n-at, 4*w.geo.BlockTokens)
							if err := w.run([]scheduler.StepSeq{{ID: id, Start: at, New: k, Tokens: tokens[at : at+k]}}, nil); err != nil {
								t.Fatalf("turn %d at %d: %v", id, at, err)
							}
							at += k
							w.check()
						}
						w.cache.Release(id)
						w.check()
					}
				})
			}
		}
	}
}
