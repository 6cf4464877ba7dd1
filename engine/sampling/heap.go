package sampling

// before orders candidates: higher logits first, then lower ids. It is a
// strict total order, so what top-k keeps is never ambiguous.
func before(a, b candidate) bool {
	return a.logit > b.logit || a.logit == b.logit && a.id < b.id
}

func after(a, b candidate) bool { return before(b, a) }

// siftDown restores the heap below i; first(h[0], x) holds for every other x.
func siftDown(h []candidate, i int, first func(a, b candidate) bool) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && first(h[c+1], h[c]) {
			c++
		}
		if !first(h[c], h[i]) {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

// selectTop appends the k best of logits to dst, best first, in
// O(len(logits) log k) time. k is in [1, len(logits)] and dst is empty.
func selectTop(dst []candidate, logits []float32, k int) []candidate {
	for id, l := range logits[:k] {
		dst = append(dst, candidate{logit: l, id: int32(id)})
	}
	for i := k/2 - 1; i >= 0; i-- {
		siftDown(dst, i, after)
	}
	for id := k; id < len(logits); id++ {
		// An equal logit with a higher id never replaces the worst kept.
		if logits[id] > dst[0].logit {
			dst[0] = candidate{logit: logits[id], id: int32(id)}
			siftDown(dst, 0, after)
		}
	}
	for n := k - 1; n > 0; n-- {
		dst[0], dst[n] = dst[n], dst[0]
		siftDown(dst[:n], 0, after)
	}
	return dst
}
