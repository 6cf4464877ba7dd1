package prefix

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"time"
)

// MaxClasses is the largest Options.Classes.
const MaxClasses = 8

// Options describe an Index.
type Options struct {
	// BlockTokens is B, the tokens of each block; at least 1.
	BlockTokens int
	// Classes is how many tiers blocks lie in, [1, MaxClasses]. Class 0 is the
	// nearest.
	Classes int
	// Cost is what losing a block of this class at this depth costs: the
	// milliseconds to get it back, in [0, 1e9] (what lies outside counts as the
	// nearer end, NaN as 0). It is asked when a block's last reference is given
	// back, and when a block without references changes class.
	// Nil: every block costs 1, which makes the order LRU.
	Cost func(class, depth int) float64
	// Now is what LastUse is measured with, read once per Insert, Ref and
	// Unref. Nil: LastUse is always 0.
	Now func() time.Duration
}

func (o Options) validate() error {
	if o.BlockTokens < 1 {
		return fmt.Errorf("prefix: BlockTokens is %d, must be at least 1", o.BlockTokens)
	}
	if o.Classes < 1 || o.Classes > MaxClasses {
		return fmt.Errorf("prefix: Classes is %d, must be in [1, %d]", o.Classes, MaxClasses)
	}
	return nil
}

// Index is a table of one model's blocks by prefix: the local part of the GLT.
// V is the caller's handle of a block's memory.
//
// Blocks form trees, one below each root and tenant. Whoever uses a block holds
// a reference on it and on all blocks before it; Check finds callers who do not.
// Blocks without references stay until the caller needs their memory and asks
// for a Victim.
//
// # What is lost first
//
// Each class is a cache under GreedyDual (Young, "The k-server dual and loose
// competitiveness for paging", 1994; with costs per block as in Cao & Irani,
// "Cost-aware WWW proxy caching algorithms", USITS 1997): a block whose last
// reference is given back gets the priority L + Cost, the victim is the block with the least priority, and when
// it leaves, L rises to its priority. So what is cheap to get back goes early,
// and what is dear goes as well once it has not been used for long. With equal
// costs this is LRU.
//
// Only a block without references and without children in its own or a nearer
// class can be a victim. So a chain loses its tail first, and may move from
// class to class, tail first, without ever having a gap. A class whose blocks
// all have children in nearer classes has no victim until those have left.
//
// A block that moves to a farther class enters it as used now, since it has
// outlived there whatever left before it. One that moves nearer without having
// been used brings along what was left of its priority.
//
// # Costs
//
// Match, Ref, Unref and SetClass allocate nothing, and neither does Insert once
// the index has been as large before. Match hashes only where a block has
// several children. Memory is never given back.
//
// An Index is not safe for concurrent use: the caller's lock guards it. Misuse
// (a node that is not in the index, a reference too few) is a BUG panic.
type Index[V any] struct {
	opt   Options
	next  func(Key, []int32) Key // Key.Next but in tests
	table table[V]
	top   Node[V] // parent of all first blocks; never referenced, never found
	class [MaxClasses]class[V]
	uses  uint64   // how often a block's last reference was given back
	free  *Node[V] // by chain
}

// class is one tier.
type class[V any] struct {
	victims   heap[V] // unreferenced, without children in this or nearer classes
	inflation float64 // GreedyDual's L
	len       int
	idle      int // without references
}

// Node is a block in an Index. It is valid until it is removed, and after that
// until the next Insert, which may make another block of it.
type Node[V any] struct {
	// Value is the caller's, who may change it at any time.
	Value V

	// What Match reads stands together.
	tokens    []int32
	before    Key      // what key continues: the parent's, or the root
	up, first *Node[V] // parent (Index.top for first blocks), newest child
	after     *Node[V] // next sibling, newest first
	key       Key

	prev    *Node[V] // sibling before
	chain   *Node[V] // next in the bucket, or in the free list
	refs    int32
	depth   int32
	kids    [MaxClasses]int32 // children by class
	class   uint8
	present bool

	place    int           // in the class's heap; -1: not there
	priority float64       // these two are of blocks without references
	use      uint64        // Index.uses then
	lastUse  time.Duration // of Options.Now
}

