package worker

import (
	"fmt"

	"github.com/kvlend/kvlend/prefix"
	"github.com/kvlend/kvlend/scheduler"
)

// chain is what a sequence's tokens are, as far as they are computed.
type chain struct {
	known   bool // the tokens are: the sequence came through Admit
	root    prefix.Key
	node    *prefix.Node[*block] // of the last full block; nil: there is none
	partial []int32              // tokens of the block that is being filled
	// private: another block has this one's key, so that the sequence's blocks
	// are not kept from here on.
	private bool
}

// fits verifies that a step continues the chain.
func (h *chain) fits(s scheduler.StepSeq, blockTokens int) {
	if h.known && (len(s.Tokens) != s.New || len(h.partial) != s.Start%blockTokens) {
		panic(fmt.Sprintf("BUG: sequence %d: step to [%d, %d) with %d tokens, %d before them in the block",
			s.ID, s.Start, s.Start+s.New, len(s.Tokens), len(h.partial)))
	}
}

// advance books the tokens that a step computed, and keeps the blocks that it
// completed.
func (c *Cache) advance(seq *sequence, s scheduler.StepSeq) {
	h := &seq.chain
	if !h.known {
		return
	}
	size, tokens := c.BlockTokens(), s.Tokens
	for i := s.Start / size; len(h.partial)+len(tokens) >= size; i++ {
		n := size - len(h.partial)
		whole := tokens[:n]
		if len(h.partial) > 0 {
			h.partial = append(h.partial, whole...)
			whole = h.partial
		}
		c.keep(seq, i, whole)
		h.partial, tokens = h.partial[:0], tokens[n:]
	}
	h.partial = append(h.partial, tokens...)
}

// keep puts block i of a sequence into the index, or replaces it with the one
// that is there: KV of equal prefixes is equal to the bit.
func (c *Cache) keep(seq *sequence, i int, tokens []int32) {
	h := &seq.chain
	if h.private {
		return
	}
	own := seq.blocks[i]
	n, fresh := c.index.Insert(h.node, h.root, tokens, 0, own)
	switch {
	case n == nil:
		h.private = true
		return
	case fresh:
		own.node = n
	default:
		c.use(n.Value)
		seq.blocks[i] = n.Value
		c.stats.Merged++
		c.unuse(own)
	}
	h.node = n
}
