//go:build cuda && cgo

package cuda

import (
	"fmt"

	"github.com/kvlend/kvlend/nvlink"
)

// way is which devices carry a run: from reads the source, to writes the
// destination. Where they are equal, that device copies.
type way struct{ from, to *device }

// part is the runs of a batch that go one way.
type part struct {
	way
	runs []run
}

// batch is a validated copy list, or list of ranges. Batches are reused:
// filling one allocates nothing once its slices have grown.
type batch struct {
	parts  []part
	arenas []*Arena // held open, one entry per use below
	ranges []rangesOn
	sums   []uint64 // where the checksums of ranges go; nil: ranges are wiped
}

// keepRuns bounds what a batch keeps for reuse.
const keepRuns = 1 << 16

func (b *batch) reset() {
	for _, a := range b.arenas {
		a.Release()
	}
	clear(b.arenas)
	b.arenas = b.arenas[:0]
	for i := range b.parts {
		b.parts[i].way = way{}
		b.parts[i].runs = b.parts[i].runs[:0]
	}
	b.parts = b.parts[:0]
	b.ranges, b.sums = nil, nil
}

// small reports whether the batch is worth keeping.
func (b *batch) small() bool {
	n := 0
	for _, p := range b.parts[:cap(b.parts)] {
		n += cap(p.runs)
	}
	return n <= keepRuns
}

// fill validates pieces, joins those that continue their predecessor at both
// ends, and holds the arenas open. home is the stream's device. On error the
// batch is empty.
func (b *batch) fill(m *machine, home *device, pieces []nvlink.Copy) error {
	var dst, src *Arena
	var to *part
	for i := range pieces {
		p := &pieces[i]
		d, err := m.arenaOf(&p.Dst)
		if err != nil {
			return b.refuse(i, "dst", err)
		}
		s, err := m.arenaOf(&p.Src)
		if err != nil {
			return b.refuse(i, "src", err)
		}
		if err := checkPair(d, s, p); err != nil {
			return b.refuse(i, "copy", err)
		}
		// No run crosses the end of an arena, though the next may lie right behind it.
		first := d != dst || s != src
		if first {
			if err := b.hold(d, s); err != nil {
				return b.refuse(i, "copy", err)
			}
			to = b.part(wayOf(home, d, s))
			dst, src = d, s
		}
		to.add(run{dst: d.at + uint64(p.Dst.Off), src: s.at + uint64(p.Src.Off), len: uint64(p.Src.Len)}, !first)
	}
	return nil
}

// add appends a run, or lengthens the last one if it may.
func (p *part) add(r run, lengthen bool) {
	if n := len(p.runs); n > 0 && lengthen {
		last := &p.runs[n-1]
		if last.dst+last.len == r.dst && last.src+last.len == r.src {
			last.len += r.len
			return
		}
	}
	p.runs = append(p.runs, r)
}

// part finds or makes the part that goes one way.
func (b *batch) part(w way) *part {
	for i := range b.parts {
		if b.parts[i].way == w {
			return &b.parts[i]
		}
	}
	if len(b.parts) < cap(b.parts) {
		b.parts = b.parts[:len(b.parts)+1]
	} else {
		b.parts = append(b.parts, part{})
	}
	p := &b.parts[len(b.parts)-1]
	p.way = w
	return p
}

// wayOf prefers the stream's own device, then one at an end.
func wayOf(home *device, dst, src *Arena) way {
	for _, d := range [...]*device{home, src.dev, dst.dev} {
		if d != nil && dst.reachedFrom(d) && src.reachedFrom(d) {
			return way{d, d}
		}
	}
	w := way{src.dev, dst.dev}
	if src.reachedFrom(home) {
		w.from = home
	}
	if dst.reachedFrom(home) {
		w.to = home
	}
	return w
}

func (b *batch) refuse(i int, what string, err error) error {
	b.reset()
	return fmt.Errorf("piece %d: %s: %w", i, what, err)
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

func (m *machine) arenaOf(s *nvlink.Span) (*Arena, error) {
	a, ok := s.Arena.(*Arena)
	if !ok || a == nil {
		return nil, fmt.Errorf("%T is not a cuda arena: %w", s.Arena, nvlink.ErrBadSpan)
	}
	if a.m != m {
		return nil, fmt.Errorf("arena %q belongs to another cuda fabric: %w", a.name, nvlink.ErrBadSpan)
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
	if d.id == s.id && p.Dst.Off < p.Src.Off+p.Src.Len && p.Src.Off < p.Dst.Off+p.Dst.Len {
		return fmt.Errorf("dst and src overlap in arena %q: %w", d.name, nvlink.ErrBadSpan)
	}
	return nil
}
