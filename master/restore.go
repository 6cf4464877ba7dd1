package master

import (
	"cmp"
	"slices"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/overflow/store"
	"github.com/kvlend/kvlend/prefix"
)

// Restored says what a start found in the stores.
type Restored struct {
	Blocks int // can be used
	// Orphans are blocks whose predecessors are gone: nobody would find them.
	// They made way.
	Orphans int
	// Waiting are such blocks that stay where they are until their places are needed:
	// a device is missing, or was made anew.
	Waiting int
}

// Restored says what New found in the stores.
func (c *Cache) Restored() Restored { return c.restored }

// found is an entry and where it is.
type found struct {
	store.Entry
	pool *pool
}

func (f *found) doubtful() bool { return f.Tag <= uint64(f.pool.shelf.Doubt) }

// restore makes known what the stores hold. A chain may be spread over several.
func (c *Cache) restore() Restored {
	var r Restored
	all := map[prefix.Key]found{}
	for _, p := range c.shelves {
		for e := range p.shelf.Store.Entries() {
			if _, twice := all[e.Key]; twice {
				r.Orphans++
				p.put(elastic.BlockID(e.Slot))
				continue
			}
			all[e.Key] = found{e, p}
		}
	}
	nodes := make(map[prefix.Key]*node, len(all))
	order := make([]found, 0, len(all))
	var chain []found
	for _, f := range all {
		chain = chain[:0]
		for nodes[f.Key] == nil {
			chain = append(chain, f)
			up, ok := all[f.Parent]
			if f.Root || !ok {
				break
			}
			f = up
		}
		for _, f := range slices.Backward(chain) {
			if n := c.known(f, nodes[f.Parent]); n != nil {
				nodes[f.Key] = n
				order = append(order, f)
			}
		}
	}
	r.Waiting = c.adoptOrphans(all, nodes)
	for _, f := range all {
		if nodes[f.Key] == nil && c.orphans.byKey[f.Key] == nil {
			r.Orphans++
			f.pool.put(elastic.BlockID(f.Slot))
		}
	}
	// Nobody uses them yet; what was stored last is lost last, of one age what is
	// nearer to its root.
	slices.SortFunc(order, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.Tag, b.Tag), cmp.Compare(nodes[b.Key].Depth(), nodes[a.Key].Depth()))
	})
	for _, f := range order {
		c.index.Unref(nodes[f.Key])
	}
	r.Blocks = len(order)
	return r
}

// known puts a stored block into the index, behind its parent. Nil: it cannot be
// there.
func (c *Cache) known(f found, up *node) *node {
	if !f.Root && up == nil {
		return nil
	}
	b := newBlock(spot{place: stored, pool: f.pool, id: elastic.BlockID(f.Slot), tail: -1})
	n, fresh := c.index.Insert(up, f.Parent, f.Tokens, int(stored), b)
	switch {
	case n == nil || !fresh:
		return nil
	case n.Key() != f.Key:
		// Its tokens do not make its key: nothing that it says can be trusted.
		c.index.Unref(n)
		c.removed = c.index.Remove(n, c.removed[:0])
		return nil
	}
	b.node, b.ident, b.written, b.sums, b.worthy = n, f.Key, c.BlockTokens(), f.Sums, true
	b.doubtful = f.doubtful()
	f.pool.blocks[b.id] = b
	return n
}
