package elastic

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// ErrOverflow says that a size does not fit in 63 bits.
var ErrOverflow = errors.New("size overflows 63 bits")

// Limits of a Geometry: far above any known model, low enough that no product
// of fields overflows.
const (
	maxLayers      = 1 << 12
	maxBlockTokens = 1 << 16
	maxKVHeads     = 1 << 12
	maxHeadDim     = 1 << 14
	maxElemBytes   = 16
)

// Validate reports every field that is out of range. The limits are such that
// BlockElems and FullBlockBytes cannot overflow.
func (g Geometry) Validate() error {
	var errs []error
	check := func(field string, v, limit int) {
		if v < 1 || v > limit {
			errs = append(errs, fmt.Errorf("geometry of %q: %s is %d, want 1 to %d", g.Name, field, v, limit))
		}
	}
	check("layers", g.Layers, maxLayers)
	check("block tokens", g.BlockTokens, maxBlockTokens)
	check("KV heads", g.KVHeads, maxKVHeads)
	check("head dimension", g.HeadDim, maxHeadDim)
	check("element bytes", g.ElemBytes, maxElemBytes)
	return errors.Join(errs...)
}

// BlockElems is BE: the elements of K (or of V) in a full block (Eq. 6, 7).
func (g Geometry) BlockElems() int64 {
	return int64(g.Layers) * int64(g.BlockTokens) * int64(g.KVHeads) * int64(g.HeadDim)
}

// TokenBytes is the KV cache of one token over all layers, in bytes.
func (g Geometry) TokenBytes() int64 { return g.FullBlockBytes() / int64(g.BlockTokens) }

// Blocks is the number of blocks that hold tokens tokens.
func (g Geometry) Blocks(tokens int) int { return ceilDiv(tokens, g.BlockTokens) }

// LayerBlocks is K_master: the layer blocks that capacity bytes hold (Eq. 3).
func (g Geometry) LayerBlocks(capacity int64) int {
	return floorDiv(capacity, g.LayerBlockBytes())
}

// FullBlocks is K_i: the full blocks that capacity bytes hold (Eq. 2).
func (g Geometry) FullBlocks(capacity int64) int {
	return floorDiv(capacity, g.FullBlockBytes())
}

// GCD is the greatest common divisor of two positive numbers.
func GCD(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// LCM is the least common multiple of two positive numbers, or ErrOverflow.
func LCM(a, b int64) (int64, error) {
	if a <= 0 || b <= 0 {
		return 0, fmt.Errorf("least common multiple of %d and %d: both must be positive", a, b)
	}
	hi, lo := bits.Mul64(uint64(a/GCD(a, b)), uint64(b))
	if hi != 0 || lo > math.MaxInt64 {
		return 0, fmt.Errorf("least common multiple of %d and %d: %w", a, b, ErrOverflow)
	}
	return int64(lo), nil
}

// Capacity is what a master can hold with and without lending (Eq. 2-5).
type Capacity struct {
	KMaster  int // layer blocks in the master's arena
	KWorkers int // sum of K_i: full blocks that may be borrowed
	Buffers  int // of the LSC, 1 or 2
	NLSC     int // full blocks that can be streamed through the LSC
	LSCSlots int // Buffers * NLSC layer blocks of the arena
	NRC      int // full blocks in the regular cache
	Blocks   int // NLSC + NRC: the longest sequence, in blocks
	Tokens   int // Blocks * B
	// What the arena holds without lending.
	AloneBlocks, AloneTokens int
}

// NewCapacity computes a master's capacity from its arena and the full blocks
// that each worker could lend it. With one buffer it is Eq. 4 and 5; with two
// buffers every streamed block takes two slots.
func NewCapacity(master Geometry, arena int64, lendable []int, buffers int) (Capacity, error) {
	if err := master.Validate(); err != nil {
		return Capacity{}, err
	}
	if buffers != 1 && buffers != 2 {
		return Capacity{}, fmt.Errorf("LSC buffers: %d, want 1 or 2", buffers)
	}
	c := Capacity{KMaster: master.LayerBlocks(arena), Buffers: buffers}
	for i, k := range lendable {
		if k < 0 || k > math.MaxInt32 {
			return Capacity{}, fmt.Errorf("blocks of worker %d: %d, want 0 to %d", i, k, math.MaxInt32)
		}
		c.KWorkers += k
	}
	c.NLSC = min(c.KWorkers, c.KMaster/buffers)
	c.LSCSlots = buffers * c.NLSC
	c.NRC = max(0, (c.KMaster-buffers*c.KWorkers)/master.Layers)
	c.Blocks = c.NLSC + c.NRC
	c.Tokens = c.Blocks * master.BlockTokens
	c.AloneBlocks = c.KMaster / master.Layers
	c.AloneTokens = c.AloneBlocks * master.BlockTokens
	return c, nil
}

// floorDiv divides and clamps to the range of a block count.
func floorDiv(a, b int64) int {
	if a <= 0 {
		return 0
	}
	return int(min(a/b, math.MaxInt32))
}

// ceilDiv rounds up; a is not negative.
func ceilDiv(a, b int) int {
	if a <= 0 {
		return 0
	}
	return (a-1)/b + 1
}
