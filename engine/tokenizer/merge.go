package tokenizer

import "math/bits"

// merge is what a pair of symbols becomes, and how early.
type merge struct {
	rank uint32
	id   int32
}

// mergeTable maps pairs of ids to merges: open addressing with linear
// probing, filled once. A Go map took three times as long per lookup.
type mergeTable struct {
	keys  []uint64 // pair+1; 0 is free
	vals  []merge
	shift uint8
}

func (t *mergeTable) init(n int) {
	size := 1 << max(4, bits.Len(uint(n*2)))
	t.keys = make([]uint64, size)
	t.vals = make([]merge, size)
	t.shift = uint8(64 - bits.Len(uint(size-1)))
}

// slot returns where the pair is or belongs.
func (t *mergeTable) slot(key uint64) int {
	i := int(key * 0x9e3779b97f4a7c15 >> t.shift)
	for t.keys[i] != 0 && t.keys[i] != key {
		i = (i + 1) & (len(t.keys) - 1)
	}
	return i
}

func pairKey(a, b int32) uint64 { return uint64(uint32(a))<<32 + uint64(uint32(b)) + 1 }

// set adds or replaces a pair.
func (t *mergeTable) set(a, b int32, m merge) {
	i := t.slot(pairKey(a, b))
	t.keys[i], t.vals[i] = pairKey(a, b), m
}

func (t *mergeTable) get(a, b int32) (merge, bool) {
	i := t.slot(pairKey(a, b))
	return t.vals[i], t.keys[i] != 0
}

// bpeScratch is the memory of one word's merging.
type bpeScratch struct {
	symbols []symbol
	queue   []candidate
}

// symbol is a node of the doubly linked list of a word's symbols; -1 ends it.
type symbol struct {
	id         int32
	prev, next int32
	gone       bool // merged into its left neighbour
}

// candidate is a pair that may be merged: order is rank, then position.
type candidate struct {
	order uint64
	id    int32 // of the merged symbol
}

func (s *bpeScratch) add(id int32) {
	n := int32(len(s.symbols))
	s.symbols = append(s.symbols, symbol{id: id, prev: n - 1, next: n + 1})
}

// merge merges the symbols, lowest rank first and leftmost among equals, and
// appends what remains. It follows the Rust library's Word::merge_all to the
// letter: a queue of candidates in which outdated ones are recognised by the
// id that they would produce. It takes O(n log n) time.
func (s *bpeScratch) merge(ids []int32, merges *mergeTable) []int32 {
	n := len(s.symbols)
	if n == 0 {
		return ids
	}
	s.symbols[n-1].next = -1
	s.queue = s.queue[:0]
	for i := range n - 1 {
		s.consider(int32(i), int32(i+1), merges)
	}
	for i := len(s.queue)/2 - 1; i >= 0; i-- {
		s.down(i)
	}
	for len(s.queue) > 0 {
		top := s.pop()
		pos := int32(uint32(top.order))
		left := &s.symbols[pos]
		if left.gone || left.next < 0 {
			continue
		}
		right := &s.symbols[left.next]
		if m, ok := merges.get(left.id, right.id); !ok || m.id != top.id {
			continue
		}
		left.id, left.next = top.id, right.next
		right.gone = true
		if left.next >= 0 {
			s.symbols[left.next].prev = pos
		}
		for _, at := range [2]int32{left.prev, pos} {
			if at < 0 {
				continue
			}
			if to := s.symbols[at].next; to >= 0 {
				before := len(s.queue)
				s.consider(at, to, merges)
				if len(s.queue) > before {
					s.up(before)
				}
			}
		}
	}
	for i := int32(0); i >= 0; i = s.symbols[i].next {
		ids = append(ids, s.symbols[i].id)
	}
	return ids
}

// consider appends the pair (at, to) to the queue if it can be merged.
func (s *bpeScratch) consider(at, to int32, merges *mergeTable) {
	if m, ok := merges.get(s.symbols[at].id, s.symbols[to].id); ok {
		s.queue = append(s.queue, candidate{uint64(m.rank)<<32 | uint64(uint32(at)), m.id})
	}
}

func (s *bpeScratch) pop() candidate {
	top, n := s.queue[0], len(s.queue)-1
	s.queue[0] = s.queue[n]
	s.queue = s.queue[:n]
	s.down(0)
	return top
}

func (s *bpeScratch) down(i int) {
	q := s.queue
	for {
		c := 2*i + 1
		if c >= len(q) {
			return
		}
		if c+1 < len(q) && q[c+1].order < q[c].order {
			c++
		}
		if q[i].order <= q[c].order {
			return
		}
		q[i], q[c] = q[c], q[i]
		i = c
	}
}

func (s *bpeScratch) up(i int) {
	q := s.queue
	for i > 0 {
		p := (i - 1) / 2
		if q[p].order <= q[i].order {
			return
		}
		q[i], q[p] = q[p], q[i]
		i = p
	}
}