// Key is the block's identity.
func (n *Node[V]) Key() Key { return n.key }

// Parent is the block before this one, nil for a first block.
func (n *Node[V]) Parent() *Node[V] {
	if n.depth == 0 {
		return nil
	}
	return n.up
}

// Before is the key of the block before this one, or of the root.
func (n *Node[V]) Before() Key { return n.before }

// Depth is how many blocks stand before this one.
func (n *Node[V]) Depth() int { return int(n.depth) }

// Tokens are the block's own BlockTokens tokens. They must not be changed.
func (n *Node[V]) Tokens() []int32 { return n.tokens }

// Class is the tier that the block lies in.
func (n *Node[V]) Class() int { return int(n.class) }

// Refs is how many references are held.
func (n *Node[V]) Refs() int { return int(n.refs) }

// LastUse is what Options.Now said at the last Insert, Ref or Unref.
func (n *Node[V]) LastUse() time.Duration { return n.lastUse }

// New makes an empty index. An error names the option that is out of range.
func New[V any](o Options) (*Index[V], error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	x := &Index[V]{opt: o, next: Key.Next, table: newTable[V]()}
	x.top.depth, x.top.place = -1, -1
	return x, nil
}

// Len is how many blocks are in the index.
func (x *Index[V]) Len() int { return x.table.len }

// LenClass is how many blocks of a class are in the index.
func (x *Index[V]) LenClass(class int) int { return x.class[class].len }

// Evictable is how many blocks of a class nobody references. All of them can be
// had by way of Victim: while there are any, this class or a nearer one has a
// victim. Where it is a nearer one it has to go, or to move farther, first.
func (x *Index[V]) Evictable(class int) int { return x.class[class].idle }

// Match appends to dst the longest chain of blocks below root that are present
// and hold the first whole blocks of tokens. It takes no references and is no
// use of the blocks.
func (x *Index[V]) Match(root Key, tokens []int32, dst []*Node[V]) []*Node[V] {
	b := x.opt.BlockTokens
	up, before := &x.top, root
	for ; len(tokens) >= b; tokens = tokens[b:] {
		n := x.child(up, before, tokens[:b])
		if n == nil {
			break
		}
		dst = append(dst, n)
		up, before = n, n.key
	}
	return dst
}

// child is the block with these tokens after up, or nil. Most blocks have one
// child, so the newest is tried before any hash is computed.
func (x *Index[V]) child(up *Node[V], before Key, tokens []int32) *Node[V] {
	n := up.first
	if n == nil || n.is(up, before, tokens) {
		return n
	}
	if n.after == nil {
		return nil
	}
	n = x.table.find(x.next(before, tokens))
	if n == nil || !n.is(up, before, tokens) {
		return nil
	}
	return n
}

// is says whether n is the block with these tokens after up. It compares all
// that identity rests on, and no hash of tokens.
func (n *Node[V]) is(up *Node[V], before Key, tokens []int32) bool {
	return n.up == up && n.before == before && slices.Equal(n.tokens, tokens)
}

