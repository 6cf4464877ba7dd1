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
	st.Blocks = wire.BlockStatus{
		LocalUsed: c.pinned, LocalKept: c.space.used() - c.pinned, LocalFree: max(0, c.spareChunks()),
		BorrowedUsed: c.heldAt[borrowed], BorrowedKept: c.lentUsed() - c.heldAt[borrowed], BorrowedFree: c.lentFree(),
	}
	for _, p := range c.lenders() {
		st.Units = append(st.Units, wire.UnitCount{Peer: p.cfg.Name, Lent: len(p.epochs)})
	}
	for _, p := range c.depots() {
		if p.at == host {
			st.Blocks.HostKept, st.Blocks.HostFree = p.used(), p.free()
		} else {
			st.Blocks.PoolKept += p.used()
			st.Blocks.PoolFree += p.free()
		}
	}
	st.Blocks.HostUsed, st.Blocks.PoolUsed = c.heldAt[host], c.heldAt[stored]
	st.Blocks.HostKept -= st.Blocks.HostUsed
	st.Blocks.PoolKept -= st.Blocks.PoolUsed
	st.Loaded, st.Stored = c.stats.LoadedBytes, c.stats.StoredBytes
	st.Stale, st.Evicted, st.Corrupt = c.stats.StaleBlocks, c.stats.EvictedSequences, c.stats.CorruptBlocks
	for _, to := range slices.Sorted(maps.Keys(c.stats.MovedBlocks)) {
		st.Moved = append(st.Moved, wire.Count{Name: to, N: c.stats.MovedBlocks[to]})
	}
}
