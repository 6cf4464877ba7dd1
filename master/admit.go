package master

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kvlend/kvlend/prefix"
	"github.com/kvlend/kvlend/scheduler"
)

// Admit implements scheduler.PrefixCache.
func (c *Cache) Admit(a scheduler.Admission) (cached int, err error) {
	if a.Room > c.MaxTokens() {
		return 0, scheduler.ErrNever
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seqs[a.ID] != nil {
		panic(fmt.Sprintf("BUG: sequence %d is admitted twice", a.ID))
	}
	if len(c.seqs) == 0 {
		c.settleNear() // what is in the air concerns nobody else
	}
	all := c.match(a)
	nodes, r := c.choose(a, all)
	err = c.admit(a, nodes, r, false)
	if first := slices.IndexFunc(nodes, isDeep); first >= 0 && err != nil && !errors.Is(err, scheduler.ErrComing) {
		if c.cfg.Overflow != nil && len(c.seqs) == 0 {
			err = c.admit(a, nodes, r, true)
		}
		if err != nil && !errors.Is(err, scheduler.ErrComing) {
			// Without them: what is computed anew may be borrowed.
			r.PredictedMS = 0
			nodes, r = nodes[:first], c.account(all, first, r)
			err = c.admit(a, nodes, r, false)
		}
	}
	if err != nil {
		if len(c.seqs) == 0 && !errors.Is(err, scheduler.ErrComing) && c.clearBad() {
			return 0, scheduler.ErrComing // others can be asked for in their place
		}
		return 0, err
	}
	return len(nodes) * c.BlockTokens(), nil
}

// clearBad drops what is kept in units that are set aside, so that they go home,
// and reports whether any did. It is for a request that nothing else can help.
func (c *Cache) clearBad() bool {
	for _, p := range c.lenders() {
		for u := range p.bad {
			for _, b := range p.lodgers([]int{u}) {
				if b.node != nil && b.users == 0 {
					c.lose(b.node)
				}
			}
		}
	}
	return c.sweep()
}

// isDeep reports that a block lies where it is not streamed from without need.
func isDeep(n *node) bool { return n.Value.place == host || n.Value.place == stored }

// match finds the longest kept prefix of an admission's tokens that leaves one
// token to compute, up to the first block whose memory has changed hands.
func (c *Cache) match(a scheduler.Admission) []*prefix.Node[*block] {
	c.matched = c.index.Match(a.Root, a.Tokens[:len(a.Tokens)-1], c.matched[:0])
	for i, n := range c.matched {
		if b := n.Value; b.place != local && (!b.pool.guard(b.id).MayLoad() || c.tardy(b)) {
			return c.matched[:i]
		}
	}
	return c.matched
}

// admit opens a sequence over kept blocks and gives it room, or does nothing.
// Those in host memory and stores come home; deep streams them where they cannot.
func (c *Cache) admit(a scheduler.Admission, nodes []*node, r receipt, deep bool) error {
	s := &sequence{receipt: r, chain: chain{known: true, root: a.Root, key: a.Root}}
	homes, streamed := 0, 0
	coming := map[*block]bool{} // home: those that room spills to a store stay there
	for _, n := range nodes {
		b := n.Value
		if b.busy != nil && (b.busy.to.place == local || b.busy.stage >= 0) {
			return scheduler.ErrComing // it will have landed in a moment
		}
		switch {
		case b.home >= 0:
		case isDeep(n) && !deep:
			homes++
			coming[b] = true
		case b.place != local:
			streamed++
		}
		s.blocks = append(s.blocks, b)
		s.chain.key, s.chain.node = n.Key(), n
	}
	for _, b := range s.blocks {
		c.use(b)
	}
	size := c.BlockTokens()
	fresh := (a.Room+size-1)/size - len(nodes)
	urgency := c.urgency(s)
	c.seqs[a.ID] = s // its own blocks may have to leave the regular cache
	promoted := c.promotable(fresh, homes, streamed)
	if !c.worthStreaming(a, len(s.blocks)+fresh, fresh+homes+promoted, homes+promoted, streamed-promoted) {
		c.drop(a.ID, s)
		return c.refusal("streaming in every step would take longer than waiting")
	}
	c.held -= homes + promoted
	remote, err := c.room(fresh, homes+promoted, urgency)
	c.held += homes + promoted
	if err != nil {
		c.drop(a.ID, s)
		return err
	}
	for _, b := range s.blocks {
		switch {
		case b.place == local || b.home >= 0:
			continue
		case coming[b]:
		case promoted == 0:
			continue
		default:
			promoted--
		}
		c.giveHome(b)
	}
	if err := c.extend(s, remote, fresh-remote); err != nil {
		c.drop(a.ID, s)
		return err
	}
	for _, n := range nodes {
		c.offer(n.Value) // only now: a refusal is no use of a block
	}
	if c.cfg.Host != nil && c.cfg.Host.Sync {
		return c.bringHome(a.ID, s)
	}
	return nil
}

// promotable is how many of an admission's borrowed blocks may come into the
// regular cache with the pass that loads them first: all for which there would be
// chunks if nothing were kept there, beside the new blocks. Streaming them in
// every step would cost more than moving cold blocks out once.
func (c *Cache) promotable(fresh, homes, streamed int) int {
	firm := c.pinned + c.homes + c.arriving() + fresh + homes
	n := 0
	for n < streamed && c.space.fits(firm+n+1, c.held-homes-n-1) {
		n++
	}
	return n
}

// bringHome loads what a sequence has in host memory into the chunks that wait
// for it, all at once. What is on disks comes with the step: nobody waits for one
// here.
func (c *Cache) bringHome(id uint64, s *sequence) error {
	var moves []*move
	for _, b := range s.blocks {
		if b.home < 0 || b.place == stored {
			continue
		}
		m := c.plan(b, chunkSpot(c.endHome(b)))
		c.count(m, 1)
		moves = append(moves, m)
	}
	if len(moves) == 0 {
		return nil
	}
	began := c.cfg.Now()
	if err := c.run(moves); err != nil {
		c.spoil(asSet(blocksOf(moves)))
		c.evicted = slices.DeleteFunc(c.evicted, func(e uint64) bool { return e == id })
		return fmt.Errorf("%w: %v", scheduler.ErrWait, err)
	}
	c.observe(&flight{moves: moves}, c.cfg.Now()-began)
	return nil
}

func blocksOf(moves []*move) []*block {
	out := make([]*block, len(moves))
	for i, m := range moves {
		out[i] = m.b
	}
	return out
}

// Receipt implements scheduler.PrefixCache.
func (c *Cache) Receipt(id uint64) scheduler.Receipt {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.seqs[id]; s != nil {
		return s.receipt
	}
	return scheduler.Receipt{}
}

// Expect implements scheduler.PrefixCache: what a waiting request will need
// comes into chunks that are to spare, beyond those that tidy keeps free: it
// must not be what makes others leave.
func (c *Cache) Expect(a scheduler.Admission) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.step != nil || len(a.Tokens) == 0 {
		return
	}
	spare := c.spareChunks() - c.wanted - c.reserve()
	var moves []*move
	for _, n := range c.match(a) {
		b := n.Value
		if b.place == local || b.users > 0 || b.busy != nil {
			continue
		}
		if len(moves) >= min(spare, maxLeaving) {
			break
		}
		chunk, ok := c.space.takeChunk()
		if !ok {
			break
		}
		b.busy = c.plan(b, chunkSpot(chunk))
		b.busy.hint = true
		c.index.SetClass(n, int(moving))
		moves = append(moves, b.busy)
	}
	c.takeOff(moves)
}
