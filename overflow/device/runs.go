package device

import "math/bits"

// runs finds room for runs of pages: segregated free lists with immediate
// merging (after TLSF: Masmano, Ripoll, Crespo, Real, 2004) on arrays indexed
// by page, so that it allocates nothing once it is made. A run never spans a
// multiple of chunk pages. Not safe for concurrent use.
type runs struct {
	pages, chunk int32
	// size of the run that begins at a page, negative when it is taken; at the
	// last page of a free run, first is where it begins.
	size, first []int32
	next, prev  []int32 // of the free lists
	heads       [runClasses]int32
	filled      [(runClasses + 63) / 64]uint64
	free        int32
}

const (
	exactRuns  = 32 // below it a class holds one size
	runClasses = exactRuns + 8*27
	noPage     = -1
)

func newRuns(pages, chunk int32) *runs {
	r := &runs{
		pages: pages, chunk: chunk,
		size: make([]int32, pages), first: make([]int32, pages),
		next: make([]int32, pages), prev: make([]int32, pages),
	}
	for i := range r.heads {
		r.heads[i] = noPage
	}
	for p := int32(0); p < pages; p += chunk {
		r.insert(p, min(chunk, pages-p))
	}
	r.free = pages
	return r
}

// runClass is the list that holds free runs of n pages: all its runs have at
// least as many as any of a lower list.
func runClass(n int32) int {
	if n < exactRuns {
		return int(n)
	}
	log := bits.Len32(uint32(n)) - 1 // at least 5
	return exactRuns + 8*(log-5) + int(n>>(log-3))&7
}

func (r *runs) insert(p, n int32) {
	c := runClass(n)
	r.size[p], r.first[p+n-1] = n, p
	r.prev[p], r.next[p] = noPage, r.heads[c]
	if h := r.heads[c]; h != noPage {
		r.prev[h] = p
	}
	r.heads[c] = p
	r.filled[c/64] |= 1 << (c % 64)
}

func (r *runs) unlink(p int32) {
	c := runClass(r.size[p])
	next, prev := r.next[p], r.prev[p]
	if prev == noPage {
		r.heads[c] = next
	} else {
		r.next[prev] = next
	}
	if next != noPage {
		r.prev[next] = prev
	}
	if r.heads[c] == noPage {
		r.filled[c/64] &^= 1 << (c % 64)
	}
}

// find is a free run of at least n pages, or noPage.
func (r *runs) find(n int32) int32 {
	c := runClass(n)
	// A run of the class itself may be too small: look there last.
	if c < exactRuns && r.heads[c] != noPage {
		return r.heads[c]
	}
	if h := r.above(c + 1); h != noPage {
		return h
	}
	for p := r.heads[c]; p != noPage; p = r.next[p] {
		if r.size[p] >= n {
			return p
		}
	}
	return noPage
}

// above is the first run of the lowest list from c on that holds any.
func (r *runs) above(c int) int32 {
	for w := c / 64; w < len(r.filled); w++ {
		set := r.filled[w]
		if w == c/64 {
			set &= ^uint64(0) << (c % 64)
		}
		if set != 0 {
			return r.heads[w*64+bits.TrailingZeros64(set)]
		}
	}
	return noPage
}

// take is the first page of a run of n pages that is now taken, or noPage.
func (r *runs) take(n int32) int32 {
	p := r.find(n)
	if p == noPage {
		return noPage
	}
	r.unlink(p)
	if rest := r.size[p] - n; rest > 0 {
		r.insert(p+n, rest)
	}
	r.size[p] = -n
	r.free -= n
	return p
}

// taken is how many pages the taken run has that begins at p; 0: none does.
func (r *runs) taken(p int32) int32 {
	if p < 0 || p >= r.pages || r.size[p] >= 0 {
		return 0
	}
	return -r.size[p]
}

// put frees the taken run that begins at p.
func (r *runs) put(p int32) {
	n := -r.size[p]
	r.free += n
	r.size[p] = 0
	if end := p + n; end < r.pages && end%r.chunk != 0 && r.size[end] > 0 {
		r.unlink(end)
		n += r.size[end]
		r.size[end] = 0
	}
	if p%r.chunk != 0 {
		if b := r.first[p-1]; b >= 0 && b < p && r.size[b] > 0 && b+r.size[b] == p {
			r.unlink(b)
			n += r.size[b]
			p = b
		}
	}
	r.insert(p, n)
}
