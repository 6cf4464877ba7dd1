package master

import (
	"fmt"
)

// Check verifies the cache's invariants: every chunk, tail and borrowed block
// has exactly one holder, the slots suffice for the borrowed blocks, and
// blocks lie only in units that are held. It returns what it found wrong.
func (c *Cache) Check() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := checker{chunks: map[int32]string{}, tails: map[int32]string{}, lent: map[lentBlock]string{}}
	for _, t := range c.space.free {
		k.claim(k.chunks, t, "the free chunks", c.space.chunks)
	}
	for _, t := range c.space.freeTails {
		k.claim(k.tails, t, "the free tails", c.space.tails)
	}
	for id, s := range c.seqs {
		for i, b := range s.blocks {
			k.block(c, b, fmt.Sprintf("sequence %d, block %d", id, i))
		}
	}
	k.sum("chunks", len(k.chunks), c.space.chunks)
	k.sum("tails", len(k.tails), c.space.tails)
	k.sum("borrowed blocks in use", len(k.lent), c.lent)
	if !c.space.fits(c.space.used(), c.lent) {
		k.errs = append(k.errs, fmt.Errorf("%d regular-cache blocks leave %d slots for %d borrowed blocks with %d buffers",
			c.space.used(), c.space.slots(c.space.used()), c.lent, c.cfg.Buffers))
	}
	used := 0
	for _, p := range c.pools {
		used += p.space.UsedBlocks()
		for u := range p.bad {
			if !p.space.Has(u) {
				k.errs = append(k.errs, fmt.Errorf("unit %d of %s is set aside and not held", u, p.cfg.Name))
			}
		}
		k.sum("units of "+p.cfg.Name, p.space.Units(), len(p.epochs))
		k.sum("known blocks in "+p.cfg.Name, len(p.blocks), p.space.UsedBlocks())
		k.errs = append(k.errs, p.space.Check()...)
	}
	k.sum("blocks in borrowed units", used, c.lent)
	return k.errs
}

type checker struct {
	chunks, tails map[int32]string
	lent          map[lentBlock]string
	errs          []error
}

func (k *checker) claim(m map[int32]string, i int32, who string, limit int) {
	if prev, taken := m[i]; taken {
		k.errs = append(k.errs, fmt.Errorf("place %d belongs to %s and to %s", i, prev, who))
	}
	if i < 0 || int(i) >= limit {
		k.errs = append(k.errs, fmt.Errorf("place %d of %s is not one of %d", i, who, limit))
	}
	m[i] = who
}

func (k *checker) block(c *Cache, b *block, who string) {
	if b.tail >= 0 {
		k.claim(k.tails, b.tail, who, c.space.tails)
	}
	if b.place == local {
		k.claim(k.chunks, b.chunk, who, c.space.chunks)
		if b.tail >= 0 {
			k.errs = append(k.errs, fmt.Errorf("%s is local and has a tail", who))
		}
		return
	}
	at := lentBlock{b.pool, b.id}
	if prev, taken := k.lent[at]; taken {
		k.errs = append(k.errs, fmt.Errorf("borrowed block %d of %s belongs to %s and to %s", b.id, b.pool.cfg.Name, prev, who))
	}
	k.lent[at] = who
	if b.pool.blocks[b.id].block != b {
		k.errs = append(k.errs, fmt.Errorf("%s is not known to lie in block %d of %s", who, b.id, b.pool.cfg.Name))
	}
	if !b.pool.space.Allocated(b.id) {
		k.errs = append(k.errs, fmt.Errorf("%s uses block %d of %s, which is free", who, b.id, b.pool.cfg.Name))
		return
	}
	for _, u := range b.pool.space.AppendUnitsOf([]int(nil), b.id) {
		if _, held := b.pool.epochs[uint32(u)]; !held {
			k.errs = append(k.errs, fmt.Errorf("%s lies in unit %d of %s, which is not held", who, u, b.pool.cfg.Name))
		}
	}
}

func (k *checker) sum(what string, got, want int) {
	if got != want {
		k.errs = append(k.errs, fmt.Errorf("%s: %d, want %d", what, got, want))
	}
}
