package lsc

import (
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvlend/kvlend/nvlink"
)

// layerStep spreads the layers of a block over the seeds (2^64 / golden ratio).
const layerStep = 0x9e3779b97f4a7c15

// Checksum is xxh3-64 of a layer block, seeded with its block's identity and
// its layer: bytes that are whole but belong somewhere else do not verify.
func Checksum(mem []byte, seed uint64, layer int) uint64 {
	return xxh3.HashSeed(mem, seed+uint64(layer)*layerStep)
}

// CorruptError says that loaded layer blocks do not have the checksum under
// which they were stored, although their memory has not changed hands. Keys
// are in the order of the pass's blocks.
type CorruptError struct {
	Layer int
	Keys  []int64
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("layer %d of %d borrowed blocks is not what was stored: checksums differ", e.Layer, len(e.Keys))
}

// verifyLoad enqueues, behind a load and before its event, the check of the
// blocks that ask for one. It runs on the copy stream: the compute only reads
// the outcome, once the event is complete.
func (p *Pass) verifyLoad(ln *lane, k kindOf, l int, ld *load) error {
	if ln.verify[k] == 0 {
		return nil
	}
	p.stats.VerifiedBlocks += ln.verify[k]
	return ln.stream.Call(func() error {
		for _, i := range ln.blocks[k] {
			b := &p.blocks[i]
			if b.Verify && Checksum(p.slotBytes(b, l), b.Seed, l) != b.Sums[l] {
				ld.corrupt = append(ld.corrupt, i)
			}
		}
		return nil
	})
}

// corruption says which blocks of layer l, whose loads have completed, are not
// what was stored.
func (p *Pass) corruption(l int, loads []*load) error {
	var at []int
	for _, ld := range loads {
		at = append(at, ld.corrupt...)
	}
	if at == nil {
		return nil
	}
	slices.Sort(at)
	e := &CorruptError{Layer: l}
	for _, i := range at {
		e.Keys = append(e.Keys, p.blocks[i].Key)
	}
	return e
}

// sumStore enqueues, behind store(l) and before its event, the checksums of
// what was stored. They are taken from the slots, which nobody writes before
// the event, so that bytes lost on their way out show when they are loaded.
func (p *Pass) sumStore(l int) error {
	if !p.sums {
		return nil
	}
	return p.pl.cfg.Store.Call(func() error {
		for i := range p.blocks {
			if b := &p.blocks[i]; b.Store && b.Sums != nil {
				b.Sums[l] = Checksum(p.slotBytes(b, l), b.Seed, l)
			}
		}
		return nil
	})
}

func (p *Pass) slotBytes(b *Block, l int) []byte {
	return spanBytes(p.slot(b, l))
}

func spanBytes(s nvlink.Span) []byte { return s.Arena.Bytes()[s.Off:][:s.Len] }

// checkSums says what is wrong with the checksums that b asks for.
func (p *Pipeline) checkSums(b *Block) error {
	switch {
	case b.Sums == nil && b.Verify:
		return fmt.Errorf("is to be verified and has no Sums")
	case b.Sums == nil:
		return nil
	case len(b.Sums) != p.cfg.Layers:
		return fmt.Errorf("has %d Sums; want %d, one per layer", len(b.Sums), p.cfg.Layers)
	case p.cfg.Local.Bytes() == nil:
		return fmt.Errorf("has Sums, and the host cannot read arena %q", p.cfg.Local.Name())
	}
	return nil
}
