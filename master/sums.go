package master

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/lsc"
)

// Verify says which blocks are compared with their checksums when they are
// loaded from borrowed memory. The checksums lie in the master's own memory,
// 8 bytes per layer block.
type Verify string

// The modes of verification. Moves between steps verify all they read unless
// it is off.
const (
	VerifyOff    Verify = "off"    // no checksums; also the empty string
	VerifySample Verify = "sample" // each block in one of sampleEvery steps of its sequence
	VerifyAll    Verify = "all"    // every block in every step
)

// sampleEvery is the share of VerifySample: step n of a sequence checks its
// blocks n, n+16, n+32, ..., so that 16 steps check them all.
const sampleEvery = 16

func (v Verify) on() bool { return v != "" && v != VerifyOff }

func (v Verify) validate() error {
	switch v {
	case "", VerifyOff, VerifySample, VerifyAll:
		return nil
	}
	return fmt.Errorf("lending.verify: %q, must be %s, %s or %s", string(v), VerifyOff, VerifySample, VerifyAll)
}

// due reports whether block i of a sequence is verified in its step n.
func (v Verify) due(i int, n uint64) bool {
	return v == VerifyAll || v == VerifySample && uint64(i)%sampleEvery == n%sampleEvery
}

// Identity says whose KV the cache holds. KV of another model does not verify.
type Identity struct {
	Weights string // digest of weights and architecture
	DType   string // element type of the KV
	Adapter string
	Salt    string // of the tenant
}

// hash is the part of all seeds that does not change. The identity of a block's
// tokens is not in it: the cache does not know tokens, and blocks are not
// shared between sequences.
func (id Identity) hash(g elastic.Geometry) uint64 {
	var b []byte
	for _, s := range []string{id.Weights, id.DType, id.Adapter, id.Salt} {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	for _, n := range []int{g.Layers, g.BlockTokens, g.KVHeads, g.HeadDim, g.ElemBytes} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return xxh3.Hash(b)
}

// seal is a borrowed block's checksums and what they are seeded with.
type seal struct {
	seed uint64
	sums []uint64 // by layer
}

// seed is the identity of block i of a sequence in one place, under the present
// lease: a block of another model, sequence or position, and one that was
// stored before its unit last changed hands, does not verify, be its bytes
// whole or not.
func (c *Cache) seed(seq uint64, i int, at lentBlock) uint64 {
	b := c.scratch[:0]
	for _, n := range []uint64{c.identity, seq, uint64(i), uint64(at.pool.cfg.Owner), uint64(at.id)} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	b = append(b, at.pool.cfg.Name...)
	c.unitsOf = at.pool.space.AppendUnitsOf(c.unitsOf[:0], at.id)
	for _, u := range c.unitsOf {
		b = binary.LittleEndian.AppendUint64(b, uint64(u))
		b = binary.LittleEndian.AppendUint64(b, at.pool.epochs[uint32(u)])
	}
	c.scratch = b
	return xxh3.Hash(b)
}

// sealOf is what block i of a sequence must verify against, nil when it keeps
// no checksums.
func (c *Cache) sealOf(seq uint64, i int, b *block) *seal {
	if !c.cfg.Verify.on() || b.sums == nil {
		return nil
	}
	return &seal{seed: c.seed(seq, i, lentBlock{b.pool, b.id}), sums: b.sums}
}

// newSeal is what block i of a sequence will have to verify against once it is
// stored at a place, nil when no checksums are kept.
func (c *Cache) newSeal(seq uint64, i int, at lentBlock) *seal {
	if !c.cfg.Verify.on() {
		return nil
	}
	return &seal{seed: c.seed(seq, i, at), sums: make([]uint64, c.cfg.Geometry.Layers)}
}

func (s *seal) matches(l int, mem []byte) bool { return lsc.Checksum(mem, s.seed, l) == s.sums[l] }

func (s *seal) set(l int, mem []byte) { s.sums[l] = lsc.Checksum(mem, s.seed, l) }

// take returns the checksums of a seal that may be nil.
func (s *seal) take() []uint64 {
	if s == nil {
		return nil
	}
	return s.sums
}

// corrupt takes note that layer l of a borrowed block is not what was stored.
// Whatever wrote there may have written elsewhere in the unit, so no block is
// put into the unit any more; those that are there stay as long as they verify.
// When it is empty it goes home. mu is held.
func (c *Cache) corrupt(at lentBlock, l int) {
	c.stats.CorruptBlocks++
	if !at.pool.space.Allocated(at.id) {
		return // released while the step was ending
	}
	u := at.pool.space.LayerUnit(at.id, l)
	if at.pool.bad[u] {
		return
	}
	at.pool.bad[u] = true
	at.pool.space.CloseUnit(u)
	if c.cfg.Log != nil {
		c.cfg.Log.Warn("a borrowed block is not what was stored there: its unit takes no more blocks until it has gone home",
			"worker", at.pool.cfg.Name, "unit", u, "epoch", at.pool.epochs[uint32(u)], "layer", l)
	}
}

// sweep returns bad units that have become empty. mu is held.
func (c *Cache) sweep() {
	for _, p := range c.pools {
		if len(p.bad) == 0 {
			continue
		}
		c.betweenSteps(func() {
			var empty []int
			for u := range p.bad {
				if p.space.UsedSlots(u) == 0 {
					empty = append(empty, u)
				}
			}
			if len(empty) > 0 {
				c.giveBack(p, empty)
				c.signal() // others may be asked for
			}
		})
	}
}
