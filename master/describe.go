package master

import (
	"maps"
	"slices"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// Describe fills in the cache's part of a status: its blocks, its borrowed
// units by lender, and its traffic.
func (c *Cache) Describe(st *wire.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rc := c.space.used()
	free := 0
	for c.space.fits(rc+free+1, c.lent) {
		free++
	}
	st.Blocks = wire.BlockStatus{LocalUsed: rc, LocalFree: free, BorrowedUsed: c.lent, BorrowedFree: c.lentFree()}
	for _, p := range c.pools {
		st.Units = append(st.Units, wire.UnitCount{Peer: p.cfg.Name, Lent: len(p.epochs)})
	}
	st.Loaded, st.Stored = c.stats.LoadedBytes, c.stats.StoredBytes
	st.Stale, st.Evicted, st.Corrupt = c.stats.StaleBlocks, c.stats.EvictedSequences, c.stats.CorruptBlocks
	for _, to := range slices.Sorted(maps.Keys(c.stats.MovedBlocks)) {
		st.Moved = append(st.Moved, wire.Count{Name: to, N: c.stats.MovedBlocks[to]})
	}
}
