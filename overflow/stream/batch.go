package stream

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/overflow/device"
)

// seg is a piece, or a part of one that is longer than an I/O.
type seg struct {
	off   int64  // on the device
	host  []byte // the other end
	group int32  // index into batch.groups
}

// extent is one I/O: n bytes from off, which are those of segs[lo:hi] and of
// what lies between them.
type extent struct {
	off    int64
	n      int
	lo, hi int
}

// group is what a batch moves between the host and one device, in one direction.
type group struct {
	arena  *Arena
	write  bool
	limit  int64 // of an extent, in bytes
	lo, hi int   // extents, ascending by off
	next   int   // the first one that has not been started
	rest   int64 // bytes of those from there on
	ios    []*device.IO
}

// batch is a validated copy list and its plan. Batches are reused: filling one
// allocates nothing once its slices have grown.
type batch struct {
	segs   []seg
	exts   []extent
	groups []group // first the reads, then the writes
	reads  int     // number of groups that read
	pieces int
	bytes  int64
	arenas []*Arena
	hosts  []Holder

	// Of the stream's goroutine only.
	left      int   // extents that are not over
	readsLeft int   // those of them that read
	landed    *unit // reads whose bytes wait for their turn
	err       error // the first one
	began     time.Time
	cleared   bool   // what is before it does not overlap it
	after     uint64 // sequence number of the operation it overlaps, plus 1
	late      bool   // given up: reads that have not been submitted are not
}

// reset lets go of everything that the batch refers to.
func (b *batch) reset() {
	for _, a := range b.arenas {
		a.Release()
	}
	for _, h := range b.hosts {
		h.Release()
	}
	clear(b.segs)
	clear(b.arenas)
	clear(b.hosts)
	for i := range b.groups {
		clear(b.groups[i].ios)
		b.groups[i] = group{ios: b.groups[i].ios[:0]}
	}
	*b = batch{segs: b.segs[:0], exts: b.exts[:0], groups: b.groups[:0], arenas: b.arenas[:0], hosts: b.hosts[:0]}
}

// fill validates pieces, holds their arenas and plans the I/O. On error the
// batch is empty.
func (b *batch) fill(o *Options, pieces []nvlink.Copy) error {
	for i := range pieces {
		if err := b.add(o, &pieces[i]); err != nil {
			b.reset()
			return fmt.Errorf("piece %d: %w", i, err)
		}
	}
	b.pieces = len(pieces)
	b.plan(int64(o.Gap))
	return nil
}

func (b *batch) add(o *Options, p *nvlink.Copy) error {
	dst, toDevice := p.Dst.Arena.(*Arena)
	src, fromDevice := p.Src.Arena.(*Arena)
	far, near, a, what := &p.Src, &p.Dst, src, [2]string{"src", "dst"}
	if toDevice {
		far, near, a, what = &p.Dst, &p.Src, dst, [2]string{"dst", "src"}
	}
	switch {
	case toDevice == fromDevice:
		return fmt.Errorf("from %T to %T; want one end, not both, on a device: %w", p.Src.Arena, p.Dst.Arena, nvlink.ErrBadSpan)
	case a == nil:
		return fmt.Errorf("%s: arena is nil: %w", what[0], nvlink.ErrBadSpan)
	case p.Dst.Len != p.Src.Len:
		return fmt.Errorf("dst has %d bytes, src %d: %w", p.Dst.Len, p.Src.Len, nvlink.ErrBadSpan)
	}
	if err := a.check(far); err != nil {
		return fmt.Errorf("%s: %w", what[0], err)
	}
	if near.Arena == nil {
		return fmt.Errorf("%s: arena is nil: %w", what[1], nvlink.ErrBadSpan)
	}
	// Held before its memory is looked at, which Close may take away.
	if err := b.holdHost(near.Arena); err != nil {
		return fmt.Errorf("%s: %w", what[1], err)
	}
	host, err := hostBytes(near)
	if err != nil {
		return fmt.Errorf("%s: %w", what[1], err)
	}
	if err := b.holdDevice(a); err != nil {
		return fmt.Errorf("%s: %w", what[0], err)
	}
	b.cut(b.groupOf(o, a, toDevice), far.Off, host)
	return nil
}

// hostBytes is the memory of s.
func hostBytes(s *nvlink.Span) ([]byte, error) {
	mem := s.Arena.Bytes()
	if mem == nil {
		return nil, fmt.Errorf("arena %q is not in memory that the host can address: %w", s.Arena.Name(), nvlink.ErrBadSpan)
	}
	size := min(s.Arena.Size(), int64(len(mem)))
	if s.Off < 0 || s.Len <= 0 || s.Off > size-s.Len {
		return nil, fmt.Errorf("[%d, +%d) of arena %q with %d bytes: %w", s.Off, s.Len, s.Arena.Name(), size, nvlink.ErrBadSpan)
	}
	return mem[s.Off:][:s.Len:s.Len], nil
}

