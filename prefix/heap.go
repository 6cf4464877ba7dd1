package prefix

// item is a victim-to-be. What it is ordered by stands beside the pointer, so
// that sifting reads no nodes.
type item[V any] struct {
	priority float64
	use      uint64 // ties: the least recently used goes first
	node     *Node[V]
}

func (a item[V]) before(b item[V]) bool {
	if a.priority != b.priority {
		return a.priority < b.priority
	}
	return a.use < b.use
}

// heap is a binary min-heap whose nodes know their place.
type heap[V any] []item[V]

func (h heap[V]) put(i int, it item[V]) {
	h[i] = it
	it.node.place = i
}

func (h *heap[V]) push(n *Node[V]) {
	it := item[V]{n.priority, n.use, n}
	*h = append(*h, it)
	h.up(len(*h)-1, it)
}

// remove takes out the node at place i.
func (h *heap[V]) remove(i int) {
	old := *h
	last := len(old) - 1
	old[i].node.place = -1
	moved := old[last]
	old[last] = item[V]{}
	*h = old[:last]
	if i < last {
		h.fix(i, moved)
	}
}

// fix puts it where it belongs, given that place i is free.
func (h heap[V]) fix(i int, it item[V]) {
	if i > 0 && it.before(h[(i-1)/2]) {
		h.up(i, it)
		return
	}
	h.down(i, it)
}

func (h heap[V]) up(i int, it item[V]) {
	for i > 0 {
		p := (i - 1) / 2
		if !it.before(h[p]) {
			break
		}
		h.put(i, h[p])
		i = p
	}
	h.put(i, it)
}

func (h heap[V]) down(i int, it item[V]) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].before(h[c]) {
			c++
		}
		if !h[c].before(it) {
			break
		}
		h.put(i, h[c])
		i = c
	}
	h.put(i, it)
}
