package prefix

import (
	"math/bits"
	"math/rand/v2"
)

// table finds nodes by key: chains of nodes that begin in buckets, on average at
// most one node to a bucket. Nothing is allocated but by growing, and nothing
// is left behind by removing, which Go's maps do not promise.
type table[V any] struct {
	buckets []*Node[V] // a power of two
	len     int
	// Clients choose tokens and so, with patience, low bits of keys. The seed
	// keeps them from choosing buckets.
	seed Key
}

const minBuckets = 64

func newTable[V any]() table[V] {
	return table[V]{
		buckets: make([]*Node[V], minBuckets),
		seed:    Key{rand.Uint64(), rand.Uint64()},
	}
}

func (t *table[V]) bucket(k Key) *(*Node[V]) {
	hi, lo := bits.Mul64(k.Hi^t.seed.Hi, k.Lo^t.seed.Lo)
	return &t.buckets[(hi^lo)&uint64(len(t.buckets)-1)]
}

// find is the node with this key, or nil.
func (t *table[V]) find(k Key) *Node[V] {
	n := *t.bucket(k)
	for n != nil && n.key != k {
		n = n.chain
	}
	return n
}

// add takes in a node whose key is not there yet.
func (t *table[V]) add(n *Node[V]) {
	if t.len == len(t.buckets) {
		t.grow()
	}
	b := t.bucket(n.key)
	n.chain, *b = *b, n
	t.len++
}

func (t *table[V]) remove(n *Node[V]) {
	at := t.bucket(n.key)
	for *at != n {
		at = &(*at).chain
	}
	*at, n.chain = n.chain, nil
	t.len--
}

func (t *table[V]) grow() {
	old := t.buckets
	t.buckets = make([]*Node[V], 2*len(old))
	for _, n := range old {
		for n != nil {
			next := n.chain
			b := t.bucket(n.key)
			n.chain, *b = *b, n
			n = next
		}
	}
}
