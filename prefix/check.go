package prefix

import (
	"errors"
	"fmt"
)

// checker collects what is wrong with an index.
type checker[V any] struct {
	x       *Index[V]
	classes [MaxClasses]class[V] // len and idle as counted
	total   int
	errs    []error
}

// Check verifies every invariant of the index and of its callers' references,
// and lists what is violated. It costs about as much as inserting everything.
func (x *Index[V]) Check() []error {
	c := &checker[V]{x: x}
	c.children(&x.top)
	for n := range x.All() {
		if c.total++; c.total > x.table.len {
			break // counted below; a cycle would never end
		}
		c.node(n)
	}
	if c.total != x.table.len {
		c.failf("%d blocks in the trees, %d in the table", c.total, x.table.len)
	}
	c.buckets()
	for i := range x.class {
		c.class(i)
	}
	for n := x.free; n != nil; n = n.chain {
		if n.present {
			c.failf("block %v is present and free", n.key)
		}
	}
	return c.errs
}

func (c *checker[V]) failf(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("prefix: "+format, args...))
}

func (c *checker[V]) node(n *Node[V]) {
	if err := c.identity(n); err != nil {
		c.failf("block %v at depth %d: %w", n.key, n.depth, err)
	}
	if n.refs < 0 {
		c.failf("block %v has %d references", n.key, n.refs)
	}
	if n.refs > 0 && n.depth > 0 && n.up.refs == 0 {
		c.failf("block %v at depth %d is referenced, the one before it is not", n.key, n.depth)
	}
	if n.Class() >= c.x.opt.Classes {
		c.failf("block %v lies in class %d of %d", n.key, n.class, c.x.opt.Classes)
		return
	}
	c.classes[n.class].len++
	if n.refs == 0 {
		c.classes[n.class].idle++
	}
	if got, want := n.place >= 0, n.losable(); got != want {
		c.failf("block %v can be lost: %t; is among the victims: %t", n.key, want, got)
	}
	c.children(n)
}

// identity verifies what a match rests on.
func (c *checker[V]) identity(n *Node[V]) error {
	switch {
	case !n.present:
		return errors.New("not marked as present")
	case len(n.tokens) != c.x.opt.BlockTokens:
		return fmt.Errorf("%d tokens instead of %d", len(n.tokens), c.x.opt.BlockTokens)
	case n.depth != n.up.depth+1:
		return fmt.Errorf("its parent has depth %d", n.up.depth)
	case n.depth > 0 && n.before != n.up.key:
		return errors.New("does not continue its parent's key")
	case c.x.next(n.before, n.tokens) != n.key:
		return errors.New("its key is not the hash of its tokens")
	case c.x.table.find(n.key) != n:
		return errors.New("its key does not find it")
	}
	return nil
}

// children verifies the list of n's children and its counts.
func (c *checker[V]) children(n *Node[V]) {
	var kids [MaxClasses]int32
	var prev *Node[V]
	for k := n.first; k != nil; prev, k = k, k.after {
		if k.up != n || k.prev != prev {
			c.failf("block %v is linked wrongly among the children of %v", k.key, n.key)
			return
		}
		if k.class < MaxClasses {
			kids[k.class]++
		}
	}
	if kids != n.kids {
		c.failf("block %v has children %v by class, counted as %v", n.key, kids, n.kids)
	}
}

func (c *checker[V]) buckets() {
	t := &c.x.table
	found := 0
	for i := range t.buckets {
		for n := t.buckets[i]; n != nil; n = n.chain {
			if found++; found > t.len {
				c.failf("more blocks in buckets than the %d in the table", t.len)
				return
			}
			if *t.bucket(n.key) != t.buckets[i] {
				c.failf("block %v lies in the wrong bucket", n.key)
			}
		}
	}
	if found != t.len {
		c.failf("%d blocks in buckets, %d in the table", found, t.len)
	}
}

func (c *checker[V]) class(i int) {
	got, want := &c.x.class[i], &c.classes[i]
	if got.len != want.len || got.idle != want.idle {
		c.failf("class %d has %d blocks, %d of them unreferenced; it counts %d and %d",
			i, want.len, want.idle, got.len, got.idle)
	}
	for place, it := range got.victims {
		n := it.node
		if n.place != place || n.Class() != i || !n.losable() {
			c.failf("block %v of class %d, place %d is a victim of class %d in place %d", n.key, n.class, n.place, i, place)
		}
		if n.priority != it.priority || n.use != it.use {
			c.failf("block %v was reordered behind the victims' back", n.key)
		}
		if it.before(got.victims[max(0, (place-1)/2)]) {
			c.failf("victims of class %d are out of order at %d", i, place)
		}
	}
}
