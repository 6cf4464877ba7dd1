package admission

import (
	"math"
	"time"
)

// Class is a tier of blocks as Cost sees it.
type Class struct {
	// Rate is how fast blocks come back from it, in bytes per second, all of its
	// devices together; not positive: not known, blocks come back at once.
	Rate float64
	// Below is the class that a block moves to when it has to leave this one, a
	// larger number; 0: it is lost, and has to be computed again.
	Below int
}

// Cost is what the loss of a block costs: by how many milliseconds it takes
// longer to have it back from where it goes than from where it is.
//
//	cost(class, depth) = max(0, back - read(class))
//	back = min(recompute(depth), read(below)), or recompute(depth) if it is lost
//	read(class) = bytes / rate
//
// So a block that is as fast to compute as to read goes first: keeping it gains
// nothing. A block deep in a long prefix, whose attention is dear, goes last.
// What lies above a slow device is dear, and what lies above a fast one cheap.
//
// Of has the form and the unit of prefix.Options.Cost, whose GreedyDual does the
// ordering; blocks of an index are of one size, so its order by block is that
// by byte. PerByte is for choosing among blocks of several sizes (models).
//
// The fields may change between calls, as measurements do; the caller's lock
// guards them.
type Cost struct {
	// Bytes is the size of a block.
	Bytes int64
	// Recompute is how long computing the block after depth others takes, when
	// those are there. Nil, or an answer that is not positive: not known, and
	// longer than any read.
	Recompute func(depth int) time.Duration
	// Classes are the tiers by prefix.Index's number.
	Classes []Class
}

// unknownMS is the cost of a block that nobody knows how long to compute: dearer
// than all that is known, and equal for all such, which makes the order LRU.
const unknownMS = 1e6

// Of is what the loss of a block of this class after depth others costs, in
// milliseconds in [0, 1e6].
func (c *Cost) Of(class, depth int) float64 {
	k := c.Classes[class]
	back := c.recompute(depth)
	if k.Below > 0 {
		back = min(back, c.read(k.Below))
	}
	return min(max(0, back-c.read(class)), unknownMS)
}

// PerByte is Of for each byte of memory that the loss frees, in milliseconds.
func (c *Cost) PerByte(class, depth int) float64 {
	return c.Of(class, depth) / float64(max(1, c.Bytes))
}

// recompute is in milliseconds.
func (c *Cost) recompute(depth int) float64 {
	if c.Recompute != nil {
		if d := c.Recompute(depth); d > 0 {
			return float64(d) / float64(time.Millisecond)
		}
	}
	return unknownMS
}

// read is in milliseconds.
func (c *Cost) read(class int) float64 {
	r := c.Classes[class].Rate
	if !(r > 0) || math.IsInf(r, 1) {
		return 0
	}
	return float64(c.Bytes) / r * 1e3
}
