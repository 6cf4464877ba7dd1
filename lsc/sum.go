package lsc

import (
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/ranges"
)

// layerStep spreads the layers of a block over the seeds (2^64 / golden ratio).
const layerStep = 0x9e3779b97f4a7c15

// LayerSeed is the seed of the checksum of one layer of a block with this seed:
// bytes that are whole but belong somewhere else do not verify.
func LayerSeed(seed uint64, layer int) uint64 { return seed + uint64(layer)*layerStep }

// Checksum is xxh3-64 of a layer block in memory of the host.
func Checksum(mem []byte, seed uint64, layer int) uint64 {
	return xxh3.HashSeed(mem, LayerSeed(seed, layer))
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

// hashes are the checksums of one layer of some blocks, of what is in their
// slots: they are there when the event behind them has completed.
type hashes struct {
	blocks []int // indices into the pass's
	sums   []uint64
}

// hash enqueues the checksums of layer l of blocks. They run on the copy stream:
// the compute only reads the outcome, once the event is complete.
func (p *Pass) hash(s nvlink.Stream, l int, blocks []int) (hashes, error) {
	if len(blocks) == 0 {
		return hashes{}, nil
	}
	h := hashes{blocks, make([]uint64, len(blocks))}
	spans, seeds := make([]nvlink.Span, len(blocks)), make([]uint64, len(blocks))
	for k, i := range blocks {
		b := &p.blocks[i]
		spans[k], seeds[k] = p.slot(b, l), LayerSeed(b.Seed, l)
	}
	return h, ranges.Hash(s, spans, seeds, h.sums)
}

// verifyLoad enqueues, behind a load and before its event, the checksums of the
// blocks that ask for it.
func (p *Pass) verifyLoad(ln *lane, k kindOf, l int, ld *load) (err error) {
	p.stats.VerifiedBlocks += len(ln.verify[k])
	ld.verified, err = p.hash(ln.stream, l, ln.verify[k])
	return err
}

// corruption says which blocks of layer l, whose loads have completed, are not
// what was stored.
func (p *Pass) corruption(l int, loads []*load) error {
	var at []int
	for _, ld := range loads {
		for k, i := range ld.verified.blocks {
			if ld.verified.sums[k] != p.blocks[i].Sums[l] {
				at = append(at, i)
			}
		}
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
func (p *Pass) sumStore(l int) (err error) {
	p.sealed[l], err = p.hash(p.pl.cfg.Store, l, p.summed)
	return err
}

// keepSums notes, under mu, the checksums of all stores, which have completed.
func (p *Pass) keepSums() {
	for l, h := range p.sealed {
		for k, i := range h.blocks {
			p.blocks[i].Sums[l] = h.sums[k]
		}
	}
}

// checkSums says what is wrong with the checksums that b asks for.
func (p *Pipeline) checkSums(b *Block) error {
	switch {
	case b.Sums == nil && b.Verify:
		return fmt.Errorf("is to be verified and has no Sums")
	case b.Sums == nil:
		return nil
	case len(b.Sums) != p.cfg.Layers:
		return fmt.Errorf("has %d Sums; want %d, one per layer", len(b.Sums), p.cfg.Layers)
	case b.Store && !ranges.Can(p.cfg.Store, p.cfg.Local) || b.Load && !ranges.Can(p.cfg.Loads[b.Via], p.cfg.Local):
		return fmt.Errorf("has Sums, and neither the host nor its stream can read arena %q", p.cfg.Local.Name())
	}
	return nil
}
