package master

import (
	"cmp"
	"context"
	"slices"

	"github.com/kvlend/kvlend/lsc"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/ranges"
)

// transfer carries the bytes of moves, none of them on disks, and waits for them.
// Bytes with checksums are compared and summed on the stream, where the master's
// own arena holds them: at their source when they go out, at their destination when they come
// in, and in a slot on the way when they go from one worker to another (which
// a move without checksums does directly).
func (c *Cache) transfer(moves []*move) error {
	moves = slices.DeleteFunc(slices.Clone(moves), func(m *move) bool { return m.layers == 0 })
	if len(moves) == 0 {
		return nil
	}
	ev, err := c.launch(c.cfg.Move, moves)
	if ev == nil {
		return err
	}
	return cmp.Or(err, ev.Wait(context.Background()))
}

// streamOf is the stream that moves blocks: disks have one of their own.
func (c *Cache) streamOf(disk bool) nvlink.Stream {
	if disk {
		return c.cfg.Overflow.Move
	}
	return c.cfg.Move
}

// launch enqueues the copies of moves and returns the event of their
// completion. A batch that was enqueued runs whatever becomes of the next one,
// so the event, where there is one, is to be waited for in any case.
func (c *Cache) launch(s nvlink.Stream, moves []*move) (nvlink.Event, error) {
	direct := c.pieces[:0]
	var sealed inspection
	var far []*move
	for _, m := range moves {
		if m.old != nil && m.new != nil {
			far = append(far, m)
			continue
		}
		for l := range m.layers {
			p := c.piece(m, l)
			direct = append(direct, p)
			sealed.add(m, l, c.ownSpan(p))
		}
	}
	c.pieces = direct
	err := c.enqueue(s, direct, &sealed, far)
	ev, eventErr := s.Record()
	if eventErr != nil {
		return nil, eventErr
	}
	return ev, err
}

func (c *Cache) enqueue(s nvlink.Stream, direct []nvlink.Copy, sealed *inspection, far []*move) error {
	if len(direct) > 0 {
		if err := s.CopyBatch(direct); err != nil {
			return err
		}
	}
	if err := sealed.enqueue(s); err != nil {
		return err
	}
	return c.bounce(far)
}

// inspection is what is to be done with the checksums of moves' bytes, where they
// lie in the own arena or in staging memory.
type inspection struct {
	spans       []nvlink.Span
	seeds, sums []uint64
	of          []inspected
}

// inspected is one layer of a move: its checksum is compared with the old one, or
// becomes the new one.
type inspected struct {
	m     *move
	layer int
	old   bool
}

// add asks for what a move needs of one layer.
func (in *inspection) add(m *move, l int, own nvlink.Span) {
	for _, s := range []struct {
		*seal
		old bool
	}{{m.old, true}, {m.new, false}} {
		if s.seal != nil {
			in.spans, in.seeds = append(in.spans, own), append(in.seeds, lsc.LayerSeed(s.seed, l))
			in.of = append(in.of, inspected{m, l, s.old})
		}
	}
}

func (in *inspection) enqueue(s nvlink.Stream) error {
	if len(in.of) == 0 {
		return nil
	}
	in.sums = make([]uint64, len(in.of))
	if err := ranges.Hash(s, in.spans, in.seeds, in.sums); err != nil {
		return err
	}
	return s.Call(func() error {
		for i, of := range in.of {
			switch {
			case !of.old:
				of.m.new.sums[of.layer] = in.sums[i]
			case of.m.badLayer < 0 && of.m.old.sums[of.layer] != in.sums[i]:
				of.m.badLayer = of.layer
			}
		}
		return nil
	})
}

// hop is a layer block on its way from one worker to another.
type hop struct {
	m     *move
	layer int
	via   nvlink.Span
}

// bounce enqueues moves from one worker to another through the slots and the
// free tails, as many layer blocks at a time as there are. If there is no slot,
// no borrowed block is in use, and so all tails are free.
func (c *Cache) bounce(moves []*move) error {
	if len(moves) == 0 {
		return nil
	}
	layers := c.cfg.Geometry.Layers
	var slots []nvlink.Span
	for off := range c.space.slotOffsets {
		slots = append(slots, c.localSpan(off, 0))
		if len(slots) == len(moves)*layers {
			break
		}
	}
	for _, t := range c.space.freeTails {
		for l := range layers {
			slots = append(slots, c.localSpan(c.space.tailOff(t), l))
		}
	}
	var hops []hop
	for _, m := range moves {
		for l := range m.layers {
			hops = append(hops, hop{m, l, slots[len(hops)]})
			if len(hops) < len(slots) {
				continue
			}
			if err := c.bounceBatch(hops); err != nil {
				return err
			}
			hops = nil
		}
	}
	return c.bounceBatch(hops)
}

func (c *Cache) bounceBatch(hops []hop) error {
	if len(hops) == 0 {
		return nil
	}
	in, out := make([]nvlink.Copy, len(hops)), make([]nvlink.Copy, len(hops))
	var sealed inspection
	for i, h := range hops {
		p := c.piece(h.m, h.layer)
		in[i], out[i] = nvlink.Copy{Dst: h.via, Src: p.Src}, nvlink.Copy{Dst: p.Dst, Src: h.via}
		sealed.add(h.m, h.layer, h.via)
	}
	s := c.cfg.Move
	if err := s.CopyBatch(in); err != nil {
		return err
	}
	if err := sealed.enqueue(s); err != nil {
		return err
	}
	return s.CopyBatch(out)
}

// ownSpan is the end of a copy that lies in the master's own arena, or in its
// staging memory.
func (c *Cache) ownSpan(p nvlink.Copy) nvlink.Span {
	own := p.Dst
	if own.Arena != c.cfg.Local && (c.staging == nil || own.Arena != c.staging.arena) {
		own = p.Src
	}
	return own
}
