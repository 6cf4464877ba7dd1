//go:build cuda && cgo

package cuda

import (
	"fmt"

	"github.com/kvlend/kvlend/nvlink"
)

// hashLeast is the shortest range that the kernel hashes: xxh3 treats shorter
// ones in other ways, and the host does them faster than a kernel starts.
const hashLeast = 241

// rangesOn are ranges that one device hashes or wipes.
type rangesOn struct {
	dev    *device
	ranges []ranged
	index  []int // of the span that each is
}

// HashBatch enqueues checksums: sums[i] becomes xxh3-64 of spans[i] with seed
// seeds[i], as package lsc computes it of host memory, before the next event
// completes. Spans have at least 241 bytes. spans and seeds are copied before
// HashBatch returns; sums is written later. Errors are those of CopyBatch.
func (s *Stream) HashBatch(spans []nvlink.Span, seeds, sums []uint64) error {
	if len(seeds) != len(spans) || len(sums) != len(spans) {
		return fmt.Errorf("stream %q: %d spans, %d seeds, %d sums; want as many of each", s.name, len(spans), len(seeds), len(sums))
	}
	return s.pushRanges(spans, seeds, sums)
}

// WipeBatch enqueues that spans become zero. Errors are those of CopyBatch.
func (s *Stream) WipeBatch(spans []nvlink.Span) error { return s.pushRanges(spans, nil, nil) }

func (s *Stream) pushRanges(spans []nvlink.Span, seeds, sums []uint64) error {
	b := s.take()
	err := b.fillRanges(s.fabric.m, s.home.dev, spans, seeds)
	if err != nil {
		s.give(b)
		return fmt.Errorf("stream %q: %w", s.name, err)
	}
	b.sums = sums
	if err := s.push(op{kind: opRanges, batch: b}); err != nil {
		s.give(b)
		return err
	}
	return nil
}

func (b *batch) fillRanges(m *machine, home *device, spans []nvlink.Span, seeds []uint64) error {
	for i := range spans {
		a, err := m.arenaOf(&spans[i])
		if err != nil {
			return b.refuse(i, "span", err)
		}
		if seeds != nil && spans[i].Len < hashLeast {
			return b.refuse(i, "span", fmt.Errorf("%d bytes cannot be hashed on a device; want at least %d: %w", spans[i].Len, hashLeast, nvlink.ErrBadSpan))
		}
		if err := b.hold(a); err != nil {
			return b.refuse(i, "span", err)
		}
		r := ranged{at: a.at + uint64(spans[i].Off), len: uint64(spans[i].Len)}
		if seeds != nil {
			r.seed = seeds[i]
		}
		on := b.rangesOn(home, a)
		on.ranges, on.index = append(on.ranges, r), append(on.index, i)
	}
	return nil
}

// rangesOn finds the list of the device that will do it.
func (b *batch) rangesOn(home *device, a *Arena) *rangesOn {
	dev := home
	if !a.reachedFrom(home) {
		dev = a.dev
	}
	for i := range b.ranges {
		if b.ranges[i].dev == dev {
			return &b.ranges[i]
		}
	}
	b.ranges = append(b.ranges, rangesOn{dev: dev})
	return &b.ranges[len(b.ranges)-1]
}

// sumsFrom is checksums that are in a list once a point has been reached.
type sumsFrom struct {
	list  *list
	index []int
	into  []uint64
}

func (f *sumsFrom) copy() {
	words := f.list.words()
	for i, at := range f.index {
		f.into[at] = words[i]
	}
}

// ranges issues a batch of ranges.
func (s *Stream) ranges(b *batch) error {
	for i := range b.ranges {
		on := &b.ranges[i]
		err := s.on(on.dev, func(ln *lane) error {
			if b.sums == nil {
				return ln.drv.wipe(ln.dev, ln.stream, on.ranges)
			}
			for from := 0; from < len(on.ranges); from += listMost {
				to := min(from+listMost, len(on.ranges))
				sums, err := ln.hash(on.ranges[from:to])
				if err != nil {
					return err
				}
				s.pending.sums = append(s.pending.sums, sumsFrom{sums, on.index[from:to], b.sums})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
