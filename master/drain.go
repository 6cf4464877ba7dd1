package master

// DrainStore empties a store, or undoes that: it takes no more blocks, copies
// there are dropped, and other blocks come home, from where they go elsewhere. What
// fits nowhere is dropped, the coldest of all first. It returns how many blocks are
// still there; asked again, it goes on.
func (c *Cache) DrainStore(i int, undo bool) (left int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.shelfAt(i)
	s := p.shelf
	if s.draining == undo && s.fenced == nil {
		s.draining = !undo
		s.left = 0
		if undo {
			s.left = s.Store.Stats().Free
		}
	}
	if s.draining {
		for _, b := range p.blocks {
			if b.copy != nil && b.copy.pool == p {
				c.dropCopy(b)
			}
		}
		c.leaveOrphans(p)
		c.tidy() // nobody else may come by
	}
	return len(p.blocks)
}

// anyOpen reports that a store takes blocks.
func (c *Cache) anyOpen() bool {
	for _, p := range c.shelves {
		if p.shelf.open() {
			return true
		}
	}
	return false
}

// draining calls yield for each block of a store that is drained and that may leave
// now.
func (c *Cache) draining(yield func(*block) bool) {
	for _, p := range c.shelves {
		if !p.shelf.draining {
			continue
		}
		for _, b := range p.blocks {
			if b.node != nil && b.users == 0 && b.busy == nil && !yield(b) {
				return
			}
		}
	}
}

// unload brings blocks of stores that are drained home, as far as there are chunks to
// spare.
func (c *Cache) unload() {
	if c.step != nil {
		return
	}
	n := 0
	for range c.draining {
		n++
	}
	if n == 0 {
		return
	}
	c.shed(n - c.spareChunks() + c.wanted)
	spare := min(c.spareChunks()-c.wanted, maxLeaving)
	var moves []*move
	for b := range c.draining {
		if len(moves) >= spare {
			break
		}
		chunk, ok := c.space.takeChunk()
		if !ok {
			break
		}
		moves = append(moves, c.sendOff(b, chunkSpot(chunk)))
	}
	c.takeOff(moves)
}

// shed drops n kept blocks, the coldest first, if there is no place but the regular
// cache for what is drained, and none can be borrowed. Without that a drain would wait
// for requests that make room.
func (c *Cache) shed(n int) {
	if n <= 0 || c.spotsFree() > 0 || c.leaving()+c.arriving() > 0 || c.awaitUnits(n) {
		return
	}
	dropped := c.stats.MovedBlocks["dropped"]
	for c.stats.MovedBlocks["dropped"]-dropped < uint64(n) {
		v := c.coldest()
		if v == nil || c.spotsFree() > 0 {
			return
		}
		c.lose(v)
	}
}
