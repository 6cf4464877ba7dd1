package worker

import "fmt"

// Check verifies that every block belongs to the sequences that count as its
// users, or is kept; that sequences share only what they share by prefix; that
// these blocks are all that are in use; and that what is kept is listed from the
// coldest on. The units have checks of their own.
func (c *Cache) Check() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := &checker{c: c, errs: c.index.Check()}
	k.sequences()
	k.blocks()
	k.idle()
	k.warm()
	return k.errs
}

type checker struct {
	c     *Cache
	users map[*block]int
	errs  []error
}

func (k *checker) expect(ok bool, format string, args ...any) {
	if !ok {
		k.errs = append(k.errs, fmt.Errorf(format, args...))
	}
}

func (k *checker) sequences() {
	k.users = map[*block]int{}
	for id, s := range k.c.seqs {
		seen := make(map[*block]bool, len(s.blocks))
		for _, b := range s.blocks {
			k.expect(k.c.blocks[b.id] == b, "block %d of sequence %d is not known", b.id, id)
			k.expect(!seen[b], "block %d is twice in the table of sequence %d", b.id, id)
			seen[b] = true
			k.users[b]++
		}
		k.chain(id, s)
	}
}

// chain verifies that the kept blocks of a sequence are one chain from its first.
func (k *checker) chain(id uint64, s *sequence) {
	for i, b := range s.blocks {
		switch {
		case b.node == nil:
			k.expect(i == len(s.blocks)-1 || s.blocks[i+1].node == nil, "sequence %d: block %d is kept, the one before it is not", id, i+1)
		case i > 0:
			k.expect(b.node.Parent() == s.blocks[i-1].node, "sequence %d: block %d does not continue the one before it", id, i)
		default:
			k.expect(b.node.Parent() == nil, "sequence %d: its first block continues another", id)
		}
	}
}

func (k *checker) blocks() {
	c := k.c
	nodes, idle := 0, 0
	for id, b := range c.blocks {
		k.expect(b.id == id, "block %d is known as %d", b.id, id)
		k.expect(c.space.Allocated(id), "block %d is in use and free", id)
		k.expect(b.users == k.users[b], "block %d has %d users, counts %d", id, k.users[b], b.users)
		if b.users == 0 {
			idle++
		}
		if b.node == nil {
			k.expect(b.users == 1, "block %d has %d users and is not kept", id, b.users)
			continue
		}
		nodes++
		k.expect(b.node.Value == b, "block %d is not the one that its prefix leads to", id)
		k.expect(b.node.Refs() == b.users, "block %d has %d users and %d references", id, b.users, b.node.Refs())
	}
	k.expect(len(c.blocks) == c.space.UsedBlocks(), "%d blocks are in use, %d are known", c.space.UsedBlocks(), len(c.blocks))
	k.expect(nodes == c.index.Len(), "%d blocks are kept by prefix, %d are known", c.index.Len(), nodes)
	k.expect(idle == c.idle.len, "%d blocks have no users, %d are listed", idle, c.idle.len)
}

// idle verifies the list of blocks without users.
func (k *checker) idle() {
	l := &k.c.idle
	n, cold := 0, 0
	var prev *block
	young := false
	for b := l.first; b != nil && n <= l.len; prev, b = b, b.next {
		n++
		k.expect(b.prev == prev, "idle block %d is linked wrongly", b.id)
		k.expect(b.users == 0 && b.node != nil, "block %d is listed as idle and is not", b.id)
		k.expect(prev == nil || prev.since <= b.since, "idle block %d is out of order", b.id)
		young = young || b == l.young
		k.expect(b.cold != young, "idle block %d is cold: %t", b.id, b.cold)
		if b.cold {
			cold++
		}
	}
	k.expect(l.last == prev, "the list of idle blocks does not end with the last")
	k.expect(n == l.len && cold == l.cold, "%d idle blocks, %d of them cold, counted as %d and %d", n, cold, l.len, l.cold)
	if v := k.c.index.Victim(0); v != nil {
		k.expect(v.Value == l.first, "block %d is the coldest, the index would lose %d", l.first.id, v.Value.id)
	} else {
		k.expect(l.first == nil, "the index would lose none of %d idle blocks", l.len)
	}
}

// warm verifies what lending sees.
func (k *checker) warm() {
	c := k.c
	blocks := make([]int32, len(c.warm.blocks))
	for id, b := range c.blocks {
		if !b.cold {
			for _, u := range c.space.UnitsOf(id) {
				blocks[u]++
			}
		}
	}
	units := 0
	for u, n := range blocks {
		if n > 0 {
			units++
		}
		k.expect(n == c.warm.blocks[u], "unit %d has %d blocks that must stay, counts %d", u, n, c.warm.blocks[u])
	}
	k.expect(units == c.warm.units, "%d units must stay, counted as %d", units, c.warm.units)
}
