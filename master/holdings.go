package master

import (
	"cmp"
	"slices"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

// Holding is what the cache uses of one lender's units.
type Holding struct {
	Lender string
	Units  []wire.UnitEpoch // in order of their numbers
	// Errs says where the lender's unit table contradicts it.
	Errs []error
}

// Holdings lists the borrowed units by lender, in the order of Config.Lender,
// compared with the lenders' unit tables.
func (c *Cache) Holdings() []Holding {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Holding, len(c.lenders()))
	for i, p := range c.lenders() {
		out[i] = Holding{Lender: p.cfg.Name, Units: p.held()}
		held := make([]elastic.UnitEpoch, len(out[i].Units))
		for j, u := range out[i].Units {
			held[j] = elastic.UnitEpoch(u)
		}
		out[i].Errs = elastic.CheckReplica(p.cfg.Table, p.cfg.Owner, held)
	}
	return out
}

func (p *pool) held() []wire.UnitEpoch {
	units := make([]wire.UnitEpoch, 0, len(p.epochs))
	for u, e := range p.epochs {
		units = append(units, wire.UnitEpoch{Unit: u, Epoch: e})
	}
	slices.SortFunc(units, func(a, b wire.UnitEpoch) int { return cmp.Compare(a.Unit, b.Unit) })
	return units
}

// ReturnUnused gives back every borrowed unit without blocks in use, however
// lately it was used, and returns how many borrowed units are left. What is
// only kept in borrowed memory is dropped.
func (c *Cache) ReturnUnused() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleNear()
	for n := c.victim(borrowed); n != nil; n = c.victim(borrowed) {
		c.lose(n)
	}
	c.sweep()
	left := 0
	for _, p := range c.lenders() {
		c.giveBack(p, p.emptyUnits())
		left += len(p.epochs)
	}
	return left
}
