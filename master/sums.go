package master

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvlend/kvlend/lsc"
	"github.com/kvlend/kvlend/overflow/store"
	"github.com/kvlend/kvlend/prefix"
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

// seal is a borrowed block's checksums and what they are seeded with.
type seal struct {
	seed uint64
	sums []uint64 // by layer
}

// seed is the identity of a block in one place, under the present lease: a
// block of another model, tenant or prefix, and one that was stored before its
// unit last changed hands, does not verify, be its bytes whole or not.
func (c *Cache) seed(ident prefix.Key, at lentBlock) uint64 {
	b := appendIdentity(c.scratch[:0], ident, at.pool.cfg.Owner, uint64(at.id))
	if at.pool.shelf != nil {
		c.scratch = append(b, at.pool.shelf.salt...)
		return xxh3.Hash(c.scratch)
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

// appendIdentity appends what all seeds begin with.
func appendIdentity(b []byte, ident prefix.Key, owner uint32, id uint64) []byte {
	for _, n := range []uint64{ident.Hi, ident.Lo, uint64(owner), id} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

// storeSalt is what tells the seeds of one store from those of another.
func storeSalt(uuid [16]byte) string { return fmt.Sprintf("%x", uuid) }

// StoredSum gives the checksums of the layer blocks in a store of that UUID, for
// those who check it while no cache uses it (store.Options.Sum).
func StoredSum(uuid [16]byte) func(e *store.Entry, layer int, data []byte) uint64 {
	salt := storeSalt(uuid)
	return func(e *store.Entry, layer int, data []byte) uint64 {
		var space [96]byte
		seed := xxh3.Hash(append(appendIdentity(space[:0], e.Key, 0, uint64(e.Slot)), salt...)) // nobody owns stores
		return lsc.Checksum(data, seed, layer)
	}
}

// verifies reports whether what a pool holds has checksums. What is in a store
// always has: disks lie, and it outlives what wrote it.
func (c *Cache) verifies(p *pool) bool {
	if p.shelf != nil {
		return !p.shelf.Unchecked
	}
	return c.cfg.Verify.on()
}

// sealOf is what a block must verify against, nil when it keeps no checksums.
func (c *Cache) sealOf(b *block) *seal {
	if b.sums == nil || !c.verifies(b.pool) {
		return nil
	}
	return &seal{seed: c.seed(b.ident, lentBlock{b.pool, b.id}), sums: b.sums}
}

// newSeal is what a block will have to verify against once it is stored at a
// place, nil when no checksums are kept.
func (c *Cache) newSeal(b *block, at lentBlock) *seal {
	if !c.verifies(at.pool) {
		return nil
	}
	return &seal{seed: c.seed(b.ident, at), sums: make([]uint64, c.cfg.Geometry.Layers)}
}

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
	if at.pool.shelf != nil {
		c.corruptStored(at, l)
		return
	}
	c.stats.CorruptBlocks++
	if at.pool.at != borrowed || !at.pool.has(at.id) {
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

// sweep returns bad units that have become empty, and reports whether there were
// any, unless a step has to end first. mu is held.
func (c *Cache) sweep() (swept bool) {
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
				swept = c.step == nil
				c.signal() // others may be asked for
			}
		})
	}
	return swept
}
