package shm

import (
	"fmt"

	"github.com/kvlend/kvlend/nvlink"
)

// run is a maximal list of neighbouring pieces: one memory copy.
type run struct {
	dst, src []byte
}

// batch is a validated copy list. Batches are reused: filling one allocates
// nothing once its slices have grown.
type batch struct {
	runs   []run
	arenas []*Arena // held open, one entry per use below
	hops   []hop
	even   bool // a budget applies: the copy is spread over its time
}

func (b *batch) reset() {
	for _, a := range b.arenas {
		a.Release()
	}
	clear(b.runs)
	clear(b.arenas)
	clear(b.hops)
	b.runs, b.arenas, b.hops = b.runs[:0], b.arenas[:0], b.hops[:0]
	b.even = false
}

// fill validates pieces, joins those that continue their predecessor at both
// ends, and holds the arenas open. On error the batch is empty.
func (b *batch) fill(f *Fabric, pieces []nvlink.Copy) error {
	var dst, src *Arena
	var lnk *link
	var budgets [2]*link
	var dstEnd, srcEnd int64
	for i := range pieces {
		p := &pieces[i]
		d, err := arenaOf(&p.Dst)
		if err != nil {
			return b.refuse(i, "dst", err)
		}
		s, err := arenaOf(&p.Src)
		if err != nil {
			return b.refuse(i, "src", err)
		}
		if err := checkPair(d, s, p); err != nil {
			return b.refuse(i, "copy", err)
		}
		same := d == dst && s == src
		if !same {
			if lnk, err = f.route(s, d); err != nil {
				return b.refuse(i, "copy", err)
			}
			if err = b.hold(d, s); err != nil {
				return b.refuse(i, "copy", err)
			}
			budgets = [2]*link{f.budget(d, s), f.budget(s, d)}
			dst, src = d, s
		}
		b.hops = addHop(b.hops, lnk, p.Src.Len)
		for _, l := range budgets {
			b.hops = addHop(b.hops, l, p.Src.Len)
			b.even = b.even || l != nil
		}
		b.add(same && p.Dst.Off == dstEnd && p.Src.Off == srcEnd, d, s, p)
		dstEnd, srcEnd = p.Dst.Off+p.Dst.Len, p.Src.Off+p.Src.Len
	}
	return nil
}

func (b *batch) refuse(i int, what string, err error) error {
	b.reset()
	return fmt.Errorf("piece %d: %s: %w", i, what, err)
}

func (b *batch) add(joins bool, d, s *Arena, p *nvlink.Copy) {
	if joins && len(b.runs) > 0 {
		last := &b.runs[len(b.runs)-1]
		n := int64(len(last.dst)) + p.Dst.Len
		last.dst, last.src = last.dst[:n:cap(last.dst)], last.src[:n:cap(last.src)]
		return
	}
	b.runs = append(b.runs, run{dst: d.mem[p.Dst.Off:][:p.Dst.Len], src: s.mem[p.Src.Off:][:p.Src.Len]})
}

// hold keeps each arena open once per batch.
func (b *batch) hold(arenas ...*Arena) error {
next:
	for _, a := range arenas {
		for _, have := range b.arenas {
			if have == a {
				continue next
			}
		}
		if err := a.Hold(); err != nil {
			return err
		}
		b.arenas = append(b.arenas, a)
	}
	return nil
}

func arenaOf(s *nvlink.Span) (*Arena, error) {
	a, ok := s.Arena.(*Arena)
	if !ok || a == nil {
		return nil, fmt.Errorf("%T is not a shm arena: %w", s.Arena, nvlink.ErrBadSpan)
	}
	if s.Off < 0 || s.Len <= 0 || s.Off > a.size-s.Len {
		return nil, fmt.Errorf("[%d, +%d) of arena %q with %d bytes: %w", s.Off, s.Len, a.name, a.size, nvlink.ErrBadSpan)
	}
	return a, nil
}

func checkPair(d, s *Arena, p *nvlink.Copy) error {
	if p.Dst.Len != p.Src.Len {
		return fmt.Errorf("dst has %d bytes, src %d: %w", p.Dst.Len, p.Src.Len, nvlink.ErrBadSpan)
	}
	if d.readOnly {
		return fmt.Errorf("dst arena %q is read-only: %w", d.name, nvlink.ErrBadSpan)
	}
	if d.inode == s.inode && p.Dst.Off < p.Src.Off+p.Src.Len && p.Src.Off < p.Dst.Off+p.Dst.Len {
		return fmt.Errorf("dst and src overlap in arena %q: %w", d.name, nvlink.ErrBadSpan)
	}
	return nil
}