// Insert adds the block that holds tokens, BlockTokens of them, after parent,
// which is referenced, or after root where parent is nil (root is not used
// otherwise). A fresh block has one reference, which is the caller's. If the
// block is there already it is returned as it is: not fresh, no reference taken,
// class and v ignored. If another block has the same key the result is nil, and
// the caller keeps its block to itself. The tokens are copied.
func (x *Index[V]) Insert(parent *Node[V], root Key, tokens []int32, class int, v V) (n *Node[V], fresh bool) {
	if len(tokens) != x.opt.BlockTokens {
		panic(fmt.Sprintf("BUG: prefix: a block of %d tokens in an index of blocks of %d", len(tokens), x.opt.BlockTokens))
	}
	x.checkClass(class)
	up, before := &x.top, root
	if parent != nil {
		checkPresent(parent)
		up, before = parent, parent.key
	}
	if n := x.child(up, before, tokens); n != nil {
		return n, false
	}
	if parent != nil && parent.refs == 0 {
		panic("BUG: prefix: a block is added after one that nobody references")
	}
	key := x.next(before, tokens)
	if x.table.find(key) != nil {
		return nil, false
	}
	n = x.take()
	n.Value, n.key, n.before = v, key, before
	copy(n.tokens, tokens)
	n.depth, n.class, n.refs, n.present = up.depth+1, uint8(class), 1, true
	x.table.add(n)
	x.link(up, n)
	x.class[class].len++
	n.lastUse = x.now()
	return n, true
}

// Ref takes a reference on each of the nodes. Callers reference whole chains.
func (x *Index[V]) Ref(nodes ...*Node[V]) {
	now := x.now()
	for _, n := range nodes {
		checkPresent(n)
		if n.refs == 0 {
			x.class[n.class].idle--
			x.withdraw(n)
		}
		n.refs++
		n.lastUse = now
	}
}

// Unref gives back a reference on each of the nodes, in any order.
func (x *Index[V]) Unref(nodes ...*Node[V]) {
	now := x.now()
	for _, n := range nodes {
		checkPresent(n)
		if n.refs <= 0 {
			panic("BUG: prefix: a reference is given back that nobody holds")
		}
		n.refs--
		n.lastUse = now
		if n.refs == 0 {
			x.uses++
			n.use = x.uses
			n.priority = x.class[n.class].inflation + x.cost(n)
			x.class[n.class].idle++
			x.offer(n)
		}
	}
}

// SetClass says that the block has moved to another class. References stay.
func (x *Index[V]) SetClass(n *Node[V], class int) {
	checkPresent(n)
	x.checkClass(class)
	was := n.Class()
	if class == was {
		return
	}
	left := x.leave(n)
	n.class = uint8(class)
	x.class[class].len++
	if n.refs == 0 {
		gain := x.cost(n)
		if class < was {
			gain = min(gain, left)
		}
		n.priority = x.class[class].inflation + gain
		x.class[class].idle++
		x.offer(n)
	}
	x.moveKid(n.up, was, class)
}

// leave takes n out of its class and says how far its priority was above the
// class's inflation.
func (x *Index[V]) leave(n *Node[V]) (left float64) {
	c := &x.class[n.class]
	if n.place == 0 {
		c.inflation = max(c.inflation, n.priority)
	}
	left = max(0, n.priority-c.inflation)
	x.withdraw(n)
	c.len--
	if n.refs == 0 {
		c.idle--
	}
	return left
}

// Victim is the block of this class whose loss costs least, or nil if there is
// none to lose: all are referenced or have children in this or a nearer class,
// so that a nearer class has a victim if Evictable is not 0. It stays in the class until the caller Removes it,
// gives it another class or references it.
func (x *Index[V]) Victim(class int) *Node[V] {
	if h := x.class[class].victims; len(h) > 0 {
		return h[0].node
	}
	return nil
}

// Remove takes n and all its descendants out of the index and appends them to
// dst, children before parents. None may be referenced.
func (x *Index[V]) Remove(n *Node[V], dst []*Node[V]) []*Node[V] {
	checkPresent(n)
	for root := n; ; {
		for n.first != nil {
			n = n.first
		}
		up := n.up
		x.drop(n)
		dst = append(dst, n)
		if n == root {
			return dst
		}
		n = up
	}
}

