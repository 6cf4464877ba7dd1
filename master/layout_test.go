package master

import (
	"testing"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/overflow/store"
	"github.com/kvlend/kvlend/prefix"
)

// TestRunsOnDisk: conversations that take turns are stored side by side, each in runs
// of neighbouring slots, so that a layer of one is read in few pieces.
func TestRunsOnDisk(t *testing.T) {
	for _, disks := range [][]int{{400}, {400, 400}} {
		wc := worlds[0]
		wc.arenaLayers, wc.workers, wc.stores = 130*wc.layers, nil, disks
		w := newWorld(t, wc)
		const turns, per = 6, 8
		root := prefix.Root()
		for turn := range turns {
			for chat := range 2 {
				if _, err := w.answer(uint64(1+2*turn+chat), root, w.numbered(per*(turn+1), int32(1+10000*chat))); err != nil {
					t.Fatal(err)
				}
				w.check()
			}
		}
		w.reboot(true)
		for chat := range 2 {
			tokens := w.numbered(per*turns, int32(1+10000*chat))
			c := w.cache
			var last, run = map[*pool]elastic.BlockID{}, map[*pool]int{}
			blocks, reads := 0, 0
			c.matched = c.index.Match(root, tokens, c.matched[:0])
			for _, n := range c.matched {
				b := n.Value
				g := b.pool.shelf.Store.Geometry()
				prev, some := last[b.pool]
				if !some || !g.Adjacent(store.Slot(prev), store.Slot(b.id)) {
					reads++
					run[b.pool] = 0
				}
				last[b.pool] = b.id
				blocks++
			}
			g := w.disks[0].store.Geometry()
			least := (blocks + g.Run - 1) / g.Run
			t.Logf("%d disks, conversation %d: %d blocks, %d reads a layer, %d at least (runs of %d)", len(disks), chat, blocks, reads, least, g.Run)
			if blocks != per*turns || reads > least+2*len(disks) {
				t.Errorf("%d disks: %d blocks of conversation %d are read in %d pieces a layer, %d are needed", len(disks), blocks, chat, reads, least)
			}
		}
	}
}
