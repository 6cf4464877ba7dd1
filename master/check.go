package master

import (
	"fmt"

	"github.com/kvlend/kvlend/elastic"
)

// Check verifies the cache's invariants: every chunk, tail and borrowed block
// has exactly one holder, the slots suffice for the borrowed blocks in use,
// blocks lie only in units that are held, and the index knows every kept block.
// It returns what it found wrong.
func (c *Cache) Check() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleNear()
	k := checker{c: c, chunks: map[int32]string{}, tails: map[int32]string{}, far: map[lentBlock]string{}, seen: map[*block]int{}, coming: map[*pool]int{}}
	for _, t := range c.space.free {
		k.claim(k.chunks, t, "the free chunks", c.space.chunks)
	}
	for _, t := range c.space.freeTails {
		k.claim(k.tails, t, "the free tails", c.space.tails)
	}
	for id, s := range c.seqs {
		for i, b := range s.blocks {
			k.block(b, fmt.Sprintf("sequence %d, block %d", id, i))
			k.seen[b]++
		}
	}
	for n := range c.index.All() {
		b := n.Value
		k.block(b, fmt.Sprintf("kept block %v", n.Key()))
		class := b.place
		if b.busy != nil || b.onLeave != nil && n.Class() == int(moving) {
			class = moving
		}
		if b.node != n || n.Refs() != b.users || n.Class() != int(class) {
			k.failf("kept block %v: %d references and class %d, it has %d users in place %v", n.Key(), n.Refs(), n.Class(), b.users, b.place)
		}
	}
	k.users()
	k.flights()
	k.orphans()
	if c.step != nil {
		for _, b := range c.step.homes {
			if _, home := k.chunks[b.chunkTo]; !home {
				k.claim(k.chunks, b.chunkTo, "the step's promotions", c.space.chunks)
			}
		}
	}
	k.sum("chunks", len(k.chunks), c.space.chunks)
	k.sum("tails", len(k.tails), c.space.tails)
	if !c.space.fits(c.space.used(), c.held) && c.step == nil {
		k.failf("%d regular-cache blocks leave %d slots for %d borrowed blocks with %d buffers",
			c.space.used(), c.space.slots(c.space.used()), c.held, c.cfg.Buffers)
	}
	k.pools()
	return append(k.errs, c.index.Check()...)
}

type checker struct {
	c             *Cache
	chunks, tails map[int32]string
	far           map[lentBlock]string
	seen          map[*block]int // users found, by block
	coming        map[*pool]int  // places that moves have taken
	errs          []error
}

// flights checks what disks keep in the air: nobody waits for it here.
func (k *checker) flights() {
	staged, copies := 0, 0
	for _, f := range k.c.flights {
		for _, m := range f.moves {
			if m.stage >= 0 {
				staged++
			}
			if m.copy {
				copies++
			}
			ends := []spot{m.to}
			if m.orphan {
				ends = append(ends, m.from)
			}
			for _, s := range ends {
				k.taken(s)
			}
		}
	}
	if k.c.staging != nil {
		k.sum("free staging memory", len(k.c.staging.free), k.c.staging.size-staged)
		k.sum("copies under way", k.c.copying, copies)
	}
}

// orphans checks that each has a place of its own, and that the index does not know it.
func (k *checker) orphans() {
	for _, x := range k.c.orphans.byKey {
		at := lentBlock{x.pool, x.id}
		if prev, taken := k.far[at]; taken || x.pool.blocks[x.id] != nil {
			k.failf("block %d of %s belongs to %s and to an orphan", x.id, x.pool.cfg.Name, prev)
		}
		k.far[at] = "an orphan"
		if !x.pool.shelf.open() {
			k.failf("an orphan lies in %s, which takes no blocks", x.pool.cfg.Name)
		}
	}
}

// taken claims a place that a move will free or give to its block.
func (k *checker) taken(s spot) {
	const who = "a move under way"
	switch {
	case s.place == local:
		k.claim(k.chunks, s.chunk, who, k.c.space.chunks)
	default:
		at := lentBlock{s.pool, s.id}
		if prev, taken := k.far[at]; taken {
			k.failf("block %d of %s belongs to %s and to %s", s.id, s.pool.cfg.Name, prev, who)
		}
		k.far[at] = who
		if s.pool.blocks[s.id] == nil {
			k.coming[s.pool]++
		}
	}
}

