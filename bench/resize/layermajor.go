package resize

import "fmt"

// layerMajor is a KV cache of shape (layers, blocks, elems) in one contiguous
// arena, as SwiftCache Fig. 5 describes it: all blocks of a layer are
// neighbours, so that a change in the number of blocks moves every layer but
// the first.
type layerMajor struct {
	mem        []byte
	layers     int
	blocks     int
	blockBytes int // of a layer block
}

// newLayerMajor lays a cache of blocks blocks over mem, with room for no more.
func newLayerMajor(mem []byte, layers, blocks, blockBytes int) *layerMajor {
	return &layerMajor{mem: mem[:layers*blocks*blockBytes], layers: layers, blocks: blocks, blockBytes: blockBytes}
}

// block is the memory of one layer block.
func (c *layerMajor) block(layer, block int) []byte {
	off := (layer*c.blocks + block) * c.blockBytes
	return c.mem[off : off+c.blockBytes]
}

// resize changes the number of blocks and returns how many bytes moved. Blocks
// below both numbers keep their contents. The freed memory lies at the end of
// the arena, where another model can have it.
func (c *layerMajor) resize(blocks int) (moved int, err error) {
	if blocks < 1 || c.layers*blocks*c.blockBytes > len(c.mem) {
		return 0, fmt.Errorf("resize to %d blocks, want 1 to %d", blocks, len(c.mem)/c.layers/c.blockBytes)
	}
	old, now := c.blocks*c.blockBytes, blocks*c.blockBytes
	keep := min(old, now)
	if now < old {
		// Downwards: from the first layer on, so that no layer is overwritten
		// before it has moved.
		for l := 1; l < c.layers; l++ {
			moved += copy(c.mem[l*now:l*now+keep], c.mem[l*old:l*old+keep])
		}
	} else if now > old {
		for l := c.layers - 1; l > 0; l-- {
			moved += copy(c.mem[l*now:l*now+keep], c.mem[l*old:l*old+keep])
		}
	}
	c.blocks = blocks
	return moved, nil
}
