package worker

import (
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

// Borrower is a master that may borrow from this worker.
type Borrower struct {
	Name  string
	Owner uint32 // its index in the unit table
}

// Describe fills in the cache's part of a status: its blocks, and its units by
// borrower. version is asked without the cache's lock.
func (c *Cache) Describe(st *wire.Status, borrowers []Borrower, version func(owner uint32) uint64) {
	c.mu.Lock()
	st.Blocks.LocalUsed, st.Blocks.LocalKept, st.Blocks.LocalFree = c.space.UsedBlocks()-c.idle.len, c.idle.len, c.space.FreeBlocks()
	u := c.cfg.Units
	for _, b := range borrowers {
		st.Units = append(st.Units, wire.UnitCount{
			Peer: b.Name, Local: u.Count(elastic.Local), Lent: u.CountOf(b.Owner, elastic.Lent),
			Reclaiming: u.CountOf(b.Owner, elastic.Reclaiming), Fenced: u.CountOf(b.Owner, elastic.Fenced),
		})
	}
	c.guard.describe(c.cfg.Now(), st)
	c.mu.Unlock()
	for i, b := range borrowers {
		st.Units[i].Version = version(b.Owner)
	}
}
