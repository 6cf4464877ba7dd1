package store

import "math/bits"

// none ends a list of segments.
const none = ^uint32(0)

// allocator hands out slots. Segments stand in lists by their longest run of
// free slots, so the segment that fits best is found without a search.
//
// It is not safe for concurrent use.
type allocator struct {
	run  int
	free []uint64 // by segment: bit i set: slot i is free
	// Lists: head by longest run, doubly linked through next and prev. Full
	// segments are in none.
	head       [MaxRun + 1]uint32
	next, prev []uint32
	longest    []uint8 // by segment: its list
	filled     [2]uint64
	n          int // free slots
}

// newAllocator has all slots free.
func newAllocator(segments, run int) *allocator {
	a := &allocator{
		run: run, free: make([]uint64, segments), n: segments * run,
		next: make([]uint32, segments), prev: make([]uint32, segments), longest: make([]uint8, segments),
	}
	for i := range a.head {
		a.head[i] = none
	}
	// The last first: lists are stacks.
	for s := segments - 1; s >= 0; s-- {
		a.free[s] = ^uint64(0) >> (64 - run)
		a.link(uint32(s), run)
	}
	return a
}

func (a *allocator) link(s uint32, longest int) {
	a.longest[s] = uint8(longest)
	if longest == 0 {
		return
	}
	h := a.head[longest]
	a.next[s], a.prev[s] = h, none
	if h != none {
		a.prev[h] = s
	}
	a.head[longest] = s
	a.filled[longest>>6] |= 1 << (longest & 63)
}

func (a *allocator) unlink(s uint32) {
	l := a.longest[s]
	if l == 0 {
		return
	}
	next, prev := a.next[s], a.prev[s]
	if next != none {
		a.prev[next] = prev
	}
	if prev != none {
		a.next[prev] = next
		return
	}
	a.head[l] = next
	if next == none {
		a.filled[l>>6] &^= 1 << (l & 63)
	}
}

// fit is the list to take a run of want slots from: the shortest that is long
// enough, else the longest. 0: nothing is free.
func (a *allocator) fit(want int) int {
	for l := want; l <= MaxRun; {
		if m := a.filled[l>>6] >> (l & 63); m != 0 {
			return l + bits.TrailingZeros64(m)
		}
		l = (l>>6 + 1) << 6
	}
	if a.filled[1] != 0 {
		return MaxRun
	}
	if a.filled[0] == 0 {
		return 0
	}
	return 63 - bits.LeadingZeros64(a.filled[0])
}

// runsOf marks where runs of n set bits begin.
func runsOf(m uint64, n int) uint64 {
	for have := 1; have < n; {
		step := min(have, n-have)
		m &= m >> step
		have += step
	}
	return m
}

// longestRun is the length of the longest run of set bits.
func longestRun(m uint64) int {
	n := 0
	for m != 0 {
		m &= m << 1
		n++
	}
	return n
}

// alloc appends up to n slots to dst, in as few runs as it finds.
func (a *allocator) alloc(dst []Slot, n int) []Slot {
	n = min(n, a.n)
	for n > 0 {
		want := min(n, a.run)
		l := a.fit(want)
		dst = a.cut(dst, a.head[l], min(want, l))
		n -= min(want, l)
	}
	return dst
}

// allocNear appends up to n slots to dst: those right behind a slot, as far as they
// are free in its segment, then those of segments that are wholly free, so that what
// comes behind other slots stays free for what continues them.
func (a *allocator) allocNear(dst []Slot, n int, after Slot, known bool) []Slot {
	n = min(n, a.n)
	if i := int(after)%a.run + 1; known && i < a.run {
		seg := uint32(int(after) / a.run)
		next := min(bits.TrailingZeros64(^(a.free[seg] >> i)), a.run-i, n)
		if next > 0 {
			dst = a.takeRun(dst, seg, i, next)
			n -= next
		}
	}
	for n > 0 {
		whole := a.head[a.run]
		if whole == none {
			return a.alloc(dst, n)
		}
		take := min(n, a.run)
		dst = a.cut(dst, whole, take)
		n -= take
	}
	return dst
}

// cut takes the first run of so many free slots of a segment, which has one.
func (a *allocator) cut(dst []Slot, seg uint32, take int) []Slot {
	return a.takeRun(dst, seg, bits.TrailingZeros64(runsOf(a.free[seg], take)), take)
}

// takeRun takes free slots of a segment from at on.
func (a *allocator) takeRun(dst []Slot, seg uint32, at, take int) []Slot {
	a.set(seg, a.free[seg]&^(^uint64(0)>>(64-take)<<at))
	for i := range take {
		dst = append(dst, Slot(int(seg)*a.run+at+i))
	}
	a.n -= take
	return dst
}

// set changes a segment's free slots.
func (a *allocator) set(seg uint32, free uint64) {
	a.free[seg] = free
	l := longestRun(free)
	if l == int(a.longest[seg]) {
		return
	}
	a.unlink(seg)
	a.link(seg, l)
}

func (a *allocator) isFree(s Slot) bool {
	return a.free[int(s)/a.run]>>(int(s)%a.run)&1 != 0
}

// release frees a slot that is not free.
func (a *allocator) release(s Slot) {
	seg := uint32(int(s) / a.run)
	a.set(seg, a.free[seg]|1<<(int(s)%a.run))
	a.n++
}

// take marks a free slot as taken.
func (a *allocator) take(s Slot) {
	seg := uint32(int(s) / a.run)
	a.set(seg, a.free[seg]&^(1<<(int(s)%a.run)))
	a.n--
}