// drop removes one block that has no children.
func (x *Index[V]) drop(n *Node[V]) {
	if n.refs > 0 {
		panic(fmt.Sprintf("BUG: prefix: a block with %d references is removed", n.refs))
	}
	x.leave(n)
	x.table.remove(n)
	x.unlink(n)
	n.present = false
	n.chain, x.free = x.free, n
}

// All yields every block, parents before children. The index must not change
// meanwhile.
func (x *Index[V]) All() iter.Seq[*Node[V]] {
	return func(yield func(*Node[V]) bool) {
		for n := x.top.first; n != nil; n = x.following(n) {
			if !yield(n) {
				return
			}
		}
	}
}

// following is the node after n in All's order.
func (x *Index[V]) following(n *Node[V]) *Node[V] {
	if n.first != nil {
		return n.first
	}
	for n != &x.top {
		if n.after != nil {
			return n.after
		}
		n = n.up
	}
	return nil
}

// offer makes n a victim-to-be if it can be one.
func (x *Index[V]) offer(n *Node[V]) {
	if n.place < 0 && n.losable() {
		x.class[n.class].victims.push(n)
	}
}

// withdraw is the opposite of offer.
func (x *Index[V]) withdraw(n *Node[V]) {
	if n.place >= 0 {
		x.class[n.class].victims.remove(n.place)
	}
}

func (n *Node[V]) losable() bool {
	if n.refs > 0 || !n.present {
		return false
	}
	for _, k := range n.kids[:n.class+1] {
		if k > 0 {
			return false
		}
	}
	return true
}

// link makes n the newest child of up.
func (x *Index[V]) link(up, n *Node[V]) {
	n.up, n.prev, n.after = up, nil, up.first
	if up.first != nil {
		up.first.prev = n
	}
	up.first = n
	x.moveKid(up, -1, n.Class())
}

func (x *Index[V]) unlink(n *Node[V]) {
	if n.prev != nil {
		n.prev.after = n.after
	} else {
		n.up.first = n.after
	}
	if n.after != nil {
		n.after.prev = n.prev
	}
	x.moveKid(n.up, n.Class(), -1)
}

// moveKid says that a child of up went from one class to another; -1: none. Up
// may become a victim by that, or cease to be one.
func (x *Index[V]) moveKid(up *Node[V], from, to int) {
	if from >= 0 {
		up.kids[from]--
	}
	if to >= 0 {
		up.kids[to]++
	}
	if up.losable() {
		x.offer(up)
	} else {
		x.withdraw(up)
	}
}

// slabNodes is how many nodes are allocated at once.
const slabNodes = 64

// take gets an empty node from the free list.
func (x *Index[V]) take() *Node[V] {
	if x.free == nil {
		b := x.opt.BlockTokens
		nodes := make([]Node[V], slabNodes)
		tokens := make([]int32, slabNodes*b)
		for i := range nodes {
			nodes[i].tokens = tokens[i*b : (i+1)*b : (i+1)*b]
			nodes[i].place = -1
			nodes[i].chain, x.free = x.free, &nodes[i]
		}
	}
	n := x.free
	x.free, n.chain = n.chain, nil
	return n
}

// maxCost keeps one mistaken cost from raising inflation so far that all others
// drown in its rounding.
const maxCost = 1e9

func (x *Index[V]) cost(n *Node[V]) float64 {
	if x.opt.Cost == nil {
		return 1
	}
	c := x.opt.Cost(n.Class(), n.Depth())
	if math.IsNaN(c) {
		return 0
	}
	return min(max(c, 0), maxCost)
}

func (x *Index[V]) now() time.Duration {
	if x.opt.Now == nil {
		return 0
	}
	return x.opt.Now()
}

func (x *Index[V]) checkClass(class int) {
	if class < 0 || class >= x.opt.Classes {
		panic(fmt.Sprintf("BUG: prefix: class %d of %d", class, x.opt.Classes))
	}
}

func checkPresent[V any](n *Node[V]) {
	if !n.present {
		panic("BUG: prefix: a node that is not in the index")
	}
}