func (k *checker) failf(format string, args ...any) {
	k.errs = append(k.errs, fmt.Errorf(format, args...))
}

// users compares the counts with what was found.
func (k *checker) users() {
	pinned, held, homes := 0, [nPlaces]int{}, 0
	for b, n := range k.seen {
		if n != b.users {
			k.failf("a block of place %v has %d users, %d are counted", b.place, n, b.users)
		}
		if b.home >= 0 {
			homes++
			k.claim(k.chunks, b.home, "a block that waits to come home", k.c.space.chunks)
			continue
		}
		if b.place == local {
			pinned++
		} else {
			held[b.place]++
		}
	}
	k.sum("regular-cache blocks in use", k.c.pinned, pinned)
	all := 0
	for p, n := range held {
		all += n
		k.sum(fmt.Sprintf("blocks of place %v in use", place(p)), k.c.heldAt[p], n)
	}
	k.sum("far blocks in use", k.c.held, all)
	k.sum("chunks that wait for their blocks", k.c.homes, homes)
}

func (k *checker) pools() {
	used := 0
	for _, p := range k.c.pools {
		used += p.used()
		for u := range p.bad {
			if !p.space.Has(u) {
				k.failf("unit %d of %s is set aside and not held", u, p.cfg.Name)
			}
		}
		if p.at == borrowed {
			k.sum("units of "+p.cfg.Name, p.space.Units(), len(p.epochs))
		}
		k.sum("known blocks in "+p.cfg.Name, len(p.blocks), p.used()-k.coming[p]-k.c.orphans.in(p))
		if p.space != nil {
			k.errs = append(k.errs, p.space.Check()...)
		}
	}
	k.sum("blocks outside the own arena", used, len(k.far))
}

func (k *checker) claim(m map[int32]string, i int32, who string, limit int) {
	if prev, taken := m[i]; taken {
		k.failf("place %d belongs to %s and to %s", i, prev, who)
	}
	if i < 0 || int(i) >= limit {
		k.failf("place %d of %s is not one of %d", i, who, limit)
	}
	m[i] = who
}

// block checks a block, once.
func (k *checker) block(b *block, who string) {
	if k.seen[b] > 0 {
		return
	}
	if b.users == 0 && b.node == nil {
		k.failf("%s belongs to nobody", who)
	}
	if b.users > 1 && b.node == nil {
		k.failf("%s is shared and not kept", who)
	}
	if b.copy != nil {
		k.inPool(b, b.copy.pool, b.copy.id, who+", its copy")
		if b.place == stored || b.node == nil {
			k.failf("%s has a copy, in place %v", who, b.place)
		}
	}
	if b.tail >= 0 {
		k.claim(k.tails, b.tail, who, k.c.space.tails)
	}
	if b.place == local {
		k.claim(k.chunks, b.chunk, who, k.c.space.chunks)
		if b.tail >= 0 {
			k.failf("%s is local and has a tail", who)
		}
		return
	}
	k.inPool(b, b.pool, b.id, who)
}

// inPool checks one of a block's places outside the own arena.
func (k *checker) inPool(b *block, p *pool, id elastic.BlockID, who string) {
	at := lentBlock{p, id}
	if prev, taken := k.far[at]; taken {
		k.failf("block %d of %s belongs to %s and to %s", id, p.cfg.Name, prev, who)
	}
	k.far[at] = who
	if p.blocks[id] != b {
		k.failf("%s is not known to lie in block %d of %s", who, id, p.cfg.Name)
	}
	if !p.has(id) {
		k.failf("%s uses block %d of %s, which is free", who, id, p.cfg.Name)
		return
	}
	if p.at != borrowed {
		return
	}
	for _, u := range p.space.AppendUnitsOf([]int(nil), id) {
		if _, held := p.epochs[uint32(u)]; !held {
			k.failf("%s lies in unit %d of %s, which is not held", who, u, p.cfg.Name)
		}
	}
}

func (k *checker) sum(what string, got, want int) {
	if got != want {
		k.failf("%s: %d, want %d", what, got, want)
	}
}
