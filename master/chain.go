package master

import (
	"fmt"

	"github.com/kvlend/kvlend/prefix"
	"github.com/kvlend/kvlend/scheduler"
)

// chain is what a sequence's tokens are, as far as they are computed.
type chain struct {
	known   bool // the tokens are: the sequence came through Admit
	root    prefix.Key
	key     prefix.Key // of the last full block, or root
	node    *prefix.Node[*block]
	partial []int32 // tokens of the block that is being filled
	// private: another block has this one's key, so that the sequence's blocks
	// are not kept from here on.
	private bool
}

// identify gives the blocks that a step will complete their identity.
func (c *Cache) identify(seq *sequence, s scheduler.StepSeq) {
	b := c.BlockTokens()
	end := s.Start + s.New
	if !seq.chain.known {
		for i := s.Start / b; (i+1)*b <= end; i++ {
			seq.blocks[i].ident = prefix.Key{Hi: s.ID, Lo: uint64(i)}
		}
		return
	}
	if len(s.Tokens) != s.New || len(seq.chain.partial) != s.Start%b {
		panic(fmt.Sprintf("BUG: sequence %d: step to [%d, %d) with %d tokens, %d before them in the block",
			s.ID, s.Start, end, len(s.Tokens), len(seq.chain.partial)))
	}
	key := seq.chain.key
	for i := s.Start / b; (i+1)*b <= end; i++ {
		key = key.Next(c.blockTokens(seq, s, i))
		seq.blocks[i].ident = key
	}
}

// blockTokens is what block i, completed by a step, holds. Valid until the next
// call.
func (c *Cache) blockTokens(seq *sequence, s scheduler.StepSeq, i int) []int32 {
	b := c.BlockTokens()
	from, to := i*b-s.Start, (i+1)*b-s.Start
	if from >= 0 {
		return s.Tokens[from:to]
	}
	c.tokens = append(append(c.tokens[:0], seq.chain.partial...), s.Tokens[:to]...)
	return c.tokens
}

// advance books the tokens that a step computed, and keeps the blocks that it
// completed.
func (c *Cache) advance(seq *sequence, s scheduler.StepSeq) {
	if !seq.chain.known {
		return
	}
	b := c.BlockTokens()
	end := s.Start + s.New
	for i := s.Start / b; (i+1)*b <= end; i++ {
		tokens := c.blockTokens(seq, s, i)
		seq.chain.key = seq.blocks[i].ident
		if !seq.chain.private {
			c.keep(seq, i, tokens)
		}
		seq.chain.partial = seq.chain.partial[:0]
	}
	from := max(end-end%b-s.Start, 0)
	seq.chain.partial = append(seq.chain.partial, s.Tokens[from:]...)
}

// keep puts block i of a sequence into the index, or replaces it with the one
// that is there: KV of equal prefixes is equal to the bit.
func (c *Cache) keep(seq *sequence, i int, tokens []int32) {
	own := seq.blocks[i]
	n, fresh := c.index.Insert(seq.chain.node, seq.chain.root, tokens, int(own.place), own)
	switch {
	case n == nil, !fresh && n.Value.busy != nil:
		// Another content has the key, or the kept block is travelling and may
		// yet turn out to be damaged: this one stays the sequence's own.
		seq.chain.private = true
		return
	case fresh:
		own.node = n
		if own.place == stored {
			c.enter(own, own.spot, own.sums)
		}
		c.claim(own)
		c.offer(own)
	default:
		c.adopt(seq, i, n.Value)
	}
	seq.chain.node = n
}

// adopt replaces block i of a sequence, which belongs to it alone, with the
// kept one of the same content. The nearer of the two places stays.
func (c *Cache) adopt(seq *sequence, i int, kept *block) {
	own := seq.blocks[i]
	switch {
	case own.place >= kept.place || kept.home >= 0:
	case kept.place == stored && own.users == 1 && kept.pool.shelf.open():
		// It stays in the store, too: what is there outlives this process.
		c.tally(own.place, -1)
		at := own.spot
		kept.copy = &copied{kept.pool, kept.id, kept.sums}
		kept.sums = own.sums
		c.settleAt(kept, at)
		c.use(kept)
		seq.blocks[i] = kept
		return
	default:
		mine, theirs := own.spot, kept.spot
		own.sums, kept.sums = kept.sums, own.sums
		c.settleAt(kept, mine)
		c.settleAt(own, theirs)
	}
	c.use(kept)
	seq.blocks[i] = kept
	c.unuse(own)
}