func (b *batch) holdHost(a nvlink.Arena) error {
	h, ok := a.(Holder)
	if !ok || slices.Contains(b.hosts, h) {
		return nil
	}
	if err := h.Hold(); err != nil {
		return err
	}
	b.hosts = append(b.hosts, h)
	return nil
}

func (b *batch) holdDevice(a *Arena) error {
	if slices.Contains(b.arenas, a) {
		return nil
	}
	if err := a.Hold(); err != nil {
		return err
	}
	b.arenas = append(b.arenas, a)
	return nil
}

// groupOf finds or makes the group of a device and direction.
func (b *batch) groupOf(o *Options, a *Arena, write bool) int32 {
	for i := range b.groups {
		if g := &b.groups[i]; g.write == write && g.arena.same(a) {
			return int32(i)
		}
	}
	limit := int64(o.MaxRead)
	if m := a.info.MaxIO; m > 0 {
		limit = max(min(limit, m-m%device.Align), device.Align)
	}
	var ios []*device.IO // of a batch before, for reuse
	if n := len(b.groups); n < cap(b.groups) {
		ios = b.groups[:n+1][n].ios
	}
	b.groups = append(b.groups, group{arena: a, write: write, limit: limit, ios: ios})
	return int32(len(b.groups) - 1)
}

// cut adds a piece in parts of at most an I/O.
func (b *batch) cut(g int32, off int64, host []byte) {
	b.bytes += int64(len(host))
	limit := int(b.groups[g].limit)
	for len(host) > limit {
		b.segs = append(b.segs, seg{off, host[:limit], g})
		host, off = host[limit:], off+int64(limit)
	}
	b.segs = append(b.segs, seg{off, host, g})
}

// plan sorts the parts and joins neighbours into extents.
func (b *batch) plan(gap int64) {
	b.readsFirst()
	byPlace := func(x, y seg) int {
		if x.group != y.group {
			return cmp.Compare(x.group, y.group)
		}
		return cmp.Compare(x.off, y.off)
	}
	if !slices.IsSortedFunc(b.segs, byPlace) {
		slices.SortFunc(b.segs, byPlace)
	}
	for i := 0; i < len(b.segs); {
		g := &b.groups[b.segs[i].group]
		e := b.extent(i, gap)
		if g.hi == 0 {
			g.lo, g.next = len(b.exts), len(b.exts)
		}
		b.exts = append(b.exts, e)
		g.hi = len(b.exts)
		g.rest += int64(e.n)
		if !g.write {
			b.readsLeft++
		}
		i = e.hi
	}
	b.left = len(b.exts)
}

// readsFirst puts the groups that write behind those that read.
func (b *batch) readsFirst() {
	writes := func(g group) bool { return g.write }
	first := slices.IndexFunc(b.groups, writes)
	if first < 0 {
		b.reads = len(b.groups)
		return
	}
	if !slices.ContainsFunc(b.groups[first:], func(g group) bool { return !g.write }) {
		b.reads = first
		return
	}
	to := make([]int32, len(b.groups))
	sorted := make([]group, 0, len(b.groups))
	for _, write := range []bool{false, true} {
		if write {
			b.reads = len(sorted)
		}
		for i := range b.groups {
			if b.groups[i].write == write {
				to[i] = int32(len(sorted))
				sorted = append(sorted, b.groups[i])
			}
		}
	}
	copy(b.groups, sorted)
	for i := range b.segs {
		b.segs[i].group = to[b.segs[i].group]
	}
}

// extent joins segs[i] and as many of its successors as fit.
func (b *batch) extent(i int, gap int64) extent {
	first := b.segs[i]
	g := &b.groups[first.group]
	if g.write {
		gap = 0
	}
	end := first.end()
	j := i + 1
	for ; j < len(b.segs); j++ {
		s := &b.segs[j]
		to := max(end, s.end())
		if s.group != first.group || s.off-end > gap || to-first.off > g.limit {
			break
		}
		end = to
	}
	return extent{off: first.off, n: int(end - first.off), lo: i, hi: j}
}

// end is where the last block of s ends.
func (s *seg) end() int64 {
	end := s.off + int64(len(s.host))
	return (end + device.Align - 1) &^ (device.Align - 1)
}

// overlaps reports whether a write of before touches what b reads or writes.
func (b *batch) overlaps(before *batch) bool {
	for i := before.reads; i < len(before.groups); i++ {
		w := &before.groups[i]
		for k := range b.groups {
			if g := &b.groups[k]; g.arena.same(w.arena) && b.meets(g, before.exts[w.lo:w.hi]) {
				return true
			}
		}
	}
	return false
}

// meets reports whether an extent of g overlaps one of sorted, which ascend and
// do not overlap each other.
func (b *batch) meets(g *group, sorted []extent) bool {
	for _, e := range b.exts[g.lo:g.hi] {
		at, _ := slices.BinarySearchFunc(sorted, e.off, func(x extent, off int64) int {
			if x.off+int64(x.n) <= off {
				return -1
			}
			return 1
		})
		if at < len(sorted) && sorted[at].off < e.off+int64(e.n) {
			return true
		}
	}
	return false
}
